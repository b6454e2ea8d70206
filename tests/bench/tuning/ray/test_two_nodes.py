"""Sweep on two nodes, one of which is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedbench.bench.results.store.store import Store
from fedbench.bench.tuning.ray import nodes
from fedbench.bench.tuning.sweep import sweep
from tests.bench.tuning.test_sweep import GRID, SMALL, TIMES

from .test_cluster import Use
from .test_nodes import on_nodes

LONG = {**SMALL, "federation.num_rounds": 40, "client.local_epochs": 8}


def rows(store: Path) -> list[dict[str, Any]]:
    return [row.model_dump(exclude=TIMES | {"git_sha"}) for row in Store(store).rows()]


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(1200)
def test_a_sweep_outlives_a_node(tmp_path: Path, in_one_process: Use) -> None:
    one: dict[str, float] = {"num_cpus": 1}
    result = on_nodes(tmp_path / "two", one, one, overrides=LONG, kill=True, gpus=None)
    assert (result["counts"], result["killed"]) == ([4, 0, 4, 0], 1)
    assert sum(row.resumes or 0 for row in Store(tmp_path / "two").rows()) >= 1
    in_one_process()
    sweep(GRID, store=tmp_path / "one", set=LONG)
    for here, there in zip(rows(tmp_path / "two"), rows(tmp_path / "one"), strict=True):
        assert {key: here[key] for key in here if here[key] != there[key]} == {}


def test_a_node_that_died_is_no_report_though_ray_still_lists_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ray

    def get(answer: object, timeout: float) -> object:
        raise ray.exceptions.NodeDiedError("gone")

    monkeypatch.setattr(ray, "get", get)
    node = {"NodeID": "a", "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 1.0}}
    assert nodes._report(node, None) is None
