//! The part of a destination: fetches all that a source has into blocks of its own, over and over.

use std::collections::HashSet;

use kvhints::plan::{AddressBounds, Endpoint};
use kvhints::reuse::Policy;
use kvhints::transfer::prefetch::Outcome;
use kvhints::transfer::transceiver::{FetchOrder, Origin, PrefetchHandle};

use crate::link::Link;
use crate::states::Side;
use crate::worker::{wait_for, Content, Settings, Worker};

pub fn play(settings: &Settings) {
    let link = Link::to_the_test();
    let worker = Worker::new(settings, Side::Destination, &link);
    worker.fill(Content::Free);
    link.say("ready");
    let mut listed = HashSet::new();
    let mut latest: Option<PrefetchHandle> = None;
    loop {
        let order = link.order();
        let mut words = order.split(' ');
        match (words.next().unwrap_or_default(), words.next()) {
            ("fetch", Some(endpoint)) => {
                if listed.insert(endpoint.to_owned()) {
                    list(&worker, endpoint);
                }
                // Nobody wrote since the blocks were free last.
                assert_eq!(worker.differs(Content::Free), None, "a free block was written");
                link.at("fetching_state");
                let handle = begin(&worker, settings, endpoint);
                wait_for("an outcome", || handle.poll().1.is_some() && handle.is_quiesced());
                let outcome = handle.poll().1.expect("waited for");
                if matches!(outcome, Outcome::Delivered { .. }) {
                    link.at("delivered");
                    let is_right = worker.differs(Content::Right).is_none();
                    let bytes = if is_right { "right" } else { "wrong" };
                    link.say(&format!("outcome how=delivered bytes={bytes}"));
                } else {
                    worker.fill(Content::Free);
                    link.say(&format!("outcome how={} bytes=none", word(outcome)));
                }
                latest = Some(handle);
            }
            ("claim", None) => {
                let handle = latest.as_ref().expect("something was fetched");
                let blocks = handle.claim();
                // Whatever went on since they were delivered.
                assert_eq!(worker.differs(Content::Right), None, "delivered blocks were written");
                worker.fill(Content::Free);
                link.at("claimed");
                link.say(&format!("claim is_claimed={}", blocks == Some(settings.blocks() as u32)));
            }
            ("settle", None) => {
                let was = latest.as_ref().map(|handle| handle.poll().1);
                let settled = worker.settles();
                let is = latest.as_ref().map(|handle| handle.poll().1);
                assert_eq!(was, is, "an outcome never changes");
                assert_eq!(worker.differs(Content::Free), None, "a free block was written");
                link.say(&format!("settle {settled}"));
            }
            ("wires", None) => {
                wait_for("the wires", || !worker.transceiver.status().wires.is_empty());
                let wires = worker.transceiver.status().wires.replace(' ', "");
                link.say(&format!("wires wires={wires}"));
            }
            ("repeat", Some(numbers)) => {
                let (endpoint, count) = numbers.split_once(',').expect("where and how often");
                for _ in 0..count.parse::<usize>().expect("a number") {
                    let handle = begin(&worker, settings, endpoint);
                    wait_for("an outcome", || handle.poll().1.is_some() && handle.is_quiesced());
                    let blocks = handle.claim();
                    assert_eq!(blocks, Some(settings.blocks() as u32), "{:?}", handle.poll());
                }
                assert_eq!(worker.differs(Content::Right), None);
                worker.fill(Content::Free);
                link.say(&format!("repeat {}", worker.settles()));
            }
            other => panic!("no order {other:?}"),
        }
    }
}

fn list(worker: &Worker, endpoint: &str) {
    let endpoint = Endpoint::parse(endpoint).expect("an endpoint");
    let bounds = AddressBounds::within(&["127.0.0.0/8", "10.0.0.0/8"]).expect("good bounds");
    worker.transceiver.allow(endpoint, bounds).expect("not listed before");
}

fn begin(worker: &Worker, settings: &Settings, endpoint: &str) -> PrefetchHandle {
    let endpoint = Endpoint::parse(endpoint).expect("an endpoint");
    let order = FetchOrder {
        sequence: &worker.wanted,
        origin: Origin::Endpoint(endpoint),
        hint: None,
        first_block: 0,
        source_attention_data_rank: 0,
        max_tokens: worker.wanted.token_count(),
        destination: &worker.ids(),
        policy: Policy::Strict,
        deadlines: settings.deadlines(),
    };
    worker.transceiver.begin(&order).expect("all blocks are free")
}

fn word(outcome: Outcome) -> String {
    match outcome {
        Outcome::Delivered { .. } => "delivered".to_owned(),
        Outcome::ContentMiss => "content_miss".to_owned(),
        Outcome::Cancelled => "cancelled".to_owned(),
        Outcome::Failed(reason) => reason.name().to_owned(),
    }
}
