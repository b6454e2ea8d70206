"""A run in which no weight moved is reported, whatever the method, like one that collapsed.

Ten of eleven clients hold one image, fewer than a batch, so that a cohort of one of them makes no
step: seed 1 draws two of these in two rounds, seed 0 the large client in one of the two.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import fedbench
from fedbench.bench.results.leaderboard.formats import to_markdown
from fedbench.bench.results.leaderboard.leaderboard import Leaderboard
from fedbench.bench.terminal.show_runs import warnings
from tests.bench.results.conftest import build_row, rank

NUM_IMAGES = 1_201  # training images of digits
METHODS = ["simclr", "pfedae", "simclr+fedu2", "simclr+scaffold"]


def run(
    spec: str, folder: Path, *, seed: int, clients: int = 11, large: int = 0, cohort: int = 1
) -> fedbench.RunResult:
    """Run two rounds; client `large` holds all images but one for each of the others."""
    others = [k for k in range(clients) if k != large]
    shares = {str(k): [image] for image, k in enumerate(others)}
    shares[str(large)] = list(range(len(others), NUM_IMAGES))
    file = folder / "clients.json"
    file.write_text(json.dumps(shares))
    values: dict[str, Any] = {
        "data.partition": "file",
        "data.partition_file": str(file),
        "data.num_clients": clients,
        "data.test_subset": 40,
        "model.width": 4,
        "model.norm": "group",  # no statistics that a training without steps would leave empty
        "client.batch_size": 256,
        "client.local_epochs": 1,
        "client.keep_last_batch": False,
        "federation.num_rounds": 2,
        "federation.participation": cohort / clients,
        "evaluation.protocols": ["knn"],
    }
    store = folder / "store"
    return fedbench.run(spec, preset="demo", set=values, seed=seed, store=store, workers=1)


@pytest.mark.parametrize("spec", METHODS)
def test_a_run_in_which_nobody_made_a_step_warns(tmp_path: Path, spec: str) -> None:
    result = run(spec, tmp_path, seed=1)
    assert result.status == "ok"
    assert result.metrics["idle_clients"] == 2
    assert result.metrics["relative_movement"] == 0
    assert result.metrics["knn_acc"] == result.metrics["untrained_knn_acc"]
    # One warning beside that of a collapse, which an untrained encoder may well have.
    assert len(warnings(result.row)) == 1 + bool(result.collapsed)


@pytest.mark.parametrize("spec", ["simclr", "pfedae"])
def test_a_run_in_which_somebody_made_a_step_does_not(tmp_path: Path, spec: str) -> None:
    result = run(spec, tmp_path, seed=0)
    assert result.metrics["idle_clients"] == 1
    assert result.metrics["relative_movement"]
    assert not warnings(result.row)


def test_weights_that_moved_on_the_last_client_alone_have_moved(tmp_path: Path) -> None:
    """`pfedae` averages nothing that clients train: each client has weights of its own."""
    result = run("pfedae", tmp_path, seed=0, clients=3, large=2, cohort=3)
    assert result.metrics["idle_clients"] == 2 * 2
    assert result.metrics["final_loss"] is not None
    assert result.metrics["relative_movement"]
    assert not warnings(result.row)


def test_a_leaderboard_marks_the_line_as_it_marks_collapse() -> None:
    """The same row but for its movement: its entry and its text differ. Old rows say nothing."""

    def board(**further: float) -> Leaderboard:
        metrics = further
        return rank([build_row(linear_acc=0.1, collapsed=False, further=metrics)])

    moved, still = board(relative_movement=0.3), board(relative_movement=0.0)
    assert to_markdown(moved) == to_markdown(board())
    assert to_markdown(moved) != to_markdown(still)
    assert moved.to_dict() != still.to_dict()
    # Biases start at 0 and move by any rate: no other weight feels a rate of 1e-30.
    assert to_markdown(board(relative_movement=1e-29)) == to_markdown(still)


def test_a_rate_that_moves_biases_alone_moves_nothing(tmp_path: Path) -> None:
    values: dict[str, Any] = {"client.lr": 1e-30, "model.width": 4, "federation.num_rounds": 1}
    values |= {"data.train_subset": 100, "model.norm": "group", "evaluation.protocols": ["knn"]}
    result = fedbench.run("simclr", preset="demo", set=values, store=tmp_path, workers=1)
    moved = result.metrics["relative_movement"]
    assert moved is not None
    assert 0 < moved < 1e-7
    assert result.row is not None
    assert result.row.unmoved
    assert warnings(result.row)
