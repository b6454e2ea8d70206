"""The index of the papers names what exists, and its figures are drawn from rows and curves."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from fedbench.bench.data.datasets import content_names
from fedbench.bench.experiment.common_options import parse_set
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.experiment.resolve import resolve
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import ConfigError, UnknownNameError
from fedbench.bench.testing import tiny_config
from fedbench.bench.tuning.grid import Cell, load_grid, plan, presets_for
from fedbench.bench.tuning.sweep import planned_cells
from fedbench.cli import app
from fedbench.leaderboards.papers import figures as papers
from fedbench.leaderboards.papers.client_cost import ClientCost
from fedbench.leaderboards.papers.figures import (
    Draw,
    Item,
    _chosen,
    _values,
    draw_all,
    index,
    paper_figure,
)
from tests.bench.results.conftest import build_row

ITEMS = index().items
MLP = {"mlp_acc": 0.4, "mlp_acc_std": 0.1}
FIGURES = {item.item: item for item in ITEMS if item.draw is not None}

MEASURED_BY = {
    "knn_acc": "knn",
    "linear_acc": "linear",
    "linear_paper_acc": "linear-paper",
    "mlp_acc": "mlp",
    "angle_mean": "angles",
    "cluster_delta": "theory",
    "cluster_c": "theory",
}
"""Metrics of the figures -> the protocol that gives them."""


def chosen(draw: Draw) -> list[Cell]:
    """Return the cells of a figure, with one seed."""
    given: dict[str, Any] = {"preset": draw.preset, "methods": draw.methods, "set": draw.set}
    return _chosen(draw, plan(load_grid(draw.grid), **given, seeds=(0,), environ={}))


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.item)
def test_every_command_is_one_and_its_status_that_of_its_values(item: Item) -> None:
    """What is as printed trains with no value of ours, but for the paper's partition."""
    assert item.item.partition(":")[0] in index().papers
    assert (item.why == "") == (item.status == "as printed")
    assert (item.command == "") == (item.draw is not None)
    program, name, *words = shlex.split(item.command or "fedbench methods")
    assert program == "fedbench"
    commands: Any = get_command(app)
    given = commands.commands[name].make_context(name, [*words]).params
    experiments: list[Experiment] = []
    if item.draw is not None:
        experiments = [cell.experiment for cell in chosen(item.draw)]
    elif name == "sweep":
        grid = load_grid(given["grid"])
        for preset in presets_for(grid, given["preset"], ()):
            cells = plan(grid, preset=preset, seeds=(0,), environ={})
            assert cells
            experiments += [cell.experiment for cell in cells]
    elif name in ("run", "tune", "partition"):
        settings = parse_set(given["set"])
        spec = given.get("spec") or "simclr"
        experiments = [resolve(spec, preset=given["preset"], set=settings, environ={})]
    ours = {
        key
        for experiment in experiments
        for key, source in experiment.sources.items()
        if source.endswith("(ours)") and not key.startswith("evaluation.")
    }
    if item.status == "as printed":
        read = {key for key in ours if name != "partition" or key.startswith("data.")}
        assert read <= {"data.held_out", "data.legacy"}


@pytest.mark.parametrize("item", FIGURES.values(), ids=FIGURES)
def test_a_figure_draws_what_its_runs_measure(item: Item) -> None:
    assert sum(each.item == item.item for each in ITEMS) == 1
    draw = item.draw
    assert draw is not None
    grid = load_grid(draw.grid).under_preset(draw.preset)
    special = {"round", "client", "objective", "angles", "map"}
    assert draw.x in {*grid.keys, *special}
    assert {draw.panel, *draw.where} - {None} <= {*grid.keys}
    assert {*(draw.methods or ())} <= {*grid.methods}
    if draw.x == "client":
        assert {*draw.y} <= {*ClientCost._fields}
        return
    if draw.x == "objective":  # of studies, which name what they watch
        assert {*draw.y} == {"knn_acc"}
        return
    cells = chosen(draw)
    assert {cell.config.spec for cell in cells} == {*(draw.methods or grid.methods)}
    for axis in {*grid.keys} & {draw.x, draw.panel}:
        assert len({cell.axes.get(axis) for cell in cells}) > 1
    for cell in cells:
        assert {MEASURED_BY[y] for y in draw.y} <= {*cell.config.evaluation.protocols}


