#!/bin/sh
# Fails when the library exports anything but what symbols.txt lists, when the header declares
# anything else, when the SONAME changed, or when the library could be unmapped.
# usage: symbols.sh LIBRARY SOURCE_DIR [--update]
set -eu
library=$1
source_dir=$2
list=$source_dir/cpp_tests/abi/symbols.txt

exported=$(nm -D --defined-only "$library" | awk '{ print $NF }' | LC_ALL=C sort)
if [ "${3:-}" = --update ]; then
    printf '%s\n' "$exported" > "$list"
fi

fail() {
    printf 'abi: %s\n' "$1" >&2
    exit 1
}

difference=$(printf '%s\n' "$exported" | diff "$list" - || true)
[ -z "$difference" ] || fail "exported symbols differ from cpp_tests/abi/symbols.txt
(after a wanted change: cpp_tests/abi/symbols.sh LIBRARY SOURCE_DIR --update):
$difference"

declared=$(grep -oE '\bkvh_[a-z0-9_]+\(' "$source_dir/include/kvhints.h" | tr -d '(' | LC_ALL=C sort -u)
difference=$(printf '%s\n' "$declared" | diff - "$list" || true)
[ -z "$difference" ] || fail "the header declares other functions than the library exports:
$difference"

readelf -d "$library" | grep -q 'SONAME.*\[libkvhints\.so\.0\]' || fail 'SONAME is not libkvhints.so.0'
readelf -d "$library" | grep -q NODELETE || fail 'the library is not linked with -z nodelete'
