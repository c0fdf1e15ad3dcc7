#!/usr/bin/env python3
"""Shows the overlap of GEMMs and softmax in the machine code of every row, and fails where a row lacks what it claims.

Read are the main loops: the innermost loops that hold HGMMAs (of e4m3 QGMMAs) of both products, S = Q K^T (A in shared
memory) and O += P V (A in registers). A row with Edges::own_loop has two, one over edge blocks and one over whole blocks
(the shorter one), a row with Edges::branch has one. A loop's common path is the shortest way round it on which no
VOTE.ANY carries; what stands behind a vote that carries is the rare path, on which m is raised.

Of every loop: one S and one P V per trip, each with one commit, behind its last HGMMA, and nothing of WARPGROUP inside:
ptxas, where it serialises wgmma, closes and awaits a group for each. HGMMAs and EX2s are as many as the tile shape asks
for. P V of an alone row has several groups, one for each part, all of that kind.
Of every loop of a row that claims it (the claims come from the row's line in the table):
  no_spills   no access to local memory;
  no_maxima   no FMNMX off the rare path (rows of 16 bits);
  two_stages  S of the next block and P V of this one are issued before either is waited for, without an exponential in
              between, and the wait for S leaves P V in flight (Algorithm 2);
  hand_over   ping-pong: BAR.SYNC takes the turn after the last exponential and before the first product, BAR.ARV passes
              it right after the last one, before any barrier, wait and exponential (Turns::gemm);
  no_turns    none of that (Turns::free_running);
  under_pv    in the loop over whole blocks, exponentials stand before the wait that retires P V (Edges::own_loop);
  alone       rows of e4m3, Algorithm 1: P V of this block is issued and then S of the next, a part of P V is awaited
              with the next part in flight and S before the exponentials;
  polynomials of those, with four warpgroups and sums in f16: one exponential in 16 is no EX2;
  only_ex2    of those, the others: all are;
  s_under_pv  of those, rows with registers for it: S is issued before the last part of P V is awaited, else behind it.
Where the exponentials stand behind that wait, they can only run under the other warpgroups' GEMMs, which is what the
hand-over lets happen; that it does is measured, not proved here: `fa3 trace --device cuda`.

Usage: check_overlap.py OBJECT... --table HEADER [--without ROW:CLAIM]... [--cuobjdump PATH]
       OBJECT: forward_ROW.cu.o of a row; every row of the table in HEADER must be there
Exit code: 0 all rows are as they claim; 1 a finding; 77 no disassembler here (CTest counts that as skipped).
"""

import argparse
import os
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import audit_sass
from audit_sass import Function, Instruction

CLAIMS = ("no_spills", "no_maxima", "two_stages", "hand_over", "under_pv")
ALONE, S_UNDER_PV = "alone", "s_under_pv"  # instead of no_maxima, two_stages and under_pv
NO_TURNS = "no_turns"  # instead of hand_over
POLYNOMIALS, ONLY_EX2 = "polynomials", "only_ex2"  # of rows of e4m3
ONE_IN = 16  # as ForwardConfig::pairs_per_polynomial()
MOST_FINDINGS = 6  # printed of one kind and loop: serialised code has one for every HGMMA
ROW = re.compile(r'^ *\{"([a-z0-9_]+)", *\{([^}]*)\}', re.MULTILINE)

Edge = tuple[int, int]


def claims_of_table(header: str) -> dict[str, set[str]]:
    """Row -> what it claims, from the text of the kernel table."""
    rows = {}
    for name, config in ROW.findall(header):
        if config.startswith("fp8("):
            _, d_v, tile_q, _, _, pv_columns = [int(x) for x in re.findall(r"[0-9]+", config.removeprefix("fp8("))[:6]]
            per_register = 4 if re.findall("true|false", config)[-1] == "true" else 2  # sums in f16, or in f32
            # S and a part, P, O: as in forward_fp8.hpp. Not with four warpgroups.
            needed = (128 + pv_columns) // per_register + 16 + d_v // 2
            fits = tile_q < 256 and needed <= {128: 232, 192: 160}[tile_q] - 16
            rows[name] = {"no_spills", ALONE} | ({S_UNDER_PV} if fits else set())
            rows[name].add(POLYNOMIALS if tile_q == 256 and per_register == 4 else ONLY_EX2)
        else:
            rows[name] = {"no_spills", "no_maxima", "two_stages"}
        if "Turns::gemm" in config:
            rows[name].add("hand_over")
        elif "Turns::free_running" in config:
            rows[name].add(NO_TURNS)
        if "Edges::own_loop" in config:
            rows[name].add("under_pv")
    return rows


