"""`file:PATH`: one Parquet, CSV, IDX or NumPy file of any name, compressed by gzip or not."""

import codecs
import csv
import gzip
import io
import math
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from fedbench.bench.data.labels import HIDDEN
from fedbench.bench.data.reading import Reading
from fedbench.bench.data.sources.base import SOURCES, Entry, PathSource
from fedbench.bench.data.sources.bounds import PackedFile, check_unpacked
from fedbench.bench.data.sources.decode import (
    NO_VALUE,
    LeftOut,
    Part,
    Picture,
    Splits,
    decoded,
    pictures_of,
)
from fedbench.bench.data.sources.huggingface import open_file
from fedbench.bench.data.sources.listing import is_image
from fedbench.bench.data.sources.parquet_rows import ParquetRows
from fedbench.bench.data.sources.rows import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    Columns,
    Shard,
    columns_of,
    label_of,
    splits_of_shards,
)
from fedbench.bench.data.sources.splits import (
    Split,
    columns_that_split,
    is_split_name,
    may_be_split,
    some,
    split_of,
    split_of_row,
    template,
)
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

    Of a file whose name or folder says `train` the test images are in the file whose name differs
    in that alone, and says `test` there, or else `validation`. Without one, columns of a Parquet or
    CSV file may say the split of each row, as in `hub:`; else one image of six is held out by its
    content.
    """

    kind = "file"

    def require(self) -> None:
        if not self.path.is_file():
            reason = "is a folder, not a file" if self.path.exists() else "does not exist"
            raise DataError(f"{self.kind}:{self.path}: the path {reason}")

    def files(self) -> list[Path]:
        """Return the file, those beside it, and the images that a CSV names."""
        files = [*self._of_splits().values()]
        for file in tuple(files):
            reading = self.reading if file == self.path else self.reading.without_clients()
            with _reading(file):
                kind = _kind(file)
                if kind == "idx":
                    files.append(_labels_of(file))
                elif kind == "csv" and not _header(file, self.reading).pixels:
                    of_rows = _csv(file, reading, None, warn=False).values()
                    files += [cast("Path", p.content) for rows in of_rows for p in rows]
        return files

    def splits(self, scratch: Path) -> Splits:
        files = self._of_splits()
        kinds = {split: _kind_of(file) for split, file in files.items()}
        if len({*kinds.values()}) > 1:
            listed = " and ".join(f"{file} ({kinds[split]})" for split, file in files.items())
            raise DataError(f"files of two splits are of two kinds: {listed}; convert one of them")
        if "parquet" in kinds.values():
            shards = {
                split: [Shard(str(file), partial(_parquet, file), self.reading, split)]
                for split, file in files.items()
            }
            return splits_of_shards(shards, f"{self.kind}:{self.path.name}")
        parts: dict[Split, list[Part]] = {}
        for split, file in files.items():
            with _reading(file):
                if kinds[split] == "npz":
                    return _npz(file)
                if kinds[split] == "idx":
                    labels = _labels_of(file)
                    with _reading(labels):
                        parts[split] = [decoded(_idx(file), _idx(labels), str(file))]
                else:
                    reading = self.reading if split == "train" else self.reading.without_clients()
                    says = split if len(files) > 1 else None
                    for of_rows, pictures in _csv(file, reading, says).items():
                        parts.setdefault(of_rows, []).append(pictures)
        if "train" not in parts:
            raise DataError(f"{self.path} has no training images; found: {', '.join(parts)}")
        train = [*parts["train"], *parts.get("unlabelled", [])]
        test = parts.get("test") or parts.get("validation", [])
        rest = parts.get("validation") if "test" in parts else None
        left_out = [LeftOut("test goes before it", [p.place for p in chain(*rest)])] if rest else []
        unnamed = _unnamed(chain.from_iterable(chain.from_iterable(parts.values())))
        if unnamed:
            left_out.append(LeftOut(f"not named in {self.path.name}", unnamed))
        return Splits(train, test, None, left_out)

    def _of_splits(self) -> dict[Split, Path]:
        """Return the file and, if there is one, that of the test images."""
        splits: tuple[Split, ...] = ("test", "validation")
        for split in splits:
            found = sorted(self._others(split))
            if len(found) > 1:
                raise DataError(
                    f"{self.path} may belong to several files of {split} images:"
                    f" {some([*map(str, found)])}; leave one of them"
                )
            if found:
                return {"train": self.path, "test": found[0]}
        return {"train": self.path}

    def _others(self, split: Split) -> list[Path]:
        """Return the files whose names differ by the split alone: beside it, else in a folder."""
        folder, name = self.path.parent, _plain(self.path.name)
        found = []
        if split_of(name, strict=False) == "train":
            found = [f for f in _in(folder, name) if split_of(_plain(f.name)) == split]
        if not found and split_of(folder.name, strict=False) == "train":
            beside = [f for f in _in(folder.parent, folder.name) if split_of(f.name) == split]
            found = [file for other in beside if other.is_dir() for file in _in(other, name)]
        return [file for file in found if file.is_file()]


def _in(folder: Path, name: str) -> list[Path]:
    """Return what lies in a folder under a name, whatever split this says."""
    with suppress(PermissionError):
        return [f for f in folder.iterdir() if template(_plain(f.name)) == template(name)]
    return []


def _plain(name: str) -> str:
    return name.removesuffix(".gz")


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


def _kind_of(file: Path) -> str:
    with _reading(file):
        return _kind(file)


def _kind(file: Path) -> str:
    with _open(file) as stream:
        head = stream.read(4096)
    for kind, magic in MAGIC.items():
        if head.startswith(magic):
            return kind
    if head.removeprefix(codecs.BOM_UTF8).lstrip()[:1] in (b"{", b"["):
        raise DataError(
            f"{file} is JSON, which is not read; write images and labels as Parquet, those of LEAF"
            " with a column of their writers, for data.partition=natural"
        )
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
    try:
        names = next(csv.reader([first], delimiter=separator), [])
    except csv.Error as err:
        raise DataError(
            f"{file}: the first line names no columns, such as image,label; it has {len(first):,}"
            f" characters, from {first[:40]!r} ({err})"
        ) from err
    names = [name.strip() for name in names]
    if all(name.isdigit() for name in names):
        needed = "names its columns, such as label,pixel0,pixel1,… or image,label"
        raise DataError(f"{file}: the first line {needed}; this one is {first[:40]!r}")
    if any(name.lower() in PATH_COLUMNS for name in names):
        return Header(separator, names, [])
    asked = (reading.label_column, reading.client_column)
    return Header(separator, names, [n for n in names if n[-1:].isdigit() and n not in asked])


def _csv(
    file: Path, reading: Reading, says: Split | None, *, warn: bool = True
) -> dict[Split, list[Picture]]:
    """Return the images of each split that columns say, else of `says` or of `train`.

    All values but pixels are text; only an empty one is none.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    separator, names, pixels = _header(file, reading)
    with _open(file) as stream:
        table = arrow_csv.read_csv(
            pa.BufferReader(stream.read()),
            read_options=arrow_csv.ReadOptions(column_names=names, skip_rows=1),
            parse_options=arrow_csv.ParseOptions(delimiter=separator),
            convert_options=arrow_csv.ConvertOptions(
                column_types={n: pa.uint8() if n in pixels else pa.string() for n in names},
                null_values=[""],
                strings_can_be_null=True,
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
    rest = {
        name: [(value or "").strip() or None for value in table[name].to_pylist()]
        for name in dict.fromkeys(names)
        if name not in of_images
    }
    splits = _splits_of_rows(rest, file, reading, warn=warn)
    columns = _columns(rest, splits, file, reading)
    labels: list[int | str] = [HIDDEN] * len(table)
    if columns.label:
        labels = [label_of(value, None, str(file)) for value in _typed(rest[columns.label[0]])]
    clients = _typed(rest[columns.client[0]]) if columns.client else None
    if clients and None in clients:
        raise DataError(
            f"{file}, row {clients.index(None)}: {reading.client_column!r} has no value"
        )
    if pixels:
        flat = np.stack([table[name].to_numpy() for name in pixels], axis=1)
        pictures = pictures_of(_squares(flat, file), labels, str(file), clients=clients)
    else:
        paths = [file.parent / path for path in table[files[0]].to_pylist()]
        pictures = pictures_of(paths, labels, str(file), clients=clients)
    if not splits:
        return {says or "train": pictures}
    found: dict[Split, list[Picture]] = {}
    for number, picture in enumerate(pictures):
        values = {name: rest[name][number] for name in splits}
        split = split_of_row(values, f"{file}, row {number}")
        if says and split != says:
            listed = ", ".join(f"{name!r} is {value!r}" for name, value in values.items())
            raise DataError(
                f"{file}, row {number}: {listed}, but the name of the file says {says}; mend one of"
                " them, or remove the column"
            )
        if split == "unlabelled":
            picture = picture._replace(label=HIDDEN)
        found.setdefault(split, []).append(picture)
    return found


_Texts = Mapping[str, list[str | None]]
"""Values of the columns of a CSV file, None for empty ones."""


def _unnamed(pictures: Iterable[Picture]) -> list[Path]:
    """Return the images in the folders of those that a CSV names, without these."""
    named = {picture.content for picture in pictures if isinstance(picture.content, Path)}
    there = (f for folder in sorted({n.parent for n in named}) for f in sorted(folder.iterdir()))
    return [f for f in there if is_image(f) and f not in named]


def _splits_of_rows(rest: _Texts, file: Path, reading: Reading, *, warn: bool) -> list[str]:
    """Return the columns that say the split of each row."""
    asked = (reading.label_column, reading.client_column)
    values = {
        name: {*column}
        for name, column in rest.items()
        if name not in asked
        and name.lower() not in LABEL_COLUMNS
        and (may_be_split(name) or is_split_name(next(filter(None, column), "")))
    }
    return columns_that_split(values, str(file), warn=warn)


def _columns(rest: _Texts, splits: Sequence[str], file: Path, reading: Reading) -> Columns:
    """Find the columns of labels and clients, or raise a `DataError` for labels that are none."""
    import pyarrow as pa

    kinds = {"integers": pa.int64(), "numbers": pa.float64(), "dates": pa.date32()}
    found = {name: _kind_of_values(column) for name, column in rest.items()}
    for name in rest:  # of a column that is named for its classes, dates are names
        is_label = name.lower() in LABEL_COLUMNS or name == reading.label_column
        if found[name] == "dates" and is_label:
            found[name] = "text"
    schema = pa.schema([(name, kinds.get(kind, pa.string())) for name, kind in found.items()])
    schema = schema.append(pa.field("image", pa.binary()))
    columns = columns_of(schema, str(file), reading, [(name,) for name in splits])
    if columns.label and _kind_of_values(column := rest[columns.label[0]]) == "numbers and none":
        missing = Counter(value for value in column if value and value.lower() in NO_VALUE)
        listed = ", ".join(f"{count} x {value!r}" for value, count in missing.items())
        raise DataError(
            f"{file}: {columns.label[0]!r} has numbers and {listed}; leave labels that are missing"
            " empty, or name all classes by words"
        )
    return columns


_INTEGER = re.compile(r"0|-?[1-9]\d{0,17}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?")


def _kind_of_values(column: Sequence[str | None]) -> str:
    """Return the kind of a column's values: integers as they are written from numbers, or text."""
    values = {value for value in column if value}
    if all(map(_INTEGER.fullmatch, values)):
        return "integers"
    if all(map(_DATE.fullmatch, values)):
        return "dates"
    numbers = {value for value in values if _NUMBER.fullmatch(value)}
    if numbers == values and any(not value.isdigit() for value in values):
        return "numbers"
    rest = {value.lower() for value in values - numbers}
    return "numbers and none" if numbers and rest and rest <= NO_VALUE else "text"


def _typed(column: Sequence[str | None]) -> list[Any]:
    """Return integers where all values are, else text: `01` and `1` are two values then."""
    if _kind_of_values(column) != "integers":
        return [*column]
    return [None if value is None else int(value) for value in column]


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
