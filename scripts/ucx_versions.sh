#!/usr/bin/env bash
# The UCX tests, the very same programs, with this machine's UCX and with that of the wheel
# libucx-cu12, which lies in a folder of its own and is found through the loader's search path.
#
#   scripts/ucx_versions.sh [--wheel-only] [VERSION]      default 1.22.0
#
# Needs python3 with pip. Where the wheel cannot be had that half is skipped, and it says so.
set -euo pipefail
cd "$(dirname "$0")/.."
is_wheel_only=
if [ "${1:-}" = --wheel-only ]; then
    is_wheel_only=yes
    shift
fi
version=${1:-1.22.0}
folder=target/ucx-$version

ucx_tests() { cargo test --locked --test ucx_transport --test ucx_one_machine --test ucx_guest --test transfer_ucx; }
[ -n "$is_wheel_only" ] || ucx_tests

if [ ! -e "$folder/libucx/lib/libucp.so.0" ]; then
    mkdir -p "$folder"
    if ! python3 -m pip download --quiet --no-deps --dest "$folder" "libucx-cu12==$version" >"$folder/pip.log" 2>&1; then
        echo "SKIPPED UCX $version: the wheel cannot be had: $(tail -n 1 "$folder/pip.log")"
        exit 0
    fi
    python3 -m zipfile -e "$folder"/libucx_cu12-*.whl "$folder"
fi
export LD_LIBRARY_PATH=$PWD/$folder/libucx/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# Else the tests could pass with the other UCX once more.
export KVHINTS_EXPECT_UCX=$version
ucx_tests
