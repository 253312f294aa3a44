//! What fetches leave behind: nothing. Descriptors, threads, allocated and resident memory of both sides
//! over many fetches.

use crate::process::{DestinationProcess, Reply, SourceProcess};
use crate::states::Side;
use crate::worker::Settings;
use crate::{is_long, tell, ucx_is_here};

#[test]
fn fetches_leave_nothing_behind() {
    if !ucx_is_here() {
        return;
    }
    // The first of the samples is to warm up.
    let (samples, fetches_a_sample) = if is_long() { (11, 1_000) } else { (3, 200) };
    let settings = Settings::default().with("blocks", 8).with("block_bytes", 8 << 10);
    let mut source = SourceProcess::start(&settings, None);
    let mut destination = DestinationProcess::start(&settings, None);
    destination.fetches(&source);
    let mut looks: [Vec<Reply>; 2] = Default::default();
    for _ in 0..samples {
        destination.process.tell(&format!("repeat {},{fetches_a_sample}", source.endpoint));
        looks[1].push(Reply(destination.process.hears("repeat")));
        looks[0].push(source.process.asks("settle"));
    }
    let rows = (0..samples).flat_map(|at| {
        let fetches = (at + 1) * fetches_a_sample;
        let row = |side: Side, look: &Reply| {
            format!("| {fetches} | {} | {} |\n", side.part(), look.row())
        };
        [row(Side::Source, &looks[0][at]), row(Side::Destination, &looks[1][at])]
    });
    let table = format!(
        "### Growth over {} fetches, after {fetches_a_sample} to warm up\n\n| fetches | side | descriptors | \
         threads | allocated, bytes | resident, KiB |\n|---|---|---|---|---|---|\n{}",
        (samples - 1) * fetches_a_sample,
        rows.collect::<String>(),
    );
    tell(&table);
    for looks in &looks {
        let last = &looks[samples - 1];
        for name in ["descriptors", "threads"] {
            assert_eq!(last.number(name), looks[0].number(name), "{name} grew\n{table}");
        }
        if is_long() {
            // Tables reach their size in the first fetches; from then on it is zero. The system gives
            // memory by the page, and a moment has more on its way than another.
            let settled = &looks[samples / 3];
            let grown = |name| last.number(name).saturating_sub(settled.number(name));
            assert!(grown("resident_kib") <= 8, "resident memory grew\n{table}");
            assert!(grown("heap_bytes") <= 4096, "allocated memory grew\n{table}");
        }
    }
}
