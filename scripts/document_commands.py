#!/usr/bin/env python3
"""Holds the documents to the commands in them: each is run by a part of ./check, or here and now.

usage: scripts/document_commands.py [PART OF A COMMAND]...    (after a build with CMake in build/)

Commands are the lines of `sh` blocks, and what stands between backticks and begins with a program. ACCOUNTS says
of each who runs it, and is believed only as far as that can be seen: a part of ./check, or a test of ctest,
has to be there and to have that text; what is run here has to end as it should. A command without an
account fails, and so does an account without a command. With arguments only the commands here that contain
one of them are run. Nothing in the checkout is written but below build/.
"""

import os
import pathlib
import re
import subprocess
import sys
import time
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "document_commands"
# What a command between backticks begins with, if not with a program of the checkout.
PROGRAMS = ("cargo", "cmake", "ctest", "python3", "pip", "nsys", "pkg-config", "mpirun")
# Folders whose documents are not the project's, or tell what was done once.
LEFT_OUT = re.compile(r"(^|/)(target|build[^/]*|record)/")


@dataclass(frozen=True)
class Part:
    """A part of ./check whose command has this text, in itself or in the function or script it calls."""

    name: str
    text: str


@dataclass(frozen=True)
class Ctest:
    """A test of the C++ build that has this name; ./check runs all of them."""

    name: str


@dataclass(frozen=True)
class Long:
    """A part of ./check --long, too long for every day. `every_day` says what stands for it there."""

    name: str
    text: str
    every_day: "Part | Ctest | Run | None" = None


@dataclass(frozen=True)
class Run:
    """Run here, as bash, in a short form. The status has to be one of these."""

    shell: str
    statuses: tuple = (0,)


@dataclass(frozen=True)
class Never:
    """Cannot run in CI, with the reason; and what comes nearest to it and runs, if there is such."""

    reason: str
    nearest: "Part | Ctest | None" = None


# Cargo's own folder is that of the build with CMake, which has compiled most of it. $work is for what a
# command leaves, $checkout this tree.
INSTALL = """
rm -rf "$work/build-release" "$work/installed"
mkdir -p "$work/build-release" && ln -s "$checkout/build/cargo" "$work/build-release/cargo"
cmake -S . -B "$work/build-release" -DKVHINTS_TESTS=OFF -DKVHINTS_EXAMPLES=OFF -DKVHINTS_MPI=AUTO
cmake --build "$work/build-release" && cmake --install "$work/build-release" --prefix "$work/installed"
"""
# The README's example against what was just installed has to print what the README says.
PKG_CONFIG = """
awk '/^```cpp/ { shown = 1; next } /^```/ { shown = 0 } shown' README.md >"$work/engine.cpp"
g++ -std=c++17 "$work/engine.cpp" -o "$work/engine" \
    $(PKG_CONFIG_PATH=$work/installed/lib/pkgconfig pkg-config --cflags --libs kvhints)
LD_LIBRARY_PATH=$work/installed/lib "$work/engine" | tee "$work/engine.txt"
grep -qF "It prints \\`$(cat "$work/engine.txt")\\`." README.md
"""
RECORDER = """
NVTX_INJECTION64_PATH=$PWD/build/cpp_tests/nvtx/nvtx_recorder.so KVHINTS_NVTX_RECORD=$work/ranges \
    LD_LIBRARY_PATH=$work/installed/lib "$work/engine"
grep -q '"name":"admit"' "$work"/ranges.*.jsonl && rm "$work"/ranges.*.jsonl
"""
PIP = """
rm -rf "$work/venv" "$work/python" && python3 -m venv "$work/venv" && cp -r python "$work/python"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "$work/python"
awk '/^```python/ { shown = 1; next } /^```/ { shown = 0 } shown' python/README.md >"$work/example.py"
echo 'assert "document_commands/venv" in kvhints.__file__, kvhints.__file__' >>"$work/example.py"
cd "$work" && LD_LIBRARY_PATH=$work/installed/lib "$work/venv/bin/python" example.py
"""
EXPLAIN = """
echo '{"protocol_version": "0.1", "message_id": "m", "actions": []}' >"$work/HINT.json"
cargo run --release --locked --quiet -- explain "$work/HINT.json" | grep -q admitted
"""
PLAN = """
echo '{"protocol_version": "0.1", "message_id": "m", "actions": []}' >"$work/ENVELOPE.json"
echo '{"version": 1, "bindings": [], "endpoints": []}' >"$work/TABLE.json"
cargo run --release --locked --quiet -- plan --table "$work/TABLE.json" "$work/ENVELOPE.json"
"""
TRACES = """
printf '{"hash_ids": [0, 1, %d]}\\n' 2 3 4 >"$work/A.jsonl"
cp "$work/A.jsonl" "$work/B.jsonl"
unset CARGO_TARGET_DIR
KVHINTS_TRACES=$work/A.jsonl:$work/B.jsonl cargo test --workspace --locked --test trace_hits -- --nocapture
"""
BROADCAST = """
printf '%b\\ttp\\t256\\t1\\t0\\t20\\n' 'delivered\\tcall' 'offered\\ttp2-256' >"$work/cases.tsv"
KVHINTS_BENCH_DRY=yes benches/broadcast.sh 1 "$work/cases.tsv"
"""
# Of each fuzzer its corpus and a little more. It has a folder of its own beside it.
FUZZ = "unset CARGO_TARGET_DIR; fuzz/run.sh 20000"
NSYS = "nsys is NVIDIA's and no package of Debian; the test runs the demo under it where it is installed"

