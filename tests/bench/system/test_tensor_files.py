"""Tensor files: values and tensors come back, files can be replaced, damage is detected."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from fedbench.bench.system.tensor_files import encode, read

TENSORS = {
    "a": torch.arange(5),
    "b/c": torch.linspace(0, 1, 6).view(2, 3).T,  # not contiguous
    "b/empty": torch.zeros(0, 3),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "number": torch.tensor(1.5),
}


def test_values_and_tensors_come_back_and_can_be_written_again(tmp_path: Path) -> None:
    path, again = tmp_path / "a", tmp_path / "b"
    path.write_bytes(encode({"state": {"x": [1, None]}}, TENSORS))
    meta, tensors = read(path)
    assert meta == {"state": {"x": [1, None]}}
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], value) for name, value in TENSORS.items())
    again.write_bytes(encode(meta, tensors))  # several views of one map
    assert again.read_bytes() == path.read_bytes()
    tensors["a"].zero_()
    assert again.read_bytes() == path.read_bytes()
    assert read(path, "b/")[1].keys() == {"b/c", "b/empty"}


def test_equal_values_give_equal_bytes() -> None:
    meta = {"b": 1, "a": {2: "x", 10: None}}
    assert encode(meta, TENSORS) == encode(dict(reversed(meta.items())), dict(TENSORS))


def test_a_reader_of_some_tensors_refuses_damage_to_others(tmp_path: Path) -> None:
    path = tmp_path / "a"
    data = encode({}, {"first": torch.zeros(4), "second": torch.ones(4)})
    path.write_bytes(data[:-1] + b"\x00")  # of "second"
    with pytest.raises(ValueError, match="checksum does not fit"):
        read(path, "first")


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(save({"a": torch.arange(5)}, {"x": "1"}))
    with pytest.raises(ValueError, match="no checksum"):
        read(tmp_path / "a")


@pytest.mark.parametrize("end", [0, 5, 30, -1])
def test_a_torn_file_is_noticed(tmp_path: Path, end: int) -> None:
    path = tmp_path / "a"
    path.write_bytes(encode({}, TENSORS)[:end])
    with pytest.raises(ValueError, match=r"checksum|empty"):
        read(path)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "absent")
