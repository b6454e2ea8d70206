"""Shipped grids: each resolves under each preset, and tables are rebuilt row for row."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedbench.bench.config.yaml_files import installed
from fedbench.bench.execution.execute import derived
from fedbench.bench.experiment.preset_loading import preset_names
from fedbench.bench.results.choice import AXES
from fedbench.bench.results.leaderboard.comparability import class_of
from fedbench.bench.results.leaderboard.data_names import dataset_name
from fedbench.bench.results.leaderboard.published import paper_cells
from fedbench.bench.results.store.row import Row
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.identity import canonical_json
from fedbench.bench.tuning.grid import Cell, load_grid, plan, presets_for
from fedbench.bench.tuning.sweep import unranked
from tests.specs import extended

SPECS = {(cell.paper, cell.method): cell.spec for cell in paper_cells()}


def cells(name: str, **given: Any) -> list[Cell]:
    return plan(load_grid(name), **{"environ": {}, **given})


def whole(name: str) -> list[Cell]:
    """Return the configurations of a sweep without a preset."""
    grid = load_grid(name)
    return [c for p in presets_for(grid, None, ()) for c in plan(grid, preset=p, environ={})]


def printed(table: str) -> set[tuple[str, str, str]]:
    """Return (data set, setting, method) of every row of a published table."""
    cells = [cell for cell in paper_cells() if cell.source == table]
    return {(dataset_name(cell.dataset), cell.setting, cell.method) for cell in cells}


def classes_at_points(planned: list[Cell]) -> dict[str, set[str]]:
    """Return the comparability classes that rows would have at each point of a grid."""
    classes: dict[str, set[str]] = {}
    for cell in planned:
        derived_columns = derived(cell.config, cell.config.data.name)
        columns = {**derived_columns, "dataset_revision": cell.config.data.name}
        settings = cell.config.model_dump(mode="json")
        row = Row.model_construct(**columns, settings=settings, environment={}, further={})
        shared = {k: v for k, v in cell.axes.items() if not k.startswith("method.")}
        point = canonical_json([cell.config.seed, shared])
        classes.setdefault(point, set()).add(class_of(row, "objective"))
    return classes


@pytest.mark.parametrize("preset", extended(preset_names(), lambda name: name != "demo"))
@pytest.mark.parametrize("name", installed("grids"))
def test_every_grid_under_every_preset(name: str, preset: str) -> None:
    planned = cells(name, preset=preset)
    configs = {canonical_json(cell.config.model_dump(mode="json")) for cell in planned}
    assert len(configs) == len(planned) > 0
    grid = load_grid(name).under_preset(preset)
    assert {cell.config.seed for cell in planned} == set(grid.seeds)
    assert len({cell.config.spec for cell in planned}) == len(grid.methods)
    for key, values in grid.axes.items():
        assert {cell.axes[key] for cell in planned} == set(values)
    told = list(unranked(planned))
    assert len(told) == any(len(ids) > 1 for ids in classes_at_points(planned).values())
    assert all("boards" in line and preset in line for line in told)
    if preset == "demo":
        assert len(planned) <= 45
        assert {cell.config.data.name for cell in planned} == {"digits"}


def test_a_preset_that_keeps_methods_apart_on_boards_is_told() -> None:
    methods = {"methods": ["simclr", "orchestra", "supervised"], "preset": "demo"}
    (line,) = unranked(cells("heterogeneity", **methods))
    names = ("federation.num_rounds", "federation.participation", "client.local_epochs")
    assert all(name in line for name in names)
    assert re.search(r"gives orchestra .* than simclr, supervised\b", line)
    alike = {"federation.num_rounds": 6, "federation.participation": 1.0, "client.local_epochs": 2}
    assert not [*unranked(cells("heterogeneity", **methods, set=alike))]
    (line,) = unranked(cells("participation", **methods))
    assert "federation.participation" not in line  # an axis


BASELINES = {"orchestra", "byol", "spectral", "simsiam", "simclr"}
"""Without reconstruction, in figures 4.3, 4.5 and 4.7 of Arora 2023."""


@pytest.mark.parametrize("name", AXES.values())
@pytest.mark.parametrize("preset", preset_names())
def test_axes_of_the_papers_compare_with_orchestra(name: str, preset: str) -> None:
    grid = load_grid(name).under_preset(preset)
    assert "orchestra" in grid.methods
    if preset == "pfedae":
        assert {*grid.methods} >= {*BASELINES, "pfedae", "fedavg-ae", "single-ae"}


def test_a_preset_has_the_lists_of_what_it_extends(tmp_path: Path) -> None:
    grid = load_grid("heterogeneity")
    wide = grid.under_preset("cross-device")
    assert wide.methods == load_grid("orchestra-table1").methods
    assert grid.under_preset("cross-device-cpu") == wide
    file = tmp_path / "own.yaml"
    text = "preset: own\ndescription: d\nsource: ours\nextends: laptop\nvalues: {}\n"
    file.write_text(text, encoding="utf-8")
    assert grid.under_preset(str(file)) == grid.under_preset("laptop")
    budget = load_grid("local-epochs-budget").under_preset("mi-semi")  # extends mi
    assert budget.axes["data.partition"] == ("joint",)


def data_set(cell: Cell) -> str:
    return dataset_name(cell.config.data.name)


def preset(cell: Cell) -> str:
    name = cell.experiment.origin.preset
    return name.removesuffix("-finetune").replace("-", "_")


def clusters(cell: Cell) -> str:
    fields = cell.config.method
    reps = fields["representations"] == "memory"
    local = "Reps" if reps else f"L={fields['num_local_clusters']}"
    return f"Orchestra(G={fields['num_global_clusters']},{local})"


def parts(cell: Cell) -> str:
    names = {
        (True, True): "Orchestra",
        (False, True): "Orchestra(no degeneracy regularization)",
        (True, False): "Orchestra(no target model)",
    }
    return names[bool(cell.config.method["degeneracy"]), bool(cell.config.method["target"])]


def sent(cell: Cell) -> str:
    fields = cell.config.method
    names = {"memory": "no privacy / Reps", "centroids": "K-anonymity"}
    private = f"local-DP eps={fields['epsilon']}"
    return f"Orchestra({names.get(str(fields['representations']), private)})"


@pytest.mark.parametrize(("number", "text"), [(2, clusters), (6, parts), (7, sent)])
def test_variants_of_orchestra(number: int, text: Callable[[Cell], str]) -> None:
    seen = {(data_set(c), preset(c), text(c)) for c in whole(f"orchestra-table{number}")}
    assert seen == printed(f"orchestra_table{number}")


def shift(cell: Cell) -> str:
    names = {
        **{"hsu": "label_skew", "rotation": "covariate_shift", "joint": "joint_shift"},
        "dirichlet-balanced": "cross_silo_dirichlet0.1",
        "pathological": "cross_silo_pathological_2class",
    }
    return names[cell.config.data.partition]


@pytest.mark.parametrize(
    ("grid", "table", "setting"),
    [
        ("orchestra-table1", "orchestra_table1", preset),
        ("orchestra-table1", "orchestra_table5", preset),
        ("pfedae-table4-1", "pfedae_table4_1", shift),
        *((f"mi-table{number}", f"mi_table{number}", shift) for number in range(1, 8)),
    ],
)
def test_tables_of_methods(grid: str, table: str, setting: Callable[[Cell], str]) -> None:
    planned, paper = whole(grid), table.partition("_")[0]
    seen = {(data_set(c), setting(c), c.config.spec) for c in planned}
    assert seen == {(data, where, SPECS[paper, name]) for data, where, name in printed(table)}
    if paper == "orchestra":
        assert len(planned) == 3 * 2 * len(seen)  # fine-tuning has trainings of its own
    if paper == "mi":
        fraction = 0.1 if table[-1] in "2567" else 0.0
        assert {cell.config.data.label_fraction for cell in planned} == {fraction}
        tiny = table[-1] in "47"
        assert {cell.config.model.backbone.startswith("cct") for cell in planned} == {tiny}


def test_presets_of_a_table_give_way_to_a_given_one(tmp_path: Path) -> None:
    grid = load_grid("orchestra-table1")
    assert presets_for(grid, None, ())[:2] == ("cross-device", "cross-silo")
    assert presets_for(grid, "laptop", ()) == ("laptop",)
    file = tmp_path / "x.yaml"
    file.write_text("preset: mi\n", encoding="utf-8")
    assert presets_for(grid, None, [file]) == ("mi",)
    assert presets_for(load_grid("scaling"), None, ()) == ("demo",)


def test_a_place_for_the_data_set_of_a_table_chooses_its_rows() -> None:
    contents = {
        "hub:/a": "cifar100",
        "folder:/b": "tiny-imagenet",
        "hub:/mnist": "mnist",
        "hub:/cifar10": "hub:cifar10",
    }
    content = contents.__getitem__
    given = {"data.name": "hub:/a"}
    planned = cells("orchestra-table1", preset="cross-silo", set=given, content=content)
    assert {cell.config.data.name for cell in planned} == {"hub:/a"}
    assert len(planned) == 7 * 3
    # Rules of the preset go by the content: CIFAR-100 has 256 global clusters.
    (orchestra, *_) = [cell for cell in planned if cell.config.spec == "orchestra"]
    assert orchestra.config.method["num_global_clusters"] == 256
    tiny = {"data.name": "folder:/b"}
    assert len(cells("mi-table4", preset="mi", set=tiny, content=content)) == 7 * 3 * 5
    for name, got in (("hub:/mnist", "mnist"), ("hub:/cifar10", "hub:cifar10"), ("svhn", "svhn")):
        given = {"data.name": name}
        with pytest.raises(ConfigError, match=f"data.name: .*{got}"):
            cells("orchestra-table1", preset="mi", set=given, content=content)
