"""Draw the pictures of README and docs/findings.md from committed rows: `python docs/pictures.py`.

They are SVG with letters as text, written by hand: a picture follows from its data alone, whatever
fonts and libraries there are. Colours of methods are those of the report, lighter on a dark screen,
and so are their symbols, for people who do not see red or green.
"""

import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from math import cos, pi, sin
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

import fedbench
from fedbench.bench.results.report.colours import looks
from fedbench.leaderboards.studies import findings

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path(__file__).resolve().parent / "static" / "pictures"
STORE = ROOT / "leaderboards" / "results"
METHODS = ("simclr", "lejepa", "spectral", "byol", "orchestra")
"""Of the picture of the board; each has a colour and a symbol of its own."""
TERMINAL = (
    "fedbench leaderboard --store leaderboards/results --preset laptop --dataset cifar10"
    f" --methods {','.join(METHODS)} --columns linear,ties,seeds,gain"
)
EASE = {0.1: "few classes each, α = 0.1", 1.0: "α = 1", 100.0: "nearly alike, α = 100"}
WIDTH = 760
STYLE = """\
text { font: 14px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600; font-size: 16px }
.small { font-size: 12px; fill: #59636e }
.axis { stroke: #8c959f; stroke-opacity: .45 }
.untrained { stroke: #6e7781; stroke-dasharray: 6 4 }
.mark { fill: #6e7781; stroke: #6e7781 }
.faint { opacity: .35 }
<methods>
.chosen { fill: #6d28d9; stroke: #6d28d9 }
.line { fill: none; stroke-width: 2 }
text.label { stroke: none; font-weight: 600 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .small { fill: #9198a1 }
.mark { fill: #9198a1; stroke: #9198a1 }
.orchestra { fill: #fb923c; stroke: #fb923c } .simclr { fill: #7aa5f7; stroke: #7aa5f7 }
.spectral { fill: #e58ac4; stroke: #e58ac4 } .byol { fill: #5fcf56; stroke: #5fcf56 }
.lejepa { fill: #4cc3d9; stroke: #4cc3d9 } .chosen { fill: #a78bfa; stroke: #a78bfa }
}
"""


def style() -> str:
    """Return the style of all pictures, with the colours that methods have in the report."""
    of = {method: look.colour for method, look in looks(METHODS).items()}
    methods = [f".{name} {{ fill: {of[name]}; stroke: {of[name]} }}" for name in METHODS]
    return STYLE.replace("<methods>", "\n".join(methods))


class Point(NamedTuple):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


class Bar(NamedTuple):
    """A line of a chart: its words, its value, a colour, and fainter single values."""

    label: str
    point: Point
    colour: str = "mark"
    singles: Sequence[float] = ()


def svg(height: int, title: str, parts: Sequence[str], note: str = "") -> str:
    """Return a picture; the title is its first line and what a screen reader says."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style()}</style>\n"
    )
    words = [text(16, 26, title, "title"), text(16, height - 12, note, "small")]
    return head + "\n".join([*words, *parts]) + "\n</svg>\n"


def text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    """Return words; x and y are where their first line begins, ends or has its middle."""
    return (
        f'<text x="{x:g}" y="{y:g}" class="{style}" text-anchor="{anchor}">{escape(words)}</text>'
    )


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    """Return a straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>'


def symbol(x: float, y: float, name: str) -> str:
    """Return the symbol of a method; others have a circle."""
    corners = {
        "square": [(-4, -4), (4, -4), (4, 4), (-4, 4)],
        "cross": [
            (x * a, y * b)
            for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))
            for a, b in ([(5, 2), (2, 2), (2, 5)] if x == y else [(2, 5), (2, 2), (5, 2)])
        ],
        "diamond": [(0, -5), (5, 0), (0, 5), (-5, 0)],
        "star": [
            (radius * sin(pi * i / 5), -radius * cos(pi * i / 5))
            for i, radius in enumerate([6, 2.5] * 5)
        ],
    }.get(looks([name])[name].symbol if name in METHODS else "")
    if corners is None:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" class="{name}"/>'
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{points}" class="{name}"/>'


