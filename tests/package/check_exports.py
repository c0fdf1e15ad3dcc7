#!/usr/bin/env python3
"""Checks the shared library from outside: exported symbols, needed libraries, SONAME.

Usage: check_exports.py libfa3.so fa3.h
The exported symbols must be exactly the functions that the header declares FA3_API, and nothing but the C library (and
what belongs to it) may be needed to load it.
"""

import re
import subprocess
import sys
from pathlib import Path

ALLOWED = re.compile(r"lib(c|m|dl|rt|pthread)\.so\.\d+|ld-linux[-\w]*\.so\.\d+")


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> int:
    library, header = sys.argv[1:]
    declared = set(re.findall(r"^FA3_API [\w* ]*?(fa3_\w+)\(", Path(header).read_text(), re.MULTILINE))
    exported = {line.split()[-1] for line in output("nm", "-D", "--defined-only", library).splitlines()}
    dynamic = output("readelf", "-d", library)
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
    soname = re.findall(r"\(SONAME\).*\[(.+)\]", dynamic)

    errors = []
    if not declared:
        errors.append(f"{header} declares no FA3_API function")
    errors += [f"declared but not exported: {name}" for name in sorted(declared - exported)]
    errors += [f"exported but not declared: {name}" for name in sorted(exported - declared)]
    errors += [f"needs {name} to load" for name in needed if not ALLOWED.fullmatch(name)]
    if len(soname) != 1 or not re.fullmatch(r"libfa3\.so\.\d+", soname[0]):
        errors.append(f"SONAME is {soname}")
    print(f"{len(exported)} symbols exported, {soname}, needs {' '.join(needed)}")
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
