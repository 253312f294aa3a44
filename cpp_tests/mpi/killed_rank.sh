#!/bin/sh
# killed_rank.sh DEADLINE_S COMMAND...: COMMAND runs a job in which a rank is killed. Passes when the kill
# took place and the job ended by itself, with an error, before the deadline.
deadline_s=$1
shift
# What a killed job ends with looks like what a killed `timeout` ends with: the inner shell tells.
# shellcheck disable=SC2016  # for the inner shell
output=$(timeout --kill-after=5 "$deadline_s" sh -c '"$@" 2>&1; echo "the job ended with $?"' job "$@")
echo "$output"
case $output in
    *"killed in round 3"*"the job ended with 0"*) echo "expected that the job ends with an error" ;;
    *"killed in round 3"*"the job ended with "*) exit 0 ;;
    *"the job ended with "*) echo "expected that a rank is killed in round 3" ;;
    *) echo "expected that the job ends by itself within $deadline_s s" ;;
esac
exit 1
