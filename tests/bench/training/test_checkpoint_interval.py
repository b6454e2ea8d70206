"""Checkpoints some seconds apart: the same bits however a run ends, and no file too many."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from fedbench.bench.evaluation.collapse import CollapseMonitor
from fedbench.bench.system.seeding import single_thread
from fedbench.bench.testing import assert_same_run, tiny_config, tiny_setup, train
from fedbench.bench.training import trainer as module
from fedbench.bench.training.client import ClientRunner
from fedbench.bench.training.history import History
from fedbench.bench.training.personal import PersonalStore
from fedbench.bench.training.setup import Setup
from fedbench.bench.training.trainer import Trainer, default_seconds
from fedbench.bench.training.workers import InProcess

CPU = torch.device("cpu")
ROUNDS = 8


@dataclass
class Clock:
    """A second per round, counted when a round's record is taken."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def go_on(setup: Setup, folder: Path, clock: Clock, rounds: int | None = None) -> Trainer:
    """Train with checkpoints at least two seconds apart: after rounds 3, 5, 7 of a new run."""
    trainer = Trainer(setup, folder, "0" * 20, CPU, CollapseMonitor(setup, CPU), 2.0)
    executor = InProcess(ClientRunner(setup, CPU, folder / "clients"))
    with single_thread():
        for _ in itertools.islice(trainer.rounds(executor), rounds):
            clock.now += 1
    return trainer


def stored(folder: Path) -> list[int]:
    """Rounds done at the checkpoints that are there."""
    return sorted(int(path.stem.split("-")[1]) for path in folder.glob("round-*"))


@pytest.mark.parametrize(
    ("spec", "values"),
    [("simclr", {}), ("pfedae", {}), ("byol", {"method__target": "personal"})],
)
@pytest.mark.parametrize(("stop", "saved"), [(2, []), (4, [3]), (6, [3, 5])])
def test_a_run_broken_off_between_checkpoints_ends_with_the_same_bits(
    tmp_path: Path, clock: Clock, spec: str, values: dict[str, str], stop: int, saved: list[int]
) -> None:
    config = tiny_config(
        spec, federation__num_rounds=ROUNDS, federation__participation=0.5, **values
    )
    setup = tiny_setup(config)
    whole = train(setup, tmp_path / "whole")
    folder = tmp_path / "cut"
    go_on(setup, folder, clock, rounds=stop)
    assert stored(folder) == saved
    assert len(History(folder).read()) == stop
    resumed = go_on(setup, folder, clock)
    assert resumed.resumes == bool(saved)
    assert stored(folder)[-1] == ROUNDS
    assert_same_run(whole, resumed)
    clients = PersonalStore(folder / "clients")
    assert max(map(len, clients.rounds().values()), default=0) <= 2
    last = {client_id: rounds[-1] for client_id, rounds in clients.rounds().items()}
    assert last == resumed.personal_rounds == whole.personal_rounds
    for client_id, index in last.items():
        expected = PersonalStore(tmp_path / "whole" / "clients").load(client_id, index)
        assert torch.equal(clients.load(client_id, index), expected)


def test_a_damaged_file_since_the_last_but_one_checkpoint_costs_only_time(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The client's file is of round 4, in the middle between the checkpoints after 3 and 5."""
    config = tiny_config(
        "pfedae", federation__num_rounds=ROUNDS, federation__participation=0.5, seed=1
    )
    setup = tiny_setup(config)
    whole = train(setup, tmp_path / "whole")
    folder = tmp_path / "cut"
    trainer = go_on(setup, folder, clock, rounds=5)
    assert stored(folder) == [3, 5]
    between = [k for k, index in trainer.personal_rounds.items() if index == 3]
    assert between, "no client took part in round 4 and not in round 5"
    path = folder / "clients" / f"{between[0]}-3.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    resumed = go_on(setup, folder, clock)
    text = f"tensors of client {between[0]} after round 4 are missing or damaged; going back to"
    assert f"{text} round 3" in caplog.text
    assert_same_run(whole, resumed)


def test_short_runs_keep_every_round(tmp_path: Path) -> None:
    assert default_seconds(1000) == 0.0
    assert default_seconds(1001) == default_seconds(50_000) == 10.0
    setup = tiny_setup(tiny_config("simclr", federation__num_rounds=3))
    train(setup, tmp_path, rounds=2)
    assert stored(tmp_path) == [1, 2]
