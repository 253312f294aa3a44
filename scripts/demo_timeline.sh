#!/usr/bin/env bash
# Runs the demo with the recorder of cpp_tests/nvtx as its profiler, and draws it.
# usage: scripts/demo_timeline.sh [FILE]   (default docs/demo-timeline.svg; after a build with the C++ tests in build/)
set -euo pipefail
cd "$(dirname "$0")/.."
recorder=$PWD/build/cpp_tests/nvtx/nvtx_recorder.so
[ -e "$recorder" ] || { echo "no $recorder: build with -DKVHINTS_TESTS=ON first" >&2; exit 1; }
drawing=${1:-docs/demo-timeline.svg}
records=$(mktemp -d)
trap 'rm -rf "$records"' EXIT
NVTX_INJECTION64_PATH=$recorder KVHINTS_NVTX_RECORD=$records/demo ./demo >"$records/account"
python3 scripts/draw_timeline.py "$records"/demo.*.jsonl >"$records/timeline.svg"
cp "$records/timeline.svg" "$drawing"
echo "$drawing: $(cat "$records"/demo.*.jsonl | wc -l) events of $(ls "$records"/demo.*.jsonl | wc -l) processes"
