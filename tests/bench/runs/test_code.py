"""Code of other packages in a configuration."""

from __future__ import annotations

from fedbench.bench.runs.code import changed_code, foreign_code
from fedbench.bench.runs.fields import build_config


def test_what_ships_has_none() -> None:
    values = {"evaluation.objectives": ["rankme"], "data.name": "cifar10"}
    assert foreign_code(build_config("simclr+uv", values)) == {}


def test_changes_are_named() -> None:
    assert changed_code({"a": "1", "b": "1"}, {"b": "2", "c": "1"}) == ["a", "b", "c"]
