"""Cells on the nodes of a cluster: environment, transferred files, and lost nodes."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedbench.bench.execution.run import store_run
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import ConfigError, FedbenchError, ResourceError
from fedbench.bench.system.packages import DISTRIBUTION
from fedbench.bench.tuning.ray import nodes, process, session
from fedbench.bench.tuning.ray.session import ray_session
from tests.bench.tuning.conftest import last, make_job


@pytest.fixture(autouse=True)
def scratch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Keep the folder of a node below the test's folder."""
    (tmp_path / "node").mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "node"))
    return tmp_path / "node"


def test_checkpoints_lie_where_the_driver_and_the_node_both_look(tmp_path: Path) -> None:
    """Nodes know the driver's folder by its token, which is of the folder, not of the command."""
    made = make_job(tmp_path / "store")
    token = process.driver_token(made.store)
    assert process.driver_token(made.store) == token
    assert process.settle(made, token) == (made, False)
    other = process.driver_token(tmp_path / "other")
    assert process.settle(made, other)[1]
    shared = replace(make_job(tmp_path / "unseen"), checkpoints=tmp_path / "other")
    assert process.settle(shared, other)[0].folder == tmp_path / "other" / "cells" / "cell"
    lost = replace(made, checkpoints=tmp_path / "elsewhere")
    with pytest.raises(ResourceError, match=r"--checkpoint-dir '.*elsewhere'"):
        process.settle(lost, token)


def test_a_node_that_sees_no_store_works_in_a_local_folder(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_job(tmp_path / "unseen")
    settled, local = process.settle(made, "0123")
    assert local
    assert scratch in settled.folder.parents
    outcome = last(settled, history=True)["outcome"]
    assert outcome.status == "ok"
    assert not (tmp_path / "unseen").exists()
    # The next attempt on this node finds the folder again; when the cell has ended it goes.
    assert process.settle(made, "0123")[0].folder.exists()
    context = SimpleNamespace(get_assigned_resources=dict, get_node_id=lambda: "a" * 8)
    monkeypatch.setattr("ray.get_runtime_context", lambda: context)
    monkeypatch.setattr("ray.get_gpu_ids", list)
    reports: list[dict[str, Any]] = []
    monkeypatch.setattr("ray.tune.report", reports.append)
    process.train({"job": made, "token": "0123"})
    assert reports[-1]["outcome"].status == "ok"
    assert not settled.folder.exists()
    # A folder for checkpoints that only this node misses: the cell is repeated on another.
    elsewhere = replace(made, checkpoints=tmp_path / "elsewhere")
    with pytest.raises(FedbenchError, match="--checkpoint-dir"):
        process.train({"job": elsewhere, "token": "0123"})
    assert (reports[-1]["status"], reports[-1]["node"]) == ("unfit", "a" * 8)
    assert "--checkpoint-dir" in reports[-1]["error"]

    store = Store(tmp_path / "store")
    store_run(store, outcome.row, history=outcome.history)
    direct = Store(tmp_path / "direct")
    row = last(make_job(direct.root))["outcome"].row
    store_run(direct, row, elsewhere=direct.cell_dir("cell"))
    (point,), (same) = store.curve(row.row_id), direct.curve(row.row_id)
    assert [{**point, "seconds": 0}] == [{**other, "seconds": 0} for other in same]


def test_the_folder_of_another_user_is_not_used(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unseen = make_job(tmp_path / "unseen")
    process.settle(unseen, "0123")
    (folder,) = scratch.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(process, "reopen", lambda *_: None)
    monkeypatch.setattr("os.getuid", lambda: int(folder.name.split("-")[1]))
    monkeypatch.setattr(
        Path, "stat", lambda *_, **__: os.stat_result([0o40700, *[0] * 3, 12345, *[0] * 5])
    )
    with pytest.raises(ResourceError, match="TMPDIR"):
        process.settle(unseen, "0123")


def test_a_folder_for_checkpoints_is_emptied_into_the_store(tmp_path: Path) -> None:
    store, apart = Store(tmp_path / "store"), Store(tmp_path / "apart")
    made = replace(make_job(store.root), checkpoints=apart.root)
    row = last(made)["outcome"].row
    assert not store.root.exists()
    assert made.folder == apart.cell_dir("cell")
    store_run(store, row, elsewhere=made.folder)
    assert not made.folder.exists()
    held = {path.name.split("-")[0] for path in store.cell_dir(row.row_id).iterdir()}
    assert held == {"round", "history.jsonl", "curve.parquet", "partition.safetensors"}
    assert store.finished(row.row_id) == row


def test_a_node_without_the_data_set_is_told_apart(tmp_path: Path) -> None:
    made = make_job(tmp_path / "store")
    for other in ({"path": tmp_path / "nowhere"}, {"revision": "f" * 64}):
        elsewhere = replace(made.experiment)
        vars(elsewhere)["data"] = replace(made.experiment.data, **other)
        with pytest.raises(ResourceError, match="`fedbench data prepare digits`"):
            process.settle(replace(made, experiment=elsewhere), "0123")


def test_processes_that_share_a_gpu_keep_to_their_part(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[float] = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.set_per_process_memory_fraction", parts.append)
    for gpus in (0.0, 0.25, 1.0, 2.0):
        process.limit_memory(gpus)
    assert parts == [pytest.approx(0.9 * 0.25)]  # the rest is for CUDA itself


def facts(**changes: Any) -> dict[str, Any]:
    return {**nodes.facts(), **changes}


def test_what_nodes_have_and_lack() -> None:
    same = nodes.facts()["packages"]
    assert nodes.compare(facts(), {"CPU": 8.0}) == ((), ())
    assert nodes.compare(facts(packages={**same, "torch": None}), {})[0] == (
        "torch is not installed",
    )
    (problem,), _ = nodes.compare(facts(packages={**same, DISTRIBUTION: "9.9"}), {})
    assert "9.9" in problem
    problems, differences = nodes.compare(
        facts(packages={**same, "numpy": "0.1"}, python="3.9.1"), {}
    )
    assert (problems, [text.split()[0] for text in differences]) == ((), ["numpy", "python"])
    (problem,), _ = nodes.compare(facts(commit="0" * 12), {})
    assert "000000000000" in problem
    assert nodes.compare(facts(gpus=[]), {"GPU": 4.0})[0] == ("Ray offers 4 GPU, torch sees 0",)


@pytest.mark.parametrize(
    "address", ["somewhere", "somewhere:port", ":6379", "local", "ray://somewhere:10001"]
)
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    with pytest.raises(ConfigError, match=f"--address.*{address}"), ray_session(None, address):
        pass


def test_a_cluster_is_joined_with_the_users_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pathlib.Path.home", lambda: tmp_path)

    def mode() -> tuple[str | None, str]:
        with session.ray_environment(tmp_path, private=False):
            return os.environ.get("RAY_AUTH_MODE"), session.auth_state()

    def own_token() -> str | None:
        with session.ray_environment(tmp_path, private=True):
            return os.environ.get("RAY_AUTH_TOKEN_PATH")

    assert mode()[0] is None
    assert "no token is set" in mode()[1]
    assert own_token() == str(tmp_path / "token")
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("secret")
    assert mode()[0] == "token"
    assert own_token() is None  # of two tokens in one process Ray's core would keep the first
    assert "a token is set" in mode()[1]
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert mode()[0] == "disabled"
    assert os.environ["RAY_AUTH_MODE"] == "disabled"
