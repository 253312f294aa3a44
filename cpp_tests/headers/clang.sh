#!/bin/sh
# Each header alone and twice with clang, as the other compiler that hosts use: clang.sh SOURCE_DIR.
# What gcc says of them is part of the build.
set -eu
if ! command -v clang++ >/dev/null; then
    echo 'SKIPPED headers_clang: no clang++ (Debian: clang)'
    exit 77
fi
here=$1/cpp_tests/headers
warnings='-Wall -Wextra -Wpedantic -Wconversion -Werror -fsyntax-only'
for standard in c11 c17; do
    # shellcheck disable=SC2086  # a list of words
    clang $warnings "-std=$standard" "-I$1/include" "$here/kvhints_h.c"
done
for standard in c++17 c++20; do
    for source in kvhints_h.cpp kvhints_hpp.cpp; do
        # shellcheck disable=SC2086  # a list of words
        clang++ $warnings "-std=$standard" "-I$1/include" "$here/$source"
    done
done
# The adapter's templates, beside what stands in for their host.
adapter=$1/integrations/tensorrt_llm
# shellcheck disable=SC2086  # a list of words
clang++ $warnings -std=c++17 "-I$1/include" "-I$adapter/include" "$adapter/tests/instances.cpp"
# A control: what the warnings must find.
# shellcheck disable=SC2086  # a list of words
if printf '#include "kvhints.h"\nvoid f(void) { kvh_context_create(0, 0); }\n' |
    clang $warnings -std=c11 "-I$1/include" -xc - 2>/dev/null; then
    echo 'headers_clang: an ignored status is not found' >&2
    exit 1
fi
