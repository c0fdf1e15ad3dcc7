#!/usr/bin/env python3
"""Shows what overlaps in the machine code of every row of the backward pass, and fails where a row lacks what it claims.

Read are the main loops: the innermost loops that hold HGMMAs. Rows with 128 keys (tile_kv of the table) have one, which
holds five products per trip. Wide rows, with 64 keys, have three: that of the warpgroup that makes P (it has the EX2),
that of the one that has dQ (it has the REDG), and that of the one that makes dS (the third). Of every loop:
  - as many groups of HGMMAs per trip as it has products, the HGMMAs of a group not broken by a wait: ptxas, where it
    serialises wgmma, closes and awaits a group for each. Wide rows: P has dV and S, dS has dK and dP, where dV and dK of
    more than 192 columns are two; dQ has one of 128 columns, if these are all of the CTA's, else one for every 64;
  - no access to local memory, there or anywhere else in the kernel.
What stands under a product, that is, between the issue of a group and the wait that retires it:
  128 keys     the stores of dS (STSM)
  wide, dS     the loads of P (LDSM)
  wide, dQ     the additions to global memory (REDG) of all chunks but the last
The exponentials of P and the stores of P and dS of wide rows are counted only: they run under the products of the other
warpgroups.

Usage: check_backward_overlap.py OBJECT... --table HEADER [--cuobjdump PATH]
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import audit_sass
from audit_sass import Function, Instruction
from check_overlap import (
    ROW,
    format_table,
    is_exponential,
    judge_objects,
    natural_loops,
    parser_of,
    pending,
    report,
    shortest_way,
)

COUNTED = ("EX2", "LDSM", "STSM", "REDG")


@dataclass
class Config:
    """What the table says of a row."""

    d: int
    d_v: int
    tile_q: int
    tile_kv: int
    cluster: int = 1

    @property
    def wide(self) -> bool:
        return self.tile_kv == 64

    @property
    def chunks(self) -> int:
        """Of dQ, in wide rows: products of a CTA."""
        columns = self.d // self.cluster
        return 1 if columns == 128 else columns // 64


def configs_of_table(header: str) -> dict[str, Config]:
    configs = {}
    for name, text in ROW.findall(header):
        _, d, d_v, tile_q, tile_kv, _, cluster, *_ = (part.strip() for part in text.split(","))
        configs[name] = Config(int(d), int(d_v), int(tile_q), int(tile_kv), int(cluster))
    return configs


@dataclass
class Loop:
    """One trip of a main loop."""

    kind: str = "all"  # or P, dS, dQ
    address: int = 0
    instructions: int = 0
    wgmmas: int = 0
    groups: int = 0
    count: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    under: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))  # with a group in flight
    findings: list[str] = field(default_factory=list)


def counted_as(instruction: Instruction) -> str | None:
    if is_exponential(instruction):
        return "EX2"
    return instruction.name if instruction.name in COUNTED else None


def read_loop(code: list[Instruction], edges: list[list[int]], header: int, members: set[int]) -> Loop:
    # By way of an HGMMA, as in check_overlap.py.
    ways = [
        shortest_way(edges, header, middle, members, set()) + shortest_way(edges, middle, header, members, set())
        for middle in members
        if code[middle].is_wgmma and middle != header
    ]
    way = [code[i] for i in min(ways, key=len)]
    loop = Loop(address=code[header].address, instructions=len(way))
    loop.wgmmas = sum(x.is_wgmma for x in way)
    if loop.wgmmas != sum(code[i].is_wgmma for i in members):
        loop.findings.append("some HGMMAs stand on some ways round the loop only")
    # Twice round, so that what is in flight at the loop's begin is known.
    in_flight, is_open = 0, False
    for trip in range(2):
        for x in way:
            if x.is_wgmma:
                is_open = True
                if "gsb0" in x.operands:
                    in_flight, is_open = in_flight + 1, False
                    loop.groups += trip
            elif pending(x) is not None and not x.guarded:
                if is_open and trip:
                    loop.findings.append(f"{x.address:#06x} {x.opcode}: a wait inside a group")
                in_flight = min(in_flight, pending(x))
            elif trip and (name := counted_as(x)):
                loop.count[name] += 1
                loop.under[name] += in_flight > 0
    return loop


def claims(config: Config, loop: Loop) -> list[str]:
    """What the loop lacks."""
    findings = []

    def demand(name: str, count: int, under: int) -> None:
        if loop.count[name] != count:
            findings.append(f"{loop.count[name]} {name}, not {count}")
        elif loop.under[name] < under:
            findings.append(f"{loop.under[name]} of {count} {name} stand under a product, not {under}")

    groups = {
        "all": 5,
        "P": 3 if config.d_v > 192 else 2,
        "dS": 3 if config.d > 192 else 2,
        "dQ": config.chunks,
    }[loop.kind]
    if loop.groups != groups:
        findings.append(f"{loop.groups} groups of HGMMAs, not {groups}: serialised?")
    pieces = config.tile_q // 16  # of 16 x 16, of each warp, which has 16 keys
    if loop.kind == "dQ":
        additions = config.d // config.cluster // 8
        demand("REDG", additions, additions - additions // config.chunks)
    else:
        demand("STSM", pieces, 0 if config.wide else pieces)
    if loop.kind == "dS":
        demand("LDSM", pieces, pieces)
    if loop.kind in ("P", "all"):
        demand("EX2", config.tile_q // 2, 0)
    return findings


@dataclass
class Row:
    name: str
    loops: list[Loop] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)


def judge(name: str, functions: list[Function], config: Config) -> Row:
    row = Row(name)
    kernels = [function for function in functions if any(x.is_wgmma for x in function.instructions)]
    if len(kernels) != 1:
        row.findings.append(f"{len(kernels)} kernels with wgmma, not one")
        return row
    code, edges = kernels[0].instructions, audit_sass.successors(kernels[0])
    row.findings += [f"{x.address:#06x} {x.opcode}: local memory" for x in code if x.name in ("LDL", "STL")][:3]
    with_wgmma = {
        header: members for header, members in natural_loops(edges).items() if any(code[i].is_wgmma for i in members)
    }
    row.loops = [
        read_loop(code, edges, header, members)
        for header, members in with_wgmma.items()
        if not any(other < members for other in with_wgmma.values())
    ]
    if config.wide:
        for loop in row.loops:
            loop.kind = "P" if loop.count["EX2"] else "dQ" if loop.count["REDG"] else "dS"
    wanted = ["P", "dQ", "dS"] if config.wide else ["all"]
    if sorted(loop.kind for loop in row.loops) != wanted:
        row.findings.append(f"main loops are {[loop.kind for loop in row.loops]}, not {wanted}")
        return row
    for loop in row.loops:
        row.findings += [f"loop at {loop.address:#06x} ({loop.kind}): {x}" for x in loop.findings + claims(config, loop)]
    return row


def table(rows: list[Row]) -> str:
    lines = [("row", "loop", "instr", "HGMMA", "groups", *(f"{name} (under)" for name in COUNTED))]
    for row in rows:
        for loop in row.loops:
            lines.append((row.name, loop.kind, loop.instructions, loop.wgmmas, loop.groups,
                          *(f"{loop.count[name]} ({loop.under[name]})" for name in COUNTED)))  # fmt: skip
    return format_table(lines)


def main() -> int:
    arguments = parser_of(__doc__).parse_args()
    if audit_sass.find_disassembler(arguments.cuobjdump) is None:
        return audit_sass.SKIPPED
    rows = judge_objects(arguments, "backward_", configs_of_table(Path(arguments.table).read_text()), judge)
    print(table(rows))
    return report(rows)


if __name__ == "__main__":
    sys.exit(main())
