#!/usr/bin/env python3
"""Audits compiled kernels: no instruction may write a register that a wgmma in flight still reads.

HGMMA with its A operand in registers (as P is in P V) reads those registers asynchronously, until a
WARPGROUP.DEPBAR retires the group it was committed in. A compiler that hands such a register to another value too early
gives results that are wrong now and then. No run-time tool sees that, so the machine code is read instead.

Method: the control-flow graph of every function, and a forward data-flow analysis on it to the fixpoint. The state is the
set of register-A wgmmas that may be in flight, each with the number of groups committed since (none yet: -1). Where paths
meet the younger age holds, so a wgmma counts as in flight if it is on any path. A write to one of its A registers
then is a violation. Loop back edges are edges like any other.

Usage: audit_sass.py BINARY [--cuobjdump PATH]      BINARY: libfa3.so, an object file or a cubin
Exit code: 0 clean; 1 a violation, or no wgmma found; 77 no disassembler here (CTest counts that as skipped).
"""

import argparse
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field

SKIPPED = 77
A_REGISTERS = 4  # 64 x k of A: 32 bytes of k per row whatever the type, so four 32-bit registers per thread
UNCOMMITTED = -1

FUNCTION = re.compile(r"^\s*Function : (\S+)")
INSTRUCTION = re.compile(r"^\s*/\*(?P<address>[0-9a-f]{4,})\*/\s+(?:@(?P<guard>!?U?P[T0-9]+)\s+)?(?P<text>[A-Z][^;]*?)\s*;")
REGISTER = re.compile(r"^R(\d+)\b")
PREDICATE = re.compile(r"^!?U?P[T0-9]\b")
ADDRESS = re.compile(r"\b0x([0-9a-f]+)\b")

# Opcodes whose first operand is read, not written, though it may be a register.
READ_ONLY = {
    "ST", "STG", "STS", "STL", "STSM", "STAS", "RED", "REDG", "REDS", "REDAS", "BAR", "BRX", "JMX", "CALL", "RET", "WARPSYNC",
    "NANOSLEEP", "R2P", "FCHK", "CCTL", "CCTLL", "CCTLT", "SUST", "SURED", "LDGSTS", "BPT", "ARRIVES",
}  # fmt: skip
# Opcodes that always write a pair.
PAIRS = {"DADD", "DMUL", "DFMA", "CS2R", "LEPC"}
CONVERSIONS = {"F2F", "I2F", "F2I", "FRND", "UI2F"}


@dataclass
class Instruction:
    address: int
    opcode: str  # with its modifiers, for example WARPGROUP.DEPBAR.LE
    operands: list[str]
    guard: str | None  # the predicate it runs under, for example !P0

    @property
    def guarded(self) -> bool:
        return self.guard is not None

    @property
    def modifiers(self) -> list[str]:
        return self.opcode.split(".")[1:]

    @property
    def name(self) -> str:
        return self.opcode.split(".")[0]

    @property
    def is_wgmma(self) -> bool:
        return self.name in ("HGMMA", "QGMMA", "IGMMA", "BGMMA")


@dataclass
class Function:
    name: str
    instructions: list[Instruction] = field(default_factory=list)


@dataclass
class Result:
    """What the audit of one function saw."""

    wgmmas: int = 0
    register_a: int = 0
    waits: int = 0
    violations: list[str] = field(default_factory=list)


def parse(listing: str) -> list[Function]:
    """The functions of a `cuobjdump -sass` listing."""
    functions: list[Function] = []
    for line in listing.splitlines():
        if match := FUNCTION.match(line):
            functions.append(Function(match[1]))
        elif functions and (match := INSTRUCTION.match(line)):
            opcode, _, operands = match["text"].partition(" ")
            functions[-1].instructions.append(
                Instruction(
                    int(match["address"], 16),
                    opcode,
                    [operand.strip() for operand in operands.split(",") if operand.strip()],
                    match["guard"],
                )
            )
    return functions


def a_registers(instruction: Instruction) -> range:
    """The registers a wgmma reads asynchronously; empty if A comes from shared memory."""
    if instruction.is_wgmma and len(instruction.operands) > 1 and (match := REGISTER.match(instruction.operands[1])):
        return range(int(match[1]), int(match[1]) + A_REGISTERS)
    return range(0)


