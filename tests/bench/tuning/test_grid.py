"""Expansion of grids into cells: all combinations, in order, once."""

from pathlib import Path
from typing import Any

import pytest

from fedbench.bench.method.ids import row_id
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.tuning.grid import Cell, Grid, TunedValues, check_grid, load_grid, plan


def cells(grid: Grid | None = None, **given: Any) -> list[Cell]:
    return plan(grid or load_grid("heterogeneity"), **{"environ": {}, **given})


def small(**parts: Any) -> Grid:
    body = {
        "grid": "g",
        "description": "d",
        "axes": {"data.alpha": [0.1, 1]},
        "methods": ["simclr"],
    }
    return check_grid({**body, **parts}, "g.yaml")


def test_order_is_seed_then_axes_then_method() -> None:
    planned = cells(methods=["supervised", "simclr"], seeds=[5, 3])
    seen = [(cell.config.seed, cell.axes["data.alpha"], cell.config.spec) for cell in planned]
    assert seen[:3] == [(5, 0.1, "supervised"), (5, 0.1, "simclr"), (5, 1.0, "supervised")]
    assert [seed for seed, _, _ in seen] == [5] * 6 + [3] * 6
    assert planned == cells(methods=["supervised", "simclr"], seeds=[5, 3])


def test_equal_cells_stand_once() -> None:
    planned = cells(
        small(axes={"data.alpha": [1, 1.0, 0.1]}, methods=["simclr", "local-simclr"]), seeds=[0, 0]
    )
    assert len(planned) == len({row_id(cell.config, "r") for cell in planned}) == 2
    assert planned[0].axes == {"data.alpha": 1.0}


def test_partitions_that_need_a_column_which_the_grid_or_the_user_gives() -> None:
    writers = {"data.partition": "natural", "data.natural_column": "writer"}
    by_point = small(axes={}, points=[writers, {"data.partition": "iid"}])
    by_axis = small(axes={"data.partition": ["natural", "iid"]})
    for planned in (cells(by_point), cells(by_axis, set={"data.natural_column": "writer"})):
        assert [cell.config.data.partition for cell in planned] == ["natural", "iid"]
        assert planned[0].config.data.natural_column == "writer"


def test_points_are_for_their_method_and_multiply_the_axes() -> None:
    points = [{}, {"method": "orchestra", "method.target": False}]
    grid = small(points=points, methods=["simclr", "orchestra"])
    assert [
        (cell.config.spec, cell.axes["data.alpha"], cell.axes.get("method.target"))
        for cell in cells(grid)
    ] == [
        (spec, alpha, target)
        for alpha in (0.1, 1.0)
        for spec, target in (("simclr", None), ("orchestra", True), ("orchestra", False))
    ]
    with pytest.raises(ConfigError, match=r"method.target"):
        cells(grid, set={"method.target": True})


def test_exclude() -> None:
    grid = small(
        methods=["simclr", "supervised"], exclude=[{"method": "local-simclr", "data.alpha": 1}]
    )
    assert [(cell.config.spec, cell.axes["data.alpha"]) for cell in cells(grid)] == [
        ("simclr", 0.1),
        ("supervised", 0.1),
        ("supervised", 1.0),
    ]


def test_a_field_of_one_method_leaves_the_others_alone() -> None:
    planned = cells(set={"method.temperature": 0.3, "client.lr": 0.5})
    assert {cell.config.method.get("temperature") for cell in planned} == {0.3, None}
    assert {cell.config.client.lr for cell in planned} == {0.5}
    with pytest.raises(ConfigError, match=r"method.temprature"):
        cells(set={"method.temprature": 0.3})


def test_tuned_values_reach_their_method_only() -> None:
    tuned = {"local-simclr": TunedValues({"client.lr": 0.25}, "s1")}
    untuned = cells()[0].config.client.lr
    planned = cells(tuned=tuned, methods=["simclr", "simclr+uv", "supervised"])
    runs = [cell.experiment for cell in planned]
    assert {(run.config.spec, run.config.client.lr, run.origin.study_id) for run in runs} == {
        ("simclr", 0.25, "s1"),
        ("simclr+uv", untuned, None),
        ("supervised", untuned, None),
    }


