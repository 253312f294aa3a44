#!/usr/bin/env bash
# Admission beside its peers, in one go: builds the library and the peers, runs them in turn on one
# core, prints a table of times and ratios, and keeps it in benches/record with a note on the machine.
#
#   benches/admission.sh [ROUNDS]      default 301
#
# With KVHINTS_BENCH_DRY set, nothing is kept.
# Needs g++, and installs what is missing where it may: libsimdjson-dev and nlohmann-json3-dev from
# the system's packages; msgspec, pydantic and msgpack into a virtual environment under target/ (or CARGO_TARGET_DIR).
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-301}

if ! echo '#include <nlohmann/json.hpp>
#include <simdjson.h>' | g++ -std=c++17 -fsyntax-only -x c++ - 2>/dev/null; then
  apt-get install -y --no-install-recommends libsimdjson-dev nlohmann-json3-dev >/dev/null
fi
target=${CARGO_TARGET_DIR:-target}
work=$target/peers
mkdir -p "$work/inputs"
if [ ! -x "$work/venv/bin/python" ]; then
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install --quiet msgspec pydantic msgpack
fi

cargo build --quiet --release --locked
# Under the name that programs are linked against.
ln -sf ../release/libkvhints.so "$work/libkvhints.so.0"
g++ -O3 -march=native -std=c++17 -Wall -Wextra -Iinclude benches/peers/admission.cpp \
  "$work/libkvhints.so.0" -lsimdjson -o "$work/admission"
LD_LIBRARY_PATH=$(realpath "$work")
export LD_LIBRARY_PATH

# The last core: the first one usually serves interrupts.
core=$(($(nproc) - 1))
"$work/admission" write "$work/inputs"
taskset -c "$core" "$work/admission" time "$rounds" >"$work/times.tsv"
taskset -c "$core" "$work/venv/bin/python" benches/peers/admission.py "$work/inputs" "$((rounds / 4 + 1))" >>"$work/times.tsv"

record=benches/record/admission-$(date +%Y-%m-%d).md
[ -z "${KVHINTS_BENCH_DRY:-}" ] || record=$work/admission.md
{
  echo "# Admission, $(date +%Y-%m-%d)"
  echo
  echo "$(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -1), $(nproc) cores, load $(cut -d' ' -f1-3 /proc/loadavg)" \
    "at the end; $(rustc --version); commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)."
  echo "Through the C interface, pinned to one core, $rounds rounds in turn with the C++ peers."
  echo
  awk -F'\t' -f benches/peers/table.awk "$work/times.tsv"
} | tee "$record"
