//! The two checks of a destination, the plan's and the provider's: each stops an unlisted one with the
//! other switched off, before any socket is opened. Loopback sockets only.

mod plan_support;
mod transfer_support;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};

use kvhints::hint::{admit, Ingress, Scratch, Verdict};
use kvhints::plan::{
    decide, AddressBounds, Addressing, BindingTable, Capabilities, Endpoint, NamedFetch, Plan,
    Refusal, RequestKind, RequestProfile,
};
use kvhints::reuse::Policy;
use kvhints::transfer::loopback::LoopbackHub;
use kvhints::transfer::prefetch::{Outcome, State as PrefetchState};
use kvhints::transfer::reason::FailReason;
use kvhints::transfer::transceiver::Origin;
use plan_support::hint;
use transfer_support::{order, outcome, sequence, Setup, Worker};

const ANYWHERE_ON_LOOPBACK: &str = "127.0.0.1:0";

/// Listens, and notices everybody who connects.
struct Listener(TcpListener);

impl Listener {
    fn new() -> Self {
        let listener = TcpListener::bind(ANYWHERE_ON_LOOPBACK).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self(listener)
    }

    fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// Fails the test if anybody connected.
    fn nobody_came(&self, what: &str) {
        let nobody = self.0.accept().expect_err(what);
        assert_eq!(nobody.kind(), ErrorKind::WouldBlock, "{what}");
    }
}

fn capabilities() -> Capabilities {
    let mut capabilities = Capabilities::new();
    capabilities.add("f", "kv.fetch", "1.0").unwrap();
    capabilities
}

/// The plan's configuration: everything is allowed, at these endpoints.
fn registry(endpoints: &[&str]) -> BindingTable {
    let mut table = BindingTable::new();
    table.add_binding("b", "f", Addressing::ContentNamed, false).unwrap();
    table.add_action("b", "kv.fetch", "1.0").unwrap();
    table.authorise_namespace("b", b"n").unwrap();
    endpoints.iter().for_each(|endpoint| table.allow_endpoint(endpoint, "b").unwrap());
    table
}

/// The provider's configuration: these endpoints, at any address.
fn provider(endpoints: &[&str]) -> Worker {
    let worker = Worker::new(&LoopbackHub::new(1), Setup::default());
    for endpoint in endpoints {
        let endpoint = Endpoint::parse(endpoint).unwrap();
        worker.transceiver.allow(endpoint, AddressBounds::unbounded()).unwrap();
    }
    worker
}

fn profile(kind: RequestKind) -> RequestProfile<'static> {
    RequestProfile { has_lora: false, kind, required_handoff: true, namespace: b"n" }
}

fn planned(table: &BindingTable, kind: RequestKind, endpoint: &str) -> Plan {
    let endpoint = serde_json::to_string(endpoint).unwrap();
    let payload = format!(r#"{{"source_control_endpoint":{endpoint},"block_hashes":[1]}}"#);
    let snapshot = hint(&[("kv.fetch", "1.0", &payload)]);
    let profile = RequestProfile { has_lora: false, kind, required_handoff: true, namespace: b"n" };
    decide(Some(&snapshot), &capabilities(), table, &profile).unwrap().plan
}

/// Does what a host does with a plan; how the fetch ended, if there was one.
fn carried_out(plan: &Plan, worker: &Worker) -> Option<Outcome> {
    let Plan::NamedFetch(fetch) = plan else { return None };
    let wanted = sequence(1, 0);
    let origin = Origin::Endpoint(fetch.endpoint.clone());
    let handle = worker.begin_order(&order(origin, &wanted, &[5], Policy::Strict)).unwrap();
    let outcome = outcome(&handle);
    worker.settles();
    assert_eq!(handle.poll().0, PrefetchState::ContextInit, "the request can be scheduled");
    Some(outcome)
}

const DENIED: Option<Outcome> = Some(Outcome::Failed(FailReason::EndpointDenied));

/// The listener is one that can be reached: with both checks open, somebody comes.
#[test]
fn with_both_checks_open_the_listener_is_reached() {
    let listener = TcpListener::bind(ANYWHERE_ON_LOOPBACK).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let visitor = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    });
    let plan = planned(&registry(&[&url]), RequestKind::Context, &url);
    let ended = carried_out(&plan, &provider(&[&url]));
    assert_eq!(ended, Some(Outcome::Failed(FailReason::MetadataFailed)));
    visitor.join().unwrap();
}

#[test]
fn the_plan_alone_stops_an_unlisted_destination() {
    let listener = Listener::new();
    let plan = planned(&registry(&["http://listed"]), RequestKind::Context, &listener.url());
    assert_eq!(plan, Plan::Local(Refusal::EndpointUnlisted));
    // The provider's check is off: it lists whatever it is asked for.
    assert_eq!(carried_out(&plan, &provider(&[&listener.url()])), None);
    listener.nobody_came("the plan's check was alone");
}

