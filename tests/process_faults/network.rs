//! Two workers in two network namespaces, over TCP, on a network that delays, loses and cuts. Needs root
//! and iproute2; netem too, where the kernel's own loss and delay are to be had.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::process::{DestinationProcess, SourceProcess, PATIENCE};
use crate::road::Road;
use crate::worker::Settings;
use crate::{is_long, tell, ucx_is_here};

const DEVICE: &str = "road0";

/// Two namespaces, each with a device of the same name; removed when dropped.
struct Namespaces {
    names: [String; 2],
    hosts: [&'static str; 2],
}

impl Namespaces {
    /// `Err` with the reason where this machine has none to give.
    fn new(word: &str) -> Result<Self, String> {
        let names = ["a", "b"].map(|end| format!("kvhints-{word}-{}-{end}", std::process::id()));
        let namespaces = Self { names, hosts: ["10.213.0.1", "10.213.0.2"] };
        for name in &namespaces.names {
            ip(&["netns", "add", name])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        Ok(namespaces)
    }

    /// A pair of virtual Ethernet devices.
    fn with_ethernet(&self) -> Result<(), String> {
        let [a, b] = &self.names;
        ip(&[
            "link", "add", DEVICE, "netns", a, "type", "veth", "peer", "name", DEVICE, "netns", b,
        ])?;
        self.up()
    }

    fn up(&self) -> Result<(), String> {
        for (name, host) in self.names.iter().zip(self.hosts) {
            ip(&["-n", name, "addr", "add", &format!("{host}/24"), "dev", DEVICE])?;
            ip(&["-n", name, "link", "set", DEVICE, "up"])?;
        }
        self.wait_for_carriers()
    }

    /// A device has a carrier some time after both ends are up; UCX takes none without.
    fn wait_for_carriers(&self) -> Result<(), String> {
        for name in &self.names {
            let until = Instant::now() + PATIENCE;
            while !run("ip", &["-n", name, "-o", "link", "show", DEVICE])?.contains("LOWER_UP") {
                if Instant::now() > until {
                    return Err(format!("{DEVICE} has no carrier"));
                }
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    fn settings(&self, end: usize) -> Settings {
        Settings::default()
            .with("host", self.hosts[end])
            .with("device", DEVICE)
            .with("metadata_ms", 2_000)
            .with("transfer_ms", 2_000)
            .with("hold_ms", 2_000)
    }

    fn source(&self) -> SourceProcess {
        SourceProcess::start(&self.settings(0), Some(&self.names[0]))
    }

    fn destination(&self) -> DestinationProcess {
        DestinationProcess::start(&self.settings(1), Some(&self.names[1]))
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            // Fails where it was never made.
            let _ = ip(&["netns", "del", name]);
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    run("ip", arguments).map(drop)
}

/// What the program wrote, or why there is nothing.
fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output();
    match output {
        Err(error) => Err(format!("{program} cannot be run: {error}")),
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr);
            Err(format!("{program} {}: {}", arguments.join(" "), why.trim().replace('\n', " ")))
        }
    }
}

/// What the network does, by name.
enum Weather {
    Clear,
    Late,
    Lossy,
}

const WEATHERS: [(Weather, &str); 3] = [
    (Weather::Clear, "clear"),
    (Weather::Late, "20 ms late each way, up to 5 ms more"),
    (Weather::Lossy, "2 of 100 packets lost, 2 ms late"),
];

fn fetches_in_one_weather() -> usize {
    if is_long() {
        20
    } else {
        1
    }
}

#[test]
fn two_namespaces_over_ethernet() {
    if !ucx_is_here() {
        return;
    }
    let namespaces =
        match Namespaces::new("eth").and_then(|made| made.with_ethernet().map(|()| made)) {
            Ok(namespaces) => namespaces,
            Err(why) => return tell(&format!("SKIPPED two_namespaces_over_ethernet: {why}")),
        };
    let (mut source, mut destination) = (namespaces.source(), namespaces.destination());
    let mut lines = String::new();
    for (weather, name) in WEATHERS {
        let netem: &[&str] = match weather {
            Weather::Clear => &[],
            Weather::Late => &["delay", "20ms", "5ms"],
            Weather::Lossy => &["loss", "2%", "delay", "2ms"],
        };
        let made = namespaces.names.iter().try_for_each(|namespace| {
            let qdisc = ["-n", namespace, "qdisc", "replace", "dev", DEVICE, "root", "netem"];
            if netem.is_empty() {
                return Ok(());
            }
            run("tc", &[&qdisc[..], netem].concat()).map(drop)
        });
        if let Err(why) = made {
            tell(&format!("SKIPPED two_namespaces_over_ethernet, {name}: {why}"));
            continue;
        }
        for _ in 0..fetches_in_one_weather() {
            destination.fetches(&source);
        }
        lines += &format!("- {name}: {} fetches delivered\n", fetches_in_one_weather());
    }
    let cut = |is_cut: bool| {
        let state = if is_cut { "down" } else { "up" };
        ip(&["-n", &namespaces.names[0], "link", "set", DEVICE, state]).expect("the link is ours");
    };
    lines += &partitions(&namespaces, &mut source, &mut destination, &cut);
    tell(&format!("### Two namespaces, virtual Ethernet\n\n{lines}"));
}

#[test]
fn two_namespaces_over_a_bad_road() {
    if !ucx_is_here() {
        return;
    }
    let laid = Namespaces::new("road").and_then(|namespaces| {
        let [a, b] = &namespaces.names;
        let road =
            Road::between([a, b], DEVICE).map_err(|error| format!("no TUN device: {error}"))?;
        namespaces.up()?;
        Ok((road, namespaces))
    });
    let (road, namespaces) = match laid {
        Ok(laid) => laid,
        Err(why) => return tell(&format!("SKIPPED two_namespaces_over_a_bad_road: {why}")),
    };
    let (mut source, mut destination) = (namespaces.source(), namespaces.destination());
    let mut lines = String::new();
    for (weather, name) in WEATHERS {
        let (lost, delay_us, jitter_us) = match weather {
            Weather::Clear => (0, 0, 0),
            Weather::Late => (0, 20_000, 5_000),
            Weather::Lossy => (200, 2_000, 0),
        };
        road.weather.lost.store(lost, Ordering::SeqCst);
        road.weather.delay_us.store(delay_us, Ordering::SeqCst);
        road.weather.jitter_us.store(jitter_us, Ordering::SeqCst);
        let (carried, dropped) = counts(&road);
        let mut ends = BTreeMap::<String, usize>::new();
        let is_enough = |ends: &BTreeMap<String, usize>| {
            let fetches = ends.values().sum::<usize>();
            // TCP takes its time to find out how fast this road is: the first ones may be late.
            fetches >= 10 * fetches_in_one_weather()
                || fetches >= fetches_in_one_weather() && ends.contains_key("delivered")
        };
        while !is_enough(&ends) {
            destination.begin(&source);
            let ended = destination.outcome();
            if ended.is_delivered() {
                destination.claim();
            }
            *ends.entry(ended.how).or_default() += 1;
        }
        destination.process.asks("settle");
        let (carried_now, dropped_now) = counts(&road);
        lines += &format!(
            "- {name}: {ends:?}; {} packets carried, {} dropped\n",
            carried_now - carried,
            dropped_now - dropped
        );
        let delivered = ends.get("delivered").copied().unwrap_or_default();
        assert!(delivered > 0, "{name}: {ends:?}");
    }
    road.weather.lost.store(0, Ordering::SeqCst);
    let cut = |is_cut: bool| road.weather.is_cut.store(is_cut, Ordering::SeqCst);
    lines += &partitions(&namespaces, &mut source, &mut destination, &cut);
    tell(&format!("### Two namespaces, a road that is bad on purpose\n\n{lines}"));
}

fn counts(road: &Road) -> (u64, u64) {
    let weather = &road.weather;
    (weather.carried.load(Ordering::SeqCst), weather.dropped.load(Ordering::SeqCst))
}

/// The network is cut while the source is in a state, and is whole again when both have given up.
fn partitions(
    namespaces: &Namespaces,
    source: &mut SourceProcess,
    destination: &mut DestinationProcess,
    cut: &dyn Fn(bool),
) -> String {
    let mut lines = String::new();
    let states: &[&str] =
        if is_long() { &["asked", "answered", "sending", "partly_sent"] } else { &["sending"] };
    for state in states {
        source.process.hold(state);
        destination.begin(source);
        source.process.hears("held");
        cut(true);
        source.process.tell("go");
        let ended = destination.outcome();
        assert!(
            ["transfer_timeout", "peer_gone"].contains(&ended.how.as_str()),
            "{state}: {ended:?}"
        );
        destination.process.asks("settle");
        source.process.asks("settle");
        cut(false);
        // TCP may still be waiting before it tries again on the old connection: nobody waits for that.
        destination.fetches(source);
        // Somebody new is served at once.
        let mut fresh = namespaces.destination();
        fresh.fetches(source);
        lines += &format!(
            "- cut while the source was in `{state}`: {}; whole again: the next one delivered\n",
            ended.how
        );
    }
    lines
}
