//! What fetches leave behind: nothing. Descriptors, threads, allocated and resident memory of both sides
//! over many fetches.

use crate::process::{DestinationProcess, Reply, SourceProcess};
use crate::states::Side;
use crate::worker::Settings;
use crate::{is_long, tell, ucx_is_here, WIRES};

/// What may be allocated for a moment more or less when a look is taken: a line being written, say. A byte
/// left behind by each fetch would come to more between the halves.
const A_MOMENT_BYTES: i64 = 4096;
/// The system gives memory by the page: how many are touched depends on where things come to lie.
const A_FEW_PAGES_KIB: i64 = 64;

#[test]
fn fetches_leave_nothing_behind() {
    if ucx_is_here() {
        WIRES.iter().for_each(|wires| fetch_over(wires));
    }
}

fn fetch_over(wires: &str) {
    // The first of the samples is to warm up.
    let (samples, fetches_a_sample) = if is_long() { (11, 1_000) } else { (4, 200) };
    let settings =
        Settings::default().with("wires", wires).with("blocks", 8).with("block_bytes", 8 << 10);
    let mut source = SourceProcess::start(&settings, None);
    let mut destination = DestinationProcess::start(&settings, None);
    destination.fetches(&source);
    let mut looks: [Vec<Reply>; 2] = Default::default();
    for _ in 0..samples {
        destination.process.tell(&format!("repeat {},{fetches_a_sample}", source.endpoint));
        looks[1].push(Reply(destination.process.hears("repeat")));
        looks[0].push(source.process.asks("settle"));
    }
    let taken = destination.process.asks("wires").word("wires").to_owned();
    let rows = (0..samples).flat_map(|at| {
        let fetches = (at + 1) * fetches_a_sample;
        let row = |side: Side, look: &Reply| {
            format!("| {fetches} | {} | {} |\n", side.part(), look.row())
        };
        [row(Side::Source, &looks[0][at]), row(Side::Destination, &looks[1][at])]
    });
    let table = format!(
        "### Growth over {} fetches, {} allowed, taken: {}, after {fetches_a_sample} to warm up\n\n| fetches | side | descriptors | \
         threads | allocated, bytes | resident, KiB |\n|---|---|---|---|---|---|\n{}",
        (samples - 1) * fetches_a_sample,
        wires,
        taken,
        rows.collect::<String>(),
    );
    tell(&table);
    for looks in &looks {
        let (first_half, second_half) = looks.split_at(samples / 2);
        let least = |looks: &[Reply], name| looks.iter().map(|look| look.number(name) as i64).min();
        let grown =
            |name| least(second_half, name).unwrap_or(0) - least(first_half, name).unwrap_or(0);
        for name in ["descriptors", "threads"] {
            assert!(grown(name) <= 0, "{name} grew\n{table}");
        }
        assert!(grown("heap_bytes") <= A_MOMENT_BYTES, "allocated memory grew\n{table}");
        // The first thousand fetches touch pages that none has touched before.
        let is_settled = is_long();
        assert!(
            !is_settled || grown("resident_kib") <= A_FEW_PAGES_KIB,
            "resident memory grew\n{table}"
        );
    }
}
