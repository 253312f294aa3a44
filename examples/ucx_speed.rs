//! Which UCX is on this machine, which wires it takes between two processes, and how fast blocks
//! move: `cargo run --release --example ucx_speed [tls]`.
//!
//! The program starts a copy of itself as the sender. Each size is repeated, and the median told.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kvhints::transfer::transport::{Event, PeerId, Segment, Transport};
use kvhints::transfer::ucx::{availability, UcxOptions, UcxTransport};

const SIZES: [usize; 3] = [32 << 10, 64 << 10, 1 << 20];
const BYTES_A_RUN: usize = 64 << 20;
const RUNS: usize = 7;

type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Fallible<()> {
    let mut arguments = std::env::args().skip(1);
    let tls = arguments.next().unwrap_or_else(|| "all".to_owned());
    let options = UcxOptions {
        tls: Some(tls.clone()),
        net_devices: Some("lo".to_owned()),
        ..UcxOptions::default()
    };
    match arguments.next().as_deref() {
        Some("send") => send(options),
        _ => receive(options, &tls),
    }
}

fn next(transport: &mut UcxTransport) -> Event {
    loop {
        if let Some(event) = transport.progress() {
            return event;
        }
        transport.wait(Duration::from_millis(1));
    }
}

/// Sends as many blocks as each message asks for.
fn send(options: UcxOptions) -> Fallible<()> {
    let mut transport = UcxTransport::open(options)?;
    let digits: String = transport.address().iter().map(|byte| format!("{byte:02x}")).collect();
    println!("{digits}");
    let mut memory = vec![1u8; BYTES_A_RUN];
    loop {
        match next(&mut transport) {
            Event::Message { peer, bytes } => {
                let size = std::str::from_utf8(&bytes)?.parse()?;
                for block in memory.chunks_exact_mut(size) {
                    let segment = Segment { data: block.as_mut_ptr(), len: size };
                    transport.send_data(peer, Vec::new(), vec![segment])?;
                }
            }
            Event::PeerGone { .. } => return Ok(()),
            _ => {}
        }
    }
}

fn receive(options: UcxOptions, tls: &str) -> Fallible<()> {
    println!("UCX {}", availability()?);
    let mut sender = Command::new(std::env::current_exe()?)
        .args([tls, "send"])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut digits = String::new();
    BufReader::new(sender.stdout.take().ok_or("no output")?).read_line(&mut digits)?;
    let digits = digits.trim();
    let address: Vec<u8> = (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16))
        .collect::<Result<_, _>>()?;
    let mut transport = UcxTransport::open(options)?;
    let peer = transport.connect(&address)?;
    let mut memory = vec![0u8; BYTES_A_RUN];
    for size in SIZES {
        let mut speeds = Vec::new();
        for _ in 0..RUNS {
            let start = Instant::now();
            run(&mut transport, peer, &mut memory, size)?;
            speeds.push(BYTES_A_RUN as f64 / start.elapsed().as_secs_f64() / (1 << 20) as f64);
        }
        speeds.sort_by(f64::total_cmp);
        println!("{:>5} KiB blocks: {:>6.0} MiB/s", size >> 10, speeds[RUNS / 2]);
    }
    println!("wires: {}", transport.describe(peer));
    transport.disconnect(peer);
    drop(transport);
    sender.wait()?;
    Ok(())
}

fn run(transport: &mut UcxTransport, peer: PeerId, memory: &mut [u8], size: usize) -> Fallible<()> {
    transport.send_message(peer, size.to_string().into_bytes())?;
    let mut targets = memory.chunks_exact_mut(size);
    let mut left = targets.len();
    while left > 0 {
        match next(transport) {
            Event::Data { id, len, .. } => {
                let target = targets.next().ok_or("too many blocks")?;
                let segment = Segment { data: target.as_mut_ptr(), len };
                transport.receive_data(id, segment)?;
            }
            Event::Received { result, .. } => {
                result?;
                left -= 1;
            }
            Event::PeerGone { error, .. } => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}
