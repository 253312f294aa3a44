//! `kill -9` of either side in each state of the protocol, and at moments that nobody chose.
//!
//! After each death the one that lives on has one outcome for each request, no pin, no lent block and
//! nothing served, nobody writes to its free blocks, and it exchanges blocks with a fresh peer.

use std::collections::{BTreeMap, HashSet};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::process::{DestinationProcess, Ended, Process, Reply, SourceProcess, PATIENCE};
use crate::random::SplitMix;
use crate::states::Side;
use crate::worker::Settings;
use crate::{is_long, tell, ucx_is_here, WIRES};

struct Plan {
    /// Deaths in each state of each side, on each of the wires.
    chosen: usize,
    /// Deaths of each side at random, on each of the wires.
    random: usize,
    /// Deaths that each state of each side must have seen in the end.
    at_least: usize,
}

impl Plan {
    fn of_this_run() -> Self {
        if is_long() {
            // 17 states, so 170 and 32.
            Self { chosen: 5, random: 8, at_least: 10 }
        } else {
            Self { chosen: 1, random: 2, at_least: 2 }
        }
    }
}

/// What was seen of the deaths in one state.
#[derive(Default)]
struct Seen {
    chosen: usize,
    random: usize,
    /// How the other side's request ended; none at a source.
    ends: BTreeMap<String, usize>,
}

type Deaths = BTreeMap<(Side, String), Seen>;

#[test]
fn a_death_in_any_state_costs_the_other_side_one_outcome_and_nothing_else() {
    if !ucx_is_here() {
        return;
    }
    let plan = Plan::of_this_run();
    let mut deaths = Deaths::new();
    let mut told = String::new();
    for wires in WIRES {
        for victim in [Side::Source, Side::Destination] {
            told += &run(wires, victim, &plan, &mut deaths);
        }
    }
    let total: usize = deaths.values().map(|seen| seen.chosen + seen.random).sum();
    tell(&format!("### Killed in mid-transfer: {total} transfers\n\n{}{told}", table(&deaths)));
    for side in [Side::Source, Side::Destination] {
        for (state, _) in side.states() {
            let seen = deaths.get(&(side, (*state).to_owned()));
            let count = seen.map_or(0, |seen| seen.chosen + seen.random);
            assert!(count >= plan.at_least, "only {count} {side:?}s died in {state}");
        }
    }
}

/// All deaths of one side on one kind of wires: one process lives through them all.
fn run(wires: &str, victim: Side, plan: &Plan, deaths: &mut Deaths) -> String {
    let settings = Settings::default().with("wires", wires);
    let mut survivor = Survivor::start(&settings, victim);
    // A whole fetch first: how long one takes here, and over which wires it went.
    let usual = survivor.lives_well(&settings);
    let first = survivor.settles();
    let mut rounds = 0;
    for (state, _) in victim.states() {
        for _ in 0..plan.chosen {
            let ended = survivor.sees_die(&settings, state);
            survivor.expects(state, &ended);
            note(deaths, victim, state, &ended, |seen| &mut seen.chosen);
            rounds += 1;
        }
    }
    let mut random = SplitMix(victim.states().len() as u64 + wires.len() as u64);
    for _ in 0..plan.random {
        let after = usual.mul_f64(random.below(1_200) as f64 / 1_000.0);
        let (state, ended) = survivor.sees_die_after(&settings, after);
        note(deaths, victim, &state, &ended, |seen| &mut seen.random);
        rounds += 1;
    }
    // A process that lived through all that has what it had after its first fetch, once UCX has forgotten
    // the last connection.
    let before = first.number("descriptors");
    let until = Instant::now() + PATIENCE;
    let mut last = survivor.settles();
    while last.number("descriptors") > before && Instant::now() < until {
        last = survivor.settles();
    }
    let after = last.number("descriptors");
    assert!(after <= before, "{before} descriptors grew to {after}");
    format!(
        "- {wires}, {} killed {rounds} times (as often once more, idle, after a whole fetch); the \
         other side had {before} descriptors and {} KiB before, {after} and {} KiB after; wires: {}\n",
        victim.part(),
        first.number("resident_kib"),
        last.number("resident_kib"),
        survivor.wires,
    )
}

