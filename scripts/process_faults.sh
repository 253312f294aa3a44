#!/usr/bin/env bash
# Kills, stops, restarts, floods and cuts off real workers at length, and prints a report:
# scripts/process_faults.sh [PART OF A TEST'S NAME]... As root it also lays networks between namespaces
# (iproute2); what cannot be had here is SKIPPED with the reason. Ends non-zero if a promise was broken,
# or if fewer than ten processes died in any state of the protocol on either side.
set -euo pipefail
cd "$(dirname "$0")/.."
export KVHINTS_PROCESS_FAULTS=long
cargo test --locked --test process_faults -- --nocapture --test-threads=1 "$@"
