"""Checkpoints, clients' personal tensors and the history: complete, recognised, or refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedbench.bench.system.errors import DataError, StoreError
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


@pytest.mark.parametrize("damage", ["altered", "torn", "emptied"])
def test_a_damaged_one_is_passed_over(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    for rounds in (1, 2):
        save_checkpoint(tmp_path, checkpoint(rounds))
    newest = files(tmp_path)[-1]
    if damage == "altered":
        flip_last_byte(newest)
    else:
        newest.write_bytes(newest.read_bytes()[:20] if damage == "torn" else b"")
    loaded = load_checkpoint(tmp_path, RUN)
    assert loaded is not None
    assert loaded.rounds_done == 1
    assert "torn or altered; going back one round" in caplog.text


def test_doing_a_round_again_replaces_its_damaged_file(tmp_path: Path) -> None:
    """Otherwise the damaged file could survive in place of the good one when one is kept."""
    for rounds in (1, 2, 3):
        save_checkpoint(tmp_path, checkpoint(rounds))
    flip_last_byte(files(tmp_path)[-1])
    for resumes in range(1, 8):  # some digests sort before the damaged one's, some after
        save_checkpoint(tmp_path, checkpoint(3, resumes=resumes))
        assert len(files(tmp_path)) == 2
        loaded = load_checkpoint(tmp_path, RUN)
        assert loaded is not None
        assert loaded.state["resumes"] == resumes
    save_checkpoint(tmp_path, checkpoint(2))
    assert [path.name[:14] for path in files(tmp_path)] == ["round-00000002"]


def test_strangers_are_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, checkpoint(1, run="b" * 20))
    with pytest.raises(StoreError, match=f"belongs to run {'b' * 20}, not {RUN}; remove it"):
        load_checkpoint(tmp_path, RUN)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    import hashlib

    data = b"not a checkpoint"
    name = f"round-00000001-{hashlib.sha256(data).hexdigest()[:16]}.safetensors"
    (tmp_path / name).write_bytes(data)
    with pytest.raises(StoreError, match="is not one of fedbench's"):
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
    line = json.dumps(RECORD.as_dict())
    contents = {"": "", "one round": f"{line}\n", "one round and a half": f"{line}\n{line[:30]}"}
    path = tmp_path / "history.jsonl"
    path.write_text(contents[left])
    with pytest.raises(DataError, match=r"history\.jsonl' lacks rounds of its checkpoint.* 2: "):
        history.rewind(2)
    assert path.read_text() == contents[left]
