#!/usr/bin/env python3
"""Prometheus' own tool on what the project gives to Prometheus: the library's metrics and docs/alerts.yml.

usage: promtool_test.py LIBRARY CHECKOUT

The rules are checked, and run against alerts_test.yml. Then each alert is broken in three ways, and that
test has to fail: else it does not say when the alert fires and when it is silent. Ends with 77 (skipped)
where there is no promtool.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from exposition import metrics_of

# What an alert may be broken to, as its expression and how long that must hold.
BREAKS = {
    "never fires": (lambda expr: f"({expr}) and vector(0) > 1", lambda minutes: minutes),
    "always fires": (
        lambda expr: 'group by (instance) ({__name__=~"(kvhints|trtllm_kv_hints)_.*"})',
        lambda minutes: minutes,
    ),
    "fires at another time": (lambda expr: expr, lambda minutes: 12 if minutes == 0 else 0),
}


def promtool_of(checkout):
    """The tool that scripts/prerequisites.sh prepares, or the system's; None."""
    prepared = checkout / "build" / "promtool" / "promtool"
    return str(prepared) if prepared.exists() else shutil.which("promtool")


def run(*command, text=""):
    """Whether a command succeeds, and what it says."""
    ended = subprocess.run(command, input=text, capture_output=True, text=True)
    return ended.returncode == 0, ended.stdout + ended.stderr


def broken(rules, alert, how):
    """The rules with one alert broken."""
    new_expression, new_minutes = BREAKS[how]
    found = re.search(rf"      - alert: {alert}\n        expr: (.*)\n(?:        for: (\d+)m\n)?", rules)
    if not found:
        sys.exit(f"{alert}: expected the lines `alert`, `expr` and perhaps `for: …m`")
    minutes = new_minutes(int(found[2] or 0))
    lines = [f"      - alert: {alert}", f"        expr: '{new_expression(found[1])}'"]
    lines += [f"        for: {minutes}m"] if minutes else []
    return rules[: found.start()] + "\n".join(lines) + "\n" + rules[found.end() :]


def main():
    library, checkout = sys.argv[1], pathlib.Path(sys.argv[2])
    promtool = promtool_of(checkout)
    if promtool is None:
        print("SKIPPED metrics_promtool: there is no promtool; scripts/prerequisites.sh fetches it")
        sys.exit(77)
    problems = []
    is_well, said = run(promtool, "check", "metrics", text=metrics_of(library))
    if not is_well:
        problems.append(f"promtool check metrics:\n{said}")
    is_well, said = run(promtool, "check", "rules", str(checkout / "docs" / "alerts.yml"))
    if not is_well:
        problems.append(f"promtool check rules:\n{said}")

    rules = (checkout / "docs" / "alerts.yml").read_text()
    alerts = re.findall(r"- alert: (\w+)", rules)
    with tempfile.TemporaryDirectory() as work:
        # The test names its rules by a path beside it.
        test = pathlib.Path(work) / "alerts_test.yml"
        shutil.copy(pathlib.Path(__file__).with_name(test.name), test)

        def holds(these_rules):
            (pathlib.Path(work) / "alerts.yml").write_text(these_rules)
            return run(promtool, "test", "rules", str(test))

        is_well, said = holds(rules)
        if not is_well:
            problems.append(f"promtool test rules:\n{said}")
        for alert in alerts:
            for how in BREAKS:
                changed = broken(rules, alert, how)
                # A rule that cannot be read would make the test fail too, and prove nothing.
                (pathlib.Path(work) / "changed.yml").write_text(changed)
                is_read, said = run(promtool, "check", "rules", f"{work}/changed.yml")
                if not is_read:
                    problems.append(f"{alert}, broken so that it {how}, is no rule:\n{said}")
                elif holds(changed)[0]:
                    problems.append(f"alerts_test.yml does not notice when {alert} {how}")
    if problems:
        sys.exit("\n".join(problems))
    print(f"{len(alerts)} alerts, each broken in {len(BREAKS)} ways")


if __name__ == "__main__":
    main()
