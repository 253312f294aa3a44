#!/usr/bin/env bash
# Blocks between two processes of this machine, beside peers: UCX's own ucx_perftest, NIXL, and one
# thread that copies the same blocks. All in turn, pinned to two cores. Prints tables, and keeps
# figures and tables in benches/record and a drawing in docs.
#
#   benches/transfer.sh [ROUNDS [REPEATS]]      default 5 rounds of 5 repeats
#
# Needs two cores, UCX and its ucx_perftest (Debian: libucx0, ucx-utils). NIXL comes into a virtual
# environment under target/, or is taken from KVHINTS_NIXL_PYTHON; without it its column stays empty.
# With KVHINTS_BENCH_DRY set, nothing is kept. KVHINTS_TRANSFER_BENCH names a built benchmark.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5} repeats=${2:-5}
if [ "$(nproc)" -lt 2 ]; then
    echo "transfer.sh: two cores are needed, $(nproc) found" >&2
    exit 2
fi
command -v ucx_perftest >/dev/null || {
    echo "transfer.sh: ucx_perftest is missing: install ucx-utils" >&2
    exit 2
}

work=${CARGO_TARGET_DIR:-target}/peers/transfer
mkdir -p "$work"
bench=${KVHINTS_TRANSFER_BENCH:-}
if [ -z "$bench" ]; then
    bench=$(cargo bench --locked --bench transfer --no-run 2>&1 | sed -n 's/.*(\(.*transfer-[0-9a-f]*\)).*/\1/p')
fi
python=${KVHINTS_NIXL_PYTHON:-$work/venv/bin/python}
if [ ! -x "$python" ]; then
    # nixl asks for both CUDA releases and for torch, which it needs for tensors only.
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install --quiet numpy &&
        "$work/venv/bin/pip" install --quiet --no-deps nixl nixl-cu12 || true
fi
if ! "$python" -c 'import nixl._api' 2>"$work/nixl.log"; then
    echo "SKIPPED nixl: it could not be installed, see $work/nixl.log" >&2
    python=
fi

export KVHINTS_CORES=0,1 UCX_NET_DEVICES=lo UCX_LOG_LEVEL=error
# Where it is allowed, before other programs of the machine.
first() { if nice -n -10 true 2>/dev/null; then nice -n -10 "$@"; else "$@"; fi; }

# perftest TEST TLS BYTES ITERATIONS PORT: one line of the figures, as the time of one message.
perftest() {
    local server
    UCX_TLS=$2,self first timeout 60 ucx_perftest -c 0 -p "$5" >/dev/null 2>&1 &
    server=$!
    # It says nothing when it listens.
    for _ in $(seq 100); do
        ss -ltn "sport = :$5" | grep -q LISTEN && break
        sleep 0.05
    done
    UCX_TLS=$2,self first timeout 60 ucx_perftest 127.0.0.1 -p "$5" -t "$1" -s "$3" -n "$4" -w 100 -c 1 -f -v 2>/dev/null |
        tail -1 | awk -F, -v test="$1" -v wires="$2" -v bytes="$3" -v OFS='\t' \
            '$6 > 0 { us = bytes / $6 / 1.048576; print test, wires, bytes, 1, "row", sprintf("%.2f", us), sprintf("%.2f", us) }'
    wait "$server" || true
}

figures=$work/rounds.tsv
: >"$figures"
port=21000
for round in $(seq "$rounds"); do
    first "$bench" copy "$repeats" >>"$figures"
    for wires in default tcp; do
        if [ -n "$python" ]; then
            tls=$wires
            [ "$wires" = default ] || tls=$wires,self
            # `all` is UCX's own default.
            UCX_TLS=${tls/default/all} first timeout 300 "$python" benches/peers/transfer_nixl.py "$wires" "$repeats" \
                >>"$figures" 2>>"$work/nixl.log" || echo "nixl over $wires: ended with an error, see $work/nixl.log" >&2
        fi
        for subject in library transport; do
            first "$bench" "$subject" "$wires" "$repeats" >>"$figures" 2>"$work/$subject-$wires.txt" ||
                echo "$subject over $wires ended with an error, see $work/$subject-$wires.txt" >&2
        done
    done
    for bytes in 32768 65536 1048576; do
        for test in tag_bw ucp_am_bw ucp_put_bw; do
            for tls in tcp posix,cma; do
                port=$((port + 1))
                perftest "$test" "$tls" "$bytes" $((bytes < 1000000 ? 4000 : 400)) "$port" >>"$figures"
            done
        done
    done
    echo "round $round of $rounds: load $(cut -d' ' -f1-3 /proc/loadavg)" >&2
done

name=transfer-$(date +%Y-%m-%d)
record=benches/record drawing=docs/transfer.svg
if [ -n "${KVHINTS_BENCH_DRY:-}" ]; then
    record=$work drawing=$work/transfer.svg
fi
cp "$figures" "$record/$name.tsv"
{
    echo "# Transfer, $(date +%Y-%m-%d)"
    echo
    echo "$(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -1), $(nproc) cores, load $(cut -d' ' -f1-3 /proc/loadavg)" \
        "at the end; UCX $(ucx_info -v | sed -n 's/^# \(Library version: \|Version \)\([0-9.]*\).*/\2/p' | head -1)," \
        "NIXL $([ -n "$python" ] && "$python" -c 'import importlib.metadata as m; print(m.version("nixl"))' || echo none);" \
        "$(rustc --version); commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)."
    [ -z "${KVHINTS_BENCH_NOTE:-}" ] || echo "$KVHINTS_BENCH_NOTE"
} | python3 benches/peers/transfer_report.py "$figures" "$drawing" | tee "$record/$name.md"
