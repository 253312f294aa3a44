#!/usr/bin/env bash
# Builds the reference of the C and C++ headers with Doxygen: build/doxygen/html/index.html. Fails on a
# warning, and when the text of a header did not get into it.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v doxygen >/dev/null; then
    echo "SKIPPED reference: no doxygen (Debian: doxygen)"
    exit 77
fi
mkdir -p build/doxygen
doxygen docs/Doxyfile
grep -q "Judges the raw JSON bytes of one hint" build/doxygen/html/kvhints_8h.html
grep -q "What a call gives, or why it failed" build/doxygen/html/classkvhints_1_1Result.html
echo "build/doxygen/html/index.html"
