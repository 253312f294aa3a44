#!/usr/bin/env bash
# Runs the tests that check concurrent code under many schedules, with shuttle in the place of atomics
# and locks (src/sync.rs). More schedules: KVHINTS_MODEL_ITERATIONS=10000 scripts/model_check.sh.
# Arguments go to the test program: a part of a test's name runs only those.
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTFLAGS="--cfg kvhints_shuttle ${RUSTFLAGS:-}"
# Of its own, so that ordinary builds are not thrown away.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/model
# Only tests that were written for it: others use atomics outside of its runs.
filter=${1:-model::}
# One after the other: controls silence the panics they wait for.
cargo test --locked --lib -- --test-threads=1 "$filter"
