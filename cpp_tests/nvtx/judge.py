#!/usr/bin/env python3
"""Fails unless a profiler sees every step of a request, begun and ended as it should be.

usage: judge.py PROGRAM RECORDER [WORK_DIR]

Runs PROGRAM with RECORDER as its profiler and judges the record; before that, judges records that
are wrong on purpose, each of which must be found.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

STEPS = ["admit", "plan", "broadcast", "match", "pin", "metadata", "fetch", "verify", "claim"]
CROSS_THREAD = {"metadata", "fetch", "claim"}
OF_AN_ATTEMPT = {"pin", "metadata", "fetch", "verify", "claim"}
THREADS = {"kvhints-transfer", "kvhints-metadata", "kvhints-http"}


class Range:
    """One range: where and when it began and ended."""

    def __init__(self, begin, end):
        self.step, _, self.attempt = begin["message"].partition(" #")
        self.bytes = begin.get("bytes")
        self.begin_ns, self.end_ns = begin["time_ns"], end["time_ns"]
        self.begin_thread, self.end_thread = begin["thread"], end["thread"]
        self.is_cross_thread = begin["event"] == "start"


def read(path):
    """The events of one process."""
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def ranges_of(events, problems):
    """The ranges of one process, in the order in which they ended; appends what is unbalanced."""
    stacks, started, ranges = {}, {}, []
    for event in events:
        kind = event["event"]
        if kind == "push":
            stacks.setdefault((event["thread"], event["domain"]), []).append(event)
        elif kind == "pop":
            stack = stacks.get((event["thread"], event["domain"]))
            if stack:
                ranges.append(Range(stack.pop(), event))
            else:
                problems.append(f"a pop without a push on thread {event['thread']}")
        elif kind == "start":
            if event["range"] in started:
                problems.append(f"range {event['range']} began and was running")
            started[event["range"]] = event
        elif kind == "end":
            begin = started.pop(event["range"], None)
            if begin is None:
                problems.append(f"range {event['range']} ended and was not running")
            else:
                ranges.append(Range(begin, event))
    left = [event for stack in stacks.values() for event in stack] + list(started.values())
    problems += [f"{event['message']} was begun and never ended" for event in left]
    return ranges


def judge(events, hint_bytes, fetch_bytes):
    """What is wrong with a record of cpp_tests/nvtx/one_request.cpp."""
    problems = []
    domains = {event["name"]: event["domain"] for event in events if event["event"] == "domain"}
    if list(domains) != ["kvhints"]:
        return [f"domains are {list(domains)}, expected kvhints alone"]
    categories = {e["category"]: e["name"] for e in events if e["event"] == "category"}
    begun = [event for event in events if event["event"] in ("push", "start")]
    for event in begun:
        step = event["message"].split(" #")[0]
        if (event["domain"], event["version"], event["size"]) != (domains["kvhints"], 3, 48):
            problems.append(f"{event['message']}: wrong domain, version or size: {event}")
        if categories.get(event["category"]) != step:
            problems.append(f"{event['message']} is in category {categories.get(event['category'])}")
        if not re.fullmatch(r"[a-z]+( #[0-9]+)?", event["message"]):
            problems.append(f"a range is called {event['message']!r}")
    ranges = ranges_of(events, problems)
    by_step = {step: [r for r in ranges if r.step == step] for step in STEPS}
    problems += [f"no range {step}" for step, found in by_step.items() if not found]
    problems += [f"a range of no step: {r.step}" for r in ranges if r.step not in STEPS]
    for r in ranges:
        if r.is_cross_thread != (r.step in CROSS_THREAD):
            problems.append(f"{r.step}: wrong kind of range")
        if bool(r.attempt) != (r.step in OF_AN_ATTEMPT):
            problems.append(f"{r.step}: attempt {r.attempt!r}")
    if problems:
        return problems
    if [r.bytes for r in by_step["admit"]] != [hint_bytes]:
        problems.append(f"admit tells {[r.bytes for r in by_step['admit']]}, not {hint_bytes} bytes")
    for step in ("metadata", "fetch", "claim"):
        if [r.bytes for r in by_step[step]] != [fetch_bytes]:
            problems.append(f"{step} tells {[r.bytes for r in by_step[step]]}, not {fetch_bytes}")
    if sum(r.bytes for r in by_step["verify"]) != fetch_bytes:
        problems.append(f"verify tells {[r.bytes for r in by_step['verify']]}, not {fetch_bytes}")
    (metadata,), (fetch,), (claim,) = (by_step[step] for step in ("metadata", "fetch", "claim"))
    if not metadata.end_ns <= fetch.begin_ns <= fetch.end_ns <= claim.begin_ns:
        problems.append("metadata, fetch and claim do not follow each other")
    if metadata.begin_thread == metadata.end_thread or claim.begin_thread == claim.end_thread:
        problems.append("metadata and claim go from the host's thread to the library's and back")
    for r in by_step["verify"]:
        if r.begin_thread != fetch.begin_thread or not fetch.begin_ns <= r.begin_ns <= fetch.end_ns:
            problems.append("verify is not inside fetch, on the library's thread")
    named = {e["name"] for e in events if e["event"] == "thread_name" and e["named"] == e["thread"]}
    if named != THREADS:
        problems.append(f"named threads are {sorted(named)}, expected {sorted(THREADS)}")
    return problems


def wrong_records(events):
    """The record with one thing wrong at a time, and what is wrong."""
    for step in STEPS:
        without = [e for e in events if e.get("message", "").split(" #")[0] != step]
        yield f"no {step} begins", without
    for kind in ("push", "pop", "start", "end"):
        index = next(i for i, event in enumerate(events) if event["event"] == kind)
        yield f"one {kind} is missing", events[:index] + events[index + 1:]
        yield f"one {kind} comes twice", events[:index] + [events[index]] + events[index:]
    index = next(i for i, event in enumerate(events) if event.get("message") == "admit")
    yield "other bytes", events[:index] + [{**events[index], "bytes": 1}] + events[index + 1:]
    yield "another domain", [
        {**event, "name": "other"} if event["event"] == "domain" else event for event in events
    ]
    yield "no names of threads", [e for e in events if e["event"] != "thread_name"]
    yield "no names of categories", [e for e in events if e["event"] != "category"]


def main():
    program, recorder = sys.argv[1:3]
    work = sys.argv[3] if len(sys.argv) > 3 else tempfile.mkdtemp()
    os.makedirs(work, exist_ok=True)
    for old in pathlib.Path(work).glob("record.*.jsonl"):
        old.unlink()
    profiled = {**os.environ, "NVTX_INJECTION64_PATH": recorder,
                "KVHINTS_NVTX_RECORD": os.path.join(work, "record")}
    run = subprocess.run([program], env=profiled, capture_output=True, text=True, timeout=120)
    if run.returncode != 0:
        sys.exit(f"the program failed under the recorder:\n{run.stdout}{run.stderr}")
    told = {name: int(number) for name, number in re.findall(r"([A-Z_]+)=([0-9]+)", run.stdout)}
    records = list(pathlib.Path(work).glob("record.*.jsonl"))
    if len(records) != 1:
        sys.exit(f"expected one record, found {records}")
    events = read(records[0])
    problems = judge(events, told["HINT_BYTES"], told["FETCH_BYTES"])
    if problems:
        sys.exit("\n".join(problems))
    for what, wrong in wrong_records(events):
        if not judge(wrong, told["HINT_BYTES"], told["FETCH_BYTES"]):
            sys.exit(f"a wrong record passed: {what}")

    # A profiler that cannot be opened is none: the program goes on.
    for path in ("/nonexistent/profiler.so", program):
        unprofiled = {**os.environ, "NVTX_INJECTION64_PATH": path}
        run = subprocess.run([program], env=unprofiled, capture_output=True, text=True, timeout=120)
        if run.returncode != 0:
            sys.exit(f"the program failed with the profiler {path}:\n{run.stdout}{run.stderr}")
    print(f"{len(events)} events, all steps, balanced")


if __name__ == "__main__":
    main()
