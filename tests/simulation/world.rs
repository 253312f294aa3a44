//! One world from one seed: workers, a network, a stranger, faults, and a look at every promise after
//! each step. Everything happens on one thread, in virtual time; nothing but the seed decides.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvhints::reuse::Policy;
use parking_lot::Mutex;

use crate::clock::{WorldClock, MS};
use crate::network::{Net, Network, Weather};
use crate::promise;
use crate::prompts::Prompts;
use crate::random::SplitMix;
use crate::report::Report;
use crate::sabotage::Sabotage;
use crate::states::{self, Published};
use crate::stranger::Stranger;
use crate::worker::{Around, Kept, Worker};

/// Steps in which anything may happen, and then those in which all must come to rest.
const MIN_STEPS: usize = 500;
const MORE_STEPS: usize = 700;
const MAX_STEPS_TO_REST: usize = 20_000;

pub struct World {
    clock: Arc<WorldClock>,
    network: Network,
    published: Published,
    prompts: Prompts,
    workers: Vec<Option<Worker>>,
    stranger: Option<Stranger>,
    rng: SplitMix,
    report: Report,
    sabotage: Option<Sabotage>,
    weather: Weather,
    trace: Option<Vec<String>>,
}

/// What came of a seed.
pub struct Lived {
    pub report: Report,
    pub broken: Option<String>,
    pub trace: Vec<String>,
}

/// Lives one seed.
pub fn live(seed: u64, sabotage: Option<Sabotage>, is_traced: bool) -> Lived {
    let mut world = World::new(seed, sabotage, is_traced);
    let kept = world.run();
    let mut report = std::mem::take(&mut world.report);
    report.merge(&world.network.lock().report);
    report.add("time", "virtual milliseconds", world.clock.now_ns() / MS);
    report.one("time", "seeds");
    let trace = world.trace.take().unwrap_or_default();
    Lived { report, broken: kept.err(), trace }
}

fn weather_of(rng: &mut SplitMix) -> Weather {
    let delay_ns = [200_000, 2 * MS, 10 * MS][rng.below(3)];
    let fair = Weather { delay_ns, held_up_ns: 300 * MS, ..Weather::default() };
    let mut some = |most: usize| if rng.below(2) == 0 { 0 } else { rng.below(most) };
    let breaking = Weather {
        breaks_off: some(600),
        refused: some(600),
        reset: some(600),
        state_trouble: some(3_000),
        held_up: some(600),
        ..fair
    };
    let losing = Weather {
        lost: some(600),
        repeated: some(1_000),
        overtakes: some(2_000),
        held_up: some(800),
        ..breaking
    };
    let damaging = Weather { damaged: some(600), data_damaged: some(2_000), ..losing };
    [fair, breaking, losing, damaging][rng.below(4)]
}

impl World {
    fn new(seed: u64, sabotage: Option<Sabotage>, is_traced: bool) -> Self {
        let mut rng = SplitMix(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let clock = Arc::new(WorldClock::default());
        let weather = weather_of(&mut rng);
        let mut net = Net::new(Arc::clone(&clock), rng.below(usize::MAX) as u64, weather);
        net.sabotage = sabotage;
        let network = Arc::new(Mutex::new(net));
        let stranger = Some(Stranger::new(&network));
        let hosts = 2 + rng.below(3);
        let mut world = Self {
            clock,
            network,
            published: Arc::new(Mutex::new(BTreeMap::new())),
            prompts: Prompts::new(),
            workers: (0..hosts).map(|_| None).collect(),
            stranger,
            rng,
            report: Report::default(),
            sabotage,
            weather,
            trace: is_traced.then(Vec::new),
        };
        (0..hosts).for_each(|host| world.start(host));
        world
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        let now_ns = self.clock.now_ns();
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{now_ns:>14} {}", what()));
        }
    }

