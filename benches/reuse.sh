#!/usr/bin/env bash
# The reuse room beside its peers, in one go: builds the benchmark and the peers (a C++ tree under a
# mutex; kvbm-logical from the registry), runs them in turn, prints tables, and keeps them with the
# figures themselves in benches/record with a note on the machine.
#
#   benches/reuse.sh [ROUNDS]      default 9, at least 5
#
# Needs g++ and two cores. Where kvbm-logical cannot be had its columns stay empty, and it says so. With
# KVHINTS_BENCH_DRY set it is left out, with the larger trees, and nothing is kept.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-9}
if [ "$rounds" -lt 5 ]; then
  echo "reuse.sh: $rounds rounds are too few for a median; give at least 5" >&2
  exit 2
fi
if [ "$(nproc)" -lt 2 ]; then
  echo "reuse.sh: two cores are needed, $(nproc) found" >&2
  exit 2
fi

target=${CARGO_TARGET_DIR:-target}
work=$target/peers
sizes="10000 100000 1000000"
contended=100000
if [ -n "${KVHINTS_BENCH_DRY:-}" ]; then
  sizes=10000 contended=10000
fi
mkdir -p "$work"
cargo bench --quiet --locked --bench reuse --no-run
reuse() { cargo bench --quiet --locked --bench reuse -- "$@"; }
g++ -O3 -march=native -std=c++17 -Wall -Wextra benches/peers/reuse.cpp -o "$work/reuse"
kvbm=
if [ -n "${KVHINTS_BENCH_DRY:-}" ]; then
  echo "SKIPPED kvbm-logical: KVHINTS_BENCH_DRY is set" >&2
elif cargo build --quiet --release --locked --manifest-path benches/peers/kvbm/Cargo.toml \
  --target-dir "$work/kvbm" 2>"$work/kvbm.log"; then
  kvbm=$work/kvbm/release/kvbm
else
  echo "SKIPPED kvbm-logical: it could not be built, see $work/kvbm.log" >&2
fi

# The last core: the first one usually serves interrupts.
core=$(($(nproc) - 1))
pinned() { taskset -c "$core" "$@"; }
figures=$work/reuse.tsv
pinned cargo bench --quiet --locked --bench reuse -- names "$((rounds * 4 + 1))" >"$figures"
for blocks in $sizes; do
  pinned cargo bench --quiet --locked --bench reuse -- tree "$blocks" "$rounds" >>"$figures"
  pinned "$work/reuse" "$blocks" "$rounds" >>"$figures"
  [ -z "$kvbm" ] || pinned "$kvbm" "$blocks" "$rounds" >>"$figures"
  reuse memory "$blocks" >>"$figures"
done
reuse executor "$contended" "$rounds" >>"$figures"
reuse threads "$contended" "$rounds" >>"$figures"

# Same day, same file: later runs are appended.
record=benches/record/reuse-$(date +%Y-%m-%d).md
[ -z "${KVHINTS_BENCH_DRY:-}" ] || record=$work/reuse.md
{
  echo "# Reuse, $(date '+%Y-%m-%d %H:%M')"
  echo
  echo "$(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -1), $(nproc) cores, SHA instructions:" \
    "$(grep -qm1 sha_ni /proc/cpuinfo && echo yes || echo no), load $(cut -d' ' -f1-3 /proc/loadavg)" \
    "at the end; $(rustc --version); commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)."
  echo "$rounds rounds; 32 tokens a block but where said otherwise."
  echo
  awk -f benches/peers/reuse.awk "$figures"
  echo
  echo 'Case, subject, unit, least, median:'
  echo
  sed 's/^/    /' "$figures"
  echo
} | tee -a "$record"
