"""Checkpoints, also some seconds apart, and the history: complete, recognised, or refused."""

import itertools
import json
from pathlib import Path

import pytest
import torch

from fedbench.bench.evaluation.collapse import CollapseMonitor
from fedbench.bench.system.checksums import json_with_checksum
from fedbench.bench.system.errors import DataError, StoreError
from fedbench.bench.system.seeding import single_thread
from fedbench.bench.system.tensor_files import encode
from fedbench.bench.testing import assert_same_run, tiny_config, tiny_setup, train
from fedbench.bench.training import trainer as module
from fedbench.bench.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from fedbench.bench.training.history import History, RoundRecord
from fedbench.bench.training.lanes import LaneExecutor
from fedbench.bench.training.personal import PersonalStore
from fedbench.bench.training.setup import Setup
from fedbench.bench.training.trainer import Trainer, default_seconds
from tests.specs import flip

RUN = "a" * 20


def checkpoint(rounds: int, run: str = RUN, **state: object) -> Checkpoint:
    return Checkpoint(rounds, {"server": torch.full((3,), float(rounds))}, {"row_id": run, **state})


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*.safetensors"))


def test_the_newest_comes_back_and_two_are_kept(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path, RUN) is None
    for rounds in (9, 10, 11, 100):
        save_checkpoint(tmp_path, checkpoint(rounds, note=[rounds]))
    loaded = load_checkpoint(tmp_path, RUN)
    assert loaded is not None
    assert loaded.rounds_done == 100
    assert loaded.state["note"] == [100]
    assert loaded.tensors["server"].tolist() == [100.0] * 3
    assert [path.name[:14] for path in files(tmp_path)] == ["round-00000011", "round-00000100"]


@pytest.mark.parametrize("damage", ["altered", "torn", "emptied", "renamed", "another kind"])
def test_a_damaged_one_is_passed_over(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    for rounds in (1, 2):
        save_checkpoint(tmp_path, checkpoint(rounds))
    newest = files(tmp_path)[-1]
    if damage == "altered":
        flip(newest)
    elif damage == "renamed":
        newest = newest.rename(tmp_path / "round-00000009.safetensors")
    else:
        other = encode({}, {"a": torch.zeros(1)})
        contents = {"torn": newest.read_bytes()[:20], "emptied": b"", "another kind": other}
        newest.write_bytes(contents[damage])
    loaded = load_checkpoint(tmp_path, RUN)
    assert loaded is not None
    assert loaded.rounds_done == 1
    assert str(newest) in caplog.text


def test_doing_a_round_again_replaces_its_damaged_file(tmp_path: Path) -> None:
    """Otherwise the damaged file could survive in place of the good one when one is kept."""
    for rounds in (1, 2, 3):
        save_checkpoint(tmp_path, checkpoint(rounds))
    flip(files(tmp_path)[-1])
    for resumes in (1, 2):
        save_checkpoint(tmp_path, checkpoint(3, resumes=resumes))
        assert len(files(tmp_path)) == 2
        loaded = load_checkpoint(tmp_path, RUN)
        assert loaded is not None
        assert loaded.state["resumes"] == resumes
    save_checkpoint(tmp_path, checkpoint(2))
    assert [path.name[:14] for path in files(tmp_path)] == ["round-00000002"]


def test_strangers_are_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, checkpoint(1, run="b" * 20))
    with pytest.raises(StoreError, match="b" * 20):
        load_checkpoint(tmp_path, RUN)
    (tmp_path / "round-00000002.safetensors").mkdir()
    with pytest.raises(StoreError, match=r"cannot read checkpoint .*round-00000002"):
        load_checkpoint(tmp_path, RUN)


RECORDS = [
    RoundRecord(index, 1.5, {"uv": 0.5}, 2, 0, 4, 10, 20, 0.9, 3.0, 0.8, collapsed=False)
    for index in range(3)
]


def test_history_goes_back_to_the_checkpoint_and_drops_a_torn_line(tmp_path: Path) -> None:
    history = History(tmp_path)
    assert history.read() == history.rewind(0) == []
    for record in RECORDS:
        history.append(record)
    assert history.read() == RECORDS
    assert history.rewind(2) == history.read() == RECORDS[:2]
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write(json.dumps(RECORDS[2].as_dict())[:25])  # killed in mid-write
    assert history.read() == history.rewind(2) == RECORDS[:2]
    history.append(RECORDS[2])
    assert history.read() == RECORDS


@pytest.mark.parametrize("left", ["", "one round", "one round and a half"])
def test_a_history_shorter_than_its_checkpoint_is_refused(tmp_path: Path, left: str) -> None:
    history = History(tmp_path)
    line = json_with_checksum(RECORDS[0].as_dict())
    contents = {"": "", "one round": f"{line}\n", "one round and a half": f"{line}\n{line[:30]}"}
    path = tmp_path / "history.jsonl"
    path.write_text(contents[left])
    for read in (history.rewind, history.read):
        with pytest.raises(DataError, match=r"history.jsonl.* whole for . rounds only"):
            read(2)
    assert path.read_text() == contents[left]


def test_an_altered_round_is_refused_by_line(tmp_path: Path) -> None:
    history, path = History(tmp_path), tmp_path / "history.jsonl"
    for record in RECORDS:
        history.append(record)
    whole = path.read_text()
    path.write_text(whole.replace('"loss": 1.5', '"loss": 1.4', 1))
    for read in (history.rewind, history.read):
        with pytest.raises(DataError, match="for 0 rounds"):
            read(2)
    lines = whole.splitlines(keepends=True)
    path.write_text(lines[0] + lines[2])  # whole lines, one is missing
    with pytest.raises(DataError, match="for 1 rounds"):
        history.read()
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match=r"cannot read .*history\.jsonl"):
        history.read()


CPU = torch.device("cpu")


ROUNDS = 8


class Clock:
    """A second per round, counted when a round's record is taken."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def go_on(setup: Setup, folder: Path, clock: Clock, rounds: int | None = None) -> Trainer:
    """Train with checkpoints at least two seconds apart: after rounds 3, 5, 7 of a new run."""
    trainer = Trainer(
        setup,
        folder,
        "0" * 20,
        CPU,
        CollapseMonitor(setup, CPU, PersonalStore(folder / "clients")),
        2.0,
    )
    executor = LaneExecutor(setup, CPU, folder / "clients")
    with single_thread():
        for _ in itertools.islice(trainer.rounds(executor), rounds):
            clock.now += 1
    return trainer


def stored(folder: Path) -> list[int]:
    """Rounds done at the checkpoints that are there."""
    return sorted(int(path.stem.split("-")[1]) for path in folder.glob("round-*"))


@pytest.mark.parametrize(
    ("spec", "values", "stop", "saved"),
    [
        ("pfedae", {}, 2, []),
        ("simclr", {}, 4, [3]),
        ("byol", {"method__target": "personal"}, 6, [3, 5]),
    ],
)
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


def test_short_runs_keep_every_round() -> None:
    assert default_seconds(1000) == 0.0
    assert default_seconds(1001) == default_seconds(50_000) == 10.0
