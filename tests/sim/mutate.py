#!/usr/bin/env python3
"""Mutation tests: breaks the kernel on purpose, one fault at a time, and requires the simulator or the judge to notice.

usage: mutate.py run BUILD.json [--fast | --only NAME ...]    compile and run mutants, and the unbroken kernel
       mutate.py record BUILD.json                            run all and write into mutants.json how each was caught
       mutate.py table                                        print the list of mutants as a Markdown table
       mutate.py check-table FILE                             fail unless FILE contains that table

BUILD.json is written by CMake: root, compiler, libraries, rows and backward_rows (names in the order of the kernel
tables), scratch (a folder), jobs. An entry of mutants.json:
  name, what     what is wrong, in words
  file           the header that is broken
  find, replace  code that occurs exactly once in it (comments, layout and trace marks aside), and what it becomes
  row, case      row of the kernel table and case of mutant_main.cpp that show it; of the backward pass "backward_" and
                 the row's name, and a case of backward_mutant_main.cpp
  fast           run by the fast suite too
  caught_by      how each policy must notice: deadlock, race, refused (a rule of the machine is broken), wrong result
"""
import argparse
import concurrent.futures
import json
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
MUTANTS = HERE / "mutants.json"
KEYS = {"name", "what", "file", "find", "replace", "row", "case", "fast", "caught_by"}
POLICIES = ["eager", "lazy", "random"]
TIMEOUT_S = 300


def load() -> list[dict]:
    mutants = json.loads(MUTANTS.read_text())
    names = [mutant["name"] for mutant in mutants]
    for mutant in mutants:
        if set(mutant) != KEYS:
            sys.exit(f"{mutant['name']}: keys are {sorted(mutant)}, expected {sorted(KEYS)}")
        if names.count(mutant["name"]) != 1:
            sys.exit(f"{mutant['name']}: two mutants have this name")
    return mutants


def mutate(root: pathlib.Path, mutant: dict, include: pathlib.Path) -> None:
    """Writes the broken header below `include`, where the path below src is the same."""
    source = re.sub(r"//[^\n]*|\bstamp_\(Mark::\w+, \w+\);", "", (root / mutant["file"]).read_text())
    pattern = r"\s*".join(re.escape(token) for token in re.findall(r"\w+|[^\w\s]", mutant["find"]))
    broken, count = re.subn(pattern, lambda _: mutant["replace"], source)
    if count != 1:
        raise ValueError(f"{mutant['file']} has the code to replace {count} times, not once: {mutant['find']}")
    target = include / pathlib.Path(mutant["file"]).relative_to("src")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(broken)


def run(build: dict, mutant: dict) -> dict[str, str]:
    """What the policies that noticed something say."""
    root = pathlib.Path(build["root"])
    scratch = pathlib.Path(build["scratch"]) / mutant["name"]
    scratch.mkdir(parents=True, exist_ok=True)
    include = scratch / "include"
    shutil.rmtree(include, ignore_errors=True)  # another header may have been broken the last time
    include.mkdir()
    if mutant.get("file"):
        mutate(root, mutant, include)
    program = scratch / "mutant"
    if mutant["row"].startswith("backward_"):
        source, row = "backward_mutant_main.cpp", build["backward_rows"].index(mutant["row"].removeprefix("backward_"))
    else:
        source, row = "mutant_main.cpp", build["rows"].index(mutant["row"])
    compiled = subprocess.run(
        [build["compiler"], "-std=c++20", "-O1", "-w", f"-DFA3_MUTANT_ROW={row}",
         f"-I{include}", f"-I{root / 'src'}", f"-I{root / 'include'}", str(HERE / source),
         "-o", str(program), *build["libraries"]],
        capture_output=True, text=True, timeout=TIMEOUT_S)
    if compiled.returncode != 0:
        raise ValueError("does not compile:\n" + compiled.stderr)
    ran = subprocess.run([str(program), mutant["case"]], capture_output=True, text=True, timeout=TIMEOUT_S)
    if ran.returncode not in (0, 1):
        raise ValueError(f"exit code {ran.returncode}\n{ran.stdout}{ran.stderr}")
    program.unlink()
    said = {}
    policy = "|".join(POLICIES)
    for name, message in re.findall(rf"^({policy}): caught: (.*?)(?=^(?:{policy}): |\Z)", ran.stdout, re.M | re.S):
        said[name] = message.strip()
    return said


