#!/usr/bin/env bash
# Runs the fuzzers, coverage-guided:
#
#   fuzz/run.sh 10000000 [NAME...]   that many executions of each, or of those named
#   fuzz/run.sh 60s [NAME...]        that long each
#   fuzz/run.sh minimise [NAME...]   writes what was found back into fuzz/corpus, as few inputs as
#                                    cover as much
#
# NAME is one of fuzz/targets. A run starts from fuzz/corpus/NAME, which it does not change; what is
# found goes to fuzz/target/found/NAME, and an input that fails to fuzz/target/failed. Each ends with
# a table of what was seen; a zero in it fails the run.
set -euo pipefail
cd "$(dirname "$0")"

how=${1:-}
case "$how" in
  minimise) ;;
  *[!0-9s]* | "" | s) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 2 ;;
  *s) limit="-max_total_time=${how%s}" ;;
  *) limit="-runs=$how" ;;
esac
shift
[ $# -gt 0 ] || set -- admission envelopes bodies frame

# What cargo-fuzz sets, less two things that would cost more executions than they find: a sanitizer
# (scripts/sanitize.sh runs tests under one) and the tracing of comparisons (dictionaries and draws
# know what is compared, and the references compare each character with everything).
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Ccodegen-units=1"
# With a target named, the flags are for it alone and not for build scripts.
target=$(rustc -vV | sed -n 's/^host: //p')
cargo build --quiet --release --locked --target "$target"

minimise() {
  rm -rf "target/minimised/$1"
  mkdir -p "target/minimised/$1"
  "target/$target/release/$1" -merge=1 -use_counters=0 -max_len=512 "target/minimised/$1" "corpus/$1" \
    "target/found/$1" 2>/dev/null || true
  [ "$(ls "target/minimised/$1" | wc -l)" -gt 0 ] || {
    echo "$1: nothing was left, keeping the corpus" >&2
    return 1
  }
  rm -rf "corpus/$1"
  mv "target/minimised/$1" "corpus/$1"
  echo "$1: $(ls "corpus/$1" | wc -l) inputs, $(du -s --apparent-size --block-size=1 "corpus/$1" | cut -f1) bytes"
}

# Short inputs: all bounds are reached by them (see checks/), and the references are slow.
fuzz() {
  set -- "$1" "target/found/$1" "corpus/$1"
  [ ! -f "$1.dict" ] || set -- "$@" "-dict=$1.dict"
  "target/$target/release/$1" "$limit" -max_len=512 -timeout=30 -rss_limit_mb=2048 \
    -entropic_scale_per_exec_time=1 \
    "-artifact_prefix=target/failed/$1-" -print_final_stats=1 "${@:2}"
}

mkdir -p target/failed
failed=0
for name; do
  mkdir -p "target/found/$name" "corpus/$name"
  if [ "$how" = minimise ]; then
    minimise "$name" || failed=1
  else
    echo "== $name"
    fuzz "$name" || failed=1
  fi
done
exit $failed
