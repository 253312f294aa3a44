#!/usr/bin/env bash
# Runs Rust tests under sanitizers, and controls that they have to find fault with:
#
#   scripts/sanitize.sh [address|thread]...      default: both
#
# To bring another test under them, add its cargo arguments to `tests`; to trust a sanitizer with a
# new kind of fault, add a control. Needs a Rust whose standard library has the sanitizers' runtimes,
# as rustup's has for Linux on x86-64. The standard library itself is not instrumented.
set -euo pipefail
cd "$(dirname "$0")/.."

# SANITIZER CARGO_ARGUMENTS, one set a line. ThreadSanitizer gets what has threads.
tests=(
  "address --test snapshot_sharing"
  "address --test admission_vectors"
  "address --test reuse_threads"
  "address --test owner_threads"
  "thread --test snapshot_sharing"
  "thread --test reuse_threads"
  "thread --test owner_threads"
)

# SANITIZER TEST: must fail, with a report of that sanitizer.
controls=(
  "address control_a_release_too_many"
  "address control_a_release_too_few"
  "thread control_a_count_that_orders_nothing"
)

target=$(rustc -vV | sed -n 's/^host: //p')
failed=0

# under SANITIZER ARGUMENTS...: cargo test with it.
under() {
  local sanitizer=$1 flags="-Zsanitizer=$1"
  shift
  # Other crates' inline assembly and the standard library come without it.
  [ "$sanitizer" != thread ] || flags+=" -Cunsafe-allow-abi-mismatch=sanitizer"
  # The flags are unstable; what is built with them is only for tests.
  RUSTC_BOOTSTRAP=1 RUSTFLAGS=$flags \
    TSAN_OPTIONS="suppressions=$PWD/scripts/thread_sanitizer.txt halt_on_error=1" \
    cargo test --quiet --locked --package kvhints --target "$target" \
    --target-dir "target/sanitize-$sanitizer" "$@"
}

for sanitizer in "${@:-address thread}"; do
  for one in $sanitizer; do
    for test in "${tests[@]}"; do
      [ "${test%% *}" = "$one" ] || continue
      arguments=${test#* }
      # shellcheck disable=SC2086  # several arguments
      if under "$one" $arguments; then
        echo "passed $one: $arguments"
      else
        echo "FAILED $one: $arguments"
        failed=1
      fi
    done
    for control in "${controls[@]}"; do
      [ "${control%% *}" = "$one" ] || continue
      name=${control#* }
      # A report ends with a summary. A sanitizer that cannot start names itself too, without one.
      if output=$(under "$one" --test snapshot_sharing -- --ignored --exact "$name" 2>&1); then
        echo "FAILED $one: $name was not found to be wrong"
        failed=1
      elif report=$(grep -m1 -o 'SUMMARY: [A-Za-z]*Sanitizer: .*' <<<"$output"); then
        echo "passed $one: $name was found: $report"
      else
        echo "FAILED $one: $name failed without a report"
        tail -n 20 <<<"$output"
        failed=1
      fi
    done
  done
done
exit $failed
