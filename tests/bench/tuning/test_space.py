"""Search spaces fit the registry, each other and Optuna."""

import itertools
import math
import re
from pathlib import Path

import pytest
from optuna.distributions import IntDistribution

from fedbench.bench.config.yaml_files import installed
from fedbench.bench.experiment.fields import Fields, get
from fedbench.bench.experiment.preset_loading import preset_names
from fedbench.bench.experiment.resolve import resolve
from fedbench.bench.method import registry
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.tuning.spaces.space import (
    Choice,
    FloatRange,
    IntRange,
    SearchSpace,
    load_space,
    read_space,
)
from tests.specs import SPECS


def write(folder: Path, text: str) -> Path:
    path = folder / "own.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_spaces_and_registry_match() -> None:
    shipped_methods = {
        name
        for name, entry in registry.entries().items()
        if "fedbench" in entry.cls.__module__ and {*entry.cls.model_fields} - {"base"}
    }
    assert set(installed()) == shipped_methods


@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize("spec", SPECS)
def test_every_preset_lies_inside_every_space(spec: str, preset: str) -> None:
    config = resolve(spec, preset=preset, environ={}).config
    assert config.spec == spec
    assert config.cohort_size >= 1
    space = load_space(Fields.of(spec))
    for key, dimension in space.dimensions.items():
        assert dimension.holds(get(config, key)), key
    points = space.first_points(config)
    assert points[0] == {key: get(config, key) for key in space.dimensions}
    assert {point["client.lr"] for point in points} >= {0.03, 0.01, 0.003, 0.001}
    assert all(set(point) == set(space.dimensions) for point in points)
    for point in points:
        resolve(spec, preset=preset, set=point, environ={})


TEXT = """
method: simclr
space:
  client.lr: {type: float, low: 1e-4, high: 1, log: true}
  client.local_epochs: {type: int, low: 1, high: 9, step: 2}
  client.batch_size: {type: choice, values: [16, 32]}
points: [{client.lr: 0.5}]
"""


def test_own_file_replaces_the_methods_file(tmp_path: Path) -> None:
    file = write(tmp_path, TEXT)
    space = load_space(Fields.of("simclr"), file=file)
    assert space.distributions()["client.local_epochs"] == IntDistribution(1, 9, step=2)
    assert "method.uv.weight" in load_space(Fields.of("simclr+uv"), file=file).dimensions
    whole = write(tmp_path, TEXT.replace("method: simclr", "method: fed-simclr"))
    assert [*load_space(Fields.of("simclr+uv"), file=whole).dimensions] == [*space.dimensions]
    with pytest.raises(ConfigError, match="'fed-simclr'"):
        load_space(Fields.of("simclr"), file=whole)


def test_first_points_leave_out_what_lies_outside(tmp_path: Path) -> None:
    space = load_space(Fields.of("simclr"), file=write(tmp_path, TEXT))
    odd = resolve("simclr", set={"client.batch_size": 24}, environ={}).config
    assert space.first_points(odd) == []
    fast_values = {"client.lr": 3.0, "client.batch_size": 16, "client.local_epochs": 1}
    fast = resolve("simclr", set=fast_values, environ={}).config
    assert space.first_points(fast) == [
        {"client.lr": 0.5, "client.local_epochs": 1, "client.batch_size": 16}
    ]


def test_a_range_without_grid_is_refused(tmp_path: Path) -> None:
    space = load_space(Fields.of("simclr"), file=write(tmp_path, TEXT))
    with pytest.raises(ConfigError, match=r"client.lr"):
        space.grid()


def test_single_dimensions() -> None:
    line = FloatRange(type="float", low=0.0, high=1.0)
    odd = IntRange(type="int", low=1, high=7, step=3)
    space = SearchSpace("s", {"n": odd, "c": Choice(type="choice", values=("a", "b"))}, (), "")
    assert [tuple(point.values()) for point in space.grid()] == [
        (n, c) for n in (1, 4, 7) for c in "ab"
    ]
    assert not odd.holds(2)
    assert not line.holds(True)
    assert not line.holds(math.nan)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("client.lrr: {type: choice, values: [1]}", "client.lrr"),
        ("client.lr: {type: float, low: 0.0, high: 1.0}", "client.lr"),
        ("client.lr: {type: float, low: 0.0, high: 1.0, log: true}", "low .*log"),
        ("client.lr: {type: float, low: 2.0, high: 1.0}", "low .*high"),
        ("client.lr: {type: float, low: '1e-3', high: 1.0}", "low: .*'1e-3'"),
        ("client.lr: {type: float, low: 0.01, high: 1.0, log: yes}", "log"),
        ("client.lr: {type: float, low: 0.01, high: 1.0, grid: [3.0]}", "grid .*3.0"),
        ("client.local_epochs: {type: int, low: 1, high: 4, step: 2}", "step 2"),
        ("client.local_epochs: {type: int, low: 1, high: 4, step: 3, log: true}", "step .*log"),
        ("client.optimizer: {type: choice, values: [sgd, sdg]}", "'sdg'"),
        ("client.batch_size: {type: choice, values: [8]}\npoints: [{client.lr: 1.0}]", "client.lr"),
        ("client.batch_size: {type: choice, values: [8]}\npoints: [{client.batch_size: 9}]", "9"),
    ],
)
def test_bad_dimensions_are_refused_at_load(tmp_path: Path, line: str, named: str) -> None:
    file = write(tmp_path, f"method: simclr\nspace:\n  {line}\n")
    with pytest.raises(ConfigError, match=f"space {re.escape(str(file))}: .*{named}"):
        load_space(Fields.of("simclr"), file=file)


def test_an_add_ons_space_keeps_to_its_own_fields(tmp_path: Path) -> None:
    file = write(tmp_path, TEXT.replace("method: simclr", "method: uv"))
    with pytest.raises(ConfigError, match=r"method.uv"):
        read_space(file, Fields.of("simclr+uv"))


@pytest.mark.parametrize(("spec", "trials"), [("orchestra", 12), ("byol", 12), ("simclr", 4)])
def test_first_points_are_the_search_of_the_paper(spec: str, trials: int) -> None:
    """Lubana et al. 2022, C.4: four rates and, where there is a target, three decays."""
    config = resolve(spec, preset="cross-device", environ={}).config
    points = load_space(Fields.of(spec)).first_points(config)[:trials]
    tried = {(p["client.lr"], p.get("method.ema_decay")) for p in points}
    decays = (0.9, 0.99, 0.996) if trials == 12 else (None,)
    assert tried == set(itertools.product((0.03, 0.01, 0.003, 0.001), decays))
    assert {p.get("method.temperature", 0.1) for p in points} <= {0.1}