#[test]
fn the_provider_alone_stops_an_unlisted_destination() {
    let listener = Listener::new();
    // The plan's check is off: it lists whatever it is asked for.
    let plan = planned(&registry(&[&listener.url()]), RequestKind::Context, &listener.url());
    assert!(matches!(plan, Plan::NamedFetch(_)));
    assert_eq!(carried_out(&plan, &provider(&["http://listed"])), DENIED);
    // Off altogether: a plan that no table ever saw, as bytes from another rank.
    let forged = Plan::NamedFetch(NamedFetch {
        binding_id: "b".into(),
        endpoint: Endpoint::parse(&listener.url()).unwrap(),
        action_index: 0,
        block_count: 1,
        last_block_hash: 1,
        then_paired_source: false,
        envelope: None,
    });
    let forged = Plan::from_bytes(&forged.to_bytes().unwrap()).unwrap();
    assert_eq!(carried_out(&forged, &provider(&["http://listed"])), DENIED);
    assert_eq!(carried_out(&forged, &provider(&[])), DENIED);
    listener.nobody_came("the provider's check was alone");
}

#[test]
fn a_listed_name_that_leads_elsewhere_is_not_followed() {
    let listener = Listener::new();
    let port = listener.address().port();
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"] {
        let url = format!("http://{host}:{port}");
        let plan = planned(&registry(&[&url]), RequestKind::Context, &url);
        let worker = provider(&[]);
        let bounds = AddressBounds::within(&["10.0.0.0/8", "fd00::/8"]).unwrap();
        worker.transceiver.allow(Endpoint::parse(&url).unwrap(), bounds).unwrap();
        assert_eq!(carried_out(&plan, &worker), DENIED, "{host}");
    }
    listener.nobody_came("the addresses were out of bounds");
}

/// Texts that try to be the listed endpoint for one reader and the listener for another. `{p}` is
/// the listener's port, and `http://127.0.0.1:1` is listed by both checks.
const DISGUISES: &[&str] = &[
    "http://127.0.0.1:{p}",
    "http://127.0.0.1:1@127.0.0.1:{p}",
    "http://127.0.0.1:1@127.0.0.1:{p}/v1/data_transceiver_state",
    "http://127.0.0.1:1:x@127.0.0.1:{p}",
    "http://127.0.0.1:1%40127.0.0.1:{p}",
    "http://127.0.0.1:1#@127.0.0.1:{p}",
    "http://127.0.0.1:1?@127.0.0.1:{p}",
    "http://127.0.0.1:1/@127.0.0.1:{p}",
    "http://127.0.0.1:1\\@127.0.0.1:{p}",
    "http://127.0.0.1:{p}\\@127.0.0.1:1",
    "http://127.0.0.1:{p}#@127.0.0.1:1",
    "http://127.0.0.1:{p}?@127.0.0.1:1",
    "http://127.0.0.1:{p}/@127.0.0.1:1",
    "http://127.0.0.1:{p}%2f@127.0.0.1:1",
    "http:\\\\127.0.0.1:{p}",
    "http:/127.0.0.1:{p}",
    "http:127.0.0.1:{p}",
    "http:///127.0.0.1:{p}",
    "//127.0.0.1:{p}",
    "http://127.0.0.1:1\t@127.0.0.1:{p}",
    "http://127.0.0.1:{p}\n",
    "http://127.0.0.1:1\r\nHost: 127.0.0.1:{p}",
    "http://127.0.0.1:1 127.0.0.1:{p}",
    "http://127.0.0.1:1/\r\n\r\nGET http://127.0.0.1:{p}/",
    "http://127.0.0.1:1/../../127.0.0.1:{p}",
    "http://127.0.0.1:1//127.0.0.1:{p}/",
    "http://127.0.0.1:1/http://127.0.0.1:{p}/",
    "http://127.0.0.1:1/%2e%2e//127.0.0.1:{p}",
    "http://127.0.0.1:1:{p}",
    "http://127.0.0.1:00001:{p}",
    "http://127.0.0.1:{p}:1",
    "http://127.1:{p}",
    "http://0x7f.1:{p}",
    "http://0177.0.0.1:{p}",
    "http://2130706433:{p}",
    "http://127.0.0.1.:{p}",
    "http://localhost:{p}",
    "http://LOCALHOST.:{p}",
    "http://[::ffff:127.0.0.1]:{p}",
    "http://[::ffff:7f00:1]:{p}",
    "http://[::127.0.0.1]:{p}",
    "http://[::1]:{p}",
    "http://[::1%25lo]:{p}",
    "http://0.0.0.0:{p}",
    "http://0:{p}",
    "http://[::]:{p}",
    "http://127。0。0。1:{p}",
    "http://①27.0.0.1:{p}",
    "http://%31%32%37.0.0.1:{p}",
    "http://%2531.0.0.1:{p}",
    "http://127.0.0.1%00.listed:{p}",
    "http://127.0.0.1:{p}\0",
    "http://127.0.0.1:1,127.0.0.1:{p}",
    "http://127.0.0.1:1;127.0.0.1:{p}",
    "https://127.0.0.1:{p}",
    "tcp://127.0.0.1:{p}",
    "tcp://127.0.0.1:1@127.0.0.1:{p}",
    "ftp://127.0.0.1:{p}",
    "ws://127.0.0.1:{p}",
    "unix://127.0.0.1:{p}",
    "file://127.0.0.1:{p}/",
    "http+unix://127.0.0.1:{p}",
];