# ----------------------------------------------------------------------------------------------------------------------
# Control flow


def natural_loops(edges: list[list[int]]) -> dict[int, set[int]]:
    """Header -> the loop's instructions, over all back edges to it (a back edge ends at a dominator of its start)."""
    order, seen, stack = [], {0}, [(0, iter(edges[0]))]
    while stack:
        i, following = stack[-1]
        j = next((j for j in following if j not in seen), None)
        if j is None:
            order.append(i)
            stack.pop()
        else:
            seen.add(j)
            stack.append((j, iter(edges[j])))
    order.reverse()
    predecessors: dict[int, list[int]] = {i: [] for i in order}
    for i in order:
        for j in edges[i]:
            predecessors[j].append(i)

    dominators = {0: 1}  # sets as bit masks
    changed = True
    while changed:
        changed = False
        for i in order[1:]:
            common = -1
            for j in predecessors[i]:
                common &= dominators.get(j, -1)
            common |= 1 << i
            if common != dominators.get(i):
                dominators[i] = common
                changed = True

    loops: dict[int, set[int]] = {}
    for latch in order:
        for header in edges[latch]:
            if dominators[latch] >> header & 1:
                loop = loops.setdefault(header, {header})
                work = [latch]
                while work:
                    i = work.pop()
                    if i not in loop:
                        loop.add(i)
                        work += predecessors[i]
    return loops


def rare_edges(code: list[Instruction], edges: list[list[int]], loop: set[int], findings: list[str]) -> set[Edge]:
    """The edges taken if a VOTE.ANY of the loop carries: those of the branch on its predicate."""
    rare = set()
    for i in sorted(loop):
        if code[i].name not in ("VOTE", "VOTEU") or "ANY" not in code[i].modifiers:
            continue
        predicate = code[i].operands[0]
        branch = i + 1
        while branch in loop and code[branch].name not in ("BRA", "EXIT") and predicate not in code[branch].operands[:2]:
            branch += 1
        if branch not in loop or code[branch].name != "BRA" or code[branch].guard not in (predicate, "!" + predicate):
            # A vote may also bring a predicate to the uniform datapath, where something selects by it.
            forms = {predicate, "!" + predicate}
            if not any(x.name in ("SEL", "USEL") and forms & {*x.operands} for x in code[i + 1 : branch]):
                findings.append(f"{code[i].address:#06x} {code[i].opcode} is not followed by a branch on {predicate}")
            continue
        taken = edges[branch][0]
        rare |= {(branch, j) for j in edges[branch] if (j == taken) == (code[branch].guard == predicate)}
    return rare


def shortest_way(edges: list[list[int]], start: int, end: int, loop: set[int], rare: set[Edge]) -> list[int]:
    """The instructions from the start to before the end, round the loop if they are the same; empty if all ways are rare."""
    came_from: dict[int, int] = {}
    front = [start]
    while front and end not in came_from:
        reached = []
        for i in front:
            for j in edges[i]:
                if (i, j) not in rare and j in loop and j not in came_from:
                    came_from[j] = i
                    reached.append(j)
        front = reached
    if end not in came_from:
        return []
    way = [came_from[end]]
    while way[-1] != start:
        way.append(came_from[way[-1]])
    return way[::-1]


def reachable(edges: list[list[int]], header: int, loop: set[int], rare: set[Edge]) -> set[int]:
    """The loop without its rare path."""
    seen, work = {header}, [header]
    while work:
        i = work.pop()
        for j in edges[i]:
            if j in loop and j not in seen and (i, j) not in rare:
                seen.add(j)
                work.append(j)
    return seen


# ----------------------------------------------------------------------------------------------------------------------
# One loop


def is_s(instruction: Instruction) -> bool:
    return instruction.is_wgmma and not audit_sass.a_registers(instruction)


def is_pv(instruction: Instruction) -> bool:
    return instruction.is_wgmma and bool(audit_sass.a_registers(instruction))


def is_exponential(instruction: Instruction) -> bool:
    return instruction.opcode.startswith("MUFU.EX2")


def pending(instruction: Instruction) -> int | None:
    """Groups that a wait leaves in flight; None if this is no wait."""
    if instruction.opcode.startswith("WARPGROUP.DEPBAR"):
        return int(instruction.operands[-1], 16)
    return None


def is_uniform(instruction: Instruction) -> bool:
    """On the uniform datapath, or a move to it."""
    return instruction.name == "R2UR" or re.match(r"U(?!TMA|BLK|CGABAR)", instruction.name) is not None


