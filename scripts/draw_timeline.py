#!/usr/bin/env python3
"""Draws what a profiler saw of the demo: the request that was fetched, on all four ranks.

usage: draw_timeline.py RECORD.jsonl... >timeline.svg

Records are those of cpp_tests/nvtx/recorder.c, one for each process. Every box in the drawing is a
range that was recorded; nothing is filled in.
"""

import html
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "cpp_tests" / "nvtx"))
from judge import ranges_of, read  # noqa: E402

WIDTH, LEFT, RIGHT, ROW, GAP, TOP = 1000, 150, 40, 18, 10, 46
COLOURS = {
    "admit": "#4e79a7", "plan": "#f28e2b", "broadcast": "#e15759", "match": "#76b7b2",
    "pin": "#59a14f", "metadata": "#edc948", "fetch": "#b07aa1", "verify": "#9c755f",
    "claim": "#bab0ac",
}


class Process:
    """One process: its name, the names of its threads, its ranges."""

    def __init__(self, path):
        events = read(path)
        problems = []
        self.ranges = ranges_of(events, problems)
        if problems:
            sys.exit(f"{path}: " + "; ".join(problems))
        self.program = next(e["name"] for e in events if e["event"] == "process")
        self.start_ns = events[0]["time_ns"]
        self.thread_names = {e["named"]: e["name"] for e in events if e["event"] == "thread_name"}


def lanes_of(ranges):
    """Ranges in as few rows as keep them apart, those that enclose others above them."""
    lanes = []
    for r in sorted(ranges, key=lambda r: (r.begin_ns, -r.end_ns)):
        for lane in lanes:
            if lane[-1].end_ns <= r.begin_ns:
                lane.append(r)
                break
        else:
            lanes.append([r])
    return lanes


def microseconds(ns):
    """A duration as people read it."""
    if ns >= 1e8:
        return f"{ns / 1e6:.0f} ms"
    return f"{ns / 1e6:.1f} ms" if ns >= 1e6 else f"{ns / 1e3:.1f} µs"


def main():
    processes = sorted(map(Process, sys.argv[1:]), key=lambda p: (p.program, p.start_ns))
    every = [r for process in processes for r in process.ranges]
    claims = [r for r in every if r.step == "claim"]
    if not claims:
        sys.exit("no record has a claim: was anything fetched?")
    # The request whose blocks were delivered first: from its admission to the last delivery of the
    # same attempt, and a little of what comes after. What lasts longer is cut at the right edge.
    attempt = min(claims, key=lambda r: r.begin_ns).attempt
    delivered_ns = [r.begin_ns for r in claims if r.attempt == attempt]
    admitted_ns = [r.begin_ns for r in every if r.step == "admit"]
    begin_ns = max(time_ns for time_ns in admitted_ns if time_ns < min(delivered_ns))
    span_ns = (max(delivered_ns) - begin_ns) * 1.2
    end_ns = begin_ns + span_ns

    def x(time_ns):
        return LEFT + (time_ns - begin_ns) * (WIDTH - LEFT - RIGHT) / span_ns

    body, y, counts = [], TOP, {}
    for process in processes:
        counts[process.program] = counts.get(process.program, 0) + 1
        title = f"{process.program.replace('_', ' ')}, rank {counts[process.program] - 1}"
        seen = [r for r in process.ranges if r.end_ns >= begin_ns and r.begin_ns <= end_ns]
        if not seen:
            continue
        body.append(f'<text x="8" y="{y + 13}" class="process">{html.escape(title)}</text>')
        y += ROW
        groups = {}
        for r in seen:
            thread = "attempts" if r.is_cross_thread else process.thread_names.get(r.begin_thread, "executor")
            groups.setdefault(thread, []).append(r)
        for thread in sorted(groups, key=lambda name: (name != "executor", name)):
            for index, lane in enumerate(lanes_of(groups[thread])):
                if index == 0:
                    body.append(f'<text x="20" y="{y + 13}">{html.escape(thread)}</text>')
                for r in lane:
                    left, right = max(x(r.begin_ns), LEFT), min(x(r.end_ns), WIDTH - RIGHT)
                    width = max(right - left, 0.8)
                    name = f"{r.step} #{r.attempt}" if r.attempt else r.step
                    said = f"{name}: {microseconds(r.end_ns - r.begin_ns)}, {r.bytes} bytes"
                    body.append(f'<rect x="{left:.1f}" y="{y + 2}" width="{width:.1f}" height="{ROW - 4}" '
                                f'fill="{COLOURS[r.step]}"><title>{html.escape(said)}</title></rect>')
                    label = f"{name} {microseconds(r.end_ns - r.begin_ns)}"
                    if width > 6.2 * len(label):
                        body.append(f'<text x="{left + 4:.1f}" y="{y + 13}">{html.escape(label)}</text>')
                y += ROW
        y += GAP
    axis = []
    for tick in range(6):
        at = begin_ns + span_ns * tick / 5
        axis.append(f'<line x1="{x(at):.1f}" y1="{TOP - 6}" x2="{x(at):.1f}" y2="{y}" class="tick"/>'
                    f'<text x="{x(at):.1f}" y="{TOP - 10}" text-anchor="middle">{microseconds(at - begin_ns)}</text>')
    legend, left = [], LEFT
    for step, colour in COLOURS.items():
        legend.append(f'<rect x="{left}" y="6" width="10" height="10" fill="{colour}"/>'
                      f'<text x="{left + 14}" y="15">{step}</text>')
        left += 26 + 7 * len(step)
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" font-family="sans-serif" font-size="11">')
    print('<style>.process{font-weight:bold} .tick{stroke:#ddd} text{fill:#222}</style>')
    print(f'<rect width="{WIDTH}" height="{y}" fill="#fff"/>')
    print("\n".join(legend + axis + body))
    print("</svg>")


if __name__ == "__main__":
    main()
