#!/bin/sh
# Fails when programs that were built against the older header could not run with the library of the
# present one: a function is gone or has other parameters, a struct changed that may not. With controls
# that must be found. usage: compare.sh SOURCE_DIR WORK_DIR [CC]
set -eu
abi=$1/cpp_tests/abi
work=$2
compiler=${3:-cc}
if ! command -v abidiff >/dev/null; then
    echo 'SKIPPED abi_compare: no abidiff (Debian: abigail-tools)'
    exit 77
fi
mkdir -p "$work/changed"

# library DIRECTORY_OF_HEADER NAME
library() {
    python3 "$abi/stubs.py" "$1/kvhints.h" >"$work/$2.c"
    "$compiler" -g -w -shared -fPIC "-I$1" "$work/$2.c" -o "$work/$2.so"
}

# differs NAME: whether it differs from the older one otherwise than by growing.
differs() {
    ! abidiff --no-added-syms --suppressions "$abi/grown.ini" "$work/older.so" "$work/$1.so" >"$work/$1.txt"
}

library "$abi/older" older
library "$1/include" present
if differs present; then
    cat "$work/present.txt"
    echo 'abi: programs built against cpp_tests/abi/older/kvhints.h could break.' >&2
    echo 'A struct with struct_size may grow at its end, and is then named in grown.ini.' >&2
    exit 1
fi

# Each of these changes of the present header must be found.
for change in \
    '/^size_t kvh_sequence_block_count/,/;/d' \
    's/^size_t kvh_sequence_block_count(/int32_t kvh_sequence_block_count(/' \
    '/^kvh_status_t kvh_admit(/,/;/s/int32_t ingress/int64_t ingress/' \
    '/^typedef struct kvh_str/,/^}/s/size_t len;/size_t len; size_t more;/'; do
    sed "$change" "$1/include/kvhints.h" >"$work/changed/kvhints.h"
    if cmp -s "$work/changed/kvhints.h" "$1/include/kvhints.h"; then
        echo "abi: a control does not apply any more: $change" >&2
        exit 1
    fi
    library "$work/changed" changed
    if ! differs changed; then
        echo "abi: not found: $change" >&2
        exit 1
    fi
done