def board() -> tuple[dict[str, dict[float, Point]], float]:
    """Return accuracy in % of the board by method and alpha, and of untrained encoders."""
    ranking = fedbench.leaderboard(STORE, preset="laptop", dataset="cifar10", methods=METHODS)
    found: dict[str, dict[float, Point]] = {method: {} for method in METHODS}
    before = []
    for group in ranking.board.groups:
        if not group.keys["num_rounds"]:  # untrained ones, measured on their own
            continue
        for entry in group.entries:
            values = entry.mean, entry.ci95_low, entry.ci95_high
            found[entry.method][group.keys["alpha"]] = Point(*(100 * value for value in values))
            before.append(100 * (entry.mean - entry.gain))
    return found, sum(before) / len(before)


def accuracy() -> str:
    """Draw accuracy against heterogeneity with intervals, by method."""
    values, untrained = board()
    xs = dict(zip(EASE, (150.0, 360.0, 570.0), strict=True))

    def height(value: float) -> float:
        return 390 - (value - 28) * 19

    parts = []
    for tick in range(30, 46, 5):
        parts.append(line(60, height(tick), 640, height(tick), "axis"))
        parts.append(text(52, height(tick) + 5, f"{tick} %", "small", "end"))
    parts += [text(x, 416, EASE[alpha], "", "middle") for alpha, x in xs.items()]
    parts.append(line(60, height(untrained), 640, height(untrained), "untrained"))
    parts.append(text(648, height(untrained) + 5, "untrained", "small"))
    ends = []
    for index, (method, points) in enumerate(values.items()):
        at = {alpha: x + 12 * (index - 2) for alpha, x in xs.items()}
        for first, second in pairwise(EASE):
            ends_of = points[first].value, points[second].value
            y1, y2 = map(height, ends_of)
            parts.append(line(at[first], y1, at[second], y2, f"line {method}"))
        for alpha, point in points.items():
            x = at[alpha]
            parts.append(line(x, height(point.low), x, height(point.high), f"line {method}"))
            parts.append(symbol(x, height(point.value), method))
        ends.append((height(points[100.0].value), method))
    below = 0.0
    for y, method in sorted(ends):
        below = max(y + 5, below + 17)
        parts.append(text(648, below, method, f"label {method}"))
    note = (
        "CIFAR-10, 10,000 images, 10 clients, 12 rounds, five seeds each; bars: 95 % intervals."
        " All with the same views."
    )
    return svg(456, "Accuracy of the encoder when clients differ", parts, note)


def bars(title: str, rows: Sequence[Bar], axis: tuple[float, float, float], note: str) -> str:
    """Draw a line a row: a dot with its interval, and its value in words.

    Args:
        title: of the picture.
        rows: from above.
        axis: first and last value of the axis, and the step of its ticks.
        note: below the chart.
    """
    first, last, step = axis
    left, right, top = 270, WIDTH - 90, 52

    def across(value: float) -> float:
        return left + (value - first) / (last - first) * (right - left)

    bottom = top + 44 * len(rows)
    parts = []
    tick = first
    while tick <= last:
        parts.append(line(across(tick), top, across(tick), bottom, "axis"))
        words = f"{tick:g}".replace("-", "−")
        parts.append(text(across(tick), bottom + 18, words, "small", "middle"))
        tick += step
    for index, row in enumerate(rows):
        y, point = top + 44 * index + 22, row.point
        parts.append(text(left - 12, y + 5, row.label, "", "end"))
        parts += [
            f'<circle cx="{across(single):.1f}" cy="{y}" r="4" class="{row.colour} faint"/>'
            for single in row.singles
        ]
        parts.append(line(across(point.low), y, across(point.high), y, f"line {row.colour}"))
        parts.append(symbol(across(point.value), y, row.colour))
        words = f"{point.value:.1f}".replace("-", "−")
        parts.append(text(right + 16, y + 5, words, "title"))
    return svg(bottom + 58, title, parts, note)


