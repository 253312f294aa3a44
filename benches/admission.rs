//! Admission, from the C call to the snapshot and its release. Honest inputs in several variants
//! taken in turn, because one input over and over trains the branch predictor; hostile inputs of
//! each kind that the limits allow.

use std::hint::black_box;
use std::time::Duration;

use criterion::{criterion_group, criterion_main, Criterion, Throughput};
use kvhints::capi::admit::{kvh_admit, KVH_INGRESS_TRUSTED};
use kvhints::capi::context::{kvh_context_create, kvh_context_destroy, kvh_context_t};
use kvhints::capi::snapshot::{kvh_snapshot_json, kvh_snapshot_release};

/// How many different inputs of one kind are taken in turn.
const VARIANTS: u64 = 32;

/// Numbers that look random and are the same in each run.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// A `kv.fetch` envelope of exactly `bytes` bytes in canonical form, filled with block hashes.
fn envelope(bytes: usize, seed: u64) -> String {
    let text = |hashes: &str, padding: usize| {
        format!(
            r#"{{"protocol_version":"0.1","message_id":"msg-{:x<2$}","actions":[{{"action_id":"a1","action_type":"kv.fetch","action_version":"1.0","payload":{{"source_control_endpoint":"tcp://127.0.0.1:23280","block_hashes":[{}]}}}}]}}"#,
            "", hashes, padding
        )
    };
    let room = bytes - text("", 0).len();
    let mut random = SplitMix(seed);
    let mut hashes = String::new();
    loop {
        let next = format!("{}{}", if hashes.is_empty() { "" } else { "," }, random.next());
        if hashes.len() + next.len() > room {
            let padding = room - hashes.len();
            return text(&hashes, padding);
        }
        hashes += &next;
    }
}

/// An envelope with this as the value of a further member.
fn with_extra(extra: &str) -> String {
    format!(r#"{{"protocol_version":"0.1","message_id":"m","actions":[],"x":{extra}}}"#)
}

fn spaced(json: &str) -> String {
    json.replace(',', ", ").replace(':', ": ")
}

fn inputs() -> Vec<(&'static str, Vec<String>)> {
    let variants = |make: &dyn Fn(u64) -> String| (0..VARIANTS).map(make).collect::<Vec<_>>();
    let names: Vec<String> = (0..6000).map(|name| format!("\"n{name}\":0")).collect();
    vec![
        ("300 B", variants(&|seed| envelope(300, seed))),
        ("64 KiB", variants(&|seed| envelope(65_536, seed))),
        ("64 KiB spaced", variants(&|seed| spaced(&envelope(65_536, seed)))),
        ("hostile/brackets unclosed", vec![with_extra(&"[".repeat(1_000_000))]),
        ("hostile/arrays closed", vec![with_extra(&("[".repeat(30_000) + &"]".repeat(30_000)))]),
        (
            "hostile/objects deep",
            vec![with_extra(&("{\"a\":".repeat(10_000) + "1" + &"}".repeat(10_000)))],
        ),
        ("hostile/digits", vec![with_extra(&"7".repeat(1_000_000))]),
        ("hostile/names", vec![with_extra(&format!("{{{}}}", names.join(",")))]),
        ("hostile/small objects", vec![with_extra(&format!("[{}0]", "{\"a\":0},".repeat(8_000)))]),
        ("hostile/escapes", vec![with_extra(&format!("\"{}\"", "\\u00e9".repeat(30_000)))]),
        ("hostile/escapes that stay", vec![with_extra(&format!("\"{}\"", "\\n".repeat(30_000)))]),
        ("hostile/characters", vec![with_extra(&format!("\"{}\"", "a\u{e9}".repeat(20_000)))]),
        ("hostile/blanks", vec![with_extra(&format!("{}1", " \n".repeat(500_000)))]),
        (
            "hostile/blanks between digits",
            vec![with_extra(&format!("[{}1]", "1 , ".repeat(30_000)))],
        ),
        ("hostile/floats", vec![with_extra(&format!("[{}1]", "1e308,".repeat(10_000)))]),
        ("hostile/digits one by one", vec![with_extra(&format!("[{}1]", "1,".repeat(30_000)))]),
    ]
}

/// One hint through the C interface; how long its snapshot is.
fn admit(context: *const kvh_context_t, raw: &str) -> usize {
    let mut verdict = -1;
    let mut snapshot = std::ptr::null_mut();
    // SAFETY: the context is live, the text is a slice of its length, the outputs are ours; the
    // snapshot is released once.
    unsafe {
        let status = kvh_admit(
            context,
            KVH_INGRESS_TRUSTED,
            raw.as_ptr(),
            raw.len(),
            &mut verdict,
            &mut snapshot,
        );
        assert_eq!(status, 0);
        let len = kvh_snapshot_json(snapshot).len;
        kvh_snapshot_release(snapshot);
        len
    }
}

fn admission(criterion: &mut Criterion) {
    let mut context = std::ptr::null_mut();
    // SAFETY: NULL parameters mean defaults; the output is ours.
    assert_eq!(unsafe { kvh_context_create(std::ptr::null(), &mut context) }, 0);
    let mut group = criterion.benchmark_group("admit");
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    group.sample_size(20);
    for (name, texts) in inputs() {
        group.throughput(Throughput::Bytes(texts[0].len() as u64));
        let mut turn = texts.iter().cycle();
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let raw = turn.next().expect("a cycle has no end");
                admit(context, black_box(raw))
            });
        });
    }
    group.finish();
    // SAFETY: made above, not used again.
    unsafe { kvh_context_destroy(context) };
}

criterion_group!(benches, admission);
criterion_main!(benches);
