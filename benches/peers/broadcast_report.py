"""Trials of broadcast.cpp and broadcast.py -> medians as tables in Markdown, and one drawing.

    python3 broadcast_report.py TRIALS.tsv DRAWING.svg < note on the machine > tables
"""

import math
import statistics
import sys
from collections import defaultdict

KEYS = ("system", "kind", "table", "topology", "tokens", "batch", "rate", "hint_kib")
VALUES = ("bytes", "p50", "p99", "rps", "cpu", "lag")
NAMES = {"kvhints": "kvhints", "kvhints-decided": "kvhints, decided", "kvhints-messages": "kvhints, no node window", "mpi": "MPI, size known", "mpi-header": "MPI, header + bytes", "pickle": "pickle + mpi4py"}
TITLES = {
    "tp2-256": "TP2, 256-token requests",
    "pp2-256": "Synchronous PP2, 256-token requests",
    "tp2-131072": "TP2, 131,072-token requests",
    "tp2-chunks": "TP2, batch 128: across the 4 MiB chunk",
    "tp2-long-1": "TP2, batch 1, longer windows",
    "tp2-long-32": "TP2, batch 32, longer windows",
}


def medians(path):
    trials = defaultdict(list)
    with open(path, encoding="ascii") as lines:
        for line in lines:
            fields = line.rstrip("\n").split("\t")
            trials[tuple(fields[: len(KEYS)])].append([float(value) for value in fields[len(KEYS) :]])
    counts = {len(values) for values in trials.values()}
    return {key: dict(zip(VALUES, map(statistics.median, zip(*values)))) for key, values in trials.items()}, counts


