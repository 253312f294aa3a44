//! Lines between the test and the processes that it starts: one socket each, which outlives neither.
//!
//! A process says `at STATE` when it enters a state. Told `hold STATE`, it stays there the next time, and
//! says `held STATE`, until it is told `go`. So a test knows where a process stands without waiting for
//! time to pass.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// A process's own end.
pub struct Link {
    out: Mutex<UnixStream>,
    /// The state to stay in.
    held: Mutex<Option<String>>,
    released: Condvar,
    orders: Mutex<VecDeque<String>>,
    ordered: Condvar,
}

impl Link {
    /// The socket that the test put in the place of this process's standard input.
    pub fn to_the_test() -> Arc<Self> {
        let socket = std::io::stdin().as_fd().try_clone_to_owned().expect("the test's socket");
        let socket = UnixStream::from(socket);
        let out = Mutex::new(socket.try_clone().expect("a socket"));
        let link = Arc::new(Self {
            out,
            held: Mutex::new(None),
            released: Condvar::new(),
            orders: Mutex::default(),
            ordered: Condvar::new(),
        });
        let reader = Arc::clone(&link);
        std::thread::spawn(move || reader.read(socket));
        link
    }

    fn read(&self, socket: UnixStream) {
        for line in BufReader::new(socket).lines() {
            let Ok(line) = line else { break };
            if let Some(state) = line.strip_prefix("hold ") {
                *self.held.lock() = Some(state.to_owned());
                self.say(&format!("holding {state}"));
            } else if line == "go" {
                *self.held.lock() = None;
                self.released.notify_all();
            } else {
                self.orders.lock().push_back(line);
                self.ordered.notify_all();
            }
        }
        // The test is gone, and with it all reason to be.
        std::process::exit(0);
    }

    /// What the test wants next.
    pub fn order(&self) -> String {
        let mut orders = self.orders.lock();
        loop {
            if let Some(order) = orders.pop_front() {
                return order;
            }
            self.ordered.wait(&mut orders);
        }
    }

    pub fn say(&self, line: &str) {
        // A test that is gone needs no word; the reader ends this process.
        let _ = self.out.lock().write_all(format!("{line}\n").as_bytes());
    }

    /// This process enters a state, and stays there if it was told to.
    pub fn at(&self, state: &str) {
        self.say(&format!("at {state}"));
        let mut held = self.held.lock();
        if held.as_deref() == Some(state) {
            self.say(&format!("held {state}"));
            while held.as_deref() == Some(state) {
                self.released.wait(&mut held);
            }
        }
    }
}
