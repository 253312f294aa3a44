#!/usr/bin/env python3
"""Breaks the shipped code on purpose, one place at a time, in a copy of the sources, and fails unless
the simulation finds each break: scripts/simulation_controls.py [--apply-only] [NAME...].

A control is a text that stands exactly once in a file, and what stands there instead. One that does
not apply any more is an error: it proves nothing. With --apply-only that alone is looked at, in seconds."""

import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
COPY = TARGET / "simulation-controls"
SEEDS = 300

# Name: (file, what stands there, what stands there instead).
CONTROLS = {
    "an unpin is left out": (
        "src/transfer/source.rs",
        "self.serving.remove(&(peer, key));",
        "self.serving.remove(&(peer, key)).map(std::mem::forget);",
    ),
    "a fence is skipped": (
        "src/reuse/window.rs",
        "is_primary && self.is_complete(slot, passed_fence)",
        "is_primary && (self.is_complete(slot, passed_fence) || true)",
    ),
    "a late completion is believed": (
        "src/transfer/prefetch.rs",
        "        self.expire(now_ns, &mut actions);\n        match event {",
        "        if !matches!(event, Event::Received { .. } | Event::Committed { .. }) {\n"
        "            self.expire(now_ns, &mut actions);\n        }\n        match event {",
    ),
    "blocks are written after the outcome": (
        "src/transfer/prefetch.rs",
        "Event::Received { blocks: _, verdict } => {\n"
        "                if self.state == State::PrefetchInProgress {",
        "Event::Received { blocks: _, verdict } => {\n"
        "                if self.state != State::PrefetchInit {",
    ),
    "checksums are not compared": (
        "src/transfer/destination.rs",
        "        if is_whole {\n",
        "        if is_whole || true {\n",
    ),
    "what is read where it lies is not compared": (
        "src/transfer/destination.rs",
        "        verdict\n    }\n",
        "        verdict.map(|_| Ok(()))\n    }\n",
    ),
    "only the first block is pinned": (
        "src/reuse/sendable.rs",
        "&nodes[present - 1..]",
        "&nodes[..1]",
    ),
    "the hold time is ignored": (
        "src/transfer/source.rs",
        "deadline_ns: now_ns.saturating_add(hold_ns),",
        "deadline_ns: u64::MAX.max(hold_ns),",
    ),
    "skipped blocks are sent": (
        "src/transfer/source.rs",
        ".zip(&request.names).skip(skipped).step_by(step)",
        ".zip(&request.names).skip(skipped * 0).step_by(step)",
    ),
    "a loan is not given back": (
        "src/transfer/attempt.rs",
        "            shared.loan = None;",
        "            shared.loan.take().map(std::mem::forget);",
    ),
    "the tree's blocks are lent": (
        "src/transfer/block_owner.rs",
        "matches!(self.tree.first_held(self.window, ids), Ok(Some(_)))",
        "self.tree.first_held(self.window, ids).is_err()",
    ),
    "an outcome is replaced": (
        "src/transfer/prefetch.rs",
        "        if self.outcome.is_none() {\n            self.tell_source(actions);",
        "        if self.outcome.take().is_none_or(|_| true) {\n            self.tell_source(actions);",
    ),
    "a cancelled request is sent on": (
        "src/transfer/source.rs",
        "self.runs_in_flight == 0 && (self.is_stopped || self.next_block == self.ids.len())",
        "self.runs_in_flight == 0 && self.next_block == self.ids.len()",
    ),
}


def copy_sources():
    """The checkout's files, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    for name in filter(None, listed.decode().split("\0")):
        source, place = ROOT / name, COPY / name
        if not source.is_file():
            continue
        # An unchanged file keeps its time, so that little is built anew.
        if place.is_file() and place.read_bytes() == source.read_bytes():
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, place)
        place.chmod(source.stat().st_mode)


def simulate():
    """Builds the copy and lives some seeds; whether it built, whether all went well, what was said."""
    # Not the target of the sources themselves: Cargo would take what is broken there for what is not.
    environment = dict(os.environ, CARGO_TARGET_DIR=str(COPY / "target"))
    cargo = ["cargo", "test", "--locked", "--test", "simulation"]
    built = subprocess.run(
        cargo + ["--no-run"], cwd=COPY, env=environment, capture_output=True, text=True
    )
    if built.returncode != 0:
        return False, False, built.stderr
    environment["KVHINTS_SIMULATION_SEEDS"] = str(SEEDS)
    lived = subprocess.run(
        cargo + ["--", "--nocapture", "--exact", "every_promise_is_kept_in_every_seed"],
        cwd=COPY,
        env=environment,
        capture_output=True,
        text=True,
    )
    return True, lived.returncode == 0, lived.stdout


def main():
    arguments = sys.argv[1:]
    apply_only = arguments[:1] == ["--apply-only"]
    wanted = arguments[apply_only:] or list(CONTROLS)
    unknown = [name for name in wanted if name not in CONTROLS]
    if unknown:
        sys.exit(f"no such control: {unknown}; there are: {list(CONTROLS)}")
    problems = []
    for name in wanted:
        file, old, new = CONTROLS[name]
        text = (ROOT / file).read_text()
        if text.count(old) != 1:
            problems.append(f"{name}: the text stands {text.count(old)} times in {file}, not once")
            continue
        if apply_only:
            print(f"{name}: applies")
            continue
        copy_sources()
        place = COPY / file
        place.write_text(text.replace(old, new))
        is_built, is_well, said = simulate()
        broken = [line for line in said.splitlines() if line.startswith("seed ")]
        if not is_built:
            problems.append(f"{name}: does not build:\n{said}")
        elif is_well or not broken:
            problems.append(f"{name}: not found in {SEEDS} seeds")
        else:
            print(f"{name}: found: {broken[0].split('; replay')[0]}", flush=True)
    for problem in problems:
        print(f"FAILED {problem}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