@dataclass
class Loop:
    """What stands in one main loop. Positions are those on the common path, turned so that it begins with S."""

    address: int
    kind: str = "all"  # or whole, edge
    common: list[Instruction] = field(default_factory=list)
    rare: int = 0  # instructions on the rare path
    under_pv: int = 0  # exponentials between the waits for S and for P V
    findings: dict[str, list[str]] = field(default_factory=dict)  # by claim; "": of every loop

    def find(self, claim: str, text: str) -> None:
        self.findings.setdefault(claim, []).append(text)

    def count(self, *names: str) -> int:
        return sum(instruction.name in names for instruction in self.common)

    @property
    def exponentials(self) -> int:
        return sum(map(is_exponential, self.common))


def read_loop(code: list[Instruction], edges: list[list[int]], header: int, members: set[int], alone: bool) -> Loop:
    """The facts and findings of one loop; `alone`: of a row that claims it."""
    loop = Loop(code[header].address)
    votes: list[str] = []
    rare = rare_edges(code, edges, members, votes)
    loop.findings[""] = votes
    usual = reachable(edges, header, members, rare)
    loop.rare = len(members - usual)
    for i in sorted(members):
        if code[i].name in ("LDL", "STL"):
            loop.find("no_spills", f"{code[i].address:#06x} {code[i].opcode}: local memory in the loop")
        if code[i].name.startswith("FMNMX") and i in usual:
            loop.find("no_maxima", f"{code[i].address:#06x} {code[i].opcode}: a maximum off the rare path")
    # By way of an HGMMA, because a wait for a barrier that is tried again may have the same header.
    ways = [
        shortest_way(edges, header, middle, members, rare) + shortest_way(edges, middle, header, members, rare)
        for middle in members
        if code[middle].is_wgmma and middle != header
    ]
    way = [code[i] for i in min(ways, key=len)]
    wgmmas = [i for i, instruction in enumerate(way) if instruction.is_wgmma]
    if len(wgmmas) != sum(code[i].is_wgmma for i in members):
        loop.find("", "some HGMMAs stand on some ways round the loop only")
        loop.common = way
        return loop
    first = next(i for k, i in enumerate(wgmmas) if is_s(way[i]) and is_pv(way[wgmmas[k - 1]]))
    loop.common = way[first:] + way[:first]
    (read_schedule_alone if alone else read_schedule)(loop)
    return loop


class Places:
    """What stands where in the code of one trip."""

    def __init__(self, code: list[Instruction]) -> None:
        self.code = code
        self.s = self.where(is_s)
        self.pv = self.where(is_pv)
        self.exponentials = self.where(is_exponential)
        self.waits = self.where(lambda x: pending(x) is not None and not x.guarded)
        self.takes = self.where(lambda x: x.opcode.startswith("BAR.SYNC") and not x.guarded)
        self.gives = self.where(lambda x: x.opcode.startswith("BAR.ARV") and not x.guarded)
        self.keys = audit_sass.product_columns(code[self.s[0]])

    def where(self, stands: Callable[[Instruction], bool]) -> list[int]:
        return [i for i, x in enumerate(self.code) if stands(x)]


def find_serialised(loop: Loop, code: list[Instruction], name: str, product: list[int]) -> None:
    """Whether the instructions at `product` are not one group."""
    for x in code[product[0] : product[-1]]:
        if x.name == "WARPGROUP" or "gsb0" in x.operands:
            loop.find("", f"{x.address:#06x} {x.opcode}: serialised, {name} is not one group")
    if "gsb0" not in code[product[-1]].operands:
        loop.find("", f"{code[product[-1]].address:#06x} {code[product[-1]].opcode}: {name} is not committed")


def find_turns(loop: Loop, at: Places, last: int, first_words: str, last_words: str) -> None:
    """Whether the turn is not taken after the exponentials and passed right after `last`, the turn's last product; for
    NO_TURNS, whether there is one."""
    turns = f"the turn is taken {len(at.takes)} times and passed {len(at.gives)} times"
    if at.takes or at.gives:
        loop.find(NO_TURNS, turns)
    if len(at.takes) != 1 or len(at.gives) != 1:
        loop.find("hand_over", turns)
        return
    if at.takes[0] < max(at.exponentials):
        loop.find("hand_over", f"the turn is not taken between the last exponential and {first_words}")
    if at.gives[0] < last or any(x.name in ("SYNCS", "WARPGROUP", "MUFU") for x in at.code[last : at.gives[0]]):
        loop.find("hand_over", f"the turn is not passed right after {last_words}")


