#!/usr/bin/env python3
"""Draws a result file in the manner of Figures 5 (forward), 6 (backward) and 7 (forward, FP8) of the FlashAttention-3 paper.

TFLOP/s over the sequence length, one panel for each mask and head dim, one line for each implementation, and the rate of
a GEMM in the same run. One picture for each pass and dtype of the file: <op>_<device>_<dtype>.svg and .png. What is drawn
are the short measurements of the grid: multi-head attention, d_v = d, a constant number of tokens and hidden size, not
deterministic.
docs/benchmarks.md has the format of the file. Needs Matplotlib 3.6 or later.

Exit status: 0 drawn, 1 Matplotlib is missing, 2 wrong usage, a bad file, or a folder that cannot be written.
"""

from __future__ import annotations

import argparse
import json
import math
import numbers
import pathlib
import sys
from collections import Counter

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    sys.exit(
        f"plot.py: error: needs Matplotlib ({error}). Debian, Ubuntu: apt-get install python3-matplotlib; "
        "elsewhere: python3 -m pip install matplotlib"
    )

# Known implementations in the order of the legend; others follow under their names in the file.
OWN_F16 = "own_f16"  # fa3's f16 kernel in rows of e4m3: a key of the row, not a peer
LABELS = {"": "fa3", OWN_F16: "fa3 in f16", "fa3": "FlashAttention-3", "cudnn": "cuDNN", "cudnn_f16": "cuDNN in f16",
          "fa2": "FlashAttention-2", "torch": "PyTorch", "torch_f16": "PyTorch in f16"}
# The palette of Okabe and Ito, which the colour-blind can tell apart, and a marker each for those who see no colours.
STYLES = {"": ("#0072B2", "o"), "cudnn": ("#D55E00", "s"), "fa2": ("#009E73", "^"), "fa3": ("#000000", "D"),
          OWN_F16: ("#56B4E9", "X"), "cudnn_f16": ("#E69F00", "P")}
FURTHER_STYLES = [("#CC79A7", "v"), ("#999999", "*"), ("#7F3C8D", "<"), ("#8C6D31", ">")]
CARRIED = " (carried)"  # at the end of a peer's name: not timed in this run, but scaled from another one
OPS = ("forward", "backward")
REQUIRED = {"op": str, "dtype": str, "d": int, "causal": bool, "seqlen": int, "batch": int, "heads": int,
            "kv_heads": int, "tflops": numbers.Real, "peers": dict}


class BadFile(Exception):
    """Ends the program with its message."""


# --- the file ---------------------------------------------------------------------------------------------------------


def require(value: object, kind: type, what: str) -> None:
    fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if not fits or (isinstance(value, numbers.Real) and not isinstance(value, bool) and not 0 < value < math.inf):
        wanted = {str: "a string", int: "a positive integer", bool: "true or false", numbers.Real: "a positive number",
                  dict: "an object", list: "a list"}[kind]
        raise BadFile(f"{what} is {json.dumps(value)}; it must be {wanted}")


