#!/usr/bin/env python3
"""Draws a result file of `fa3 accuracy`.

Of the errors on random numbers or a file accuracy_<device>.svg and .png: RMSE as bars, beside the paper's figures where
the file has them, one panel for each head dim or file. Of those over the context accuracy_context_<device>.svg and .png:
relative RMSE over the number of keys, one line for each type and V.
docs/benchmarks.md has the format of the file. Needs Matplotlib 3.6 or later.

Exit status: 0 drawn, 1 Matplotlib is missing, 2 wrong usage, a bad file, or a folder that cannot be written.
"""

from __future__ import annotations

import math
import numbers
import pathlib
import sys
from collections.abc import Iterator

from pictures import BadFile, add_head, head_height, length_text, require, require_keys, run
from matplotlib.axes import Axes
from matplotlib.figure import Figure

LABELS = {"standard_f16": "standard attention, f16", "fa3_f16": "fa3, f16",
          "fp8_baseline": "FP8, one scale per tensor, not rotated", "fa3_fp8": "FP8, scales per block, rotated",
          "fp8_without_blocks": "FP8, one scale per tensor, rotated",
          "fp8_without_rotation": "FP8, scales per block, not rotated",
          "fp8_wide": "FP8, scales per block, rotated, up to 448"}
# Of the palette of Okabe and Ito, which the colour-blind can tell apart.
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#bbbbbb"
BARS = {"rmse": ("measured", BLUE, -0.2, 2), "paper": ("FlashAttention-3 paper", GREY, 0.2, 1)}
LINES = {
    "fp8_mean_one": ("FP8, V ~ N(0, 1) + 1", {"color": BLUE, "marker": "s", "linestyle": "--"}),
    "fp8_ones": ("FP8, V = 1", {"color": BLUE, "marker": "o"}),
    "f16_mean_one": ("f16, V ~ N(0, 1) + 1", {"color": ORANGE, "marker": "D", "linestyle": "--"}),
    "f16_ones": ("f16, V = 1", {"color": ORANGE, "marker": "^"}),
}


# --- the file ---------------------------------------------------------------------------------------------------------


def require_objects(values: object, what: str) -> None:
    require(values, list, what)
    if not values:
        raise BadFile(f"{what} is empty")
    for index, value in enumerate(values):
        require(value, dict, f"{what}[{index}]")


def check_table(tables: object) -> None:
    require_objects(tables, "accuracy")
    for index, table in enumerate(tables):
        what = f"accuracy[{index}]"
        sizes = {"file": str} if "file" in table else {"d": int, "heads": int, "seqlen": int, "seeds": int}
        require_keys(table, {**sizes, "rows": list}, what)
        require_objects(table["rows"], f"{what}.rows")
        for number, row in enumerate(table["rows"]):
            require_keys(row, {"row": str, "rmse": numbers.Real}, f"{what}.rows[{number}]", "non-negative")
            if "paper" in row:
                require(row["paper"], numbers.Real, f"{what}.rows[{number}].paper")


def check_context(result: dict) -> None:
    points = result["context"]
    if "d" in result:  # not in older files
        require(result["d"], int, "d")
    require_objects(points, "context")
    for index, point in enumerate(points):
        require_keys(point, {"keys": int}, f"context[{index}]")
        require_keys(point, dict.fromkeys(LINES, numbers.Real), f"context[{index}]", "non-negative")


# --- the pictures -----------------------------------------------------------------------------------------------------


def decade_below(values: list[float]) -> float:
    """The power of ten below the least positive value."""
    least = min((value for value in values if value > 0), default=1)
    return 10.0 ** math.floor(math.log10(least))


def error_text(value: float, digits: int) -> str:
    """As in README.md: 1.83e-4."""
    return f"{value:.{digits}e}".replace("e-0", "e-")


def plain(axes: Axes, grid: str) -> None:
    axes.grid(axis=grid, color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def table_title(table: dict) -> str:
    if "file" in table:
        return pathlib.Path(table["file"]).name
    seeds = "one seed" if table["seeds"] == 1 else f"median of {table['seeds']} seeds"
    return f"d = {table['d']}, {table['heads']} heads, seqlen {table['seqlen']}, {seeds}"


def draw_bars(axes: Axes, table: dict, keys: list[str]) -> None:
    rows = table["rows"]
    axes.set_title(table_title(table), fontsize=11)
    keys = [key for key in keys if any(key in row for row in rows)]
    for key in keys:
        label, colour, below, digits = BARS[key]
        places = [i + (below if len(keys) > 1 else 0) for i, row in enumerate(rows) if key in row]
        values = [row[key] for row in rows if key in row]
        bars = axes.barh(places, values, height=0.38, color=colour, label=label)
        axes.bar_label(bars, [error_text(value, digits) for value in values], padding=3, fontsize=9)
    axes.set_yticks(range(len(rows)), [LABELS.get(row["row"], row["row"]) for row in rows])
    axes.invert_yaxis()


def draw_table(result: dict) -> Figure:
    tables = result["accuracy"]
    rows = [row for table in tables for row in table["rows"]]
    keys = [key for key in BARS if any(key in row for row in rows)]
    values = [row[key] for row in rows for key in keys if key in row]
    heights = [0.9 + 0.42 * len(table["rows"]) for table in tables]
    figure = Figure(figsize=(9, head_height(2, 2) + sum(heights)))
    panels = figure.subplots(len(tables), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, table in zip(panels, tables):
        axes.set_xscale("log")
        # A bar on a logarithm begins anywhere: a decade more, or the least one would have no length.
        axes.set_xlim(decade_below(values) / 10, 4 * max(*values, decade_below(values)))
        draw_bars(axes, table, keys)
        plain(axes, "x")
    panels[-1].set_xlabel("RMSE")
    data = "q, k and v of the file" if "file" in tables[0] else "Q, K, V ~ N(0, 1) + N(0, 100) Bernoulli(0.001)"
    add_head(figure, result, "Error of O against fp64", data, 2)
    return figure


def draw_context(result: dict) -> Figure:
    points = sorted(result["context"], key=lambda point: point["keys"])
    figure = Figure(figsize=(9, head_height(len(LINES), len(LINES)) + 3.6))
    axes = figure.subplots()
    for key, (label, style) in LINES.items():
        values = [point[key] for point in points]
        axes.plot(range(len(points)), values, label=label, linewidth=1.8, markersize=5.5, **style)
    axes.set_xticks(range(len(points)), [length_text(point["keys"]) for point in points])
    # f16 is exact on few ones: a line at 0, which a logarithm has not.
    values = [point[key] for point in points for key in LINES]
    bottom = decade_below(values)
    axes.set_yscale("symlog", linthresh=bottom, linscale=0.4)
    axes.set_ylim(-bottom / 10, 2 * max(*values, bottom))
    axes.set_xlabel("keys")
    axes.set_ylabel("RMSE of O, relative")
    plain(axes, "y")
    d = f"d = {result['d']}, " if "d" in result else ""
    about = f"{d}Q, K ~ N(0, 1), FP8 with scales per block, rotated"
    add_head(figure, result, "Error of O over the context", about, len(LINES))
    return figure


def pictures_of(result: dict) -> Iterator[tuple[str, Figure]]:
    if "accuracy" not in result and "context" not in result:
        raise BadFile("has neither 'accuracy' nor 'context'")
    if "accuracy" in result:
        check_table(result["accuracy"])
        yield "accuracy_{}", draw_table(result)
    if "context" in result:
        check_context(result)
        yield "accuracy_context_{}", draw_context(result)


if __name__ == "__main__":
    sys.exit(run(__doc__, pictures_of))