# Those that are run here come in the order in which cargo builds least: its folder has the library in one
# form at a time, with MPI, with the tests' dependencies, or as the plain build has it.
ACCOUNTS = {
    "./check": Never("it is what runs this; .ci/run calls it"),
    "./check --long": Never("hours. Each of its parts has an account here"),
    "scripts/document_commands.py": Part("documents", "scripts/document_commands.py"),
    "./demo --json": Part("demo", "./demo --json |"),
    "./demo --corrupt": Part("demo-corrupt", "./demo --corrupt"),
    "./demo --kill": Part("demo-kill", "./demo --json --kill"),
    "./demo --wires tcp": Part("demo", "./demo --json --wires tcp"),
    "cargo test --workspace": Part("rust-tests", "cargo test --workspace"),
    "cmake -S . -B build && cmake --build build && ctest --test-dir build": Part("cpp-tests", "ctest --test-dir build"),
    "cmake -S . -B build -DKVHINTS_TESTS=ON && cmake --build build": Part(
        "cmake-build", "-DKVHINTS_TESTS=ON && cmake --build build"
    ),
    "ctest --test-dir build -R tensorrt_llm": Part("cpp-tests", "ctest --test-dir build"),
    "cargo clippy --workspace --all-targets -- -D warnings": Part(
        "lint", "cargo clippy --workspace --all-targets --locked -- -D warnings"
    ),
    "cargo fmt --all": Part("format", "cargo fmt --all"),
    "cargo xtask header": Part("header", "cargo xtask header"),
    "cargo xtask": Part("header", "cargo xtask"),
    "cpp_tests/nvtx/judge.py": Ctest("nvtx_ranges"),
    "cpp_tests/abi/symbols.sh build/lib/libkvhints.so . --update": Ctest("abi_symbols"),
    "scripts/model_check.sh": Part("model", "scripts/model_check.sh"),
    "KVHINTS_MODEL_ITERATIONS=10000 scripts/model_check.sh": Long(
        "model", "KVHINTS_MODEL_ITERATIONS=10000 scripts/model_check.sh", Part("model", "scripts/model_check.sh")
    ),
    "cargo doc --no-deps --document-private-items --open": Part("rustdoc", "--no-deps --document-private-items"),
    "scripts/reference.sh": Ctest("headers_reference"),
    "scripts/profile_demo.sh": Ctest("nvtx_nsys_demo"),
    "nsys profile --trace=nvtx,osrt --output report ./engine": Never(NSYS, Ctest("nvtx_nsys_demo")),
    "nsys stats --report nvtx_sum report.nsys-rep": Never(NSYS, Ctest("nvtx_nsys_demo")),
    "cmake --build build-release && cmake --install build-release --prefix DIR": Ctest("install_consumer"),
    "cargo build --release": Part("plain-build", "cargo build --release"),
    "KVHINTS_LIBRARY=$PWD/build/lib/libkvhints.so PYTHONPATH=python python3 -m unittest discover -s python/tests": Part(
        "python-tests", "KVHINTS_LIBRARY=$PWD/build/lib/libkvhints.so PYTHONPATH=python python3 -m unittest discover"
    ),
    "scripts/ucx_versions.sh": Long("ucx-versions", "scripts/ucx_versions.sh", Part("ucx-versions", "--wheel-only")),
    "cargo run --release --manifest-path loom/Cargo.toml": Part("model-check", "--manifest-path loom/Cargo.toml"),
    "python3 scripts/compile_kernels.py": Part("kernels", "python3 scripts/compile_kernels.py"),
    "scripts/compile_kernels.py": Part("kernels", "scripts/compile_kernels.py --check"),
    "scripts/compile_kernels.py --check": Part("kernels", "scripts/compile_kernels.py --check"),
    "scripts/process_faults.sh": Long(
        "process-faults", "scripts/process_faults.sh", Part("rust-tests", "cargo test --workspace")
    ),
    "scripts/sanitize.sh": Long("sanitize", "scripts/sanitize.sh"),
    # With MPI, as ./check has built it.
    "./demo": Run("./demo"),
    "./demo --wires shm,tcp": Run("./demo --wires shm,tcp"),
    "scripts/demo_timeline.sh": Run('scripts/demo_timeline.sh "$work/timeline.svg"'),
    "cmake -S . -B build-release -DKVHINTS_TESTS=OFF -DKVHINTS_EXAMPLES=OFF -DKVHINTS_MPI=AUTO": Run(INSTALL),
    "PKG_CONFIG_PATH=DIR/lib/pkgconfig pkg-config --cflags --libs kvhints": Run(PKG_CONFIG),
    "pip install ./python": Run(PIP),
    "benches/broadcast.sh": Long("bench-broadcast", "benches/broadcast.sh", Run(BROADCAST)),
    "NVTX_INJECTION64_PATH=$PWD/build/cpp_tests/nvtx/nvtx_recorder.so KVHINTS_NVTX_RECORD=/tmp/ranges ./engine": Run(
        RECORDER
    ),
    # In folders of their own.
    "PROPTEST_RNG_SEED=$RANDOM cargo test --workspace": Run(
        "unset CARGO_TARGET_DIR; PROPTEST_RNG_SEED=$RANDOM cargo test --workspace --locked --test admission_properties"
    ),
    "KVHINTS_TRACES=A.jsonl:B.jsonl cargo test --release --test trace_hits -- --nocapture": Run(TRACES),
    "fuzz/run.sh 10000000": Long("fuzz", "fuzz/run.sh 10000000", Run(FUZZ)),
    "fuzz/run.sh 60s": Run("unset CARGO_TARGET_DIR; fuzz/run.sh 5s frame"),
    # With the tests' dependencies.
    "cargo bench --bench nvtx_cost": Run("cargo bench --locked --bench nvtx_cost"),
    "cargo bench --bench tree_cost": Run("cargo bench --locked --bench tree_cost"),
    # Where there is no CUDA device it says so and ends with 77.
    "scripts/gpu_check": Run("scripts/gpu_check", statuses=(0, 77)),
    "scripts/simulate.sh SEEDS [FIRST]": Long(
        "simulation", "scripts/simulate.sh 10000", Run("scripts/simulate.sh 20 5 && scripts/simulate.sh 1 7")
    ),
    "scripts/simulation_controls.py": Long(
        "simulation-controls", "scripts/simulation_controls.py", Run("scripts/simulation_controls.py --apply-only")
    ),
    "benches/reuse.sh": Long("bench-reuse", "benches/reuse.sh", Run("KVHINTS_BENCH_DRY=yes benches/reuse.sh 5")),
    # Without NIXL, which is large.
    "benches/transfer.sh": Long(
        "bench-transfer",
        "benches/transfer.sh",
        Run("KVHINTS_BENCH_DRY=yes KVHINTS_NIXL_PYTHON=$(command -v python3) benches/transfer.sh 1 1"),
    ),
    # Plain.
    "cargo run -- explain HINT.json": Run(EXPLAIN),
    # 1: it would run without a hint, for this one asks for nothing.
    "cargo run -- plan --table TABLE.json ENVELOPE.json": Run(PLAN, statuses=(1,)),
    "cargo run -- --help": Run("cargo run --release --locked --quiet -- --help"),
    "benches/admission.sh": Long(
        "bench-admission", "benches/admission.sh", Run("KVHINTS_BENCH_DRY=yes benches/admission.sh 5")
    ),
}