def filled(name: str, store: Store, further: Mapping[str, float] = MLP) -> list[Row]:
    """Write a row, and a curve of two rounds, for each run of a figure under `demo`."""
    draw = FIGURES[name].draw
    assert draw is not None
    settings: dict[str, Any] = {"preset": "demo", "set": dict(draw.set), "methods": draw.methods}
    settings |= {"dataset": None, "content": content_names(None), "data_dir": None}
    cells = _chosen(draw, planned_cells(load_grid(draw.grid), store, None, settings))
    rows = []
    for place, cell in enumerate(cells):
        revision = cell.experiment.dataset.revision
        row = build_row(cell.config, dataset_revision=revision, linear_acc=0.5 + place / 100)
        row = row.model_copy(update={"further": dict(further)})
        store.write_row(row)
        points = [{"round_index": i, "metrics.knn_acc": 0.1 * (i + 1)} for i in range(2)]
        store.write_curve(store.key(row), points)
        rows.append(row)
    return rows


@pytest.mark.parametrize("name", ["O:5", "O:9", "M:3a", "A:4.4"])
def test_a_figure_is_drawn_or_says_what_is_lacking(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path / "s")
    assert draw_all([name], tmp_path, "demo", store.root) == 4
    lacking = paper_figure(name, tmp_path, preset="demo", store=store.root)
    said = capsys.readouterr().out
    assert f"lacks {len(lacking.lacking)} runs\n  {lacking.lacking[0]}\n" in said
    assert said.endswith(f"\n\n{lacking.command}\n")
    assert lacking.command.endswith(f" --store {store.root}")
    draw = FIGURES[name].draw
    assert draw is not None
    assert f"sweep --grid {draw.grid}" in lacking.command
    assert lacking.files == ()
    rows = filled(name, store)
    assert len(rows) == len(lacking.lacking) > 0
    assert draw_all([name], tmp_path, "demo", store.root) is None
    stem = name.replace(":", "-").lower()
    files = [str(tmp_path / f"{stem}.{form}") for form in ("png", "svg")]
    assert capsys.readouterr().out.splitlines() == files
    text = (tmp_path / f"{stem}.svg").read_text(encoding="utf-8")
    assert all(row.method in text for row in rows)
    assert "linear (paper)" not in text  # no run here has it


def test_runs_without_the_metric_of_a_figure_are_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "s")
    filled("A:4.4", store, {})
    with pytest.raises(ConfigError, match=r"evaluation\.protocols: .*A:4\.4.*mlp_acc"):
        paper_figure("A:4.4", tmp_path, preset="demo", store=store.root)


def test_a_curve_begins_before_training_and_ends_with_the_row(tmp_path: Path) -> None:
    store, draw = Store(tmp_path), FIGURES["O:9"].draw
    assert draw is not None
    row = build_row(tiny_config("simclr"), untrained_knn_acc=0.1, knn_acc=0.4, rounds_done=3)
    store.write_row(row)
    points = [{"round_index": i, "metrics.knn_acc": 0.2 if i == 1 else None} for i in range(3)]
    store.write_curve(store.key(row), points)
    cell: Any = None
    found = [*_values(draw, cell, row, "knn_acc", store)]
    assert found == [(0, 0.1, 0.0), (2, 0.2, 0.0), (3, 0.4, 0.0)]


def test_an_unknown_figure_is_named() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'O:9'"):
        paper_figure("O:99", Path())


def test_a_figure_of_costs_is_measured_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cost(experiment: Experiment) -> ClientCost:
        return ClientCost(len(experiment.config.spec), 2.0, 0.5, 0.0)

    monkeypatch.setattr(papers, "client_cost", cost)
    drawn = paper_figure("O:11", tmp_path, preset="demo", store=tmp_path / "none")
    text = drawn.files[1].read_text(encoding="utf-8")
    assert "seconds, orchestra = 1" in text
    assert f"byol, {100 * 0.5 / 4:.1g} % beside steps" in text


def test_the_search_is_drawn_from_trials_that_were_watched(tmp_path: Path) -> None:
    """Objective and accuracy of all methods lie on one line, so that R is 1."""
    draw, store = FIGURES["O:4"].draw, Store(tmp_path)
    assert draw is not None
    for place, spec in enumerate(draw.methods or ()):
        store.write_study(spec, {"study_id": spec, "spec": spec, "preset": "demo"})
        assert (
            f"trials of {spec}"
            in paper_figure("O:4", tmp_path, preset="demo", store=store.root).lacking
        )
        for number in range(2):
            score = 0.1 * place + 0.02 * number
            trial = {"status": "ok", "objective": score, "watched": {"knn_acc": 2 * score}}
            store.write_trial(spec, number, trial)
    drawn = paper_figure("O:4", tmp_path, preset="demo", store=store.root)
    assert [file.name for file in drawn.files] == ["o-4.png", "o-4.svg"]
    assert "R = 1.00" in drawn.files[1].read_text(encoding="utf-8")