def load(path: pathlib.Path) -> dict:
    """The content of a result file, after what is read here was checked."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadFile(f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadFile(f"is not JSON: {error}") from error
    require(result, dict, "the file")
    for name, kind in (("device", str), ("date", str), ("source_hash", str), ("ceilings", dict), ("rows", list)):
        if name not in result:
            raise BadFile(f"has no {name!r}")
        require(result[name], kind, name)
    for name, value in result["ceilings"].items():
        require(value, numbers.Real, f"ceilings.{name}")
    for index, row in enumerate(result["rows"]):
        require(row, dict, f"rows[{index}]")
        for name, kind in REQUIRED.items():
            if name not in row:
                raise BadFile(f"rows[{index}] has no {name!r}")
            require(row[name], kind, f"rows[{index}].{name}")
        if OWN_F16 in row:
            require(row[OWN_F16], numbers.Real, f"rows[{index}].{OWN_F16}")
        for name, value in row["peers"].items():
            require(value, numbers.Real, f"rows[{index}].peers.{name}")
    return result


def size_of(row: dict) -> tuple[int, int]:
    """Tokens and hidden size."""
    return row["batch"] * row["seqlen"], row["heads"] * row["d"]


def grid_of(rows: list[dict], op: str) -> tuple[tuple[int, int], list[dict]] | None:
    """The size most of the plain rows of a pass have, and those rows; None if it has none."""
    plain = [
        row
        for row in rows
        if row["op"] == op
        and row.get("mode", "short") == "short"
        and row["kv_heads"] == row["heads"]
        and row.get("d_v", row["d"]) == row["d"]
        and not row.get("sm_margin")
        and not row.get("deterministic")
    ]
    if not plain:
        return None
    size = Counter(size_of(row) for row in plain).most_common(1)[0][0]
    return size, [row for row in plain if size_of(row) == size]


# --- the picture ------------------------------------------------------------------------------------------------------


def length_text(seqlen: int) -> str:
    return f"{seqlen // 1024}k" if seqlen % 1024 == 0 else str(seqlen)


def base_name(name: str) -> str:
    return name.removesuffix(CARRIED)


def label_of(name: str) -> str:
    return LABELS.get(base_name(name), base_name(name)) + (", carried" if name.endswith(CARRIED) else "")


def rates_of(row: dict) -> dict[str, float]:
    """TFLOP/s by implementation, "" is fa3 itself."""
    own = {OWN_F16: row[OWN_F16]} if OWN_F16 in row else {}
    return {"": row["tflops"], **own, **row["peers"]}


def implementations_of(rows: list[dict]) -> list[str]:
    """Names in the order of the legend."""
    known = list(LABELS)
    names = {name for row in rows for name in rates_of(row)}
    return sorted(names, key=lambda n: (known.index(base_name(n)) if base_name(n) in known else len(known), n))


def styles_of(names: list[str]) -> dict[str, dict]:
    further = iter(FURTHER_STYLES * (1 + len(names) // len(FURTHER_STYLES)))
    chosen = {base: STYLES[base] if base in STYLES else next(further) for base in dict.fromkeys(map(base_name, names))}
    result = {}
    for name in names:
        colour, marker = chosen[base_name(name)]
        carried = name.endswith(CARRIED)
        result[name] = {
            "color": colour,
            "marker": marker,
            "markersize": 5.5 if name == "" else 4.5,
            "markerfacecolor": "white" if carried else colour,
            "linestyle": ":" if carried else "-",
            "linewidth": 2.4 if name == "" else 1.4,
            "zorder": 4 if name == "" else 3,
        }
    return result


def ceiling_of(result: dict, dtype: str) -> tuple[str, float] | None:
    """Name and rate of the GEMM to compare with; bf16 has f16's."""
    for name in (dtype, "f16") if dtype == "bf16" else (dtype,):
        if f"gemm_{name}" in result["ceilings"]:
            rate = result["ceilings"][f"gemm_{name}"]
            return f"GEMM in {name}, same run: {rate:.4g}", rate
    return None


