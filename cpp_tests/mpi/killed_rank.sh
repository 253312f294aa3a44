#!/bin/sh
# killed_rank.sh DEADLINE_S COMMAND...: COMMAND runs a job in which a rank is killed. Passes when the kill
# took place and the job ended by itself, with an error, before the deadline.
deadline_s=$1
shift
output=$(timeout --kill-after=5 "$deadline_s" "$@" 2>&1)
code=$?
echo "$output"
case $output in
    *"killed in round 3"*) ;;
    *) echo "expected that a rank is killed in round 3"; exit 1 ;;
esac
case $code in
    0) echo "expected that the job ends with an error, it ended with 0"; exit 1 ;;
    124 | 137) echo "expected that the job ends by itself within $deadline_s s, it did not"; exit 1 ;;
    *) echo "the job ended with $code" ;;
esac
