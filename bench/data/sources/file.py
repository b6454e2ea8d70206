"""`file:PATH`: one Parquet, CSV, IDX or NumPy file of any name, compressed by gzip or not."""

import csv
import gzip
import io
import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from fedbench.bench.data.reading import Reading
from fedbench.bench.data.sources.base import SOURCES, Entry, PathSource
from fedbench.bench.data.sources.bounds import PackedFile, check_unpacked
from fedbench.bench.data.sources.decode import LeftOut, Part, Picture, Splits, decoded, pictures_of
from fedbench.bench.data.sources.huggingface import (
    IMAGE_COLUMNS,
    Shard,
    columns_of,
    label_of,
    open_file,
)
from fedbench.bench.data.sources.parquet_rows import ParquetRows
from fedbench.bench.system.errors import DataError

NPZ_NAMES = (
    ("train_images", "train_labels", "test_images", "test_labels"),  # MedMNIST
    ("x_train", "y_train", "x_test", "y_test"),  # Keras
)
PATH_COLUMNS = (*IMAGE_COLUMNS, "file_name", "filename", "path", "file")
MAGIC = {"parquet": b"PAR1", "idx": b"\0\0", "npz": b"PK"}
"""First bytes of a file of each kind; others are CSV."""

_LONGEST = 1 << 20  # characters of the names of all columns
_BRIEF = 200  # characters of a library's message, which may quote a whole row


class OneFile(PathSource):
    """One file, whose content says what it is.

    - Parquet: columns as in `hub:`.
    - CSV with names of columns: the files of images in a column of `PATH_COLUMNS`, from the folder
      of the CSV; or pixels 0..255 of square images, grey or RGB, in all columns whose names end in
      a digit. Labels and clients as in `hub:`.
    - IDX images (N, H, W), as of MNIST, whose name has `images`; labels are in the file beside it
      with `labels` (and idx1 for idx3) in its name.
    - .npz with arrays of `NPZ_NAMES`; pickled arrays are refused.

    Of a file with `train` in its name the test images are in the file beside it with `t10k` or
    `test` there; without one, one image of six is held out by its content.
    """

    kind = "file"

    def require(self) -> None:
        if not self.path.is_file():
            reason = "is a folder, not a file" if self.path.exists() else "does not exist"
            raise DataError(f"{self.kind}:{self.path}: the path {reason}")

    def files(self) -> list[Path]:
        """Return the file, those beside it, and the images that a CSV names."""
        files = self._of_splits()
        for file in tuple(files):
            with _reading(file):
                kind = _kind(file)
                if kind == "idx":
                    files.append(_labels_of(file))
                elif kind == "csv" and not _header(file, self.reading).pixels:
                    files += [cast("Path", picture.content) for picture in _csv(file, self.reading)]
        return files

    def splits(self, scratch: Path) -> Splits:
        parts: list[Part] = []
        for file in self._of_splits():
            reading = self.reading.without_clients() if parts else self.reading
            with _reading(file):
                kind = _kind(file)
                if kind == "npz":
                    return _npz(file)
                if kind == "parquet":
                    parts.append(Shard(str(file), partial(_parquet, file), reading))
                elif kind == "idx":
                    labels = _labels_of(file)
                    with _reading(labels):
                        parts.append(decoded(_idx(file), _idx(labels), str(file)))
                else:
                    parts.append(_csv(file, reading))
        names = parts[0].class_names() if isinstance(parts[0], Shard) else None
        return Splits(parts[:1], parts[1:], names)

    def _of_splits(self) -> list[Path]:
        """Return the file and, if there is one, that of the test images."""
        test = (_beside(self.path, "train", new) for new in ("t10k", "test"))
        return [self.path, *[file for file in test if file is not None][:1]]


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    import pyarrow as pa

    broken = (OSError, EOFError, ValueError, KeyError, zlib.error, zipfile.BadZipFile)
    try:
        yield
    except (*broken, pa.ArrowException) as err:
        lines = str(err).splitlines() or [type(err).__name__]
        raise DataError(f"{file} cannot be read ({lines[0][:_BRIEF]})") from err


def _open(file: Path) -> IO[bytes]:
    """Open a file, unpacked if need be."""
    with file.open("rb") as stream:
        is_packed = stream.read(2) == b"\x1f\x8b"
    return cast("IO[bytes]", PackedFile(file)) if is_packed else file.open("rb")


def _kind(file: Path) -> str:
    with _open(file) as stream:
        head = stream.read(4096)
    for kind, magic in MAGIC.items():
        if head.startswith(magic):
            return kind
    if not head or b"\0" in head:
        raise DataError(f"{file} is no Parquet, CSV, IDX or .npz file, nor one packed by gzip")
    return "csv"


def _beside(file: Path, old: str, new: str) -> Path | None:
    """Return the file beside another that has `new` for `old` in its name, packed or not."""
    plain = file.name.removesuffix(".gz").replace(old, new)
    if new == "labels":
        plain = plain.replace("idx3", "idx1")
    found = (file.with_name(name) for name in (plain, f"{plain}.gz"))
    return next((each for each in found if old in file.name and each.is_file()), None)


def _parquet(file: Path) -> Any:
    """Open a Parquet file: row by row, or in memory if it has to be unpacked."""
    with _open(file) as stream:
        if isinstance(stream, gzip.GzipFile):
            return ParquetRows(stream.read(), str(file))
    return open_file(file, ".parquet")


