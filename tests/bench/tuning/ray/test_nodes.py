"""Nodes and GPUs that cannot run cells are named and left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import ResourceError
from fedbench.bench.tuning.cluster import Share
from fedbench.bench.tuning.job import breaks_cuda
from fedbench.bench.tuning.ray import nodes
from fedbench.bench.tuning.ray.nodes import NodeReport, Pool
from tests.bench.tuning.test_sweep import GRID, SMALL

from .test_search import Fixed, jobs, make, name

UNFIT = {"status": "unfit", "node": "a" * 8, "error": "it does not see the folder"}


def on_nodes(store: Path, *resources: dict[str, float], **given: Any) -> dict[str, Any]:
    script = Path(__file__).with_name("on_nodes.py")
    settings = {"grid": GRID.model_dump(mode="json"), "overrides": SMALL, "nodes": resources,
                "gpus": 0, "kill": False, **given}  # fmt: skip
    done = subprocess.run(
        [sys.executable, script, str(store), json.dumps(settings)],
        capture_output=True,
        text=True,
        timeout=1100,
        env={**os.environ, "PYTHONPATH": str(script.parents[4])},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.slow  # starts a Ray cluster; test_cluster.py has the comparison by itself
@pytest.mark.extended
def test_a_gpu_that_torch_does_not_see_is_named(tmp_path: Path) -> None:
    result = on_nodes(tmp_path, {"num_cpus": 1, "num_gpus": 1}, gpus=1)
    assert result["code"] == 3
    assert "1 GPU" in result["error"]
    assert Store(tmp_path).rows() == []


def test_a_cluster_with_gpus_gives_each_run_one(monkeypatch: pytest.MonkeyPatch) -> None:
    live = [{"Resources": {"CPU": 1, "GPU": 2}}]
    monkeypatch.setattr(nodes, "live_nodes", lambda: live)
    assert nodes.share_in_cluster(Share(2, automatic=True)) == Share(2, 1)
    assert nodes.share_in_cluster(Share(2)) == Share(2, 0)
    live[0]["Resources"].pop("GPU")
    assert nodes.share_in_cluster(Share(2, automatic=True)) == Share(2, 0)


def test_faults_of_a_gpu() -> None:
    assert breaks_cuda(RuntimeError("CUDA error: device-side assert triggered"))
    assert breaks_cuda(RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"))
    assert breaks_cuda(RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling"))
    assert breaks_cuda(torch.AcceleratorError("an illegal memory access was encountered"))
    assert not breaks_cuda(torch.cuda.OutOfMemoryError("CUDA out of memory"))
    assert not breaks_cuda(ValueError("CUDA error"))
    assert not breaks_cuda(RuntimeError("shapes do not fit"))


def test_only_deaths_without_a_new_round_count() -> None:
    source = Fixed(jobs(1))
    searcher = make(source, attempts=2)
    running = {"status": "running", "total": 9, "loss": None, "collapsed": False}
    for number, trial in enumerate("abcd", start=1):
        searcher.suggest(trial)
        searcher.reported(trial, {**running, "round": number})
        searcher.died(trial, "pre-empted")
        searcher.on_trial_complete(trial)
    assert source.outcomes == []
    searcher.suggest("e")
    searcher.reported("e", {**running, "round": 4})  # as far as the process before
    searcher.died("e", "pre-empted")
    assert [outcome.status for outcome in source.outcomes] == ["error"]


def test_a_node_that_cannot_run_a_cell_is_left_out_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live = [
        {"NodeID": letter * 8, "NodeManagerAddress": letter, "Resources": {"CPU": 1}}
        for letter in "ab"
    ]
    monkeypatch.setattr(nodes, "live_nodes", lambda: live)
    pool, source = Pool(Share(1)), Fixed(jobs(1))
    searcher = make(source, attempts=1, pool=pool)
    for trial in "xy":  # a second trial was there, too
        assert name(searcher.suggest(trial)) == "cell-0"
        searcher.reported(trial, UNFIT)
        searcher.died(trial, "")
        searcher.on_trial_complete(trial)
    assert (pool.left_out, pool.slots(), source.outcomes) == (["a" * 8], 1, [])
    with pytest.raises(ResourceError, match="aaaaaaaa"):
        pool.leave_out("b" * 8, "no GPU")


def test_a_node_on_which_cuda_fails_under_two_runs_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One run that breaks CUDA everywhere is an error; two on one node are the node's fault."""
    live = [
        {"NodeID": letter * 8, "NodeManagerAddress": letter, "Resources": {"CPU": 1}}
        for letter in "ab"
    ]
    monkeypatch.setattr(nodes, "live_nodes", lambda: live)
    pool, source = Pool(Share(1)), Fixed(jobs(2))
    searcher = make(source, attempts=2, pool=pool)
    failed = {"status": "cuda-failed", "error": "CUDA error: illegal address", "node": "a" * 8}

    def fail(trial: str, expected: str) -> None:
        assert name(searcher.suggest(trial)) == expected
        searcher.reported(trial, failed)
        searcher.died(trial, "CUDA error")
        searcher.on_trial_complete(trial)

    fail("u", "cell-0")
    assert pool.left_out == []
    fail("v", "cell-1")
    assert pool.left_out == ["a" * 8]
    assert source.outcomes == []  # both are started again elsewhere
    failed["node"] = "b" * 8
    fail("w", "cell-0")
    assert [outcome.status for outcome in source.outcomes] == ["error"]


