#!/usr/bin/env bash
# Fuzzes admission: fuzz/run.sh 10000000 for that many executions, fuzz/run.sh 60s for that long.
# Starts from fuzz/corpus, which it does not change; what is found goes to fuzz/target/found, and an
# input that fails to fuzz/target/failed. Ends with a table of verdicts and rules seen; a zero fails.
#
#   fuzz/run.sh minimise   writes what was found back into fuzz/corpus, as few inputs as cover as much
set -euo pipefail
cd "$(dirname "$0")"

case "${1:-}" in
  *[!0-9s]* | "" | s) [ "${1:-}" = minimise ] || { sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 2; } ;;
esac

# What cargo-fuzz sets, less two things that would cost more executions than they find: a sanitizer
# (the library's own unsafe code is a handful of loads here) and the tracing of comparisons (the
# dictionary knows what is compared, and the reference compares each character with everything).
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
# With a target named, the flags are for it alone and not for build scripts.
target=$(rustc -vV | sed -n 's/^host: //p')
cargo build --quiet --release --target "$target"
fuzzer=target/$target/release/admission
mkdir -p target/found target/failed

if [ "$1" = minimise ]; then
  rm -rf target/minimised
  mkdir target/minimised
  "$fuzzer" -merge=1 -max_len=1024 target/minimised corpus/admission target/found 2>/dev/null || true
  [ "$(ls target/minimised | wc -l)" -gt 0 ] || { echo "nothing was left: keeping the corpus" >&2; exit 1; }
  rm -rf corpus/admission
  mv target/minimised corpus/admission
  du -sh --apparent-size corpus/admission
  exit
fi

# Short inputs: all bounds are reached by them (see targets/input.rs), and the reference is slow.
case "$1" in
  *s) limit="-max_total_time=${1%s}" ;;
  *) limit="-runs=$1" ;;
esac
exec "$fuzzer" "$limit" -max_len=1024 -timeout=10 -rss_limit_mb=2048 -dict=admission.dict \
  -artifact_prefix=target/failed/ -print_final_stats=1 target/found corpus/admission
