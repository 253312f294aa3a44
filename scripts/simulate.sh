#!/usr/bin/env bash
# Lives SEEDS simulated fleets (tests/simulation), from seed FIRST on, and prints what happened in them:
# scripts/simulate.sh SEEDS [FIRST]. A seed that breaks a promise is printed with its last steps;
# scripts/simulate.sh 1 SEED replays it.
set -euo pipefail
cd "$(dirname "$0")/.."
export KVHINTS_SIMULATION_SEEDS=${1:?expected a number of seeds: scripts/simulate.sh SEEDS [FIRST]}
export KVHINTS_SIMULATION_FIRST=${2:-1}
cargo test --locked --release --test simulation -- --nocapture --exact every_promise_is_kept_in_every_seed