def draw_panel(axes: Axes, rows: list[dict], lengths: list[int], styles: dict[str, dict]) -> None:
    cells = {row["seqlen"]: rates_of(row) for row in rows}
    if not cells:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", va="center", color="#444444")
    for name, style in styles.items():
        rates = [cells.get(seqlen, {}).get(name, math.nan) for seqlen in lengths]
        axes.plot(range(len(lengths)), rates, label=label_of(name), **style)
    axes.set_xticks(range(len(lengths)), [length_text(seqlen) for seqlen in lengths])
    axes.tick_params(labelbottom=True)
    axes.locator_params(axis="y", nbins=9)
    axes.margins(x=0.06)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def draw(result: dict, rows: list[dict], size: tuple[int, int], dtype: str) -> Figure:
    """All panels of one dtype, with one y axis."""
    dims = sorted({row["d"] for row in rows})
    masks = sorted({row["causal"] for row in rows})
    lengths = sorted({row["seqlen"] for row in rows})
    styles = styles_of(implementations_of(rows))
    ceiling = ceiling_of(result, dtype)
    top = max([rate for row in rows for rate in rates_of(row).values()] + [ceiling[1] if ceiling else 0])

    # Title and legend have a strip above the panels, whose height does not depend on how many these are.
    width = max(7.0, 1.2 + 3.6 * len(dims))
    entries = len(styles) + bool(ceiling)
    columns = min(entries, int(width / 2.4))
    strip = 0.75 + 0.24 * math.ceil(entries / columns)
    height = strip + 2.9 * len(masks)
    figure = Figure(figsize=(width, height))

    def above(inches: float, text: str, **style: object) -> None:
        figure.text(0.5, 1 - inches / height, text, ha="center", va="top", **style)

    panels = figure.subplots(len(masks), len(dims), sharex=True, sharey=True, squeeze=False)
    for i, causal in enumerate(masks):
        for j, d in enumerate(dims):
            axes = panels[i][j]
            draw_panel(axes, [r for r in rows if r["causal"] == causal and r["d"] == d], lengths, styles)
            if ceiling:
                axes.axhline(ceiling[1], color="#555555", linestyle="--", linewidth=1.2, label=ceiling[0], zorder=2)
            axes.set_title(f"d = {d}, {'causal' if causal else 'full'}", fontsize=11)
            if j == 0:
                axes.set_ylabel("TFLOP/s")
            if i == len(masks) - 1:
                axes.set_xlabel("seqlen")
    panels[0][0].set_ylim(0, 1.06 * top)

    above(0.12, f"Attention {rows[0]['op']}, {dtype}, {result['device']}", fontsize=14)
    tokens, hidden = size
    about = f"{tokens:,} tokens, hidden size {hidden}; {result['date']}, sources {result['source_hash'][:12]}"
    above(0.44, about, fontsize=10, color="#444444")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 1 - 0.64 / height), ncols=columns,
                  frameon=False, fontsize=10)  # fmt: skip
    figure.tight_layout(rect=(0, 0, 1, 1 - strip / height), h_pad=1.5)
    return figure


def device_text(device: str) -> str:
    """As in the folders of bench/results: "NVIDIA H200" is h200."""
    text = device.removeprefix("NVIDIA ").lower()
    return "_".join("".join(c if c.isalnum() else " " for c in text).split())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=pathlib.Path, metavar="RESULT.json")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(), metavar="DIR", help="default: here")
    args = parser.parse_args(argv)
    try:
        result = load(args.result)
        grids = {op: grid for op in OPS if (grid := grid_of(result["rows"], op))}
        if not grids:
            raise BadFile("holds no short measurement of a forward or backward pass with kv_heads = heads and d_v = d")
    except BadFile as error:
        print(f"plot.py: error: {args.result}: {error}", file=sys.stderr)
        return 2
    # Text stays text in the SVG, and the same file gives the same bytes.
    settings = {"svg.fonttype": "none", "svg.hashsalt": "fa3", "font.family": "sans-serif"}
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context(settings):
            for op, (size, rows) in grids.items():
                for dtype in dict.fromkeys(row["dtype"] for row in rows):
                    figure = draw(result, [row for row in rows if row["dtype"] == dtype], size, dtype)
                    for kind, options in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": 150})):
                        path = args.out / f"{op}_{device_text(result['device'])}_{dtype}.{kind}"
                        figure.savefig(path, **options)
                        print(f"wrote {path}")
    except OSError as error:
        print(f"plot.py: error: --out: {error}", file=sys.stderr)
        return 2
    drawn = sum(len(rows) for _, rows in grids.values())
    if drawn < len(result["rows"]):
        print(f"{len(result['rows']) - drawn} of {len(result['rows'])} rows are not of the grid and were not drawn")
    return 0


if __name__ == "__main__":
    sys.exit(main())
