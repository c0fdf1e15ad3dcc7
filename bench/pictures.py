"""What plot.py and plot_accuracy.py share: a result file, the head of a picture, and the command."""

from __future__ import annotations

import argparse
import json
import math
import numbers
import pathlib
import sys
from collections.abc import Callable, Iterable

PROGRAM = pathlib.Path(sys.argv[0]).name

try:
    import matplotlib
    from matplotlib.figure import Figure
except ImportError as error:
    sys.exit(
        f"{PROGRAM}: error: needs Matplotlib ({error}). Debian, Ubuntu: apt-get install python3-matplotlib; "
        "elsewhere: python3 -m pip install matplotlib"
    )


class BadFile(Exception):
    """Ends the program with its message."""


def require(value: object, kind: type, what: str, least: str = "positive") -> None:
    """That a value is of this kind; `least`: numbers are positive or "non-negative"."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if not fits or (number and not (0 < value < math.inf or (value == 0 and least != "positive"))):
        wanted = {str: "a string", int: f"a {least} integer", bool: "true or false", numbers.Real: f"a {least} number",
                  dict: "an object", list: "a list"}[kind]  # fmt: skip
        raise BadFile(f"{what} is {json.dumps(value)}; it must be {wanted}")


def require_keys(values: dict, kinds: dict[str, type], what: str = "", least: str = "positive") -> None:
    for name, kind in kinds.items():
        if name not in values:
            raise BadFile(f"{what} has no {name!r}".lstrip())
        require(values[name], kind, f"{what}.{name}".lstrip("."), least)


def load(path: pathlib.Path) -> dict:
    """A result file, after what all of them have was checked."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadFile(f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadFile(f"is not JSON: {error}") from error
    require(result, dict, "the file")
    require_keys(result, {"device": str, "date": str, "source_hash": str})
    return result


def length_text(length: int) -> str:
    return f"{length // 1024}k" if length % 1024 == 0 else str(length)


def device_text(device: str) -> str:
    """As in the folders of bench/results: "NVIDIA H200" is h200."""
    text = device.removeprefix("NVIDIA ").lower()
    return "_".join("".join(c if c.isalnum() else " " for c in text).split())


def head_height(entries: int, columns: int) -> float:
    """Title and legend have a strip above the panels, whose height does not depend on how many these are."""
    return 0.75 + 0.24 * math.ceil(entries / columns)


def add_head(figure: Figure, result: dict, title: str, about: str, columns: int) -> None:
    """Title, what was measured, and the legend, whose entries are those of all panels."""
    height = figure.get_figheight()
    entries = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels()):
            entries.setdefault(label, handle)

    def above(inches: float, text: str, **style: object) -> None:
        figure.text(0.5, 1 - inches / height, text, ha="center", va="top", **style)

    above(0.12, f"{title}, {result['device']}", fontsize=14)
    above(0.44, f"{about}; {result['date']}, sources {result['source_hash'][:12]}", fontsize=10, color="#444444")
    figure.legend(entries.values(), entries, loc="upper center", bbox_to_anchor=(0.5, 1 - 0.64 / height), ncols=columns,
                  frameon=False, fontsize=10)  # fmt: skip
    figure.tight_layout(rect=(0, 0, 1, 1 - head_height(len(entries), columns) / height), h_pad=1.5)


def run(doc: str, pictures_of: Callable[[dict], Iterable[tuple[str, Figure]]]) -> int:
    """The command: writes the pictures of a result file, named with {} for the device."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=pathlib.Path, metavar="RESULT.json")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(), metavar="DIR", help="default: here")
    args = parser.parse_args()
    # Text stays text in the SVG, and the same file gives the same bytes.
    settings = {"svg.fonttype": "none", "svg.hashsalt": "fa3", "font.family": "sans-serif"}
    with matplotlib.rc_context(settings):
        try:
            result = load(args.result)
            pictures = list(pictures_of(result))
        except BadFile as error:
            print(f"{PROGRAM}: error: {args.result}: {error}", file=sys.stderr)
            return 2
        try:
            args.out.mkdir(parents=True, exist_ok=True)
            for name, figure in pictures:
                for kind, options in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": 150})):
                    path = args.out / f"{name.format(device_text(result['device']))}.{kind}"
                    figure.savefig(path, **options)
                    print(f"wrote {path}")
        except OSError as error:
            print(f"{PROGRAM}: error: --out: {error}", file=sys.stderr)
            return 2
    return 0
