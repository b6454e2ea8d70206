"""Personal files: content, one per client, no bit lost however a run ends."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedbench.bench.evaluation.collapse import CollapseMonitor
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.seeding import single_thread
from fedbench.bench.system.tensor_files import read
from fedbench.bench.testing import assert_same_run, tiny_config, tiny_setup, train
from fedbench.bench.training.client import Task, Trained
from fedbench.bench.training.lanes import LaneExecutor
from fedbench.bench.training.personal import PersonalStore
from fedbench.bench.training.setup import Setup
from fedbench.bench.training.trainer import Trainer
from tests.specs import flip, setup_of

CPU = torch.device("cpu")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def hashes(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


def test_own_tensors_are_kept_per_client_and_round(tmp_path: Path) -> None:
    store = PersonalStore(tmp_path)
    store.keep(math.inf)  # nothing there yet
    for client, index in ((0, 0), (0, 1), (0, 10), (11, 1)):
        store.save(client, index, torch.tensor([float(client), float(index)]))
    assert store.load(0, 10).tolist() == [0.0, 10.0]
    assert store.rounds() == {0: [0, 1, 10], 11: [1]}
    store.drop(0, 0)
    assert names(tmp_path) == ["0-1.safetensors", "0-10.safetensors", "11-1.safetensors"]
    store.keep(math.inf)
    assert names(tmp_path) == ["0-10.safetensors", "11-1.safetensors"]
    torn = tmp_path / "0-10.safetensors"
    torn.write_bytes(torn.read_bytes()[:30])
    for client, index, intact in ((0, 0, False), (0, 10, False), (11, 1, True)):
        assert store.intact(client, index) == intact


class Dying(LaneExecutor):
    """Executor that breaks off in the fourth round after some of its clients."""

    clients = 0

    def train(self, tasks: Sequence[Task], server: Tensor) -> Iterator[tuple[Trained, Tensor]]:
        for number, result in enumerate(super().train(tasks, server), start=1):
            if tasks[0].round_index == 3 and number == self.clients:
                raise InterruptedError
            yield result


def cut_short(setup: Setup, folder: Path, clients: int) -> None:
    trainer = Trainer(
        setup, folder, "0" * 20, CPU, CollapseMonitor(setup, CPU, PersonalStore(folder / "clients"))
    )
    dying = Dying(setup, CPU, folder / "clients")
    dying.clients = clients
    with pytest.raises(InterruptedError), single_thread():
        for _ in trainer.rounds(dying):
            pass


def test_a_file_that_was_to_be_deleted_is_deleted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kill comes after the new file is renamed and before the old one is deleted."""
    setup = setup_of("pfedae", federation__num_rounds=4)
    with monkeypatch.context() as patch:
        patch.setattr(PersonalStore, "drop", lambda *_: None)
        cut_short(setup, tmp_path, clients=3)
    assert len(names(tmp_path / "clients")) == 3 * 4 + 3
    train(setup, tmp_path)
    assert names(tmp_path / "clients") == [f"{k}-{r}.safetensors" for k in range(4) for r in (2, 3)]


@pytest.mark.parametrize("swapped", [("0-1", "1-1"), ("0-0", "0-1")])
def test_a_file_under_another_name_is_not_used(tmp_path: Path, swapped: tuple[str, str]) -> None:
    """Client and round are in the checksum, not only in the name."""
    setup = setup_of("pfedae", federation__num_rounds=2)
    train(setup, tmp_path)
    one, other = (tmp_path / "clients" / f"{name}.safetensors" for name in swapped)
    one.replace(other)
    client, round_index = map(int, swapped[1].split("-"))
    with pytest.raises(StoreError, match=other.name):
        PersonalStore(tmp_path / "clients").load(client, round_index)


@pytest.mark.parametrize(
    ("spec", "values", "participation", "state", "damaged"),
    [
        ("pfedae", {}, 1.0, "in a round", "nothing"),
        ("pfedae", {"method__gradient": "ship"}, 1.0, "in a round", "nothing"),
        # These send weights up as well, or a row.
        ("byol", {"method__target": "personal"}, 1.0, "in a round", "nothing"),
        ("simclr+uv", {"model__norm": "batch-local"}, 1.0, "in a round", "nothing"),
        ("pfedae", {}, 0.5, "between rounds", "both"),
        ("pfedae", {}, 1.0, "in a round", "client"),
        ("byol", {"method__target": "personal"}, 0.5, "in a round", "both"),
        ("byol", {"method__target": "personal"}, 0.5, "between rounds", "checkpoint"),
        ("orchestra", {}, 0.5, "between rounds", "checkpoint"),  # no personal tensors
    ],
)
def test_a_run_that_was_cut_short_or_damaged_ends_with_the_same_bits(
    tmp_path: Path,
    spec: str,
    values: dict[str, object],
    participation: float,
    state: str,
    damaged: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If damaged, the newest checkpoint, the file of a client of its round, or both."""
    setup = tiny_setup(
        tiny_config(
            spec, federation__num_rounds=4, federation__participation=participation, **values
        )
    )
    whole = train(setup, tmp_path / "whole")
    cut = tmp_path / "cut"
    if state == "between rounds":
        train(setup, cut, rounds=3)
    else:
        cut_short(setup, cut, clients=2)
        (cut / "clients" / ".3-1.safetensors.1a2b3c4d.tmp").write_bytes(b"of a killed writer")
    stored = PersonalStore(cut / "clients").rounds()
    client = min((k for k in stored if 2 in stored[k]), default=None)
    assert (client is None) == (spec == "orchestra")
    if damaged in ("checkpoint", "both"):
        flip(sorted(cut.glob("round-*"))[-1])
    if damaged in ("client", "both"):
        path = cut / "clients" / f"{client}-2.safetensors"
        flip(path, path.read_bytes().index(read(path, "personal")[1]["personal"].numpy().tobytes()))
    resumed = train(setup, cut)
    assert_same_run(whole, resumed)
    assert resumed.resumes == 1  # not from the start
    if client is not None:
        assert hashes(cut / "clients") == hashes(tmp_path / "whole" / "clients")
    assert ("; going back to " in caplog.text) == (damaged != "nothing")