fn note(
    deaths: &mut Deaths,
    side: Side,
    state: &str,
    ended: &Option<Ended>,
    count: impl Fn(&mut Seen) -> &mut usize,
) {
    let seen = deaths.entry((side, state.to_owned())).or_default();
    *count(seen) += 1;
    if let Some(ended) = ended {
        *seen.ends.entry(ended.how.clone()).or_default() += 1;
    }
}

fn table(deaths: &Deaths) -> String {
    let mut text =
        "| killed | in the state | chosen | random | then the request of the other side ended \
                    |\n|---|---|---|---|---|\n"
            .to_owned();
    for side in [Side::Source, Side::Destination] {
        let of_side = deaths.iter().filter(|((of, _), _)| *of == side);
        let in_order = side.states().iter().map(|(state, _)| *state);
        let others: Vec<&str> = of_side
            .map(|((_, state), _)| state.as_str())
            .filter(|state| side.states().iter().all(|(known, _)| known != state))
            .collect();
        for state in in_order.chain(others) {
            let Some(seen) = deaths.get(&(side, state.to_owned())) else { continue };
            let means = side.states().iter().find(|(known, _)| *known == state);
            let means = means.map_or("before its first", |(_, means)| *means);
            let ends: Vec<String> =
                seen.ends.iter().map(|(how, count)| format!("{how} {count}")).collect();
            text += &format!(
                "| {} | `{state}`: {means} | {} | {} | {} |\n",
                side.part(),
                seen.chosen,
                seen.random,
                if ends.is_empty() { "-".to_owned() } else { ends.join(", ") },
            );
        }
    }
    text + "\n"
}

/// The side that is not killed, and what it has been through.
struct Survivor {
    side: Peer,
    /// Fetches begun by it, if it is the destination.
    begun: u64,
    /// Where sources have been: the system may give a port again, and a state that is known of an earlier
    /// source there would be another test.
    endpoints: HashSet<String>,
    wires: String,
}

enum Peer {
    Source(SourceProcess),
    Destination(DestinationProcess),
}

/// A source and a destination, one of which is about to die.
struct Pair<'a> {
    source: &'a mut SourceProcess,
    destination: &'a mut DestinationProcess,
}

impl Pair<'_> {
    fn process(&mut self, side: Side) -> &mut Process {
        match side {
            Side::Source => &mut self.source.process,
            Side::Destination => &mut self.destination.process,
        }
    }
}

/// The one that dies.
enum Victim {
    Source(SourceProcess),
    Destination(DestinationProcess),
}

impl Victim {
    fn kill(self) -> String {
        match self {
            Self::Source(source) => source.process.kill(),
            Self::Destination(destination) => destination.process.kill(),
        }
    }
}

impl Survivor {
    fn start(settings: &Settings, victim: Side) -> Self {
        let side = match victim {
            Side::Source => Peer::Destination(DestinationProcess::start(settings, None)),
            Side::Destination => Peer::Source(SourceProcess::start(settings, None)),
        };
        Self { side, begun: 0, endpoints: HashSet::new(), wires: String::new() }
    }

    fn victim_side(&self) -> Side {
        match self.side {
            Peer::Source(_) => Side::Destination,
            Peer::Destination(_) => Side::Source,
        }
    }

    fn starts_a_peer(&mut self, settings: &Settings) -> Victim {
        if self.victim_side() == Side::Destination {
            return Victim::Destination(DestinationProcess::start(settings, None));
        }
        loop {
            let source = SourceProcess::start(settings, None);
            if self.endpoints.insert(source.endpoint.clone()) {
                return Victim::Source(source);
            }
        }
    }

    fn with<'a>(&'a mut self, victim: &'a mut Victim) -> Pair<'a> {
        match (&mut self.side, victim) {
            (Peer::Source(source), Victim::Destination(destination)) => {
                Pair { source, destination }
            }
            (Peer::Destination(destination), Victim::Source(source)) => {
                Pair { source, destination }
            }
            _ => unreachable!("a victim is the other side"),
        }
    }