def commands():
    """Each command in the documents, and where it stands."""
    found = {}
    for document in sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*.md")):
        if LEFT_OUT.search(document):
            continue
        fence = None
        for number, line in enumerate((ROOT / document).read_text().splitlines(), 1):
            opened = re.match(r"\s*```(\w*)", line)
            if opened:
                fence = (opened[1] or "text") if fence is None else None
            elif fence == "sh":
                command = line.split(" #")[0].strip()
                found.setdefault(command, f"{document}:{number}")
            elif fence is None:
                for span in re.findall(r"`([^`]+)`", line):
                    if is_command(span.split()):
                        found.setdefault(span, f"{document}:{number}")
    return found


def is_command(words):
    """Whether the words between backticks are a command, rather than a name or a piece of a language."""
    while words and re.match(r"\w+=", words[0]):
        words = words[1:]
    if not words:
        return False
    program = ROOT / words[0]
    is_ours = program.is_file() and os.access(program, os.X_OK) and not LEFT_OUT.search(words[0])
    return (words[0] in PROGRAMS and len(words) > 1) or is_ours


class Check:
    """What ./check has: its parts, every day's and the long ones, each with all of its text."""

    def __init__(self):
        source = (ROOT / "check").read_text()
        self._functions = dict(re.findall(r"^(\w+)\(\) [{(]\n(.*?)^[})]", source, re.M | re.S))
        self.every_day = self._parts("every_day")
        self.long = self._parts("long_proofs")
        listed = subprocess.run(["ctest", "--test-dir", "build", "-N"], cwd=ROOT, capture_output=True, text=True)
        self.tests = set(re.findall(r"Test +#\d+: (\S+)", listed.stdout))

    def _parts(self, function):
        listed = re.findall(r"^\s*part (\S+) +(.+)$", self._functions[function], re.M)
        return {name: self._text(command) for name, command in listed}

    def _text(self, command):
        """A command, and the function or script that it calls."""
        called = command.split()[0]
        script = ROOT / called
        inside = self._functions.get(called) or (script.read_text() if script.is_file() else "")
        return f"{command}\n{inside}"

    def problem(self, account):
        """Why an account is not to be believed; None if it is."""
        if isinstance(account, (Part, Long)):
            what, parts = ("--long", self.long) if isinstance(account, Long) else ("", self.every_day)
            if account.name not in parts:
                return f"./check {what} has no part {account.name}"
            if account.text not in parts[account.name]:
                return f"the part {account.name} of ./check {what} does not have the text {account.text!r}"
            return self.problem(account.every_day) if isinstance(account, Long) and account.every_day else None
        if isinstance(account, Ctest) and account.name not in self.tests:
            return f"ctest has no test {account.name} in build/"
        if isinstance(account, Never) and account.nearest:
            return self.problem(account.nearest)
        return None