def test_nodes_of_an_autoscaler_are_asked_for_and_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    node = {"NodeID": "a" * 8, "NodeManagerAddress": "a", "Resources": {"CPU": 1, "GPU": 1}}
    views = iter([[], [], [node]])
    asked: list[Any] = []
    monkeypatch.setattr(nodes, "_SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(nodes, "live_nodes", lambda: next(views))
    monkeypatch.setattr(
        "ray.autoscaler.sdk.request_resources", lambda bundles: asked.append(bundles)
    )
    Pool(Share(1, 1)).wait(60.0, lambda: False)
    assert asked == [[{"CPU": 1.0, "GPU": 1.0}], []]
    monkeypatch.setattr(nodes, "live_nodes", lambda: [node])
    Pool(Share(1, 1)).wait(60.0, lambda: False)
    assert len(asked) == 2  # nothing to wait for
    monkeypatch.setattr(nodes, "live_nodes", list)
    Pool(Share(1, 1)).wait(0.0, lambda: False)
    Pool(Share(1, 1)).wait(60.0, lambda: True)  # a signal
    with pytest.raises(ResourceError, match="1 CPU and 1 GPU"):
        Pool(Share(1, 1)).check()


def test_nodes_are_left_out_and_late_ones_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    live = [{"NodeID": letter * 8, "NodeManagerAddress": letter, "Resources": {"CPU": 1, "GPU": 1}}
            for letter in "ab"]  # fmt: skip
    asked: list[set[str]] = []

    def report_nodes(*, gpus: bool, only: set[str]) -> list[NodeReport]:
        assert gpus
        asked.append(only)
        blind = ("Ray offers 1 GPU, torch sees 0",)
        return [
            NodeReport(i, i[0], {"CPU": 1, "GPU": 1}, problems=blind if i[0] in "bd" else ())
            for i in sorted(only)
        ]

    monkeypatch.setattr(nodes, "live_nodes", lambda: live)
    monkeypatch.setattr(nodes, "report_nodes", report_nodes)
    pool = Pool(Share(1, 1))
    pool.admit_new()
    assert (pool.left_out, pool.slots()) == (["b" * 8], 1)
    live.append({**live[0], "NodeID": "d" * 8})
    pool.admit_new()
    pool.admit_new()  # nobody is asked twice
    assert asked == [{"a" * 8, "b" * 8}, {"d" * 8}]