    /// A whole fetch with a fresh peer, which dies afterwards; how long it took.
    fn lives_well(&mut self, settings: &Settings) -> Duration {
        let mut peer = self.starts_a_peer(settings);
        let pair = self.with(&mut peer);
        let start = Instant::now();
        pair.destination.fetches(pair.source);
        let took = start.elapsed();
        let wires = pair.destination.process.asks("wires").word("wires").to_owned();
        self.wires = wires;
        self.counts_a_fetch();
        self.settles();
        peer.kill();
        took
    }

    /// A fetch whose other side dies in that very state; how the fetch ended, if this side's it is.
    fn sees_die(&mut self, settings: &Settings, state: &str) -> Option<Ended> {
        let victim_side = self.victim_side();
        let hold = match state {
            // Nothing of this side's ends the state: the other side is held.
            "fetching_state" => Some((Side::Source, "state_asked")),
            // Only the test ends these.
            "delivered" | "claimed" => None,
            state => Some((victim_side, state)),
        };
        let mut victim = self.starts_a_peer(settings);
        let mut pair = self.with(&mut victim);
        if let Some((side, held)) = hold {
            pair.process(side).hold(held);
            pair.destination.begin(pair.source);
            assert_eq!(pair.process(side).hears("held"), held);
        } else {
            pair.destination.begin(pair.source);
            assert!(pair.destination.outcome().is_delivered());
            if state == "claimed" {
                pair.destination.claim();
            }
        }
        let died_in = victim.kill();
        assert_eq!(died_in, state);
        self.ends_well(settings)
    }

    /// A fetch whose other side dies some time after its beginning; in which state that was.
    fn sees_die_after(&mut self, settings: &Settings, after: Duration) -> (String, Option<Ended>) {
        let mut victim = self.starts_a_peer(settings);
        let pair = self.with(&mut victim);
        pair.destination.begin(pair.source);
        // Not for anything to happen: the moment is to be any.
        let (_never, nothing) = channel::<()>();
        assert_eq!(nothing.recv_timeout(after), Err(RecvTimeoutError::Timeout));
        let died_in = victim.kill();
        (died_in, self.ends_well(settings))
    }

    /// The other side is dead. This one's request ends, nothing is left of it, and a fresh peer is as
    /// good as any.
    fn ends_well(&mut self, settings: &Settings) -> Option<Ended> {
        let ended = match &mut self.side {
            Peer::Source(source) => {
                source.process.tell("go");
                None
            }
            Peer::Destination(destination) => {
                destination.process.tell("go");
                let ended = destination.outcome();
                if ended.is_delivered() {
                    destination.claim();
                }
                Some(ended)
            }
        };
        self.counts_a_fetch();
        self.settles();
        self.lives_well(settings);
        ended
    }

    fn counts_a_fetch(&mut self) {
        self.begun += u64::from(matches!(self.side, Peer::Destination(_)));
    }

    /// Nothing is in flight on this side any more, and each request had one outcome.
    fn settles(&mut self) -> Reply {
        let process = match &mut self.side {
            Peer::Source(source) => &mut source.process,
            Peer::Destination(destination) => &mut destination.process,
        };
        let reply = process.asks("settle");
        assert_eq!(reply.number("begun"), self.begun, "{}", reply.0);
        assert_eq!(reply.number("ended"), self.begun, "{}", reply.0);
        reply
    }

    /// Whether a request may end so after its source died in that state.
    fn expects(&self, state: &str, ended: &Option<Ended>) {
        let Some(ended) = ended else { return };
        let may_be: &[&str] = match state {
            "state_asked" => &["metadata_failed"],
            // All that was sent may arrive all the same.
            "all_sent" => &["delivered", "peer_gone"],
            _ => &["peer_gone"],
        };
        assert!(may_be.contains(&ended.how.as_str()), "{state}: {ended:?}");
    }
}