def how(message: str) -> str:
    if "deadlock" in message:
        return "deadlock"
    if "race: " in message:
        return "race"
    return "refused" if message.startswith("CTA ") else "wrong result"


def controls(build: dict, mutants: list[dict]) -> list[dict]:
    """The unbroken kernel in every row and case that the mutants use."""
    used = sorted({(mutant["row"], mutant["case"]) for mutant in mutants})
    return [{"name": f"unbroken_{row}_{case}", "file": "", "row": row, "case": case, "caught_by": {}}
            for row, case in used]


def run_all(build: dict, mutants: list[dict], recording: bool) -> tuple[int, dict[str, dict[str, str]]]:
    failures, results = 0, {}
    with concurrent.futures.ThreadPoolExecutor(build["jobs"]) as pool:
        runs = {pool.submit(run, build, mutant): mutant for mutant in mutants}
        for future in concurrent.futures.as_completed(runs):
            mutant = runs[future]
            try:
                said = results[mutant["name"]] = future.result()
            except (ValueError, subprocess.TimeoutExpired) as error:
                print(f"FAILED {mutant['name']}: {error}")
                failures += 1
                continue
            noticed = {policy: how(message) for policy, message in said.items()}
            first = next(iter(said.values()), "").splitlines()[:1]
            if mutant["file"] and not noticed:
                verdict = f"FAILED {mutant['name']}: survived"
            elif noticed != mutant["caught_by"] and not recording:
                expected = mutant["caught_by"] or "to pass"
                verdict = f"FAILED {mutant['name']}: expected {expected}, got {noticed}: {first}"
            else:
                verdict = f"ok     {mutant['name']}: {first[0] if first else 'passed'}"
            failures += verdict.startswith("FAILED")
            print(verdict, flush=True)
    return failures, results


def table(mutants: list[dict]) -> str:
    lines = ["| Mutant | Fault | " + " | ".join(POLICIES) + " |", "|---|---|" + "---|" * len(POLICIES)]
    for mutant in mutants:
        caught = " | ".join(mutant["caught_by"].get(policy, "") for policy in POLICIES)
        lines.append(f"| `{mutant['name']}` | {mutant['what']} | {caught} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run", "record", "table", "check-table"])
    parser.add_argument("path", nargs="?", type=pathlib.Path)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    arguments = parser.parse_intermixed_args()
    mutants = load()
    if arguments.command == "table":
        print(table(mutants), end="")
        return
    if arguments.path is None:
        parser.error(f"{arguments.command} needs a file")
    if arguments.command == "check-table":
        if table(mutants) not in arguments.path.read_text():
            sys.exit(f"{arguments.path} lacks the table of mutants.json; print it with: {sys.argv[0]} table")
        return
    build = json.loads(arguments.path.read_text())
    if unknown := set(arguments.only or []) - {mutant["name"] for mutant in mutants}:
        sys.exit(f"no mutant is called {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in mutants
              if (not arguments.fast or mutant["fast"]) and (not arguments.only or mutant["name"] in arguments.only)]
    failures, results = run_all(build, controls(build, chosen) + chosen, arguments.command == "record")
    if arguments.command == "record":
        for mutant in mutants:
            if said := results.get(mutant["name"]):
                mutant["caught_by"] = {policy: how(message) for policy, message in said.items()}
        MUTANTS.write_text(json.dumps(mutants, indent=1) + "\n")
    print(f"{len(chosen)} mutants, {failures} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