def read_schedule_alone(loop: Loop) -> None:
    """As read_schedule, of a row that claims `alone`."""
    first = next(i for i, x in enumerate(loop.common) if is_pv(x))
    at = Places(loop.common[first:] + loop.common[:first])
    if at.pv[-1] > at.s[0]:
        loop.find("", "not one P V and one S per trip")
        return

    steps = at.keys // 32
    parts = [at.pv[i : i + steps] for i in range(0, len(at.pv), steps)]
    find_serialised(loop, at.code, "S", at.s)
    for part in parts:
        find_serialised(loop, at.code, "a part of P V", part)
    missing = at.keys // 2 - len(at.exponentials)
    if missing != at.keys // 2 // ONE_IN:
        loop.find(POLYNOMIALS, f"{missing} exponentials are polynomials")
    if missing != 0:
        loop.find(ONLY_EX2, f"{missing} exponentials are polynomials")
    if len(at.pv) % steps != 0 or missing not in (0, at.keys // 2 // ONE_IN):
        numbers = f"{len(at.pv)} QGMMAs of P V and {len(at.exponentials)} EX2"
        loop.find("", f"{numbers}, not parts of {steps}, and {at.keys // 2}")
        return

    # What is in flight when: after every part but the first the one before is awaited, after the last one, or behind S
    # with S in flight, itself.
    found = [(max(i for i in at.pv if i < wait), pending(at.code[wait])) for wait in at.waits if wait < at.s[0]]
    after_s = [i for i in at.waits if i > at.s[-1]]
    wanted = [(part[-1], 1) for part in parts[1:]]
    if found == wanted and after_s and pending(at.code[after_s[0]]) == 1:
        del after_s[0]
    elif found == wanted + [(at.pv[-1], 0)]:
        loop.find(S_UNDER_PV, "S is not issued before the last part of P V is awaited")
    else:
        loop.find(ALONE, "P V is not awaited part by part, each with the next in flight")
    if not after_s or pending(at.code[after_s[0]]) != 0 or any(i < after_s[0] for i in at.exponentials):
        loop.find(ALONE, "S is not awaited between its issue and the exponentials")
    find_turns(loop, at, at.s[-1], "P V", "S")


def read_schedule(loop: Loop) -> None:
    """What stands where on the common path."""
    at = Places(loop.common)
    if at.s[-1] > at.pv[0]:
        loop.find("", "not one S and one P V per trip")
        return

    find_serialised(loop, at.code, "S", at.s)
    find_serialised(loop, at.code, "P V", at.pv)
    expected = (at.keys // 16, at.keys // 2)  # k16 steps of P V; 64 rows x keys exponentials by 128 threads
    if (len(at.pv), len(at.exponentials)) != expected:
        loop.find("", f"{len(at.pv)} HGMMAs of P V and {len(at.exponentials)} EX2, not {expected[0]} and {expected[1]}")
    retired = next((i for i in at.waits if i > at.pv[-1] and pending(at.code[i]) == 0), None)
    if retired is None or not at.exponentials:
        loop.find("", "no wait retires P V, or there are no exponentials")
        return

    if any(at.s[0] < i < at.pv[-1] for i in at.waits):
        loop.find("two_stages", "S is waited for before P V is issued")
    elif any(at.s[0] < i < at.pv[-1] for i in at.exponentials):
        loop.find("two_stages", "exponentials stand between the HGMMAs")
    else:
        ready = next(i for i in at.waits if i > at.pv[-1])
        if pending(at.code[ready]) != 1:
            loop.find("two_stages", "the wait for S retires P V as well")
        if any(i < ready for i in at.exponentials):
            loop.find("two_stages", "exponentials stand before the wait for S")
        loop.under_pv = sum(ready < i < retired for i in at.exponentials)
    if loop.under_pv == 0:
        loop.find("under_pv", "no exponential stands before the wait that retires P V")
    find_turns(loop, at, at.pv[-1], "the first HGMMA", "the last HGMMA")


# ----------------------------------------------------------------------------------------------------------------------
# One row


def read_function(function: Function, alone: bool) -> list[Loop]:
    """The main loops, that over whole blocks first; `alone`: of a row that claims it."""
    code = function.instructions
    edges = audit_sass.successors(function)
    both = {
        header: members
        for header, members in natural_loops(edges).items()
        if any(is_s(code[i]) for i in members) and any(is_pv(code[i]) for i in members)
    }
    loops = [
        read_loop(code, edges, header, members, alone)
        for header, members in both.items()
        if not any(other < members for other in both.values())
    ]
    loops.sort(key=lambda loop: len(loop.common))
    if len(loops) == 2:
        loops[0].kind, loops[1].kind = "whole", "edge"
    return loops


@dataclass
class Row:
    name: str
    loops: list[Loop] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)


def judge(name: str, functions: list[Function], claims: set[str]) -> Row:
    """The loops of a row, and where they are not as they claim."""
    row = Row(name)
    kernels = [function for function in functions if any(x.is_wgmma for x in function.instructions)]
    if len(kernels) != 1:
        row.findings.append(f"{len(kernels)} kernels with wgmma, not one")
        return row
    row.loops = read_function(kernels[0], ALONE in claims)
    if len(row.loops) not in (1, 2):
        row.findings.append(f"{len(row.loops)} loops with both products, not one or two")
    for loop in row.loops:
        wanted = {"", *claims} - ({"under_pv"} if loop.kind == "edge" else set())
        for claim in ("", *CLAIMS, ALONE, S_UNDER_PV, NO_TURNS, POLYNOMIALS, ONLY_EX2):
            if claim not in wanted:
                continue
            found = loop.findings.get(claim, [])
            for finding in found[:MOST_FINDINGS] + [f"{len(found) - MOST_FINDINGS} more"] * (len(found) > MOST_FINDINGS):
                row.findings.append(f"loop at {loop.address:#06x} ({loop.kind}): {claim and claim + ': '}{finding}")
    return row


HEADINGS = ("row", "blocks", "instr", "S+PV", "EX2", "under PV", "FFMA", "FADD", "FMNMX", "F2FP", "uniform", "rare")


def table(rows: list[Row]) -> str:
    """One line per loop."""
    lines = [HEADINGS]
    for row in rows:
        for loop in row.loops:
            products = f"{sum(map(is_s, loop.common))}+{sum(map(is_pv, loop.common))}"
            lines.append((row.name, loop.kind, len(loop.common), products, loop.exponentials, loop.under_pv,
                          loop.count("FFMA"), loop.count("FADD"), loop.count("FMNMX"), loop.count("F2FP"),
                          sum(map(is_uniform, loop.common)), loop.rare))  # fmt: skip
    return format_table(lines)


def format_table(lines: list[tuple]) -> str:
    """Columns of words on the left of two, of numbers after that."""
    widths = [max(len(str(line[i])) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(f"{cell:<{w}}" if i < 2 else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(line, widths)))
        for line in lines
    )


def parser_of(doc: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("objects", nargs="+", metavar="OBJECT")
    parser.add_argument("--table", required=True, metavar="HEADER")
    parser.add_argument("--cuobjdump", default="cuobjdump")
    return parser


def judge_objects(arguments: argparse.Namespace, prefix: str, wanted: dict, judge) -> list:
    """judge(name, functions, what is wanted of it) of every row; `wanted` is by row, the objects are `prefix` + row."""
    objects = {Path(path).name.removeprefix(prefix).partition(".")[0]: path for path in arguments.objects}
    if not wanted or wanted.keys() != objects.keys():
        sys.exit(f"error: {arguments.table} has the rows {sorted(wanted)}, the objects are those of {sorted(objects)}")
    tool = audit_sass.find_disassembler(arguments.cuobjdump)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        listings = pool.map(lambda name: audit_sass.disassemble(tool, objects[name]), wanted)
        return [judge(name, functions, wanted[name]) for name, functions in zip(wanted, listings)]


def report(rows: list) -> int:
    """Prints the rows' findings; the exit code."""
    findings = [f"{row.name}: {finding}" for row in rows for finding in row.findings]
    for finding in findings:
        print(f"error: {finding}", file=sys.stderr)
    print(f"{len(rows)} rows, {len(findings)} findings")
    return 1 if findings else 0


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--without", action="append", default=[], metavar="ROW:CLAIM")
    arguments = parser.parse_args()
    if audit_sass.find_disassembler(arguments.cuobjdump) is None:
        return audit_sass.SKIPPED

    claims = claims_of_table(Path(arguments.table).read_text())
    for exception in arguments.without:
        name, _, claim = exception.partition(":")
        if claim not in claims.get(name, ()):
            sys.exit(f"error: --without {exception}: there is no such row, or it does not claim that")
        claims[name].remove(claim)

    rows = judge_objects(arguments, "forward_", claims, judge)
    print(table(rows))
    print(
        "of one trip on the common path; under PV: EX2 before the wait that retires P V; uniform: on the uniform datapath,\n"
        "or a move to it; rare: instructions of the loop behind a vote that carries"
    )
    return report(rows)


if __name__ == "__main__":
    sys.exit(main())
