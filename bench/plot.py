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

import math
import numbers
import sys
from collections import Counter
from collections.abc import Iterator

from pictures import BadFile, add_head, head_height, length_text, require, require_keys, run
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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


# --- the file ---------------------------------------------------------------------------------------------------------


def check(result: dict) -> None:
    """What is read here of a result file."""
    require_keys(result, {"ceilings": dict, "rows": list})
    for name, value in result["ceilings"].items():
        require(value, numbers.Real, f"ceilings.{name}")
    for index, row in enumerate(result["rows"]):
        require(row, dict, f"rows[{index}]")
        require_keys(row, REQUIRED, f"rows[{index}]")
        if OWN_F16 in row:
            require(row[OWN_F16], numbers.Real, f"rows[{index}].{OWN_F16}")
        for name, value in row["peers"].items():
            require(value, numbers.Real, f"rows[{index}].peers.{name}")


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

    width = max(7.0, 1.2 + 3.6 * len(dims))
    entries = len(styles) + bool(ceiling)
    columns = min(entries, int(width / 2.4))
    figure = Figure(figsize=(width, head_height(entries, columns) + 2.9 * len(masks)))
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

    tokens, hidden = size
    add_head(figure, result, f"Attention {rows[0]['op']}, {dtype}", f"{tokens:,} tokens, hidden size {hidden}", columns)
    return figure


def pictures_of(result: dict) -> Iterator[tuple[str, Figure]]:
    check(result)
    grids = {op: grid for op in OPS if (grid := grid_of(result["rows"], op))}
    if not grids:
        raise BadFile("holds no short measurement of a forward or backward pass with kv_heads = heads and d_v = d")
    for op, (size, rows) in grids.items():
        for dtype in dict.fromkeys(row["dtype"] for row in rows):
            yield f"{op}_{{}}_{dtype}", draw(result, [row for row in rows if row["dtype"] == dtype], size, dtype)
    drawn = sum(len(rows) for _, rows in grids.values())
    if drawn < len(result["rows"]):
        print(f"{len(result['rows']) - drawn} of {len(result['rows'])} rows are not of the grid and were not drawn")


if __name__ == "__main__":
    sys.exit(run(__doc__, pictures_of))