def test_what_the_grid_sets_cannot_be_set_as_well(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("data: {alpha: 1.0}\n", encoding="utf-8")
    sources: list[dict[str, Any]] = [
        {"set": {"data": {"alpha": 1.0}}},
        {"environ": {"FEDBENCH__DATA__ALPHA": "1"}},
        {"config_files": [file]},
    ]
    for source in sources:
        with pytest.raises(ConfigError, match=r"data.alpha"):
            cells(**source)
    for seed in ({"set": {"seed": 1}, "seeds": [2]}, {"environ": {"FEDBENCH__SEED": "1"}}):
        with pytest.raises(ConfigError, match="--seeds"):
            cells(**seed)
    assert {c.config.seed for c in cells(environ={"FEDBENCH__SEED": "1"}, seeds=[2])} == {2}


@pytest.mark.parametrize("given", [{"methods": []}, {"seeds": []}])
def test_an_empty_list_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"--{next(iter(given))}"):
        cells(**given)


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"axes": {"data.alpha": []}}, "data.alpha"),
        ({"axes": {"seed": [1]}}, "'seeds:'"),
        ({"axes": {"data.alhpa": [1]}}, "data.alhpa"),
        ({"axes": {"data.alpha": ["1e-3"]}}, "data.alpha.*'1e-3'"),
        ({"methods": []}, "methods"),
        ({"methods": ["simcrl"]}, "'simclr'"),
        ({"exclude": [{"method": "simcrl"}]}, "'simclr'"),
        ({"presets": {"dmo": {}}}, "'demo'"),
        ({"axis": {}}, "'axes'"),
        ({"scaling": {"client.lr": {"by": "sqrt", "of": "data.num_clients"}}}, "num_clients"),
        ({"scaling": {"data.alpha": {"by": "sqrt", "of": "data.alpha"}}}, "data.alpha"),
        ({"scaling": {"client.keep_last_batch": {"by": "sqrt", "of": "data.alpha"}}}, "True"),
        ({"scaling": {"client.lr": {"by": "cube", "of": "data.alpha"}}}, "'inverse'"),
        ({"points": [{"method.target": False}]}, "method.target"),
        ({"points": [{"method": "byol"}]}, "'byol'"),
        ({"points": [{"client.lr": 1}], "axes": {"client.lr": [1]}}, "client.lr"),
        ({"points": []}, "points"),
    ],
)
def test_bad_grids_are_refused_at_load(parts: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"^g.yaml: .*{named}"):
        small(**parts)


def test_a_missing_key_is_named_without_the_rest() -> None:
    with pytest.raises(ConfigError, match=r"^g.yaml: grid is missing$"):
        check_grid({"methods": ["simclr"], "seeds": [0]}, "g.yaml")


def test_the_learning_rate_follows_participation_by_its_root() -> None:
    planned = cells(
        load_grid("participation"), preset="cross-device", methods=["simclr"], seeds=[0]
    )
    # 0.003 at a share of 0.5: x sqrt(R / 0.5), to six digits.
    rates = {cell.config.federation.participation: cell.config.client.lr for cell in planned}
    assert rates == {0.1: 0.00134164, 0.25: 0.00212132, 0.5: 0.003, 1.0: 0.00424264}
    texts = [[change.text for change in cell.scaled] for cell in planned]
    assert texts[0] == ["client.lr 0.003 -> 0.00134164: x sqrt(participation 0.1 / 0.5)"]
    assert texts[2] == []


def test_local_epochs_follow_the_number_of_clients() -> None:
    grid = load_grid("scaling")
    planned = cells(grid, preset="cross-device", methods=["simclr"], seeds=[0])
    # 10 epochs at 100 clients.
    epochs = {cell.config.data.num_clients: cell.config.client.local_epochs for cell in planned}
    assert epochs == {10: 1, 50: 5, 100: 10, 200: 20, 400: 40}
    assert planned[-1].scaled[0].text == "client.local_epochs 10 -> 40: x num_clients 400 / 100"
    # Never less than one epoch: 1 x 10 / 100 and 1 x 50 / 100.
    once = {"client.local_epochs": 1}
    short = cells(grid, preset="cross-device", set=once, methods=["simclr"], seeds=[0])
    assert [cell.config.client.local_epochs for cell in short] == [1, 1, 1, 2, 4]
    assert [len(cell.scaled) for cell in short] == [0, 0, 0, 1, 1]


def test_scaling_starts_from_tuned_and_overridden_values() -> None:
    grid = load_grid("participation")
    tuned = {"simclr": TunedValues({"client.lr": 0.2}, "s1")}
    (cell, *_) = cells(grid, tuned=tuned, methods=["simclr"])
    assert cell.config.client.lr == pytest.approx(0.2 * (0.25 / 0.5) ** 0.5, rel=1e-5)
    (cell, *_) = cells(grid, set={"client.lr": 0.1}, methods=["simclr"])
    assert cell.config.client.lr == pytest.approx(0.1 * (0.25 / 0.5) ** 0.5, rel=1e-5)
    assert cell.scaled[0].base == 0.1
