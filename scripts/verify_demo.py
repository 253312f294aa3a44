#!/usr/bin/env python3
"""Reads the object that `./demo --json` prints and fails unless it says that all went well.

usage: verify_demo.py [--kill]   with --kill, what `./demo --json --kill` prints
"""

import json
import sys


def main():
    account = json.load(sys.stdin)
    fallbacks = account["fallbacks"]
    expected = {
        "malformed": 1,
        "oversized": 1,
        "untrusted": 1,
        "endpoint_unlisted": 1,
        "lora": 1,
        "content_miss": 1,
    }
    kills = "--kill" in sys.argv[1:]
    if kills:
        # The first request has lost its source; the last finds nobody to ask.
        del expected["content_miss"]
        expected |= {"peer_gone": 1, "metadata_failed": 1}
    problems = []
    if account["verified"] is not True:
        problems.append("the fetched bytes were not verified")
    if fallbacks != expected:
        problems.append(f"fallbacks are {fallbacks}, expected {expected}")
    killed = account["killed"]
    if kills and not 0 < killed["blocks_moved"] < killed["blocks_requested"]:
        problems.append(f"it was not in mid-transfer that A was killed: {killed}")
    if kills and account["blocks_fetched"] > 0:
        problems.append(f"{account['blocks_fetched']} blocks of a dead source were used")
    if not kills and account["blocks_fetched"] < 20:
        problems.append(f"only {account['blocks_fetched']} blocks were fetched")
    moved = account["blocks_fetched"] * account["ranks"] * account["block_bytes_per_rank"]
    if account["bytes_fetched"] != moved:
        problems.append(f"{account['bytes_fetched']} bytes fetched, {moved} would fit the blocks")
    if not kills and account["blocks_skipped"] < 1:
        problems.append("no local block was skipped")
    if account["pins_left"] != 0:
        problems.append(f"{account['pins_left']} pins are left")
    if account["ranks"] != 2:
        problems.append(f"{account['ranks']} ranks")
    if not account["transport"].startswith("ucx"):
        problems.append(f"the transport is {account['transport']}")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


sys.exit(main())
