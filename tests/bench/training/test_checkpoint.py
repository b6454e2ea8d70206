"""Checkpoints, clients' personal tensors and the history: complete, recognised, or refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedbench.bench.system.checksums import json_with_checksum
from fedbench.bench.system.errors import DataError, StoreError
from fedbench.bench.system.tensor_files import encode
from fedbench.bench.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from fedbench.bench.training.history import History, RoundRecord

RUN = "a" * 20


def checkpoint(rounds: int, run: str = RUN, **state: object) -> Checkpoint:
    return Checkpoint(rounds, {"server": torch.full((3,), float(rounds))}, {"row_id": run, **state})


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*.safetensors"))


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


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
        flip_last_byte(newest)
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
    flip_last_byte(files(tmp_path)[-1])
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


RECORD = RoundRecord(
    round_index=0,
    loss=1.5,
    parts={"uv": 0.5},
    cohort_size=2,
    idle_clients=0,
    num_steps=4,
    bytes_up=10,
    bytes_down=20,
    std_ratio=0.9,
    projection_std_ratio=0.8,
    effective_rank=3.0,
    collapsed=False,
)


def test_history_goes_back_to_the_checkpoint(tmp_path: Path) -> None:
    history = History(tmp_path)
    assert history.read() == history.rewind(0) == []
    records = [replace(RECORD, round_index=index) for index in range(3)]
    for record in records:
        history.append(record)
    assert history.read() == records
    assert history.rewind(2) == records[:2]
    assert history.read() == records[:2]


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    history = History(tmp_path)
    records = [replace(RECORD, round_index=index) for index in range(3)]
    for record in records[:2]:
        history.append(record)
    path = tmp_path / "history.jsonl"
    with path.open("a") as file:
        file.write(json.dumps(records[2].as_dict())[:25])  # killed in mid-write
    assert history.rewind(2) == records[:2]
    history.append(records[2])
    assert history.read() == records


@pytest.mark.parametrize("left", ["", "one round", "one round and a half"])
def test_a_history_shorter_than_its_checkpoint_is_refused(tmp_path: Path, left: str) -> None:
    history = History(tmp_path)
    line = json_with_checksum(RECORD.as_dict())
    contents = {"": "", "one round": f"{line}\n", "one round and a half": f"{line}\n{line[:30]}"}
    path = tmp_path / "history.jsonl"
    path.write_text(contents[left])
    for read in (history.rewind, history.read):
        with pytest.raises(DataError, match=r"history.jsonl.* whole for . rounds only"):
            read(2)
    assert path.read_text() == contents[left]


def test_an_altered_round_is_refused_by_line(tmp_path: Path) -> None:
    history, path = History(tmp_path), tmp_path / "history.jsonl"
    for index in range(3):
        history.append(replace(RECORD, round_index=index))
    whole = path.read_text()
    path.write_text(whole.replace('"loss": 1.5', '"loss": 1.4', 1))
    for read in (history.rewind, history.read):
        with pytest.raises(DataError, match="for 0 rounds"):
            read(2)
    lines = whole.splitlines(keepends=True)
    path.write_text(lines[0] + lines[2])  # whole lines, one is missing
    with pytest.raises(DataError, match="for 1 rounds"):
        history.read()
