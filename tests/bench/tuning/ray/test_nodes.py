"""Nodes and GPUs that cannot run cells are named and left out."""

from typing import Any

import pytest

from fedbench.bench.system.errors import ResourceError
from fedbench.bench.tuning.cluster import Share
from fedbench.bench.tuning.ray import nodes
from fedbench.bench.tuning.ray.nodes import NodeReport, Pool

from .test_tuner import Fixed, jobs, make, name

UNFIT = {"status": "unfit", "node": "a" * 8, "error": "it does not see the folder"}


def test_a_cluster_with_gpus_gives_each_run_one(monkeypatch: pytest.MonkeyPatch) -> None:
    live = [{"Resources": {"CPU": 1, "GPU": 2}}]
    monkeypatch.setattr(nodes, "live_nodes", lambda: live)
    assert nodes.share_in_cluster(Share(2, automatic=True)) == Share(2, 1)
    assert nodes.share_in_cluster(Share(2)) == Share(2, 0)
    live[0]["Resources"].pop("GPU")
    assert nodes.share_in_cluster(Share(2, automatic=True)) == Share(2, 0)


def test_only_deaths_without_a_new_round_count() -> None:
    source = Fixed(jobs(1))
    searcher = make(source, attempts=2)
    running = {"status": "running", "rounds": 9, "loss": None, "collapsed": False}
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


def live_nodes(letters: str) -> list[dict[str, Any]]:
    return [
        {"NodeID": letter * 8, "NodeManagerAddress": letter, "Resources": {"CPU": 1, "GPU": 1}}
        for letter in letters
    ]


def test_a_node_that_cannot_run_a_cell_is_left_out_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "live_nodes", lambda: live_nodes("ab"))
    pool, source = Pool(Share(1)), Fixed(jobs(1))
    searcher = make(source, attempts=1, pool=pool)
    for trial in "xy":  # a second trial was there, too
        assert name(searcher.suggest(trial)) == "cell-0"
        searcher.reported(trial, UNFIT)
        searcher.died(trial, "")
        searcher.on_trial_complete(trial)
    assert ([*pool.left_out], pool.slots(), source.outcomes) == (["a" * 8], 1, [])
    with pytest.raises(ResourceError, match="aaaaaaaa"):
        pool.leave_out("b" * 8, "no GPU")


def test_a_node_on_which_cuda_fails_under_two_runs_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One run that breaks CUDA everywhere is an error; two on one node are the node's fault."""
    monkeypatch.setattr(nodes, "live_nodes", lambda: live_nodes("ab"))
    pool, source = Pool(Share(1)), Fixed(jobs(2))
    searcher = make(source, attempts=2, pool=pool)
    for trial, run, node in (("u", "cell-0", "a"), ("v", "cell-1", "a"), ("w", "cell-0", "b")):
        assert ([*pool.left_out], source.outcomes) == (["a" * 8] if trial == "w" else [], [])
        assert name(searcher.suggest(trial)) == run
        failed = {"status": "cuda-failed", "error": "CUDA error", "node": node * 8}
        searcher.reported(trial, failed)
        searcher.died(trial, "CUDA error")
        searcher.on_trial_complete(trial)
    assert [outcome.status for outcome in source.outcomes] == ["error"]


def test_nodes_of_an_autoscaler_are_asked_for_and_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    views = iter([[], [], live_nodes("a")])
    asked: list[Any] = []
    monkeypatch.setattr(nodes, "_SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(nodes, "live_nodes", lambda: next(views))
    monkeypatch.setattr(
        "ray.autoscaler.sdk.request_resources", lambda bundles: asked.append(bundles)
    )
    Pool(Share(1, 1)).wait(60.0, lambda: False)
    assert asked == [[{"CPU": 1.0, "GPU": 1.0}], []]
    monkeypatch.setattr(nodes, "live_nodes", lambda: live_nodes("a"))
    Pool(Share(1, 1)).wait(60.0, lambda: False)
    assert len(asked) == 2  # nothing to wait for
    monkeypatch.setattr(nodes, "live_nodes", list)
    Pool(Share(1, 1)).wait(0.0, lambda: False)
    Pool(Share(1, 1)).wait(60.0, lambda: True)  # a signal
    with pytest.raises(ResourceError, match="1 CPU and 1 GPU"):
        Pool(Share(1, 1)).check()


def test_nodes_are_left_out_and_late_ones_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    live = live_nodes("ab")
    asked: list[set[str]] = []

    def report_nodes(new: list[dict[str, Any]], *, gpus: bool) -> list[NodeReport]:
        assert gpus
        asked.append({node["NodeID"] for node in new})
        blind = ("Ray offers 1 GPU, torch sees 0",)
        return [
            NodeReport(i, i[0], {"CPU": 1, "GPU": 1}, problems=blind if i[0] in "bd" else ())
            for i in sorted(asked[-1])
        ]

    monkeypatch.setattr(nodes, "live_nodes", lambda: live)
    monkeypatch.setattr(nodes, "report_nodes", report_nodes)
    pool = Pool(Share(1, 1))
    pool.admit_new()
    assert ([*pool.left_out], pool.slots()) == (["b" * 8], 1)
    live += live_nodes("d")
    pool.admit_new()
    pool.admit_new()  # nobody is asked twice
    assert asked == [{"a" * 8, "b" * 8}, {"d" * 8}]
