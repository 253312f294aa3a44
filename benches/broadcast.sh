#!/usr/bin/env bash
# Broadcast beside its peers, two ranks: raw MPI on bytes that were serialised before, and pickle with
# mpi4py. Runs them in turn, prints tables in the columns of the published measurements of the Python
# executor's broadcast, and keeps trials and tables in benches/record and a drawing in docs.
#
#   benches/broadcast.sh [TRIALS] [CASES_FILE]     default 5, benches/peers/broadcast_cases.tsv
#
# Needs g++, cmake and an MPI (MPICC and MPIRUN choose one: MPICC=mpicc.mpich MPIRUN=mpirun.mpich);
# mpi4py and numpy come into a virtual environment under target/. Takes about 20 minutes. With
# KVHINTS_BENCH_DRY set, nothing is kept.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/prerequisites.sh
use_loopback_mpi
trials=${1:-5}
cases=${2:-benches/peers/broadcast_cases.tsv}
mpicc=$(command -v "${MPICC:-mpicc}")
mpirun=${MPIRUN:-mpirun}

work=${CARGO_TARGET_DIR:-target}/peers/broadcast-$(basename "$mpicc")
venv=$work/venv
mkdir -p "$work"
if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet mpi4py numpy
fi

# Where this MPI's library is built already, by a build with CMake: its folder in CARGO_TARGET_DIR.
cargo=${CARGO_TARGET_DIR:-$work/cargo}
MPICC=$mpicc cargo build --quiet --release --locked --features mpi --lib --target-dir "$cargo"
ln -sf "$(realpath "$cargo")/release/libkvhints.so" "$work/libkvhints.so.0"
# MPI's C interface in a C++ program: the wrapper says how.
# shellcheck disable=SC2046  # a list of words
g++ -O3 -march=native -std=c++17 -Wall -Wextra -Iinclude benches/peers/broadcast.cpp "$work/libkvhints.so.0" \
    $("$mpicc" -show | tr ' ' '\n' | grep -E '^-(I|L|l|Wl|pthread)' | tr '\n' ' ') -o "$work/broadcast"
LD_LIBRARY_PATH=$(realpath "$work")
export LD_LIBRARY_PATH

# mpi4py's binaries serve both MPIs and are told which.
case $mpicc in
    *mpich*) export MPI4PY_MPIABI=mpich ;;
    *) export MPI4PY_MPIABI=openmpi ;;
esac

lines=$work/trials.tsv
: >"$lines"
for trial in $(seq "$trials"); do
    "$mpirun" -n 2 "$work/broadcast" "$cases" >>"$lines"
    # glibc gives large blocks back and takes them again with each pickle: tuned as well as can be.
    MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_TOP_PAD_=67108864 \
        "$mpirun" -n 2 "$venv/bin/python" benches/peers/broadcast.py "$cases" >>"$lines"
    echo "trial $trial of $trials: load $(cut -d' ' -f1-3 /proc/loadavg)" >&2
done

name=broadcast-$(basename "$mpicc" | sed 's/^mpicc\.\?//; s/^$/openmpi/')-$(date +%Y-%m-%d)
record=benches/record drawing=docs/$(echo "$name" | sed 's/-[0-9-]*$//').svg
if [ -n "${KVHINTS_BENCH_DRY:-}" ]; then
    record=$work drawing=$work/drawing.svg
fi
cp "$lines" "$record/$name.tsv"
{
    echo "# Broadcast, $(date +%Y-%m-%d)"
    echo
    echo "$(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -1), $(nproc) cores, load $(cut -d' ' -f1-3 /proc/loadavg)" \
        "at the end; $("$mpirun" --version 2>&1 | grep -iE 'mpi\)|version' | head -1 | tr -s ' '); $(rustc --version);" \
        "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown). All of it through the C interface."
} | "$venv/bin/python" benches/peers/broadcast_report.py "$lines" "$drawing" | tee "$record/$name.md"