def choosing() -> str:
    """Draw what is lost by each way of choosing, at equal compute."""
    words = {
        "labels": "by labels",
        "preset": "the preset's values",
        "objective": "by fedbench, no label",
        "random": "at random",
    }
    table = findings.choosing()
    rows = [
        Bar(
            label,
            Point(*[float(table[way].mean())] * 3),
            "chosen" if way == "objective" else "mark",
            [*table[way]],
        )
        for way, label in words.items()
    ]
    note = (
        "Points of accuracy below the best trial of equal compute;"
        " a faint dot is one of 18 pairs of method and data."
    )
    return bars("Tuning without labels beats chance, not a good preset", rows, (0, 6, 1), note)


def compute() -> str:
    """Draw the gain over the preset among all trials, and among those that cost as much as it."""
    rows = []
    for way, label in {"objective": "no label", "labels": "labels"}.items():
        for any_compute, trials in {True: "any compute", False: "equal compute"}.items():
            table = findings.choosing(findings.EIGHT, any_compute)
            value, low, high, _ = findings.apart(table, "preset", way)
            colour = "chosen" if way == "objective" else "mark"
            singles = [*table["preset"] - table[way]]
            rows.append(Bar(f"{label}, {trials}", Point(value, low, high), colour, singles))
    note = (
        "Points gained over the preset's values; bars: 95 % intervals;"
        " a faint dot is one of eight methods on CIFAR-10."
    )
    return bars("Most of an older gain over the preset was compute", rows, (-2, 4, 1), note)


def views() -> str:
    """Draw Orchestra's lead over SimCLR by views."""
    words = {
        "paper": "published",
        "published rates": "here, published rates",
        "chosen rates": "here, rates chosen alike",
        "wide crops": "here, both with wide crops",
    }
    table = findings.views()
    rows = [
        Bar(label, Point(*table.loc[name, ["difference", "low", "high"]]), "orchestra")
        for name, label in words.items()
    ]
    note = "Points, Orchestra minus SimCLR; below 0 SimCLR is ahead. Bars: pooled 95 % intervals."
    return bars("Who is ahead depends on the views", rows, (-10, 15, 5), note)


def centroids() -> str:
    """Draw what Orchestra's centroids add."""
    words = {
        "untrained": "untrained encoder",
        "random": "Orchestra, random centroids",
        "learnt": "Orchestra",
    }
    rows = []
    for name, label in words.items():
        mean, half = findings.centroids().loc[name]
        colour = "orchestra" if name == "learnt" else "mark"
        rows.append(Bar(label, Point(mean, mean - half, mean + half), colour))
    note = "Linear accuracy in %, CIFAR-10, five seeds each. Bars: 95 % intervals."
    return bars("Random centroids do nearly as well", rows, (25, 50, 5), note)


def terminal() -> str:
    """Draw two tables of what `TERMINAL` prints on a terminal of 92 columns."""
    words = [sys.executable, "-m", *shlex.split(TERMINAL)]
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": "92", "TERM": "xterm-256color"}
    done = subprocess.run(
        words, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    tables = {unstyled(table).split("\n")[0].strip(): table for table in done.stdout.split("\n\n")}
    first = next(table for head, table in tables.items() if "alpha 0.1 · 12 rounds" in head)
    last = next(table for head, table in tables.items() if head.startswith("over alpha"))
    console = Console(record=True, width=92, file=io.StringIO(), color_system="truecolor")
    asked = TERMINAL.replace(" --methods", " \\\n    --methods")
    console.print(Text.from_ansi(f"$ {asked}\n{first}\n\n…\n\n{last}"))
    drawn = console.export_svg(title="fedbench", theme=DIMMED_MONOKAI, unique_id="terminal")
    return re.sub(
        r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL
    )  # loads letters from elsewhere


def unstyled(text: str) -> str:
    """Return text without escape sequences for colours."""
    return re.sub(r"\x1b\[[\d;]*m", "", text)


PICTURES = {
    "accuracy": accuracy,
    "choosing": choosing,
    "compute": compute,
    "views": views,
    "centroids": centroids,
    "terminal": terminal,
}


def pictures() -> Mapping[str, str]:
    """Return every picture by the name of its file."""
    return {f"{name}.svg": draw() for name, draw in PICTURES.items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, content in pictures().items():
        (FOLDER / name).write_text(content, encoding="utf-8")
        print(FOLDER / name, len(content))
