"""Tensor files: values and tensors come back, files can be replaced, damage is detected."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

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


def test_a_checksum_is_asked_for(tmp_path: Path) -> None:
    tensors = {name: value for name, value in TENSORS.items() if name != "half"}
    with_checksum, without = tmp_path / "with", tmp_path / "without"
    with_checksum.write_bytes(encode({"x": 1}, tensors, checksum=True))
    without.write_bytes(encode({"x": 1}, tensors))
    assert read(with_checksum)[0] == read(with_checksum, checksum=True)[0] == {"x": 1}
    with pytest.raises(ValueError, match="its checksum does not fit its content"):
        read(without, checksum=True)
    body = bytearray(with_checksum.read_bytes())
    body[-1] ^= 1
    with_checksum.write_bytes(body)
    with pytest.raises(ValueError, match="its checksum does not fit its content"):
        read(with_checksum, checksum=True)


@pytest.mark.parametrize("end", [0, 5, 30, -1])
def test_a_torn_file_is_noticed_without_a_checksum(tmp_path: Path, end: int) -> None:
    path = tmp_path / "a"
    path.write_bytes(encode({}, TENSORS)[:end])
    with pytest.raises(ValueError, match="header"):
        read(path)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "absent")
