#!/bin/sh
# `./demo --corrupt` has to end non-zero and name the wrong block.
output=$(./demo --corrupt 2>&1) && {
    echo "./demo --corrupt ended with 0: a wrong byte was not found"
    exit 1
}
printf '%s\n' "$output"
printf '%s\n' "$output" | grep -q 'WRONG BYTE.*block [0-9]' || {
    echo "./demo --corrupt did not name the block"
    exit 1
}
