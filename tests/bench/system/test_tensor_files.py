"""Tensor files: values and tensors come back, files can be replaced, damage is detected."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from fedbench.bench.system.tensor_files import digest, encode, read

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


def test_files_with_a_checksum_for_each_tensor(tmp_path: Path) -> None:
    """As versions wrote them until there was one checksum of all bytes."""
    path, tensor = tmp_path / "a", torch.arange(5)
    digest_of = hashlib.sha256(tensor.numpy().data).hexdigest()
    body = {"values": {"x": 1}, "tensors": {"a": ["torch.int64", [5], digest_of]}}
    header = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    entry = {"fedbench": json.dumps({"sha256": header, **body}, sort_keys=True)}
    data = save({"a": tensor}, entry)
    path.write_bytes(data)
    assert read(path)[0] == {"x": 1}
    for altered in (data.replace(b'\\"x\\": 1', b'\\"x\\": 2'), data[:-1] + b"\x01"):
        path.write_bytes(altered)
        with pytest.raises(ValueError, match="does not fit"):
            read(path)


def test_older_files_are_read_with_their_checksum_or_without(tmp_path: Path) -> None:
    path, tensors = tmp_path / "a", {"a": torch.arange(5)}
    path.write_bytes(save(tensors, {"x": "1"}))
    assert read(path)[0] == {"x": 1}
    checksum = digest({"x": 1}, {"a": tensors["a"].numpy()})
    path.write_bytes(save(tensors, {"x": "1", "sha256": checksum}))
    assert read(path)[0] == {"x": 1}
    path.write_bytes(save(tensors, {"x": "2", "sha256": checksum}))
    with pytest.raises(ValueError, match="its checksum does not fit its content"):
        read(path)


@pytest.mark.parametrize("end", [0, 5, 30, -1])
def test_a_torn_file_is_noticed_without_a_checksum(tmp_path: Path, end: int) -> None:
    path = tmp_path / "a"
    path.write_bytes(encode({}, TENSORS)[:end])
    with pytest.raises(ValueError, match=r"header|empty|fit"):
        read(path)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "absent")
