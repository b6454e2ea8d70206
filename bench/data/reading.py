"""Options of how a data set is read: its label column, the size of its images, its clients."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from fedbench.bench.config import DataConfig
from fedbench.bench.system.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

_Image = tuple[str, str, int | None]
"""Split, file and row of an image, as `fedbench data split` prints them."""


@dataclass(frozen=True)
class Reading:
    """Fields of a configuration that decide what is read from a source."""

    label_column: str | None = None  # column with the labels; None = by its name
    # height and width that images are brought to; None = they have one size already.
    image_size: int | None = None
    client_column: str | None = None  # column whose values natural clients are made of
    client_file: Path | None = None  # file that names the client of each training image

    @classmethod
    def of(cls, data: DataConfig) -> Reading:
        """Return the options of a configuration; those of other partitions are left out."""
        file = data.partition_file if data.partition == "file" else None
        return cls(
            data.label_column,
            data.image_size,
            data.natural_column if data.partition == "natural" else None,
            None if file is None else Path(file).expanduser(),
        )

    def without_clients(self) -> Reading:
        """Return the same for test images."""
        return replace(self, client_column=None, client_file=None)

    def settings(self) -> dict[str, Any]:
        """Return the fields of a configuration that ask for this, without those at defaults."""
        values = {
            "data.label_column": self.label_column,
            "data.image_size": self.image_size,
            "data.partition": "natural" if self.client_column else "file",
            "data.natural_column": self.client_column,
            "data.partition_file": self.client_file,
        }
        if self.client_column is None and self.client_file is None:
            del values["data.partition"]
        return {key: value for key, value in values.items() if value is not None}

    def identity(self) -> str:
        """Return the options and the file's hash as text; empty where nothing is asked for."""
        digest = None
        if self.client_file is not None:
            try:
                digest = hashlib.sha256(self.client_file.read_bytes()).hexdigest()
            except OSError as err:
                raise DataError(
                    f"data.partition_file: {self.client_file} cannot be read ({err.strerror})"
                ) from err
        values = (self.label_column, self.image_size, self.client_column, digest)
        return json.dumps(values) if any(value is not None for value in values) else ""

    def suffix(self) -> str:
        """Return what the cache folder's name ends in; empty where nothing is asked for."""
        identity = self.identity()
        return f"-read-{hashlib.sha256(identity.encode()).hexdigest()[:12]}" if identity else ""


PLAIN = Reading()
"""The data set as it is."""


def read_clients(file: Path, num_images: int, images: Iterable[_Image]) -> npt.NDArray[np.int64]:
    """Return the client 0..K-1 of each of N training images, in the order of the source, (N,).

    JSON has a list of clients, one per image, or an object with a list of images per client; CSV
    and Parquet have a column `client`. Columns `split`, `file` and `row`, which `fedbench data
    split` prints, say which image a row is of, in any order. Without them there is one row per
    training image, and rows whose column `split` is `test` are left out.

    `images` are all images of the source in its order, test images too; they are read only where
    the file has these columns. Raises `DataError` if the file cannot be read, has not one client
    per image, or leaves a client out.
    """
    import pyarrow as pa

    try:
        if file.suffix == ".json":
            clients = _json_clients(file, num_images)
        elif file.suffix in (".csv", ".parquet"):
            clients = _column_of_clients(file, images)
        else:
            raise ValueError("its name must end in .json, .csv or .parquet")
        _check_clients(clients, num_images)
    except (OSError, ValueError, OverflowError, RecursionError, pa.ArrowException) as err:
        why = str(err).splitlines()[0][:200]
        raise DataError(f"data.partition_file: {file} cannot be read ({why})") from err
    return clients


def _column_of_clients(file: Path, images: Iterable[_Image]) -> npt.NDArray[np.int64]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv
    import pyarrow.parquet as pq

    if file.suffix == ".csv":
        types = pa.csv.ConvertOptions(column_types={"file": pa.string()})
        table = pa.csv.read_csv(file, convert_options=types)
    else:
        table = pq.read_table(file)
    named = {"split", "file", "row"} & {*table.column_names}
    if len(named) == 3:
        table = table.take(_training_rows(table, images))
    elif named - {"split"}:
        raise ValueError(
            f"of columns split, file and row it has only {' and '.join(sorted(named))}; keep all"
            " three, as `fedbench data split` prints them, or leave out file and row and keep the"
            " order"
        )
    elif "split" in table.column_names:
        table = table.filter(pc.not_equal(table["split"], "test"))
    if "client" not in table.column_names or not pa.types.is_integer(table["client"].type):
        found = ", ".join(f"{column.name}: {column.type}" for column in table.schema)
        raise ValueError(f"it needs a column 'client' of integers; found: {found}")
    if table["client"].null_count:
        row = table["client"].is_null().to_pylist().index(True)
        raise ValueError(f"image {row} has no client")
    return np.asarray(table["client"].to_numpy(), np.int64)


