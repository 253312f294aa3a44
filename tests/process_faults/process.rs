//! A process of the test's own: what it says, what it is told, and its death. Killed when dropped.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use crate::states::Side;
use crate::worker::Settings;
use crate::PART;

/// No healthy process takes so long for anything; it ends a test that would never end.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Process {
    child: Child,
    to_child: UnixStream,
    lines: Receiver<String>,
    /// Since its start, for the message of a failure.
    heard: Vec<String>,
    /// The state that it entered last.
    pub state: String,
}

impl Process {
    /// Starts a copy of this program that plays a part; in a network namespace, if one is named.
    pub fn start(settings: &Settings, namespace: Option<&str>) -> Self {
        let program = std::env::current_exe().expect("a program");
        let mut command = match namespace {
            None => Command::new(program),
            Some(name) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", name]).arg(program);
                command
            }
        };
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let mut child = command
            .args(["child", "--exact", "--nocapture", "--test-threads=1"])
            .env(PART, settings.to_string())
            // Else what the allocator keeps for a thread's next allocations counts as allocated.
            .env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("this program starts");
        let (sender, lines) = channel();
        let errors = child.stderr.take().expect("piped");
        pump(errors, "stderr ", sender.clone());
        pump(ours.try_clone().expect("a socket"), "", sender);
        Self { child, to_child: ours, lines, heard: Vec::new(), state: "started".to_owned() }
    }

    pub fn tell(&mut self, line: &str) {
        self.to_child.write_all(format!("{line}\n").as_bytes()).expect("the process listens");
    }

    /// The rest of the next line that begins with `word`.
    pub fn hears(&mut self, word: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.note(&line);
                    if line.starts_with("stderr ") {
                        self.hears_it_out();
                        panic!("{}", self.account());
                    }
                    if let Some(rest) = line.strip_prefix(word) {
                        return rest.trim_start().to_owned();
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    panic!("waited in vain for {word:?}: {}", self.account())
                }
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("it ended without {word:?}: {}", self.account())
                }
            }
        }
    }

    /// Gives an order, and waits for the reply, which begins with the order's first word.
    pub fn asks(&mut self, order: &str) -> Reply {
        self.tell(order);
        Reply(self.hears(order.split(' ').next().unwrap_or(order)))
    }

    /// Tells it to stay in a state the next time that it enters it.
    pub fn hold(&mut self, state: &str) {
        self.tell(&format!("hold {state}"));
        self.hears("holding");
    }

    fn note(&mut self, line: &str) {
        if let Some(state) = line.strip_prefix("at ") {
            self.state = state.to_owned();
        }
        self.heard.push(line.to_owned());
    }

    /// Whoever complains is about to end.
    fn hears_it_out(&mut self) {
        while let Ok(line) = self.lines.recv_timeout(Duration::from_secs(1)) {
            self.note(&line);
        }
    }

    fn account(&self) -> String {
        let from = self.heard.len().saturating_sub(40);
        format!("the last that it said:\n  {}", self.heard[from..].join("\n  "))
    }

    /// `kill -9`; the state in which it died. What it had written before is read to the end.
    pub fn kill(mut self) -> String {
        self.child.kill().expect("it can be killed");
        let status = self.child.wait().expect("a child");
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            self.note(&line);
            assert!(!line.starts_with("stderr "), "{}", self.account());
        }
        assert_eq!(status.signal(), Some(libc::SIGKILL), "{status}: {}", self.account());
        std::mem::take(&mut self.state)
    }

    /// `SIGSTOP`, and waits until the system says that it stands still.
    pub fn stop(&mut self) {
        self.signal(libc::SIGSTOP);
        let stat = format!("/proc/{}/stat", self.child.id());
        let is_stopped = || {
            let text = std::fs::read_to_string(&stat).expect("a Linux");
            let after_name = text.rsplit(')').next().unwrap_or("").trim_start();
            after_name.starts_with('T')
        };
        let until = Instant::now() + PATIENCE;
        while !is_stopped() {
            assert!(Instant::now() < until, "it does not stop");
            std::thread::yield_now();
        }
    }

    /// `SIGCONT`.
    pub fn go_on(&mut self) {
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a signal to a child of ours that was not waited for: its number is nobody else's.
        let sent = unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
        assert_eq!(sent, 0);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails where it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pump(stream: impl std::io::Read + Send + 'static, mark: &'static str, to: Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines() {
            // Its end, or the test's.
            let Ok(line) = line else { break };
            if to.send(format!("{mark}{line}")).is_err() {
                break;
            }
        }
    });
}

/// What a process says of itself in numbers.
pub struct Reply(pub String);

impl Reply {
    pub fn number(&self, name: &str) -> u64 {
        self.word(name).parse().unwrap_or_else(|_| panic!("no number {name} in {}", self.0))
    }

    /// What the process has of the system, as cells of a table.
    pub fn row(&self) -> String {
        let names = ["descriptors", "threads", "heap_bytes", "resident_kib"];
        names.map(|name| self.number(name).to_string()).join(" | ")
    }

    pub fn word(&self, name: &str) -> &str {
        let values = self.0.split(' ').filter_map(|part| part.split_once('='));
        let found = values.into_iter().find_map(|(key, value)| (key == name).then_some(value));
        found.unwrap_or_else(|| panic!("no {name} in {}", self.0))
    }
}

/// A source that is ready to serve, and where.
pub struct SourceProcess {
    pub process: Process,
    pub endpoint: String,
    /// Its state, in hexadecimal digits.
    pub state: String,
}

impl SourceProcess {
    pub fn start(settings: &Settings, namespace: Option<&str>) -> Self {
        Self::ready(Process::start(&settings.playing(Side::Source.part()), namespace))
    }

    pub fn ready(mut process: Process) -> Self {
        let reply = Reply(process.hears("ready"));
        let (endpoint, state) = (reply.word("endpoint").to_owned(), reply.word("state").to_owned());
        Self { process, endpoint, state }
    }
}

/// How a fetch ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// `delivered`, `content_miss`, `cancelled`, or the reason of a failure.
    pub how: String,
    /// Whether all delivered blocks were what they must be.
    pub is_right: bool,
}

impl Ended {
    pub fn is_delivered(&self) -> bool {
        self.how == "delivered"
    }
}

/// A destination.
pub struct DestinationProcess {
    pub process: Process,
}

impl DestinationProcess {
    pub fn start(settings: &Settings, namespace: Option<&str>) -> Self {
        let settings = settings.playing(Side::Destination.part());
        let mut process = Process::start(&settings, namespace);
        process.hears("ready");
        Self { process }
    }

    /// Begins to fetch everything from a source.
    pub fn begin(&mut self, source: &SourceProcess) {
        self.process.tell(&format!("fetch {}", source.endpoint));
    }

    /// Waits for the fetch's outcome and for its memory to be free.
    pub fn outcome(&mut self) -> Ended {
        let reply = Reply(self.process.hears("outcome"));
        let ended =
            Ended { how: reply.word("how").to_owned(), is_right: reply.word("bytes") == "right" };
        assert!(ended.is_right || !ended.is_delivered(), "wrong bytes were delivered");
        ended
    }

    /// Takes delivered blocks.
    pub fn claim(&mut self) {
        assert_eq!(self.process.asks("claim").word("is_claimed"), "true");
    }

    /// A whole fetch, which must succeed.
    pub fn fetches(&mut self, source: &SourceProcess) {
        self.begin(source);
        let ended = self.outcome();
        assert!(
            ended.is_delivered(),
            "a healthy fetch failed: {ended:?} {}",
            self.process.account()
        );
        self.claim();
    }
}
