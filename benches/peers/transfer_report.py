"""Rounds of benches/transfer.sh -> medians and ratios as tables in Markdown, and one drawing.

    python3 transfer_report.py ROUNDS.tsv DRAWING.svg < note on the machine > tables
"""

import math
import statistics
import sys
from collections import defaultdict

PERFTEST = ("tag_bw", "ucp_am_bw", "ucp_put_bw")
SIZES = (32 << 10, 64 << 10, 1 << 20)


def medians(path):
    """(subject, wires, block bytes, blocks, order) -> median of the rounds' medians, in microseconds."""
    rounds = defaultdict(list)
    with open(path, encoding="ascii") as lines:
        for line in lines:
            subject, wires, block_bytes, blocks, order, _, median = line.split("\t")
            rounds[subject, wires, int(block_bytes), int(blocks), order].append(float(median))
    return {case: statistics.median(times) for case, times in rounds.items()}, max(map(len, rounds.values()))


def size(block_bytes):
    return f"{block_bytes >> 20} MiB" if block_bytes >= 1 << 20 else f"{block_bytes >> 10} KiB"


def shown(value, digits=2):
    return "-" if math.isnan(value) else f"{value:,.{digits}f}"


class Figures:
    def __init__(self, cells):
        self.cells = cells

    def time(self, subject, wires, block_bytes, blocks, order):
        return self.cells.get((subject, wires, block_bytes, blocks, order), math.nan)

    def speed(self, *case):
        """GB/s."""
        return case[2] * case[3] / self.time(*case) / 1e3

    def perftest(self, wires, block_bytes):
        speeds = [self.speed(test, wires, block_bytes, 1, "row") for test in PERFTEST]
        return max((speed for speed in speeds if not math.isnan(speed)), default=math.nan)


def cases(cells):
    return sorted({case[2:] for case in cells if case[0] == "copy"}, key=lambda case: (case[0], case[2], case[1]))


def speed_table(figures, wires, title):
    print(f"## {title}\n")
    print("GB/s. *Library*: a whole fetch, from the call to the outcome: asked for by name, pinned, moved, compared, in place.")
    print("*Transport*: the same bytes into memory of the transport's caller, nothing compared.\n")
    print("| block | blocks | order | library | transport | NIXL, prepared | one thread's copy | library / NIXL | library / copy |")
    print("|---|---|---|---|---|---|---|---|---|")
    for block_bytes, blocks, order in cases(figures.cells):
        case = (block_bytes, blocks, order)
        library, transport, nixl = (figures.speed(subject, wires, *case) for subject in ("library", "transport", "nixl"))
        copy = figures.speed("copy", "none", *case)
        print(f"| {size(block_bytes)} | {blocks} | {order} | {shown(library)} | {shown(transport)} | {shown(nixl)} | {shown(copy)} "
              f"| **{shown(library / nixl)}** | {shown(library / copy)} |")
    print()


def perftest_table(figures):
    print("## ucx_perftest\n")
    print("GB/s, one message after the other from the same memory, which stays in the caches.\n")
    print("| block | wires | tag | active message | put | library / best |")
    print("|---|---|---|---|---|---|")
    for wires, ours in (("tcp", "tcp"), ("posix,cma", "default")):
        for block_bytes in SIZES:
            most = 256 if block_bytes == 1 << 20 else 1024
            library = figures.speed("library", ours, block_bytes, most, "scattered")
            speeds = [figures.speed(test, wires, block_bytes, 1, "row") for test in PERFTEST]
            print(f"| {size(block_bytes)} | {wires} | " + " | ".join(map(shown, speeds)) + f" | {shown(library / figures.perftest(wires, block_bytes))} |")
    print()


