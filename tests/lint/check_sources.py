#!/usr/bin/env python3
"""Rules about the sources that no compiler checks. usage: check_sources.py ROOT

1. src/attention is backend-neutral: no CUDA keyword, no inline assembly, no CUDA header.
2. The steps of docs/algorithm.md and the [n] marks in src/attention/forward.hpp are the same, each once. So are its steps
   Bn and the [Bn] marks in src/attention/backward*.hpp, each at least once and in no file twice.
"""
import pathlib
import re
import sys

CUDA = re.compile(
    r"\b(asm|__asm__|__global__|__device__|__host__|__shared__|__constant__|__forceinline__|__launch_bounds__|__grid_constant__"
    r"|threadIdx|blockIdx|blockDim|gridDim|__syncthreads|__syncwarp|__shfl\w*|cuda::\w+|cuda\w*_runtime\w*|__half2?|__nv_\w+)\b"
    r"|#\s*include\s*<cu\w*|#\s*pragma\s+unroll|#\s*ifn?def|#\s*if\b|<<<")


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)


def neutral_sources(root: pathlib.Path) -> list[str]:
    files = sorted((root / "src/attention").rglob("*.hpp"))
    errors = [] if files else ["src/attention: no sources found"]
    for path in files:
        for number, line in enumerate(without_comments(path.read_text()).splitlines(), 1):
            match = CUDA.search(line)
            if match:
                errors.append(f"{path.relative_to(root)}: about line {number}: {match.group(0)!r} belongs into src/hopper or src/kernels")
    return errors


def step_marks(root: pathlib.Path) -> list[str]:
    comments = re.findall(r"//[^\n]*", (root / "src/attention/forward.hpp").read_text())
    in_code = sorted(int(n) for comment in comments for n in re.findall(r"\[(\d+)\]", comment))
    in_text = sorted(int(n) for n in re.findall(r"\*\*\[(\d+)\]\*\*", (root / "docs/algorithm.md").read_text()))
    if not in_text or in_text != list(range(1, len(in_text) + 1)):
        return [f"docs/algorithm.md: steps are {in_text}, expected 1, 2, .."]
    if in_code != in_text:
        return [f"src/attention/forward.hpp: marks are {in_code}, docs/algorithm.md has {in_text}"]
    return []


def backward_marks(root: pathlib.Path) -> list[str]:
    in_text = [int(n) for n in re.findall(r"\*\*\[B(\d+)\]\*\*", (root / "docs/algorithm.md").read_text())]
    if not in_text or sorted(in_text) != list(range(1, len(in_text) + 1)):
        return [f"docs/algorithm.md: steps of the backward pass are {in_text}, expected B1, B2, .."]
    errors, in_code = [], set()
    for path in sorted((root / "src/attention").glob("backward*.hpp")):
        comments = re.findall(r"//[^\n]*", path.read_text())
        marks = [int(n) for comment in comments for n in re.findall(r"\[B(\d+)\]", comment)]
        errors += [f"{path.relative_to(root)}: mark [B{n}] stands there {marks.count(n)} times" for n in sorted(set(marks)) if marks.count(n) > 1]
        in_code |= set(marks)
    if in_code != set(in_text):
        errors.append(f"src/attention/backward*.hpp: marks are {sorted(in_code)}, docs/algorithm.md has {sorted(in_text)}")
    return errors


def main() -> None:
    root = pathlib.Path(sys.argv[1])
    errors = neutral_sources(root) + step_marks(root) + backward_marks(root)
    print("\n".join(errors) if errors else "sources: ok")
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
