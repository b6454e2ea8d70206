"""Draw the figures of the three papers from runs of a store, or say which are lacking.

Usage: `python leaderboards/papers/figures.py O:5 [--preset laptop] [--store DIR]`. `index.yaml` has
a line for each figure; docs/papers.md is made of it.
"""

import argparse
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import Field, JsonValue

from fedbench.bench.config import Strict
from fedbench.bench.config.yaml_files import load_yaml
from fedbench.bench.data.datasets import content_names
from fedbench.bench.evaluation.metrics import heading, is_accuracy
from fedbench.bench.execution.export import load_run
from fedbench.bench.execution.figures import client_maps, draw_angles, draw_maps, measure
from fedbench.bench.execution.picture import Picture
from fedbench.bench.experiment.common_options import Sources
from fedbench.bench.experiment.fields import get
from fedbench.bench.results.report.colours import SYMBOLS, looks
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store, open_store
from fedbench.bench.system.errors import ConfigError, UnknownNameError
from fedbench.bench.terminal.console import emit
from fedbench.bench.terminal.exit_codes import FAILED, run_command
from fedbench.bench.terminal.units import count
from fedbench.bench.tuning.grid import Cell, load_grid
from fedbench.bench.tuning.sweep import label, planned_cells
from fedbench.leaderboards.papers.client_cost import ClientCost, client_cost

INDEX = Path(__file__).with_name("index.yaml")
_SHOWN = 20  # lacking runs


class Draw(Strict):
    """The runs of a figure, and what is drawn of them."""

    grid: str
    preset: str  # unless another is given
    # An axis of the grid; round: of curves; client: what a round costs one, measured here;
    # objective: over the trials of studies; angles, map: as `fedbench figures` draws them.
    x: str
    y: tuple[str, ...] = Field(min_length=1)  # metrics, values of a curve, or of `ClientCost`
    panel: str | None = None  # axis of which each value has a panel
    methods: tuple[str, ...] | None = None  # None = the grid's
    where: dict[str, JsonValue] = Field(default_factory=dict)  # of the grid's names; else the first
    set: dict[str, JsonValue] = Field(default_factory=dict)  # further settings of the runs
    spread: Literal["seeds", "clients"] = "seeds"
    relative_to: str | None = None  # the method whose mean is 1


class Item(Strict):
    """One line of the index."""

    item: str  # O:5 for figure 5 of Orchestra's paper
    what: str
    command: str = ""  # none for a figure that this script draws
    status: Literal["as printed", "ours", "deviates"]
    why: str = ""
    draw: Draw | None = None


class Index(Strict):
    """The index: papers by letter, and what they have."""

    papers: dict[str, str]
    items: tuple[Item, ...]


@cache
def index() -> Index:
    """Return the index."""
    return Index.model_validate(load_yaml(INDEX))


@dataclass(frozen=True)
class PaperFigure:
    """Files that were written, or the runs that the store lacks and the command that makes them."""

    item: Item
    files: tuple[Path, ...] = ()
    lacking: tuple[str, ...] = ()
    command: str = ""


def paper_figure(
    name: str,
    folder: Path,
    *,
    preset: str | None = None,
    store: Path | None = None,
    data_dir: Path | None = None,
) -> PaperFigure:
    """Draw a figure of a paper as .png and .svg, if the store has its runs.

    Args:
        name: as `O:5`: the letter of a paper, and the number of the figure.
        folder: created if it does not exist; files in it are replaced.
        preset: of the runs; None = the paper's.
        store: see `fedbench.open_store`.
        data_dir: cache of data sets; None = the default one.

    Raises:
        UnknownNameError: for a figure that the index does not have.
    """
    known = {item.item: item for item in index().items if item.draw is not None}
    if name not in known:
        raise UnknownNameError("figure", name, known)
    item, opened = known[name], open_store(store)
    draw = item.draw
    assert draw is not None
    preset = preset or draw.preset
    words = Sources(set=draw.set).words(preset)
    words += [] if store is None else ["--store", str(opened.root)]
    file = folder / name.replace(":", "-").lower()
    if draw.x == "objective":
        return _of_trials(item, draw, opened, preset, words, file)
    settings: dict[str, Any] = {
        "preset": preset,
        "set": draw.set,
        "methods": draw.methods,
        "data_dir": data_dir,
    }
    settings |= {"dataset": None, "content": content_names(data_dir)}
    cells = _chosen(draw, planned_cells(load_grid(draw.grid), opened, None, settings))
    if draw.x == "client":
        return PaperFigure(item, _drawn(item, draw, _of_clients(draw, cells)).write(file))
    # Reversed: of replicas on several platforms the first counts.
    rows = {row.row_id: row for row in reversed(opened.rows()) if row.status == "ok"}
    found = [(cell, rows.get(cell.experiment.ids.row)) for cell in cells]
    if lacking := tuple(label(cell) for cell, row in found if row is None):
        methods = ("--methods", ",".join(draw.methods)) if draw.methods else ()
        command = shlex.join(["fedbench", "sweep", "--grid", draw.grid, *methods, *words])
        return PaperFigure(item, (), lacking, command)
    there = [(cell, row) for cell, row in found if row is not None]
    if draw.x in ("angles", "map"):
        trained = [load_run(opened, row.row_id, data_dir) for _, row in there]
        picture = (
            draw_angles([*map(measure, trained)])
            if draw.x == "angles"
            else draw_maps([each for run in trained for each in client_maps(run)])
        )
    else:
        picture = _drawn(item, draw, _series(draw, there, opened))
    return PaperFigure(item, picture.write(file))


