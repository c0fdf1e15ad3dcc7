#!/usr/bin/env python3
"""Reads what ptxas said about every kernel (nvcc -Xptxas -v) and fails on what costs speed silently.

ptxas prints serialised wgmma and spills as `info` and exits with 0, so a build succeeds with a kernel of half the speed.
Usage: check_ptxas_log.py DIRECTORY      every *.log in it is the output of one compilation
Exit code: 0 all kernels are clean; 1 a finding, or nothing to check.
"""

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

MAX_SPILL_BYTES = 32

ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)' for '(?P<arch>[^']+)'")
SPILLS = re.compile(r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (?P<count>\d+) registers")
SERIALISED = re.compile(r"\bC75(?:08|09|1\d)\b")  # C7508 .. C7519


@dataclass
class Kernel:
    """One entry function. A count that ptxas did not print stays None and is a finding."""

    name: str
    log: str
    registers: int | None = None
    spill_bytes: int | None = None


@dataclass
class Report:
    kernels: list[Kernel] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)


def read_log(text: str, log: str, report: Report) -> None:
    """Adds the kernels and findings of one compilation to the report."""
    kernel = None
    for line in text.splitlines():
        if SERIALISED.search(line):
            report.findings.append(f"{log}: {line.strip()}")
        if match := ENTRY.search(line):
            kernel = Kernel(match["name"], log)
            report.kernels.append(kernel)
        if kernel is None:
            continue
        if match := SPILLS.search(line):  # of the kernel, and of device functions that it calls
            kernel.spill_bytes = max(kernel.spill_bytes or 0, int(match["stores"]), int(match["loads"]))
        if (match := REGISTERS.search(line)) and kernel.registers is None:
            kernel.registers = int(match["count"])


def judge(report: Report) -> None:
    """Turns the figures of each kernel into findings."""
    if not report.kernels:
        report.findings.append("no kernel in any log: were they compiled with -Xptxas -v?")
    for kernel in report.kernels:
        if kernel.registers is None or kernel.spill_bytes is None:
            report.findings.append(f"{kernel.log}: {kernel.name}: ptxas printed no registers or no spills")
        elif kernel.spill_bytes > MAX_SPILL_BYTES:
            report.findings.append(
                f"{kernel.log}: {kernel.name}: spills {kernel.spill_bytes} bytes, allowed are {MAX_SPILL_BYTES}"
            )


def check(directory: Path) -> Report:
    """The report on every *.log of the directory."""
    report = Report()
    logs = sorted(directory.glob("*.log")) if directory.is_dir() else []
    for log in logs:
        read_log(log.read_text(errors="replace"), log.name, report)
    if logs:
        judge(report)
    else:
        report.findings.append(f"no *.log in {directory}: build the kernels first")
    return report


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 1
    report = check(Path(sys.argv[1]))
    for kernel in report.kernels:
        print(f"{kernel.log}: {kernel.registers} registers, {kernel.spill_bytes} bytes spilled  {kernel.name}")
    for finding in report.findings:
        print(f"error: {finding}", file=sys.stderr)
    print(f"{len(report.kernels)} kernels, {len(report.findings)} findings")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
