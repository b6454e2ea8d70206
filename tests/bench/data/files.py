"""Images, tables and folders that tests of data sets write, and what is asked of a refusal."""

import gzip
import io
import json
import struct
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedbench.bench.data.datasets import load_dataset
from fedbench.bench.system.errors import DataError


def encoded(image: Image.Image | npt.NDArray[np.uint8], form: str = "PNG", **extra: Any) -> bytes:
    buffer = io.BytesIO()
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    image.save(buffer, form, **extra)
    return buffer.getvalue()


def shade(value: int, height: int = 4, form: str = "PNG") -> bytes:
    """An image of one grey, 4 pixels wide."""
    return encoded(np.full((height, 4), value, np.uint8), form)


def table(
    images: list[bytes | None],
    labels: Any,
    column: str = "label",
    names: list[str] | None = None,
    **more: Any,
) -> pa.Table:
    """A table of images as the Hub has them; `names` are those of the classes of its numbers."""
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    structs = pa.array([{"bytes": data, "path": None} for data in images], kind)
    content = pa.table({"image": structs, column: labels, **more})
    if names is None:
        return content
    features = {column: {"names": names, "_type": "ClassLabel"}}
    return content.replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )


def shades(labels: list[Any], column: str = "label", first: int = 0, **more: Any) -> pa.Table:
    """A table of images of one grey each, from the first one on."""
    return table([shade(first + i) for i in range(len(labels))], labels, column, **more)


def write_hub(root: Path, **files: pa.Table) -> str:
    """Write tables as Parquet files of these names, at any depth."""
    for name, content in files.items():
        file = root / f"{name}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(content, file)
    return f"hub:{root}"


def write_images(place: Path, count: int, first: int = 0) -> None:
    """Write images 0.png and so on, of shades from the first one on."""
    place.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        (place / f"{i}.png").write_bytes(shade(first + i))


def folder(root: Path, **places: int) -> str:
    """Write so many images into each place; `a.b` is a folder b in a, and 0 an empty folder."""
    first = 0
    for place, count in places.items():
        write_images(root.joinpath(*place.split(".")), count, first)
        first += count
    return f"folder:{root}"


def write_tar(file: Path, members: Mapping[str, bytes]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def write_idx(file: Path, values: npt.NDArray[np.uint8]) -> None:
    """Write values as MNIST's files have them, packed where the name ends in .gz."""
    file.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    data = header + values.tobytes()
    file.write_bytes(gzip.compress(data) if file.suffix == ".gz" else data)


def refused(name: str, match: str, data_dir: Path | None = None, **how: Any) -> None:
    """Hold that a data set is refused in one line that has a match, with the exit code of data."""
    with pytest.raises(DataError, match=match) as caught:
        load_dataset(name, data_dir, **how)
    assert caught.value.exit_code == 5
    assert "\n" not in str(caught.value)