    /// A worker and what it may use.
    fn with<T>(
        &mut self,
        host: usize,
        act: impl FnOnce(&mut Worker, &mut Around) -> T,
    ) -> Option<T> {
        let hosts = self.workers.len();
        let worker = self.workers[host].as_mut()?;
        let mut around = Around {
            rng: &mut self.rng,
            report: &mut self.report,
            prompts: &self.prompts,
            published: &self.published,
            sabotage: self.sabotage,
            hosts,
            now_ns: self.clock.now_ns(),
            damages: self.weather.damages(),
        };
        Some(act(worker, &mut around))
    }

    fn start(&mut self, host: usize) {
        let mut around = Around {
            rng: &mut self.rng,
            report: &mut self.report,
            prompts: &self.prompts,
            published: &self.published,
            sabotage: self.sabotage,
            hosts: self.workers.len(),
            now_ns: self.clock.now_ns(),
            damages: self.weather.damages(),
        };
        let worker = Worker::start(&self.network, &self.clock, host, &mut around);
        self.workers[host] = Some(worker);
    }

    fn run(&mut self) -> Kept {
        let steps = MIN_STEPS + self.rng.below(MORE_STEPS);
        for _ in 0..steps {
            self.step()?;
        }
        self.rest()?;
        self.probe()?;
        self.close()
    }

    fn step(&mut self) -> Kept {
        match self.rng.below(1000) {
            0..260 => self.host_acts(),
            260..272 => self.fault(),
            _ => self.go_on(),
        }
    }

    // ---- hosts ----

    fn host_acts(&mut self) -> Kept {
        let host = self.rng.below(self.workers.len());
        let action = self.rng.below(1000);
        self.note(|| format!("host {host} does {action}"));
        self.report.one("steps", "host actions");
        self.with(host, |worker, around| -> Kept {
            match action {
                0..220 => {
                    let prompt = around.prompts.any_common(around.rng);
                    let blocks = 1 + around.rng.below(7);
                    worker.store(around, prompt, blocks);
                }
                220..300 => worker.pass_fence(),
                300..380 => worker.evict_one(around),
                380..390 => worker.remove(around),
                390..430 => worker.pin_or_unpin(around),
                430..450 => worker.refresh(),
                450..720 => worker.begin(around)?,
                720..760 => worker.cancel_one(around),
                760..800 => worker.drop_one(around)?,
                800..900 => worker.settle(around, true)?,
                900..970 => worker.settle(around, false)?,
                _ if around.sabotage == Some(Sabotage::LateWrite) => worker.write_late(),
                _ => {}
            }
            worker.check(around)
        })
        .unwrap_or(Ok(()))
    }

    // ---- time, frames, rounds ----

    fn go_on(&mut self) -> Kept {
        let now_ns = self.clock.now_ns();
        let frame_ns = self.network.lock().next_ns().unwrap_or(u64::MAX);
        let ready: Vec<usize> =
            (0..self.workers.len()).filter(|host| self.is_ready(*host)).collect();
        if frame_ns <= now_ns && (ready.is_empty() || self.rng.below(2) == 0) {
            return self.arrive();
        }
        if !ready.is_empty() {
            let host = ready[self.rng.below(ready.len())];
            return self.round(host);
        }
        let wakes = self.workers.iter().flatten().filter(|worker| worker.driver.is_some());
        let due_ns = wakes.map(|worker| worker.due_ns().max(worker.stalled_until_ns)).min();
        let next_ns = frame_ns.min(due_ns.unwrap_or(u64::MAX));
        let next_ns = match next_ns {
            u64::MAX => now_ns + MS,
            next_ns => next_ns.max(now_ns + 1),
        };
        self.clock.advance_to(next_ns);
        Ok(())
    }

    fn is_ready(&self, host: usize) -> bool {
        let now_ns = self.clock.now_ns();
        self.workers[host].as_ref().is_some_and(|worker| {
            worker.driver.is_some()
                && worker.stalled_until_ns <= now_ns
                && (worker.is_busy
                    || worker.waker.is_set()
                    || worker.due_ns() <= now_ns
                    || self.network.lock().has_events(worker.station))
        })
    }

    fn arrive(&mut self) -> Kept {
        self.note(|| "a frame arrives".to_owned());
        let arrived = self.network.lock().arrive();
        if let Some(arrived) = arrived {
            states::answer(&self.published, arrived);
        }
        self.check_network()
    }

