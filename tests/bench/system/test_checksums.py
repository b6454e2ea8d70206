"""Checksums and tensor files: values come back, every altered bit is refused."""

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from safetensors.torch import save

from fedbench.bench.config.yaml_files import load_yaml
from fedbench.bench.results.store.schema import read_table, table_bytes
from fedbench.bench.system import tensor_files
from fedbench.bench.system.checksums import (
    KEY,
    ZEROS,
    add_checksum,
    has_checksum,
    json_with_checksum,
    parse_json,
    yaml_with_checksum,
)
from fedbench.bench.system.errors import FedbenchError
from fedbench.bench.system.tensor_files import encode, read

VALUE = {
    "loss": 0.1 + 0.2,
    "rounds": {"2": None, "10": [True, -1]},
    "name": 'é"\n',
    "big": 2**60,
    "inner": {KEY: "sha256:" + "1" * 64},  # as where one file holds another
}


def test_values_come_back() -> None:
    assert parse_json(json_with_checksum(VALUE)) == VALUE
    assert parse_json(json_with_checksum(VALUE, indent=2)) == VALUE
    assert "\n" not in json_with_checksum(VALUE)
    assert parse_json(json_with_checksum({"a": {2: "b"}})) == {"a": {"2": "b"}}
    assert math.isnan(parse_json(json_with_checksum({"a": math.nan}))["a"])


def test_the_checksum_is_over_all_bytes_with_zeros_in_its_place() -> None:
    text = json_with_checksum({"a": 1})
    digits = text[-66:-2]
    plain = text.replace(digits, ZEROS)
    assert digits == hashlib.sha256(plain.encode()).hexdigest()
    assert add_checksum(plain.encode()) == text.encode()
    assert has_checksum(text.encode())
    assert not has_checksum(b"{}")


def of_tensors(path: Path) -> Any:
    values, tensors = tensor_files.read(path)
    return values, {name: tensor.tolist() for name, tensor in tensors.items()}


FORMATS: dict[str, tuple[bytes, Callable[[Path], Any]]] = {
    "json": (json_with_checksum(VALUE).encode(), lambda path: parse_json(path.read_bytes())),
    "yaml": (yaml_with_checksum("client.lr: 0.5\nspec: a\n").encode(), load_yaml),
    "parquet": (
        table_bytes(
            pa.table({"a": [1, 2]}).replace_schema_metadata({"fedbench.schema_version": "9"})
        ),
        lambda path: read_table(path.read_bytes()).to_pylist(),
    ),
    "tensors": (tensor_files.encode({"state": [1.5, None]}, {"a": torch.arange(5)}), of_tensors),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_an_altered_bit_is_refused_or_means_the_same(kind: str, tmp_path: Path) -> None:
    data, read = FORMATS[kind]
    path = tmp_path / "file"
    path.write_bytes(data)
    value = read(path)
    accepted = 0
    for at in range(len(data)):
        for bit in range(8) if kind == "json" else [at % 7]:
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
            try:
                again = read(path)
            except (ValueError, FedbenchError):
                continue
            accepted += 1
            assert again == value
    assert accepted == 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (json.dumps(VALUE), "it has no checksum"),
        ("[1]", "not a JSON object"),
        ("[" * 100_000, "nested too deeply"),
        ("", "Expecting value"),
        (b"\xff", "invalid start byte"),
    ],
)
def test_what_is_refused(text: str | bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_json(text)


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
    with pytest.raises(ValueError, match="checksum"):
        read(path, "first")


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("x", "1", "no checksum"),
        ("x", json.dumps({KEY: ZEROS}), "not a tensor file"),
        ("fedbench", "[" * 100_000 + json.dumps({KEY: ZEROS}), "nested too deeply"),
    ],
)
def test_a_file_of_another_program_is_refused(
    name: str, text: str, problem: str, tmp_path: Path
) -> None:
    data = save({"a": torch.arange(5)}, {name: text})
    (tmp_path / "a").write_bytes(add_checksum(data) if KEY in text else data)
    with pytest.raises(ValueError, match=problem):
        read(tmp_path / "a")
