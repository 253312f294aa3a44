//! The part of a source: holds blocks and serves them, and its state at an endpoint.

use std::io::{copy, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;

use kvhints::reuse::Evicted;

use crate::link::Link;
use crate::states::Side;
use crate::worker::{Content, Settings, Worker};

pub fn play(settings: &Settings) {
    let link = Link::to_the_test();
    let worker = Worker::new(settings, Side::Source, &link);
    let store = || {
        worker.fill(Content::Right);
        worker.tree.store(0, &worker.wanted, 0, &worker.ids()).expect("fresh blocks");
    };
    store();
    let inner = worker.transceiver.serve_http("127.0.0.1:0".parse().expect("an address"));
    let inner = inner.expect("it can listen").to_string();
    let front = (settings.host(), settings.number("http", 0) as u16);
    let front = TcpListener::bind(front).expect("the endpoint is free");
    let endpoint = format!("http://{}", front.local_addr().expect("it listens"));
    let asked = Arc::clone(&link);
    std::thread::spawn(move || serve(&front, &inner, &asked));
    let state = worker.transceiver.state().expect("one rank");
    let digits: String = state.iter().map(|byte| format!("{byte:02x}")).collect();
    link.say(&format!("ready endpoint={endpoint} state={digits}"));
    loop {
        let order = link.order();
        match order.as_str() {
            "settle" => link.say(&format!("settle {}", worker.settles())),
            "look" => link.say(&format!("look {}", worker.left())),
            // Its host needs the memory for something else.
            "reuse" => {
                worker.settles();
                let evicted = worker.tree.evict(0, 0);
                assert!(
                    matches!(evicted, Ok(Evicted::Left { .. })),
                    "it is protected: {evicted:?}"
                );
                worker.fill(Content::Other);
                link.say("reuse");
            }
            "store" => {
                store();
                link.say("store");
            }
            other => panic!("no order {other}"),
        }
    }
}

/// Tells of each who asks for the state, before it is answered; then hands the question on.
fn serve(front: &TcpListener, inner: &str, link: &Arc<Link>) {
    for caller in front.incoming() {
        let Ok(caller) = caller else { continue };
        let (inner, link) = (inner.to_owned(), Arc::clone(link));
        std::thread::spawn(move || {
            link.at("state_asked");
            // Whoever hangs up ends both directions.
            let _ = relay(&caller, &inner);
        });
    }
}

fn relay(caller: &TcpStream, inner: &str) -> std::io::Result<()> {
    let server = TcpStream::connect(inner)?;
    let (mut questions, mut to_server) = (caller.try_clone()?, server.try_clone()?);
    let asking = std::thread::spawn(move || {
        let _ = copy(&mut questions, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Write);
    });
    let (mut answers, mut to_caller) = (server, caller.try_clone()?);
    copy(&mut answers, &mut to_caller)?;
    to_caller.flush()?;
    caller.shutdown(Shutdown::Both)?;
    let _ = asking.join();
    Ok(())
}
