#!/bin/sh
# Runs the demo under nsys and fails unless the report has a range for each step. Ends with 77
# (skipped) where there is no nsys.
# usage: scripts/profile_demo.sh
set -eu
cd "$(dirname "$0")/.."
command -v nsys >/dev/null || {
    echo "SKIPPED profile_demo: nsys is not installed (it comes with NVIDIA's CUDA toolkit)"
    exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
nsys profile --trace=nvtx --sample=none --cpuctxsw=none --output "$work/demo" ./demo
nsys stats --quiet --force-export=true --report nvtx_pushpop_sum,nvtx_startend_sum --format csv "$work/demo.nsys-rep" \
    >"$work/ranges.csv"
for step in admit plan broadcast match pin metadata fetch verify claim; do
    grep -q "kvhints:$step" "$work/ranges.csv" || {
        echo "no range $step in the report:"
        cat "$work/ranges.csv"
        exit 1
    }
done
