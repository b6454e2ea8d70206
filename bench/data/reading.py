"""Options of how a data set is read: its label column, the size of its images, its clients."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from fedbench.bench.config import DataConfig
from fedbench.bench.data.cache import readable
from fedbench.bench.system.files import user_path

if TYPE_CHECKING:
    import pandas as pd

_Image = tuple[str, str, int | None]
"""Split, file and row of an image, as `fedbench data split` prints them."""


@dataclass(frozen=True)
class Reading:
    """Fields of a configuration that decide what is read from a source."""

    label_column: str | None = None  # column with the labels; None = by its name
    image_size: int | None = None  # side that images are brought to; None = they have one size
    natural_column: str | None = None  # column whose values natural clients are made of
    partition_file: Path | None = None  # file that names the client of each training image
    test_rows: str | None = None  # COLUMN=VALUE, or `none`; None = columns that name splits

    @classmethod
    def of(cls, data: DataConfig) -> Reading:
        """Take the options from a configuration, but for options that its partition ignores."""
        file = data.partition_file if data.partition == "file" else None
        return cls(
            data.label_column,
            data.image_size,
            data.natural_column if data.partition == "natural" else None,
            None if file is None else user_path(file),
            data.test_rows,
        )

    @property
    def test_column(self) -> str | None:
        """Column that `test_rows` names."""
        column, _, value = (self.test_rows or "").partition("=")
        return column if value else None

    def settings(self) -> dict[str, Any]:
        """Return the fields of a configuration that differ from their defaults."""
        partition = "natural" if self.natural_column else "file" if self.partition_file else None
        values = {"partition": partition, **vars(self)}
        return {f"data.{key}": value for key, value in values.items() if value is not None}

    def identity(self) -> str:
        """Return the options and the file's hash as text; empty where nothing is asked for."""
        digest = None
        if self.partition_file is not None:
            with readable(f"data.partition_file: {self.partition_file}"):
                digest = hashlib.sha256(self.partition_file.read_bytes()).hexdigest()
        values = [self.label_column, self.image_size, self.natural_column, digest]
        values += [self.test_rows] if self.test_rows else []
        return json.dumps(values) if any(value is not None for value in values) else ""

    def suffix(self) -> str:
        """Return the ending of the cache folder's name; empty for the data set as it is."""
        identity = self.identity()
        return f"-read-{hashlib.sha256(identity.encode()).hexdigest()[:12]}" if identity else ""


PLAIN = Reading()
"""The data set as it is."""


def read_clients(file: Path, num_images: int, images: Iterable[_Image]) -> npt.NDArray[np.int64]:
    """Return the client 0..K-1 of each of N training images, in the order of the source, (N,).

    JSON has a list of clients, one per image, or a list or an object of lists of images by client;
    CSV and Parquet have a column `client`; client -1 is nobody. Columns `split`, `file` and `row`,
    which `fedbench data split` prints, say which image a row is of, in any order, among all
    `images` of the source. Without them there is one row per training image, and rows whose `split`
    is `test` are left out.
    Raises `DataError` if the file cannot be read or has not one client per image.
    """
    with readable(f"data.partition_file: {file}"):
        if file.suffix == ".json":
            clients = _json_clients(file, num_images)
        elif file.suffix in (".csv", ".parquet"):
            clients = _column_of_clients(file, images)
        else:
            raise ValueError("its name must end in .json, .csv or .parquet")
        _check_clients(clients, num_images)
    return clients


def _column_of_clients(file: Path, images: Iterable[_Image]) -> npt.NDArray[np.int64]:
    import pandas as pd

    is_csv = file.suffix == ".csv"
    table = pd.read_csv(file, dtype={"file": str}) if is_csv else pd.read_parquet(file)
    if "client" not in table:
        raise ValueError(
            f"it needs a column 'client' of integers; found: {', '.join(map(str, table))}"
        )
    named = {"split", "file", "row"} & {*table.columns}
    if len(named) == 3:
        table = _training_rows(table, pd.DataFrame(images, columns=["split", "file", "row"]))
    elif named - {"split"}:
        raise ValueError(
            f"of columns split, file and row it has only {' and '.join(sorted(named))}; keep all"
            " three, as `fedbench data split` prints them, or neither file nor row"
        )
    elif "split" in table:
        table = table[table["split"] != "test"]
    clients = table["client"].convert_dtypes()  # gaps of test images made the integers floats
    if clients.isna().any():
        raise ValueError(f"image {int(clients.isna().argmax())} has no client")
    if clients.dtype.kind not in "iu":
        raise ValueError(f"its column 'client' is {clients.dtype}; needed: integers")
    return clients.to_numpy(np.int64)


def _training_rows(table: pd.DataFrame, images: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a table that name training images, in the order of the images."""
    place = ["file", "row"]
    table, images = (each.astype({"row": "Int64"}) for each in (table, images))
    images["at"] = range(len(images))
    found = images.merge(table, "outer", place, suffixes=("", "_said"), indicator="known")
    found = found.sort_values("at")
    for wrong, why in (
        (table[table.duplicated(place)], "has two rows"),
        (
            found[(found["known"] == "both") & (found["split"] != found["split_said"])],
            "is in the other split, which cannot be changed here: the data set needs two files or"
            " folders, train and test",
        ),
        (
            found[found["known"] == "right_only"],
            "is not in the data set under that path; print the table anew by `fedbench data split`",
        ),
        (found[(found["known"] == "left_only") & (found["split"] == "train")], "has no row"),
    ):
        for file, row in zip(wrong["file"][:1], wrong["row"][:1].tolist(), strict=True):
            at = f" row {row}" if isinstance(row, int) else ""
            raise ValueError(f"image {Path(file).name}{at} {why}")
    return found[found["split"] == "train"]


def _json_clients(file: Path, num_images: int) -> npt.NDArray[np.int64]:
    content = json.loads(file.read_text(encoding="utf-8"))
    if isinstance(content, list) and not any(isinstance(v, list) for v in content):
        return _integers(content)
    if isinstance(content, list):
        content = dict(enumerate(content))
    if not isinstance(content, dict) or not all(isinstance(v, list) for v in content.values()):
        raise ValueError("it must be a list of clients, or lists of images by client")
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
        counts = f"{len(clients):,} images, but there are {num_images:,} training images"
        raise ValueError(f"it has clients of {counts}; give one per image in the source's order")
    used = np.unique(clients[clients != -1])
    if (wrong := np.flatnonzero(used != np.arange(len(used)))).size:
        first = used[wrong[0]]
        raise ValueError(f"it has client {first}, but not {wrong[0]}; number clients without gaps")


def fitted(pixels: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    """Return pixels (H, W) or (H, W, C) as a square: resized along the shorter side, centre kept.

    Resizing is bilinear and antialiased. A square of that size is returned as it is.
    """
    if pixels.shape[:2] == (size, size):
        return pixels
    image = Image.fromarray(np.ascontiguousarray(pixels))
    return np.asarray(ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR))