def product_columns(instruction: Instruction) -> int:
    """n of a wgmma's 64 x n result."""
    shape = next(modifier for modifier in instruction.modifiers if "x" in modifier)
    return int(shape.split("x")[1])


def accumulator_count(instruction: Instruction) -> int:
    """Registers per thread of a wgmma's result."""
    return product_columns(instruction) // (4 if "F16" in instruction.modifiers else 2)


def written_count(instruction: Instruction) -> int:
    """How many registers from the first on an instruction writes, given that it writes one at all."""
    name, modifiers = instruction.name, instruction.modifiers
    if instruction.is_wgmma:
        return accumulator_count(instruction)
    if name in ("HMMA", "IMMA", "DMMA", "QMMA"):
        return 4
    if name in ("LDSM", "MOVM"):
        return int(modifiers[-1]) if modifiers and modifiers[-1] in ("2", "4") else 1
    if name.startswith(("LD", "ATOM", "TLD", "TEX", "SULD")):
        return 4 if "128" in modifiers else 2 if "64" in modifiers else 1
    if "WIDE" in modifiers or name in PAIRS and "32" not in modifiers:
        return 2
    if name in CONVERSIONS and {"F64", "S64", "U64"} & set(modifiers):
        return 2
    return 1


def written_registers(instruction: Instruction) -> range:
    """The general registers an instruction writes. An opcode unknown here counts as writing its first operand."""
    if instruction.name in READ_ONLY or "SETP" in instruction.name:
        return range(0)
    operands = [operand for operand in instruction.operands if not PREDICATE.match(operand)]
    if not operands or not (match := REGISTER.match(operands[0])):
        return range(0)
    return range(int(match[1]), int(match[1]) + written_count(instruction))


def successors(function: Function) -> list[list[int]]:
    """For every instruction the indices of those that may run next."""
    index = {instruction.address: i for i, instruction in enumerate(function.instructions)}
    edges = []
    for i, instruction in enumerate(function.instructions):
        following = [i + 1] if i + 1 < len(function.instructions) else []
        conditional = instruction.guarded or len(instruction.operands) > 1
        if instruction.name in ("BRA", "JMP"):
            target = jump_target(instruction)
            edges.append(([index[target]] if target in index else []) + (following if conditional else []))
        elif instruction.name in ("EXIT", "RET", "BRX", "JMX", "KILL"):
            edges.append(following if instruction.guarded else [])
        else:
            edges.append(following)
    add_reconvergence(function.instructions, index, edges)
    return edges


def add_reconvergence(code: list[Instruction], index: dict[int, int], edges: list[list[int]]) -> None:
    """Edges of BSYNC, which goes on at the address named by the BSSY that armed its barrier.

    One barrier serves many regions. At first any BSSY of it counts, then only those that reach the BSYNC; that takes
    edges away, so it is done until nothing changes.
    """
    arms: dict[int, list[int]] = {i: [] for i, instruction in enumerate(code) if instruction.name == "BSYNC"}
    regions = [i for i, instruction in enumerate(code) if instruction.name == "BSSY" and jump_target(instruction) in index]
    own = {i: edges[i] for i in arms}
    for i in arms:
        arms[i] = [j for j in regions if code[j].operands[0] == code[i].operands[0]]
    moved = any(instruction.name == "BMOV" for instruction in code)  # barriers kept in registers cannot be followed
    while True:
        for i, by in arms.items():
            targets = [index[jump_target(code[j])] for j in by]
            keeps_on = own[i] if code[i].guarded or not by else []
            edges[i] = list(dict.fromkeys(keeps_on + targets))
        if moved:
            return
        reaching: dict[int, list[int]] = {i: [] for i in arms}
        for region in regions:
            barrier = code[region].operands[0]
            seen, work = set(), list(edges[region])
            while work:
                i = work.pop()
                if i in seen:
                    continue
                seen.add(i)
                if code[i].name in ("BSSY", "BSYNC") and code[i].operands[0] == barrier:
                    if i in reaching:
                        reaching[i].append(region)
                    if not code[i].guarded:
                        continue
                work += edges[i]
        if reaching == arms:
            return
        arms = reaching


