"""Parquet files of a few kB that unpack to more than a machine has."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedbench.bench.data.datasets import prepare
from fedbench.bench.data.sources import decode, file, parquet_rows
from fedbench.bench.data.sources.parquet_rows import chunks_of, largest_value
from fedbench.bench.system.errors import ResourceError
from tests.bench.data.files import folder, refused
from tests.bench.data.sources.test_torn_sources import png

SPLITS = ("train", "val", "test")


def repeated(root: Path, value: bytes, rows: int, split: str = "train") -> Path:
    """Write rows that refer to one value, which is stored once."""
    root.mkdir(exist_ok=True)
    numbers = pa.array(np.zeros(rows, np.int32))
    images = pa.DictionaryArray.from_arrays(numbers, pa.array([value]))
    table = pa.table({"image": images, "label": pa.array(np.arange(rows) % 2)})
    file = root / f"{split}-0.parquet"
    pq.write_table(table, file, compression="zstd", store_schema=False)
    return file


def test_rows_are_those_of_the_library(tmp_path: Path) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = pa.array([{"bytes": b"%d" % i, "path": None} for i in range(1200)], kind)
    table = pa.table({"image": images, "label": [*range(1200)], "more": ["x"] * 1200})
    pq.write_table(table, tmp_path / "a", row_group_size=700)
    for source in (tmp_path / "a", (tmp_path / "a").read_bytes()):
        rows = parquet_rows.parquet_rows(source, "a")
        assert rows.schema.names == ["image", "label", "more"]
        assert [*rows.read(rows.schema.names)] == table.to_pylist()
        assert [*rows.read(["label"])] == [{"label": i} for i in range(1200)]


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("size", [1, 60, 20_000, 3_000_000])
def test_the_largest_value_is_known_before_it_is_unpacked(
    size: int, compression: str, tmp_path: Path
) -> None:
    """A dictionary's page holds its values, each after its length in 4 bytes."""
    table = pa.table({"image": [bytes(size), b"x", bytes(size)]})
    for use_dictionary, largest in ((True, size + 4 + (1 + 4)), (False, 0)):
        file = tmp_path / str(use_dictionary)
        pq.write_table(table, file, compression=compression, use_dictionary=use_dictionary)
        (chunk,) = chunks_of(pq.read_metadata(file), ["image"])
        assert [largest_value(chunk, s) for s in (file, file.read_bytes())] == [largest, largest]
    delta = {"image": "DELTA_BYTE_ARRAY"}  # where each value may begin as the one before
    pq.write_table(table, tmp_path / "delta", use_dictionary=False, column_encoding=delta)
    (chunk,) = chunks_of(pq.read_metadata(tmp_path / "delta"), ["image"])
    assert largest_value(chunk, b"") == chunk.total_uncompressed_size


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The footer says how many rows there are, in all files together.
    repeated(tmp_path / "rows", png(), 600)
    repeated(tmp_path / "rows", png(), 500, "test")
    monkeypatch.setattr(parquet_rows, "MAX_IMAGES", 1000)
    refused(f"hub:{tmp_path}/rows", "1,100 rows; allowed: 1,000")
    monkeypatch.setattr(parquet_rows, "MAX_IMAGES", 10**6)
    # It says how many bytes: 2 MB in a file of less than 1 kB.
    monkeypatch.setattr(parquet_rows, "LEAST", 1_000_000)
    small = repeated(tmp_path / "bytes", png() + bytes(2_000_000), 2)
    assert small.stat().st_size < 2000
    refused(f"hub:{tmp_path}/bytes", " bytes unpack to ")
    # It does not say that 100 kB come out 1,000 times.
    repeated(tmp_path / "times", png() + bytes(100_000), 1000)
    refused(f"hub:{tmp_path}/times", "times the file")
    # One value.
    monkeypatch.setattr(parquet_rows, "LEAST", 1 << 30)
    monkeypatch.setattr(decode, "MAX_IMAGE_BYTES", 1 << 20)
    refused(f"hub:{tmp_path}/bytes", "row 0: the image has 2 MB; allowed: 1 MiB")
    # Images of a folder, and lines of a CSV.
    monkeypatch.setattr(decode, "MAX_IMAGES", 3)
    monkeypatch.setattr(file, "MAX_IMAGES", 3)
    refused(folder(tmp_path / "many", a=2, b=2), "more than 3 images")
    (tmp_path / "a.csv").write_text("p0\n" + "1\n" * 3)
    refused(f"file:{tmp_path}/a.csv", "has 4 lines; allowed: 3")
    # Pixels that no disk holds.
    with pytest.raises(ResourceError, match=r"10 images take .*data\.image_size"):
        decode._check_room(tmp_path, 10, 10**15, "set")


@pytest.mark.parametrize("form", ["csv.gz", "npz", "npz.gz", "parquet.gz", "ubyte.gz"])
def test_a_packed_file_that_unpacks_to_too_much(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros are packed to a thousandth; a thousand times 256 is the least that is refused."""
    monkeypatch.setattr(parquet_rows, "LEAST", 1 << 16)
    file = tmp_path / f"a.{form}"
    if form == "npz":
        zeros = np.zeros((1000, 40, 40), np.uint8)
        labels = np.arange(1000) % 2
        np.savez_compressed(file, x_train=zeros, y_train=labels, x_test=zeros, y_test=labels)
    else:
        head = {"csv": b"label,p0\n", "npz": b"PK", "parquet": b"PAR1", "ubyte": b"\0\0\10\3"}
        file.write_bytes(gzip.compress(head[form.split(".")[0]] + bytes(1 << 22)))
        if form == "csv.gz":
            file.write_bytes(gzip.compress(b"label,p0\n" + b"0,0\n" * (1 << 20)))
        if form == "ubyte.gz":
            file = file.rename(tmp_path / "train-images.gz")
            (tmp_path / "train-labels.gz").write_bytes(file.read_bytes())
    refused(f"file:{file}", "bytes unpack to")


def test_arrays_that_are_not_read_are_said(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        f"{s}_images": rng.integers(0, 255, (6, 4, 4), np.uint8) for s in SPLITS
    }
    arrays |= {f"{s}_labels": np.arange(6) % 2 for s in SPLITS}
    np.savez(tmp_path / "a.npz", **arrays)
    found = prepare(f"file:{tmp_path / 'a.npz'}").left_out
    assert found == [
        {"why": "an array of another name", "count": 2, "first": ["val_images", "val_labels"]}
    ]