    fn check_network(&mut self) -> Kept {
        match self.network.lock().violations.pop() {
            Some(what) => Err(what),
            None => Ok(()),
        }
    }

    fn round(&mut self, host: usize) -> Kept {
        let budget = if self.rng.below(3) == 0 { usize::MAX } else { self.rng.below(4) };
        self.note(|| format!("worker {host} runs, for {budget} events"));
        let network = Arc::clone(&self.network);
        self.with(host, |worker, around| -> Kept {
            network.lock().allow_events(worker.station, budget);
            worker.round(around)?;
            worker.check(around)
        })
        .unwrap_or(Ok(()))?;
        self.check_network()
    }

    // ---- faults ----

    fn fault(&mut self) -> Kept {
        self.report.one("steps", "faults");
        let host = self.rng.below(self.workers.len());
        let kind = self.rng.below(100);
        self.note(|| format!("fault {kind} at {host}"));
        if self.workers[host].is_none() {
            self.report.one("faults", "restart");
            self.start(host);
            return Ok(());
        }
        match kind {
            0..6 => self.crash(host, false),
            6..12 => self.crash(host, true),
            12..18 => self.shut_down(host)?,
            18..40 => {
                self.report.one("faults", "worker stalled");
                let until_ns = self.clock.now_ns() + self.rng.below(300) as u64 * MS;
                self.with(host, |worker, _| worker.stalled_until_ns = until_ns);
            }
            40..52 => {
                let other = self.rng.below(self.workers.len());
                if other != host {
                    self.report.one("faults", "partition");
                    self.network.lock().part(host, other);
                }
            }
            52..68 => {
                self.report.one("faults", "partition healed");
                self.network.lock().heal();
            }
            68..71 => {
                let network = Arc::clone(&self.network);
                self.with(host, |worker, _| {
                    worker.may_panic = true;
                    network.lock().make_panic(worker.station);
                });
            }
            71..78 => {
                let station = self.workers[host].as_ref().map_or(0, |worker| worker.station);
                if self.network.lock().reset_one(station) {
                    self.report.one("faults", "connection reset");
                }
            }
            _ => self.stranger_acts(host),
        }
        Ok(())
    }

    fn stranger_acts(&mut self, host: usize) {
        let Some(target) = self.published.lock().get(&host).cloned() else { return };
        let Some(stranger) = &mut self.stranger else { return };
        self.report.one("faults", "stranger's frame");
        for _ in 0..3 {
            stranger.act(&self.network, &target, &mut self.rng, &self.prompts);
        }
    }

    fn crash(&mut self, host: usize, is_silent: bool) {
        let what = if is_silent { "crash without a word" } else { "crash" };
        self.report.one("faults", what);
        self.published.lock().remove(&host);
        if let Some(worker) = self.workers[host].take() {
            worker.tell(&mut self.report);
            if is_silent {
                self.network.lock().silence(worker.station);
            }
        }
    }

    fn shut_down(&mut self, host: usize) -> Kept {
        self.report.one("faults", "shutdown");
        self.published.lock().remove(&host);
        self.with(host, |worker, around| -> Kept {
            drop(worker.transceiver.take());
            worker.end()?;
            worker.check(around)?;
            worker.check_settled(around)?;
            worker.tell(around.report);
            Ok(())
        })
        .unwrap_or(Ok(()))?;
        self.workers[host] = None;
        Ok(())
    }

    // ---- the end ----

    /// The weather clears; everything must come to an end by itself.
    fn rest(&mut self) -> Kept {
        self.note(|| "the weather clears".to_owned());
        {
            let mut net = self.network.lock();
            net.heal();
            net.weather = Weather { delay_ns: MS, ..Weather::default() };
        }
        for host in 0..self.workers.len() {
            self.with(host, |worker, _| worker.stalled_until_ns = 0);
        }
        self.until_settled()?;
        for host in 0..self.workers.len() {
            // One that was to panic and had nothing to do yet would do it later.
            let is_alive = self.workers[host]
                .as_ref()
                .is_some_and(|worker| worker.driver.is_some() && !worker.may_panic);
            if is_alive {
                self.with(host, |worker, around| worker.check_settled(around)).unwrap_or(Ok(()))?;
            } else {
                if let Some(worker) = self.workers[host].take() {
                    worker.tell(&mut self.report);
                }
                self.start(host);
            }
        }
        Ok(())
    }

