#!/usr/bin/env python3
"""Reads the object that `./demo --json` prints and fails unless it says that all went well."""

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
    problems = []
    if account["verified"] is not True:
        problems.append("the fetched bytes were not verified")
    if fallbacks != expected:
        problems.append(f"fallbacks are {fallbacks}, expected {expected}")
    if account["blocks_fetched"] < 20:
        problems.append(f"only {account['blocks_fetched']} blocks were fetched")
    moved = account["blocks_fetched"] * account["ranks"] * account["block_bytes_per_rank"]
    if account["bytes_fetched"] != moved:
        problems.append(f"{account['bytes_fetched']} bytes fetched, {moved} would fit the blocks")
    if account["blocks_skipped"] < 1:
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