#[test]
fn no_disguise_reaches_an_unlisted_address() {
    let listener = Listener::new();
    let port = listener.address().port().to_string();
    let listed = "http://127.0.0.1:1";
    let table = registry(&[listed]);
    let worker = provider(&[listed]);
    let canonical = Endpoint::parse(listed).unwrap();
    for disguise in DISGUISES {
        let text = disguise.replace("{p}", &port);
        match planned(&table, RequestKind::Context, &text) {
            Plan::Local(refusal) => assert_eq!(refusal, Refusal::EndpointUnlisted, "{disguise}"),
            Plan::NamedFetch(fetch) => assert_eq!(fetch.endpoint, canonical, "{disguise}"),
        }
        // With the plan's check off, the provider's meets the same text.
        let Ok(endpoint) = Endpoint::parse(&text) else { continue };
        let plan = planned(&registry(&[&text]), RequestKind::Context, &text);
        assert!(matches!(&plan, Plan::NamedFetch(fetch) if fetch.endpoint == endpoint));
        assert_eq!(carried_out(&plan, &worker), DENIED, "{disguise}");
        listener.nobody_came(disguise);
    }
    listener.nobody_came("no disguise helps");
}

/// One payload with two endpoints, one for each of two readers, is no hint at all.
#[test]
fn two_endpoints_in_one_payload_are_no_hint() {
    let listener = Listener::new();
    let url = listener.url();
    let listed = r#""source_control_endpoint":"http://listed""#;
    for other in [
        format!(r#""source_control_endpoint":"{url}""#),
        format!(r#""\u0073ource_control_endpoint":"{url}""#),
        format!(r#""source\u005fcontrol_endpoint":"{url}""#),
    ] {
        for (first, second) in [(listed, other.as_str()), (other.as_str(), listed)] {
            let text = format!(
                r#"{{"protocol_version":"0.1","message_id":"m","actions":[{{"action_id":"a","action_type":"kv.fetch","action_version":"1.0","payload":{{{first},{second},"block_hashes":[1]}}}}]}}"#
            );
            let verdict = admit(text.as_bytes(), Ingress::InProcess, &mut Scratch::new(7));
            assert!(matches!(verdict, Ok(Verdict::Malformed)), "{text}");
        }
    }
    // Names that only look alike are other members, which nobody reads.
    for name in ["Source_Control_Endpoint", "source_control_endpoint ", "source-control-endpoint"] {
        let payload = format!(r#"{{{listed},"{name}":"{url}","block_hashes":[1]}}"#);
        let snapshot = hint(&[("kv.fetch", "1.0", &payload)]);
        let profile = profile(RequestKind::Context);
        let table = registry(&["http://listed", &url]);
        let plan = decide(Some(&snapshot), &capabilities(), &table, &profile).unwrap().plan;
        let is_listed = |fetch: &NamedFetch| fetch.endpoint.host() == "listed";
        assert!(matches!(&plan, Plan::NamedFetch(fetch) if is_listed(fetch)), "{name}");
    }
    listener.nobody_came("nothing was fetched");
}

/// A fetch that fails leaves a generation-only request to its paired source, handoff and all: the
/// plan said so before, and nothing that happened changed it.
#[test]
fn a_failed_fetch_leaves_the_paired_source() {
    let closed = Listener::new().url();
    let table = registry(&[&closed]);
    for (worker, reason) in [
        (provider(&[&closed]), FailReason::MetadataFailed),
        (provider(&[]), FailReason::EndpointDenied),
    ] {
        let plan = planned(&table, RequestKind::GenerationOnly, &closed);
        let before = plan.clone();
        assert_eq!(carried_out(&plan, &worker), Some(Outcome::Failed(reason)));
        assert_eq!(plan, before);
        let Plan::NamedFetch(fetch) = &plan else { panic!("a fetch was planned") };
        assert!(fetch.then_paired_source);
        // The same request of another kind has no paired source to go to.
        let context = planned(&table, RequestKind::Context, &closed);
        assert!(matches!(context, Plan::NamedFetch(fetch) if !fetch.then_paired_source));
    }
}
