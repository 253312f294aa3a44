#!/usr/bin/env python3
"""Fails unless a Prometheus parser reads the metrics, and they follow its conventions.

usage: exposition_test.py LIBRARY

Ends with 77 (skipped) where the parser, prometheus_client, is not installed.
"""

import re
import sys

from exposition import metrics_of

try:
    from prometheus_client.parser import text_string_to_metric_families
except ImportError:
    print("SKIPPED metrics_exposition: prometheus_client is not installed for "
          f"{sys.executable}; scripts/prerequisites.sh installs it")
    sys.exit(77)

# What a name may end in: a unit that Prometheus calls a base unit, or what is counted.
UNITS = ("seconds", "bytes")
COUNTED = ("hints", "actions", "candidates", "types", "unmatched", "refused", "fetches", "blocks",
           "pins", "busy", "leases", "rounds", "requests", "prefetches", "served", "missed",
           "unreadable", "peers", "flight", "waiting", "ignored", "admitted", "delivered",
           "cancelled", "failed", "accepted", "ended")


def problems_of(text):
    """What is wrong with an exposition."""
    problems = []
    try:
        families = list(text_string_to_metric_families(text))
    except ValueError as error:
        return [f"the parser refuses it: {error}"]
    names = [family.name for family in families]
    problems += [f"{name} comes twice" for name in set(names) if names.count(name) > 1]
    for family in families:
        name = family.name
        if family.type not in ("counter", "gauge", "histogram"):
            problems.append(f"{name} is of type {family.type}")
        if not family.documentation.endswith("."):
            problems.append(f"{name} has no sentence as HELP: {family.documentation!r}")
        if not re.fullmatch(r"(kvhints|trtllm_kv_hints)_[a-z_]+", name):
            problems.append(f"{name} is no name of this library")
        if not name.endswith(UNITS + COUNTED):
            problems.append(f"{name} ends in no base unit and nothing that is counted")
        if family.type == "histogram":
            problems += histogram_problems(family)
        elif family.type == "counter" and any(s.name != f"{name}_total" for s in family.samples):
            problems.append(f"{name} is a counter without _total")
        if any(len(sample.labels) > 2 for sample in family.samples):
            problems.append(f"{name} has more labels than one")
        if len(family.samples) > 200:
            problems.append(f"{name} has {len(family.samples)} series")
    return problems


def histogram_problems(family):
    """What is wrong with a histogram: buckets rise, the last is the count, there is a sum."""
    problems, series = [], {}
    for sample in family.samples:
        labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
        part = sample.name[len(family.name):]
        series.setdefault(labels, {}).setdefault(part, []).append(sample)
    for labels, parts in series.items():
        if set(parts) != {"_bucket", "_sum", "_count"}:
            problems.append(f"{family.name}{labels} has {sorted(parts)}")
            continue
        bounds = [float(sample.labels["le"]) for sample in parts["_bucket"]]
        counts = [sample.value for sample in parts["_bucket"]]
        if bounds != sorted(set(bounds)) or counts != sorted(counts) or bounds[-1] != float("inf"):
            problems.append(f"{family.name}{labels}: buckets {list(zip(bounds, counts))}")
        if counts[-1] != parts["_count"][0].value:
            problems.append(f"{family.name}{labels}: the last bucket is not the count")
    return problems


def main():
    text = metrics_of(sys.argv[1])
    problems = problems_of(text)
    for line in ("kvhints_hints_admitted_total 1\n",
                 'trtllm_kv_hints_ignored_total{reason="malformed"} 1\n'):
        if line not in text:
            problems.append(f"{line!r} is missing")
    if problems:
        sys.exit("\n".join(problems))
    for what, wrong in (
        ("a family twice", text + text),
        ("no HELP", text.replace("# HELP kvhints_hints_admitted_total", "# X")),
        ("no TYPE", text.replace("# TYPE kvhints_hints_admitted_total counter\n", "")),
        ("no number", text.replace("kvhints_hints_admitted_total 1\n", "kvhints_hints_admitted_total x\n")),
        ("no unit", text.replace("_seconds", "_ns")),
        ("no last bucket", text.replace('le="+Inf"', 'le="60"')),
    ):
        if not problems_of(wrong):
            sys.exit(f"a wrong exposition passed: {what}")
    print(f"{len(list(text_string_to_metric_families(text)))} families")


if __name__ == "__main__":
    main()