    fn until_settled(&mut self) -> Kept {
        for _ in 0..MAX_STEPS_TO_REST {
            let is_quiet = self
                .workers
                .iter()
                .flatten()
                .all(|worker| worker.driver.is_none() || worker.is_settled());
            if is_quiet && self.network.lock().next_ns().is_none() {
                return Ok(());
            }
            self.go_on()?;
        }
        let what = self.workers.iter().flatten().map(|worker| {
            let status = worker.transceiver.as_ref().map(|transceiver| {
                let (running, lent) =
                    (transceiver.prefetches_in_flight(), transceiver.blocks_lent());
                (running, lent, transceiver.status().requests_in_flight)
            });
            format!("{status:?}")
        });
        let what: Vec<String> = what.collect();
        Err(format!("no rest: prefetches, blocks lent, requests: {}", what.join(" ")))
    }

    /// In fair weather everybody can fetch from everybody: nothing was left wedged.
    fn probe(&mut self) -> Kept {
        let hosts = self.workers.len();
        for (source, destination) in (0..hosts).flat_map(|a| (0..hosts).map(move |b| (a, b))) {
            if source == destination {
                continue;
            }
            self.note(|| format!("probe from {source} to {destination}"));
            let prompt = self.rng.below(3);
            for host in [source, destination] {
                self.with(host, |worker, around| {
                    worker.tree.reset();
                    worker.remove(around);
                });
            }
            self.with(source, |worker, around| {
                worker.store(around, prompt, usize::MAX);
                worker.pass_fence();
            });
            let mut is_delivered = false;
            // A state or a connection may be stale: then the first try finds out.
            for _ in 0..3 {
                // Not while the source still serves somebody else: it may have no room for two.
                self.until_settled()?;
                let before = self.delivered(destination);
                self.with(destination, |worker, around| {
                    worker.begin_of(around, prompt, source, Policy::Strict, true)
                })
                .unwrap_or(Ok(()))?;
                self.until_settled_or_delivered(destination, before)?;
                is_delivered = self.delivered(destination) > before;
                let words = self.workers[destination].as_ref().map(Worker::fetches_in_words);
                self.note(|| format!("the probe: {}", words.unwrap_or_default()));
                self.with(destination, |worker, around| {
                    worker.check(around)?;
                    worker.settle(around, true)
                })
                .unwrap_or(Ok(()))?;
                if is_delivered {
                    break;
                }
            }
            promise!(is_delivered, "in fair weather {destination} cannot fetch from {source}");
            self.report.one("transfers", "probe delivered");
        }
        self.until_settled()
    }

    fn delivered(&self, host: usize) -> u64 {
        let worker = self.workers[host].as_ref();
        worker.map_or(0, |worker| worker.metrics.prefetches_delivered.get(0))
    }

    fn until_settled_or_delivered(&mut self, host: usize, before: u64) -> Kept {
        for _ in 0..MAX_STEPS_TO_REST {
            let is_settled = self.workers[host].as_ref().is_none_or(Worker::is_settled);
            if is_settled || self.delivered(host) > before {
                return Ok(());
            }
            self.go_on()?;
        }
        Err("a probe has no end".to_owned())
    }

    /// Everybody goes, one after the other, and nothing is left.
    fn close(&mut self) -> Kept {
        for host in 0..self.workers.len() {
            self.with(host, |worker, around| -> Kept {
                worker.check_settled(around)?;
                drop(worker.transceiver.take());
                worker.end()?;
                worker.check(around)?;
                worker.tell(around.report);
                Ok(())
            })
            .unwrap_or(Ok(()))?;
            self.workers[host] = None;
        }
        self.stranger = None;
        let left = self.network.lock().leftovers();
        promise!(left == 0, "{left} transfers and stations are left");
        self.check_network()
    }
}
