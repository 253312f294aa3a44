//! A road between two network namespaces that this test lays itself: packets leave a TUN device on one
//! side and enter one on the other, late, or not at all. So loss, delay and partition can be had where the
//! kernel has no netem, and are drawn from a seed.
//!
//! Never does: look into a packet, or change one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::random::SplitMix;

/// Packets are dropped beyond so many on their way, as a full queue would.
const MAX_ON_THE_WAY: usize = 4096;
const PACKET_BYTES: usize = 2048;

/// What the road does to packets, set while they travel.
#[derive(Default)]
pub struct Weather {
    /// Of 10,000.
    pub lost: AtomicU32,
    pub delay_us: AtomicU64,
    /// Up to so much more, which lets packets overtake each other.
    pub jitter_us: AtomicU64,
    pub is_cut: AtomicBool,
    pub dropped: AtomicU64,
    pub carried: AtomicU64,
    is_over: AtomicBool,
}

/// Ends when dropped.
pub struct Road {
    pub weather: Arc<Weather>,
    carrier: Option<JoinHandle<()>>,
}

impl Road {
    /// Connects the TUN devices of that name in both namespaces.
    pub fn between(namespaces: [&str; 2], device: &str) -> std::io::Result<Self> {
        let ends = [tun_in(namespaces[0], device)?, tun_in(namespaces[1], device)?];
        let weather = Arc::new(Weather::default());
        let its = Arc::clone(&weather);
        let carrier = std::thread::spawn(move || carry(ends, &its));
        Ok(Self { weather, carrier: Some(carrier) })
    }
}

impl Drop for Road {
    fn drop(&mut self) {
        self.weather.is_over.store(true, Ordering::SeqCst);
        if let Some(carrier) = self.carrier.take() {
            let _ = carrier.join();
        }
    }
}

/// Makes the device, from a thread that is inside of the namespace for the time being.
fn tun_in(namespace: &str, device: &str) -> std::io::Result<File> {
    let namespace = File::open(format!("/run/netns/{namespace}"))?;
    let device = device.to_owned();
    let inside = std::thread::spawn(move || {
        // SAFETY: a live descriptor; it moves this thread alone, which ends here.
        if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let file = options.open("/dev/net/tun")?;
        // SAFETY: all-zero bytes are a valid request.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: a live descriptor and a request of the kind that the call reads.
        if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &request) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(file)
    });
    inside.join().expect("no panic in there")
}

/// A packet, by when it arrives; later ones of the same moment after earlier ones.
type OnTheWay = Reverse<(Instant, u64, usize, Vec<u8>)>;

fn carry(mut ends: [File; 2], weather: &Weather) {
    let mut random = SplitMix(1);
    let mut on_the_way: BinaryHeap<OnTheWay> = BinaryHeap::new();
    let mut number = 0;
    while !weather.is_over.load(Ordering::SeqCst) {
        let now = Instant::now();
        while on_the_way.peek().is_some_and(|Reverse((due, ..))| *due <= now) {
            let Some(Reverse((_, _, to, packet))) = on_the_way.pop() else { break };
            // A device that takes no more loses it, as any road may.
            let _ = ends[to].write(&packet);
        }
        let due = on_the_way.peek().map(|Reverse((due, ..))| due.saturating_duration_since(now));
        wait(&ends, due.unwrap_or(Duration::from_millis(20)).min(Duration::from_millis(20)));
        for (from, end) in ends.iter_mut().enumerate() {
            let mut packet = vec![0; PACKET_BYTES];
            while let Ok(len) = end.read(&mut packet) {
                let is_lost = random.below(10_000) < weather.lost.load(Ordering::SeqCst) as usize;
                if is_lost
                    || weather.is_cut.load(Ordering::SeqCst)
                    || on_the_way.len() >= MAX_ON_THE_WAY
                {
                    weather.dropped.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                let jitter = random.below(weather.jitter_us.load(Ordering::SeqCst) as usize + 1);
                let delay_us = weather.delay_us.load(Ordering::SeqCst) + jitter as u64;
                number += 1;
                let due = Instant::now() + Duration::from_micros(delay_us);
                on_the_way.push(Reverse((due, number, 1 - from, packet[..len].to_vec())));
                weather.carried.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
}

fn wait(ends: &[File; 2], at_most: Duration) {
    let mut polled = [0, 1].map(|end: usize| libc::pollfd {
        fd: ends[end].as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    let timeout = libc::timespec {
        tv_sec: at_most.as_secs() as libc::time_t,
        tv_nsec: at_most.subsec_nanos() as libc::c_long,
    };
    // SAFETY: an array of live descriptors and a time that lives during the call.
    unsafe { libc::ppoll(polled.as_mut_ptr(), 2, &timeout, std::ptr::null()) };
}