def jump_target(instruction: Instruction) -> int | None:
    """The address in the last operand of a jump, or None."""
    match = ADDRESS.search(instruction.operands[-1]) if instruction.operands else None
    return int(match[1], 16) if match else None


State = dict[int, int]  # index of a register-A wgmma in flight -> groups committed after its own, or UNCOMMITTED


def after(i: int, instruction: Instruction, state: State) -> State:
    """The state behind an instruction."""
    state = dict(state)
    if instruction.is_wgmma:
        if a_registers(instruction):
            state[i] = UNCOMMITTED
        if "gsb0" in instruction.operands:  # closes the group
            state = {j: age + 1 for j, age in state.items()}
    elif instruction.opcode.startswith("WARPGROUP.DEPBAR"):
        pending = int(instruction.operands[-1], 16)
        if not instruction.guarded:
            state = {j: age for j, age in state.items() if age < pending}
    return state


def merge(into: State, other: State) -> State:
    """The state where two paths meet: in flight on either, with the younger age."""
    return {j: min(age for age in (into.get(j), other.get(j)) if age is not None) for j in into.keys() | other.keys()}


def audit(function: Function) -> Result:
    """Reads one function; see the top of the file."""
    code = function.instructions
    result = Result(
        wgmmas=sum(x.is_wgmma for x in code),
        register_a=sum(bool(a_registers(x)) for x in code),
        waits=sum(x.opcode.startswith("WARPGROUP.DEPBAR") for x in code),
    )
    if result.register_a == 0:
        return result
    edges = successors(function)
    states: list[State | None] = [None] * len(code)
    states[0] = {}
    work = [0]
    while work:
        i = work.pop()
        state = after(i, code[i], states[i])
        for j in edges[i]:
            known = states[j]
            merged = state if known is None else merge(known, state)
            if merged != known:
                states[j] = merged
                work.append(j)
    addresses = {x.address for x in code}
    for i, instruction in enumerate(code):
        state = states[i]
        if not state:
            continue
        leaves = instruction.name in ("BRA", "JMP") and jump_target(instruction) not in addresses
        if leaves or instruction.name in ("CALL", "BRX", "JMX", "RET"):
            result.violations.append(f"{instruction.address:#06x} {instruction.opcode}: cannot be followed with a wgmma in flight")
        written = written_registers(instruction)
        for j in state:
            for register in sorted(set(written) & set(a_registers(code[j]))):
                result.violations.append(
                    f"{instruction.address:#06x} {instruction.opcode} writes R{register}, "
                    f"which {code[j].opcode} at {code[j].address:#06x} may still read"
                )
    return result


def find_disassembler(name: str) -> str | None:
    """Its path; None, and a word about it, where there is none."""
    tool = shutil.which(name)
    if tool is None:
        print(f"skipped: no disassembler ({name}); it comes with the CUDA toolkit or nvidia-cuda-cuobjdump of PyPI")
    return tool


def disassemble(tool: str, binary: str) -> list[Function]:
    """The functions of a library, an object file or a cubin. Ends the program if the tool fails."""
    disassembly = subprocess.run([tool, "-sass", binary], capture_output=True, text=True)
    if disassembly.returncode != 0:
        sys.exit(f"error: {tool} failed (it needs nvdisasm beside it): {disassembly.stderr.strip()}")
    return parse(disassembly.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--cuobjdump", default="cuobjdump")
    arguments = parser.parse_args()
    tool = find_disassembler(arguments.cuobjdump)
    if tool is None:
        return SKIPPED
    wgmmas = violations = kernels = 0
    for function in disassemble(tool, arguments.binary):
        result = audit(function)
        if result.wgmmas == 0:
            continue
        kernels += 1
        wgmmas += result.wgmmas
        violations += len(result.violations)
        print(
            f"{function.name}: {len(function.instructions)} instructions, {result.wgmmas} wgmma "
            f"({result.register_a} with A in registers), {result.waits} waits, {len(result.violations)} violations"
        )
        for violation in result.violations:
            print(f"error: {function.name}: {violation}", file=sys.stderr)
    print(f"{kernels} kernels with wgmma, {violations} violations")
    if wgmmas == 0:
        print(f"error: {arguments.binary} holds no wgmma: nothing was audited", file=sys.stderr)
    return 1 if violations or wgmmas == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
