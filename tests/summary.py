#!/usr/bin/env python3
"""Names the tests of a CTest run that were skipped or failed, with the reason, and counts all.

Usage: summary.py RESULTS.xml      as written by ctest --output-junit
The last line printed is "N passed, N failed, N skipped". Exit code: 1 if a test failed or none passed.
"""

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict


def reason(case: ElementTree.Element) -> str:
    """Why a test was skipped, from what it printed: the line after GoogleTest's "Skipped", else the last line."""
    lines = [line.strip() for line in (case.findtext("system-out") or "").splitlines() if line.strip()]
    for line, following in zip(lines, lines[1:]):
        if re.search(r": Skipped$", line):
            return following
    return lines[-1] if lines else (case.find("skipped").get("message") or "no reason given")


def main() -> int:
    cases = ElementTree.parse(sys.argv[1]).getroot().findall("testcase")
    skipped: dict[str, list[str]] = defaultdict(list)
    failed, passed = [], 0
    for case in cases:
        if case.find("skipped") is not None:
            skipped[reason(case)].append(case.get("name"))
        elif case.find("failure") is not None or case.get("status") not in ("run", "notrun"):
            failed.append(case.get("name"))
        else:
            passed += 1
    for why, names in skipped.items():
        print(f"skipped {len(names)}: {why}")
        for name in names:
            print(f"  {name}")
    for name in failed:
        print(f"failed: {name}")
    print(f"{passed} passed, {len(failed)} failed, {sum(map(len, skipped.values()))} skipped")
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
