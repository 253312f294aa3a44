//! A process of the tests' own, and all that it writes.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

/// Tells a started copy of this program which part to play.
const PART: &str = "KVHINTS_UCX_GUEST_PART";

pub fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// How a process ended, and what it wrote.
pub struct Seen {
    part: String,
    pub status: ExitStatus,
    pub written: String,
}

impl Seen {
    /// It did well, and wrote nothing.
    pub fn is_silent(&self) {
        assert!(self.status.success() && self.written.is_empty(), "{}", self.account());
    }

    /// It did well, whatever it wrote.
    pub fn did_well(&self) {
        assert!(self.status.success(), "{}", self.account());
    }

    fn account(&self) -> String {
        let Self { part, status, written } = self;
        format!("{part}: {status}, {} bytes written:\n{written}", written.len())
    }
}

/// This program once more. Of UCX's variables it has those given here.
fn again(part: &str, variables: &[(&str, &str)]) -> Command {
    let program = std::env::current_exe().expect("a program");
    let mut command = Command::new(program);
    command.args(["child", "--exact", "--nocapture", "--test-threads=1"]);
    let is_of_ucx = |name: &std::ffi::OsString| name.to_string_lossy().starts_with("UCX_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_ucx(name)) {
        command.env_remove(name);
    }
    command.env(PART, part).envs(variables.iter().copied());
    command
}

/// Has a process play a part to its end. What it and its own processes write goes to a socket, which
/// they have as their standard input.
pub fn play(part: &str, variables: &[(&str, &str)]) -> Seen {
    let (mut ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    let mut command = again(part, variables);
    command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("this program starts");
    // Else the end of the socket is open here too, and reading never ends.
    drop(command);
    let mut written = Vec::new();
    ours.read_to_end(&mut written).expect("readable");
    let status = child.wait().expect("a child");
    Seen { part: part.to_owned(), status, written: String::from_utf8_lossy(&written).into_owned() }
}

/// From here on what this process writes is seen by the test. What its starter gets is the file.
pub fn be_watched() -> File {
    // The harness's own words are not of interest.
    std::io::stdout().flush().expect("somebody reads it");
    let socket = libc::STDIN_FILENO;
    // SAFETY: descriptors of this process; the copy is nobody else's.
    unsafe {
        let to_starter = libc::dup(libc::STDOUT_FILENO);
        assert!(to_starter >= 0);
        assert_eq!(libc::dup2(socket, libc::STDOUT_FILENO), libc::STDOUT_FILENO);
        assert_eq!(libc::dup2(socket, libc::STDERR_FILENO), libc::STDERR_FILENO);
        File::from_raw_fd(to_starter)
    }
}

/// A peer in a process of its own, started by one that is watched; killed when dropped.
pub struct Peer {
    pub child: Child,
    lines: BufReader<ChildStdout>,
}

impl Peer {
    pub fn start(part: &str) -> Self {
        let mut command = again(part, &[]);
        command.stdin(Stdio::inherit()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().expect("this program starts");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, lines }
    }

    /// The rest of the line that has `word`: the harness writes on the same lines.
    pub fn line(&mut self, word: &str) -> String {
        let mut line = String::new();
        while self.lines.read_line(&mut line).expect("readable") > 0 {
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
            line.clear();
        }
        panic!("the peer ended without {word}");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Fails where it ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