def run(shell, statuses):
    """Runs a command here; why it is wrong, or None."""
    environment = dict(os.environ, CARGO_TARGET_DIR=str(ROOT / "build" / "cargo"), work=str(WORK), checkout=str(ROOT))
    start = time.monotonic()
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", shell],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    print(ended.stdout)
    print(f"-- {time.monotonic() - start:.0f} s, status {ended.returncode}", flush=True)
    if ended.returncode not in statuses:
        return f"ended with {ended.returncode}, not {' or '.join(map(str, statuses))}"
    return None


def main():
    wanted = sys.argv[1:]
    found, check, problems = commands(), Check(), []
    for command, place in found.items():
        if command not in ACCOUNTS:
            problems.append(f"{place}: nobody runs `{command}`: give it an account in {pathlib.Path(__file__).name}")
    for command, account in ACCOUNTS.items():
        if command not in found:
            problems.append(f"`{command}` stands in no document any more: take its account out")
        reason = check.problem(account)
        if reason:
            problems.append(f"`{command}`: {reason}")
    for name, text in check.long.items():
        if not any(isinstance(account, Long) and account.name == name for account in ACCOUNTS.values()):
            problems.append(f"the part {name} of ./check --long is in no document: {text.splitlines()[0]}")

    WORK.mkdir(parents=True, exist_ok=True)
    for command, account in ACCOUNTS.items():
        here = account.every_day if isinstance(account, Long) else account
        if not isinstance(here, Run) or (wanted and not any(part in command for part in wanted)):
            continue
        print(f"== {command}", flush=True)
        reason = run(here.shell, here.statuses)
        if reason:
            problems.append(f"`{command}`: {reason}, see above")
    for problem in problems:
        print(f"FAILED {problem}")
    if problems:
        sys.exit(1)
    print(f"{len(found)} commands have an account")


if __name__ == "__main__":
    main()