def _idx(file: Path) -> npt.NDArray[np.uint8]:
    with _open(file) as stream:
        data = stream.read()
    shape = np.frombuffer(data, ">u4", data[3], 4).tolist()
    values = np.frombuffer(data, np.uint8, offset=4 + 4 * len(shape))
    if data[2] != 8 or len(values) != math.prod(shape):
        raise DataError(
            f"{file}: an IDX file of {shape} unsigned bytes (type 8) has {math.prod(shape):,}; this"
            f" one has type {data[2]} and {len(values):,} bytes"
        )
    return values.reshape(shape)


def _labels_of(file: Path) -> Path:
    """Return the file of labels beside an IDX file of images."""
    if labels := _beside(file, "images", "labels"):
        return labels
    raise DataError(
        f"{file} has no labels beside it; the name of an IDX file of images has `images` in it, and"
        " that of its labels is the same with `labels` (and idx1 for idx3)"
    )


class Header(NamedTuple):
    """Separator of a CSV file, names of its columns, and of those that are pixels."""

    separator: str
    names: list[str]
    pixels: list[str]


def _header(file: Path, reading: Reading) -> Header:
    with _open(file) as stream:
        first = stream.readline(_LONGEST).decode("utf-8-sig").rstrip("\r\n")
    separator = max(",;\t", key=first.count)
    names = next(csv.reader([first], delimiter=separator), [])
    if all(name.strip().isdigit() for name in names):
        needed = "names its columns, such as label,pixel0,pixel1,… or image,label"
        raise DataError(f"{file}: the first line {needed}; this one is {first[:40]!r}")
    if any(name.lower() in PATH_COLUMNS for name in names):
        return Header(separator, names, [])
    asked = (reading.label_column, reading.client_column)
    return Header(separator, names, [n for n in names if n[-1:].isdigit() and n not in asked])


def _csv(file: Path, reading: Reading) -> list[Picture]:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    separator, names, pixels = _header(file, reading)
    with _open(file) as stream:
        table = arrow_csv.read_csv(
            pa.BufferReader(stream.read()),
            parse_options=arrow_csv.ParseOptions(delimiter=separator),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(pixels, pa.uint8()), strings_can_be_null=True
            ),
        )
    files = [name for name in names if name.lower() in PATH_COLUMNS]
    if not pixels and not files:
        raise DataError(
            f"{file}: needed is a column of image files ({', '.join(PATH_COLUMNS)}) or columns of"
            f" pixels, whose names end in a digit; found: {', '.join(names)}"[:1000]
        )
    of_images = pixels or files[:1]
    for name in of_images:
        if table[name].null_count:
            row = table[name].is_null().to_pylist().index(True)
            raise DataError(f"{file}, row {row}: {name!r} has no value")
    rest = table.drop_columns(of_images)
    columns = columns_of(rest.schema.append(pa.field("image", pa.binary())), str(file), reading)

    def values(column: tuple[str, ...] | None) -> list[Any]:
        return [None] * len(table) if column is None else rest[column[0]].to_pylist()

    labels = [label_of(value, None, str(file)) for value in values(columns.label)]
    clients = values(columns.client) if columns.client else None
    if clients and None in clients:
        raise DataError(
            f"{file}, row {clients.index(None)}: {reading.client_column!r} has no value"
        )
    if pixels:
        flat = np.stack([table[name].to_numpy() for name in pixels], axis=1)
        return pictures_of(_squares(flat, file), labels, str(file), clients=clients)
    paths = [file.parent / str(path) for path in table[files[0]].to_pylist()]
    return pictures_of(paths, labels, str(file), clients=clients)


def _squares(flat: npt.NDArray[np.uint8], file: Path) -> npt.NDArray[np.uint8]:
    """Return rows of pixels (N, H * W) or (N, H * W * 3) as images."""
    count, length = flat.shape
    grey, colour = math.isqrt(length), math.isqrt(length // 3)
    if length == grey**2:
        return flat.reshape(count, grey, grey)
    if length == 3 * colour**2:
        return flat.reshape(count, colour, colour, 3)
    raise DataError(
        f"{file} has {length} columns of pixels (names that end in a digit), which make no square"
        " image, grey or RGB; put images of other shapes into files, and their names into a column"
    )


def _npz(file: Path) -> Splits:
    with _open(file) as stream:
        data = io.BytesIO(stream.read()) if isinstance(stream, gzip.GzipFile) else stream
        with np.load(data, allow_pickle=False) as arrays:
            unpacked = sum(member.file_size for member in arrays.zip.infolist())
            check_unpacked(str(file), file.stat().st_size, unpacked)
            names = next((names for names in NPZ_NAMES if set(names) <= set(arrays)), None)
            if names is None:
                allowed = " or ".join(map(", ".join, NPZ_NAMES))
                raise DataError(f"{file} needs {allowed}; found: {', '.join(sorted(arrays))}")
            train, test = (
                decoded(arrays[names[i]], arrays[names[i + 1]], f"{file}, {names[i]}")
                for i in (0, 2)
            )
            rest = sorted(set(arrays) - set(names))
    left_out = [LeftOut("an array of another name", rest)] if rest else []
    return Splits([train], [test], None, left_out)


class NpzFile(OneFile):
    """The same, as `npz:FILE`."""

    kind = "npz"


SOURCES["file:PATH"] = Entry(
    OneFile.make, "one Parquet, CSV, IDX or .npz file, packed by gzip or not", has_columns=True
)
SOURCES["npz:FILE"] = Entry(NpzFile.make, "a NumPy file of MedMNIST's or Keras's form")