def _chosen(draw: Draw, cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells of a figure: what it does not vary has the value of the first cell."""
    first = cells[0]
    fixed = {key: draw.where.get(key, value) for key, value in first.axes.items()}
    varied = {draw.x, draw.panel} - draw.where.keys()
    return [
        cell
        for cell in cells
        if all(cell.axes.get(k, v) == v for k, v in fixed.items() if k not in varied)
    ]


Point = tuple[float | str, float, float]
"""Place on the axis, value, and its deviation over clients."""
_POINTS = ["panel", "y", "method", "x", "value", "spread"]
"""Columns of what is drawn."""


def _series(draw: Draw, runs: Iterable[tuple[Cell, Row]], store: Store) -> pd.DataFrame:
    """Return `_POINTS`: means over seeds in the order of the axis, with the spread over them."""
    found = []
    for cell, row in runs:
        panel = "" if draw.panel is None else f"{draw.panel}={get(cell.config, draw.panel)}"
        for y in draw.y:
            points = _values(draw, cell, row, y, store)
            found += [(panel, y, cell.config.spec, *point) for point in points]
    every = pd.DataFrame(found, columns=[*_POINTS[:4], "value", "clients"])
    by = every.groupby(_POINTS[:4], sort=False)
    spread = ("clients", "mean") if draw.spread == "clients" else ("value", "std")
    return by.agg(value=("value", "mean"), spread=spread).fillna(0.0).reset_index()


def _values(draw: Draw, cell: Cell, row: Row, y: str, store: Store) -> Iterable[Point]:
    """Yield the points of one run, of the values that it has."""
    if draw.x == "round":
        found = {0: row.metrics.get(f"untrained_{y}")}
        for point in store.curve(store.key(row)):
            found[point["round_index"] + 1] = point.get(f"metrics.{y}", point.get(y))
        if y in row.metrics:  # the last evaluation is the row's
            found[int(row.rounds_done or row.num_rounds)] = row.metrics[y]
        yield from ((done, float(value), 0.0) for done, value in found.items() if value is not None)
    elif y in row.metrics:
        yield get(cell.config, draw.x), row.metrics[y], row.metrics.get(f"{y}_std", 0.0)


def _of_clients(draw: Draw, cells: Sequence[Cell]) -> pd.DataFrame:
    """Measure a round of one client of each method; nothing of it is in a store."""
    costs: dict[str, ClientCost] = {}
    for cell in cells:
        if cell.config.spec not in costs:
            costs[cell.config.spec] = client_cost(cell.experiment)
    base = costs[draw.relative_to or cells[0].config.spec]
    points = []
    for spec, cost in costs.items():
        name = f"{spec}, {100 * cost.share:.1g} % beside steps"
        points += [("", y, name, spec, getattr(cost, y) / getattr(base, y), 0.0) for y in draw.y]
    return pd.DataFrame(points, columns=_POINTS)


def _of_trials(
    item: Item, draw: Draw, store: Store, preset: str, words: Sequence[str], file: Path
) -> PaperFigure:
    """Draw the objective of trials against a watched metric, and the correlation of all."""
    studies = [store.study(name) for name in store.studies()]
    found = [
        (draw.y[0], meta["spec"], trial["objective"], trial["watched"][draw.y[0]], 0.0)
        for meta in studies
        if meta.get("preset") == preset and meta["spec"] in (draw.methods or ())
        for trial in store.trials(meta["study_id"])
        if trial["objective"] is not None and trial["watched"].get(draw.y[0]) is not None
    ]
    points = pd.DataFrame(found, columns=_POINTS[1:])
    without = [spec for spec in draw.methods or () if spec not in {*points.method}]
    search = ["--trials", "12", "--set", "federation.num_rounds=20", "--watch-labels"]
    command = shlex.join(["fedbench", "tune", *(without or ["orchestra"])[:1], *words, *search])
    if without:
        lacking = tuple(f"trials of {spec}" for spec in without)
        return PaperFigure(item, (), lacking, command)
    panel = f"R = {points.x.corr(points.value):.2f}"
    return PaperFigure(item, _drawn(item, draw, points.assign(panel=panel)).write(file))


def _drawn(item: Item, draw: Draw, points: pd.DataFrame) -> Picture:
    """Draw a chart for each panel and each y that a run has, side by side, with a line a method."""
    of_methods = looks(points.method)
    panels: dict[Any, pd.DataFrame] = dict(iter(points.groupby(["panel", "y"], sort=False)))
    if not panels:
        none = f"evaluation.protocols: no run of {item.item} has {' or '.join(draw.y)}"
        raise ConfigError(f"{none}; leave the protocols to the preset")
    figure = Picture(4.6 * len(panels) + 1.8, 4.0)
    axes = figure.panels(len(panels))
    for axis, ((panel, y), shown) in zip(axes, panels.items(), strict=True):
        scale = 100 if is_accuracy(y) else 1
        for spec, of in shown.groupby("method", sort=False):
            place = (of.x, scale * of.value)
            colour, symbol = of_methods[str(spec)]
            look: dict[str, Any] = {"color": colour, "label": spec}
            if draw.x == "client":
                axis.bar(*place, **look)
            elif draw.x == "objective":
                axis.scatter(*place, s=14, marker=SYMBOLS[symbol], **look)
            else:
                look |= {"marker": SYMBOLS[symbol], "markersize": 4, "capsize": 2}
                axis.errorbar(*place, yerr=scale * of.spread, **look)
        if draw.x.endswith(("alpha", "num_clients")):
            axis.set_xscale("log")
        relative = f", {draw.relative_to} = 1" if draw.relative_to else ""
        title = draw.x.rpartition(".")[2].replace("_", " ")
        axis.set(xlabel=title, ylabel=heading(y) + relative)
        axis.set_title(panel, fontsize=10)
        if draw.x == "client":
            axis.tick_params("x", rotation=45)
            axis.set_xlabel("")
    figure.suptitle(f"{item.item} · {item.what}")
    figure.explain(axes[0])
    return figure


def draw_all(
    names: Sequence[str],
    folder: Path,
    preset: str | None = None,
    store: Path | None = None,
    data_dir: Path | None = None,
) -> int | None:
    """Draw figures of papers, and print the files; an exit code.

    Of a figure whose runs are not all there, those that lack and the command that makes them are
    printed.
    """
    given: Any = {"preset": preset, "store": store, "data_dir": data_dir}
    found = [paper_figure(name, folder, **given) for name in names]
    for each in found:
        if not each.lacking:
            emit("\n".join(map(str, each.files)))
            continue
        shown = [f"  {run}" for run in each.lacking[:_SHOWN]]
        if (more := len(each.lacking) - _SHOWN) > 0:
            shown.append(f"  and {more:,} more")
        title = f"{each.item.item}, {each.item.what}: lacks {count(len(each.lacking), 'run')}"
        emit("\n".join([title, *shown, "", each.command]))
    return FAILED if any(each.lacking for each in found) else None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw figures of the papers.")
    parser.add_argument("names", nargs="+", metavar="NAME", help="such as O:5")
    parser.add_argument("--preset", help="of the runs; default: the paper's")
    parser.add_argument("--store", type=Path, metavar="DIR", help="of the runs")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="cache of data sets")
    parser.add_argument(
        "--out", dest="folder", type=Path, default=Path("figures"), metavar="DIR", help="to write"
    )
    given = vars(parser.parse_args())
    sys.exit(run_command(lambda: draw_all(**given)))