def one_block_table(figures):
    print("## One block\n")
    print("Microseconds. *Announced*: the transport's, from the news of the block to its bytes, as NIXL's prepared read begins")
    print("with the place known. *Library*: with the question by name, the pin, the answer and two comparisons.\n")
    print("| block | wires | announced | NIXL, prepared | announced / NIXL | transport | library |")
    print("|---|---|---|---|---|---|---|")
    for wires in ("default", "tcp"):
        for block_bytes in SIZES:
            case = (wires, block_bytes, 1, "scattered")
            announced, nixl, transport, library = (figures.time(subject, *case) for subject in ("announced", "nixl", "transport", "library"))
            print(f"| {size(block_bytes)} | {wires} | {shown(announced)} | {shown(nixl)} | **{shown(announced / nixl)}** | {shown(transport, 1)} | {shown(library, 1)} |")
    print()


def draw(path, figures):
    """Bandwidth over block size, many scattered blocks, beside the limit: one thread's copy."""
    series = (
        ("one thread's copy", "#8a8a8a", lambda *case: figures.speed("copy", "none", *case), "6 4"),
        ("kvhints, shared memory", "#1b6ca8", lambda *case: figures.speed("library", "default", *case), ""),
        ("NIXL, shared memory", "#d1603d", lambda *case: figures.speed("nixl", "default", *case), ""),
        ("kvhints, TCP", "#7fb5d5", lambda *case: figures.speed("library", "tcp", *case), ""),
        ("NIXL, TCP", "#e8b09a", lambda *case: figures.speed("nixl", "tcp", *case), ""),
        ("best of ucx_perftest, TCP", "#4d8f4d", lambda block, *_: figures.perftest("tcp", block), "2 3"),
    )
    points = [(block, 256 if block == 1 << 20 else 1024, "scattered") for block in SIZES]
    values = [(name, colour, [speed(*case) for case in points], dashes) for name, colour, speed, dashes in series]
    top_value = max((value for row in values for value in row[2] if not math.isnan(value)), default=1) * 1.15
    left, top, width, height = 60, 40, 480, 300

    def x(block):
        return left + 30 + (width - 60) * math.log2(block / SIZES[0]) / math.log2(SIZES[-1] / SIZES[0])

    def y(value):
        return top + height * (1 - value / top_value)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 220} {top + height + 60}" font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="{left}" y="22" font-size="15">Many scattered blocks between two processes, GB/s</text>']
    for value in range(int(top_value) + 1):
        out.append(f'<line x1="{left}" x2="{left + width}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>'
                   f'<text x="{left - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value}</text>')
    for block, blocks, _ in points:
        out.append(f'<text x="{x(block):.1f}" y="{top + height + 18}" text-anchor="middle">{blocks} x {size(block)}</text>')
    for index, (name, colour, row, dashes) in enumerate(values):
        seen = [(x(case[0]), y(value), value) for case, value in zip(points, row) if not math.isnan(value)]
        legend = top + 20 + index * 22
        out.append(f'<line x1="{left + width + 15}" x2="{left + width + 40}" y1="{legend - 4}" y2="{legend - 4}" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>'
                   f'<text x="{left + width + 46}" y="{legend}">{name}</text>')
        if seen:
            line = " ".join(f"{at:.1f},{level:.1f}" for at, level, _ in seen)
            out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>')
        out.extend(f'<circle cx="{at:.1f}" cy="{level:.1f}" r="3" fill="{colour}"><title>{name}: {value:.2f}</title></circle>' for at, level, value in seen)
    out.append(f'<text x="{left + width / 2}" y="{top + height + 42}" text-anchor="middle">blocks and their size</text></svg>')
    with open(path, "w", encoding="ascii") as drawing:
        drawing.write("\n".join(out) + "\n")


def main():
    cells, rounds = medians(sys.argv[1])
    figures = Figures(cells)
    sys.stdout.write(sys.stdin.read())
    print(f"\nMedians of the medians of {rounds} rounds, in which all take turns.\n")
    speed_table(figures, "default", "Shared memory")
    speed_table(figures, "tcp", "TCP on the loopback device")
    one_block_table(figures)
    perftest_table(figures)
    draw(sys.argv[2], figures)


main()