def _training_rows(table: pa.Table, images: Iterable[_Image]) -> list[int]:
    """Return which row of a table is of each training image, in the order of the source.

    Raises `ValueError` for an image twice, one that the source lacks or has in the other split, and
    a training image without a row.
    """
    place = dict[tuple[str, int | None], int]()
    splits, files, rows = (table[name].to_pylist() for name in ("split", "file", "row"))
    for number, key in enumerate(zip(files, rows, strict=True)):
        if place.setdefault(key, number) != number:
            raise ValueError(f"{_named(*key)} has two rows")
    order, absent = list[int](), list[str]()
    for split, file, row in images:
        position = place.pop((file, row), None)
        if position is None:
            absent += [_named(file, row)] if split == "train" else []
        elif splits[position] != split:
            raise ValueError(
                f"{_named(file, row)} is in split {split!r}, not {splits[position]!r}: this cannot"
                " be changed here; the data set needs two files or folders, train and test"
            )
        elif split == "train":
            order.append(position)
    if place:
        raise ValueError(
            f"the data set has no image {_named(*next(iter(place)))} under that path; print the"
            " table anew by `fedbench data split`"
        )
    if absent:
        raise ValueError(f"training image {absent[0]} has no row")
    return order


def _named(file: str, row: int | None) -> str:
    return Path(file).name if row is None else f"{Path(file).name} row {row}"


def _json_clients(file: Path, num_images: int) -> npt.NDArray[np.int64]:
    content = json.loads(file.read_text(encoding="utf-8"))
    if isinstance(content, list):
        return _integers(content)
    if not isinstance(content, dict) or not all(isinstance(v, list) for v in content.values()):
        raise ValueError(
            "it must have a list of clients, one per image, or an object with a list of images per"
            " client"
        )
    images = _integers([image for listed in content.values() for image in listed])
    if len(images) and not 0 <= images.min() <= images.max() < num_images:
        raise ValueError(f"images {images.min()}..{images.max()}; allowed: 0..{num_images - 1}")
    times = np.bincount(images, minlength=num_images)
    if (wrong := np.flatnonzero(times != 1)).size:
        raise ValueError(f"image {wrong[0]} has {times[wrong[0]]} clients; needed: one")
    clients = np.empty(num_images, np.int64)
    clients[images] = np.repeat([int(name) for name in content], [*map(len, content.values())])
    return clients


def _integers(values: list[Any]) -> npt.NDArray[np.int64]:
    for position, value in enumerate(values):
        if type(value) is not int or abs(value) > 2**31:
            raise ValueError(f"entry {position} is {value!r}, not a whole number")
    return np.array(values, np.int64)


def _check_clients(clients: npt.NDArray[np.int64], num_images: int) -> None:
    if len(clients) != num_images:
        raise ValueError(
            f"it has clients of {len(clients):,} images, but there are {num_images:,} training"
            " images; needed is one client per image, in the order of the source"
        )
    used = np.unique(clients)
    if (wrong := np.flatnonzero(used != np.arange(len(used)))).size:
        raise ValueError(
            f"it has client {used[wrong[0]]}, but none is {wrong[0]}; number clients 0, 1, 2, …"
            " without gaps"
        )


def fitted(pixels: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    """Return pixels (H, W) or (H, W, C) as a square: resized along the shorter side, centre kept.

    Resizing is bilinear and antialiased. A square of that size is returned as it is.
    """
    if pixels.shape[:2] == (size, size):
        return pixels
    if pixels.ndim == 3:
        return np.stack([fitted(channel, size) for channel in pixels.transpose(2, 0, 1)], axis=-1)
    image = Image.fromarray(np.ascontiguousarray(pixels))
    return np.asarray(ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR))