def short(value):
    return f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def call_table(cells):
    """What a call costs until all is delivered and read, beside the floor and the peer."""
    print("## A root call, delivered\n")
    print("Two ranks; from the call until a barrier after the other rank has read every field and compared a digest;")
    print("p50 in microseconds. The ratio is to MPI_Bcast of the same bytes, serialised before, of a size known before.\n")
    print("| batch | hint KiB | kvhints | MPI, size known | MPI, header + bytes | pickle + mpi4py | kvhints / MPI | pickle / kvhints | decided | decided / no hint | no node window |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    drawn = []
    for batch in ("1", "32", "128"):
        for hint in ("0", "1", "64"):
            def p50(system, hint=hint, batch=batch):
                cell = cells.get((system, "delivered", "call", "tp", "256", batch, "0", hint))
                return cell["p50"] if cell else math.nan
            ours, floor, header, pickle, decided = map(p50, ("kvhints", "mpi", "mpi-header", "pickle", "kvhints-decided"))
            baseline, messages = p50("kvhints-decided", "0"), p50("kvhints-messages")
            print(f"| {batch} | {hint} | {short(ours)} | {short(floor)} | {short(header)} | {short(pickle)} | **{ours / floor:.2f}** "
                  f"| **{pickle / ours:.0f}** | {short(decided)} | {decided / baseline:.2f} | {short(messages)} |")
            drawn.append((f"{batch} x {hint} KiB", ours, decided, floor, pickle))
    print()
    return drawn


WAYS = {
    "tp": ("Among ranks of one node", {"kvhints": "defaults", "kvhints-packed": "hints packed", "kvhints-4096": "first message 4 KiB", "kvhints-messages": "no node window", "kvhints-messages-packed": "no window, packed", "kvhints-messages-4096": "no window, first message 4 KiB"}),
    "pp": ("Along two pipeline stages", {"kvhints": "defaults", "kvhints-packed": "hints packed", "kvhints-4096": "first message 4 KiB", "kvhints-async": "asynchronous sends"}),
}


def ways_tables(cells):
    """What the defaults were chosen among."""
    print("## Ways, delivered\n")
    print("p50 in microseconds, as above.\n")
    for topology, (title, names) in WAYS.items():
        print(f"{title}:\n")
        print("| batch | hint KiB | " + " | ".join(names.values()) + " |")
        print("|---" * (len(names) + 2) + "|")
        for key in [key for key in cells if key[:2] == ("kvhints", "ways") and key[3] == topology]:
            values = (short(cells[(system, *key[1:])]["p50"]) for system in names)
            print(f"| {key[5]} | {key[7]} | " + " | ".join(values) + " |")
        print()


def offered_tables(cells):
    """The columns of the published measurements of the Python executor's broadcast."""
    for table, title in TITLES.items():
        print(f"## {title}\n")
        print("| system | batch | offered req/s | hint KiB | serialised batch KiB | root p50/p99 us | completed req/s (change) | root CPU us/req | root lag p99 ms |")
        print("|---|---|---|---|---|---|---|---|---|")
        rows = [key for key in cells if key[1] == "offered" and key[2] == table]
        for key in rows:
            cell = cells[key]
            without = cells[key[:-1] + ("0",)]
            change = (cell["rps"] / without["rps"] - 1) * 100
            offered = "saturated" if key[6] == "0" else key[6]
            lag = "-" if key[6] == "0" else f"{cell['lag']:.3f}"
            print(f"| {NAMES[key[0]]} | {key[5]} | {offered} | {key[7]} | {cell['bytes'] / 1024:.1f} | {short(cell['p50'])}/{short(cell['p99'])} "
                  f"| {cell['rps']:,.0f} ({change:+.1f}%) | {cell['cpu']:.2f} | {lag} |")
        print()


def draw(path, rows):
    """Bars on a logarithmic scale."""
    series = (("kvhints", "#1b6ca8"), ("kvhints, decided", "#7fb5d5"), ("MPI_Bcast, serialised before", "#8a8a8a"), ("pickle + mpi4py", "#d1603d"))
    left, top, height, width, group = 70, 60, 300, 820, 80
    low, high = 1.0, max(value for row in rows for value in row[1:] if not math.isnan(value)) * 1.5
    def y(value):
        return top + height * (1 - math.log10(max(value, low) / low) / math.log10(high / low))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top + height + 70}" font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="{left}" y="20" font-size="15">A root call until delivered and read, two ranks, p50 in microseconds</text>']
    for index, (name, colour) in enumerate(series):
        x = left + index * 180
        out.append(f'<rect x="{x}" y="32" width="12" height="12" fill="{colour}"/><text x="{x + 17}" y="42">{name}</text>')
    step = low
    while step <= high:
        out.append(f'<line x1="{left}" x2="{width - 20}" y1="{y(step):.1f}" y2="{y(step):.1f}" stroke="#ddd"/>'
                   f'<text x="{left - 8}" y="{y(step) + 4:.1f}" text-anchor="end">{step:,.0f}</text>')
        step *= 10
    for index, (name, *values) in enumerate(rows):
        x = left + 10 + index * group
        for bar, (value, (_, colour)) in enumerate(zip(values, series)):
            if math.isnan(value):
                continue
            out.append(f'<rect x="{x + bar * 16}" y="{y(value):.1f}" width="14" height="{top + height - y(value):.1f}" fill="{colour}">'
                       f'<title>{name}: {value:.1f}</title></rect>')
        out.append(f'<text x="{x + 32}" y="{top + height + 18}" text-anchor="middle">{name}</text>')
    out.append(f'<text x="{left + 360}" y="{top + height + 45}" text-anchor="middle">requests in the batch x bytes of each hint</text></svg>')
    with open(path, "w", encoding="ascii") as drawing:
        drawing.write("\n".join(out) + "\n")


def main():
    cells, counts = medians(sys.argv[1])
    sys.stdout.write(sys.stdin.read())
    print(f"\nMedians of {min(counts)} trials, the systems in turn within each.\n")
    draw(sys.argv[2], call_table(cells))
    ways_tables(cells)
    offered_tables(cells)


main()
