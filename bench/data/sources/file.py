"""`file:PATH`: one Parquet, CSV, IDX or NumPy file of any name, compressed by gzip or not."""

import codecs
import csv
import glob
import gzip
import io
import math
import os
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from fedbench.bench.data.cache import readable
from fedbench.bench.data.reading import Reading
from fedbench.bench.data.sources.base import SOURCES, Entry, PathSource
from fedbench.bench.data.sources.decode import (
    MAX_IMAGES,
    NO_VALUE,
    LeftOut,
    Splits,
    decoded,
)
from fedbench.bench.data.sources.folder import is_image
from fedbench.bench.data.sources.parquet_rows import check_unpacked, parquet_rows
from fedbench.bench.data.sources.rows import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    Rows,
    Shard,
    splits_of_shards,
)
from fedbench.bench.data.sources.splits import Split, some, split_of, template
from fedbench.bench.system.errors import DataError

NPZ_NAMES = (
    ("train_images", "train_labels", "test_images", "test_labels"),  # MedMNIST
    ("x_train", "y_train", "x_test", "y_test"),  # Keras
)
PATH_COLUMNS = (*IMAGE_COLUMNS, "file_name", "filename", "path", "file")
MAGIC = {"parquet": b"PAR1", "idx": b"\0\0", "npz": b"PK"}
"""First bytes of a file of each kind; others are CSV."""

_UTF8 = "save it as CSV in UTF-8 (in Excel: CSV UTF-8)"
_HINT = re.compile('"?sep=.?"?')  # a first line by which Excel knows the separator
_LONGEST = 1 << 20  # characters of the names of all columns
_BLOCK = 1 << 24  # bytes that are unpacked at a time


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
            raise DataError(f"{self}: the path {reason}")

    def files(self) -> list[Path]:
        """Return the file, those beside it, and the images that a CSV names."""
        files = [*self._of_splits().values()]
        for file in tuple(files):
            kind = _kind(file)
            with readable(file):
                if kind == "idx":
                    files.append(_labels_of(file))
                elif kind == "csv" and (header := _header(file, self.reading)).path:
                    named = _paths(file, _values(file, header), header)
                    _check_there(file, named)
                    files += named
        return files

    def splits(self, scratch: Path) -> Splits:
        files = self._of_splits()
        kinds = {split: _kind(file) for split, file in files.items()}
        if len({*kinds.values()}) > 1:
            listed = " and ".join(f"{file} ({kinds[split]})" for split, file in files.items())
            raise DataError(f"files of two splits are of two kinds: {listed}; convert one of them")
        kind = kinds["train"]
        options = self.reading.label_column, self.reading.test_column
        for asked in filter(None, options if kind in ("idx", "npz") else ()):
            raise DataError(f"{self.path} has no columns, and so no {asked!r}")
        if kind == "npz":
            with readable(self.path):
                return _npz(self.path)
        if kind == "idx":
            train, *test = (decoded(_idx(f), _idx(_labels_of(f)), str(f)) for f in files.values())
            return Splits([train], test, None, read_as=_beside(files))
        tables: dict[Split, Rows] = {}
        for split, file in files.items() if kind == "csv" else ():
            with readable(file):
                tables[split] = _csv(file, self.reading)
        shards = {
            split: [Shard(str(file), partial(_rows, file, tables.get(split)), self.reading, split)]
            for split, file in files.items()
        }
        splits = splits_of_shards(shards, f"{self.kind}:{self.path.name}")
        for shard in cast("list[Shard]", [*splits.train, *splits.test] if tables else []):
            _check_labels(shard)
        unnamed = LeftOut(f"not named in {self.path.name}", _unnamed(tables.values()))
        read_as = [*splits.read_as, *_beside(files)]
        return splits._replace(left_out=[*splits.left_out, unnamed], read_as=read_as)

    def _of_splits(self) -> dict[Split, Path]:
        """Return the file and, if there is one, that of the test images."""
        folder, name = self.path.parent, _plain(self.path.name)
        says, folder_says = (split_of(each, strict=False) for each in (name, folder.name))
        beside = _in(folder, name) if says else []
        folders = _in(folder.parent, folder.name) if folder_says == "train" else []
        others = []
        splits: tuple[Split, ...] = ("test", "validation")
        for split in splits:
            of_split = [each for each in folders if split_of(each.name) == split and each.is_dir()]
            found = [f for f in beside if says == "train" and split_of(_plain(f.name)) == split]
            found = found or [file for other in of_split for file in _in(other, name)]
            found = sorted(file for file in found if file.is_file())
            if len(found) > 1:
                raise DataError(
                    f"{self.path} may belong to several files of {split} images:"
                    f" {some([*map(str, found)])}; leave one of them"
                )
            if found:
                return {"train": self.path, "test": found[0]}
            others += of_split
        ending = Path(name).suffix
        for other in others:
            if like := sorted(f for f in other.iterdir() if Path(_plain(f.name)).suffix == ending):
                raise DataError(
                    f"{like[0]} may have the test images of {self.path}, whose name it has not;"
                    " name both files alike, or move one of them elsewhere"
                )
        train = [f for f in beside if split_of(_plain(f.name), strict=False) == "train"]
        if says == "test" and train:
            raise DataError(
                f"{self.path} has test images by its name; those of training are in"
                f" {train[0].name}: name file:{train[0]}, which reads both"
            )
        return {"train": self.path}


def _beside(files: Mapping[Split, Path]) -> list[str]:
    return [f"test images: {files['test']}"] if "test" in files else []


def _in(folder: Path, name: str) -> list[Path]:
    """Return what lies in a folder under a name, whatever split this says."""
    with suppress(PermissionError):  # a folder that we may not list holds nothing that we could use
        return [f for f in folder.iterdir() if template(_plain(f.name)) == template(name)]
    return []


def _plain(name: str) -> str:
    return name.removesuffix(".gz")


@contextmanager
def _in_utf8(file: Path) -> Iterator[None]:
    """Say what to do about text in another encoding."""
    try:
        yield
    except ValueError as err:  # of Python and of Arrow
        if isinstance(err, UnicodeDecodeError) or "invalid UTF8" in str(err):
            raise DataError(f"{file} is not text in UTF-8; {_UTF8}") from err
        raise


def _is_packed(file: Path) -> bool:
    """True for a file that gzip packed."""
    with file.open("rb") as stream:
        return stream.read(2) == b"\x1f\x8b"


def _read(file: Path, first: int = -1) -> bytes:
    """Read a file, unpacked if need be, or its first bytes; `DataError` where all are too many."""
    with (gzip.open if _is_packed(file) else open)(file, "rb") as stream:
        if first >= 0 or not isinstance(stream, gzip.GzipFile):
            return stream.read(first)
        data = io.BytesIO()
        # Python sets aside what a read asks for, so all that is allowed would fill the memory.
        while data.write(stream.read(_BLOCK)):
            check_unpacked(str(file), file.stat().st_size, data.tell())
        return data.getvalue()


def _kind(file: Path) -> str:
    with readable(file):
        head = _read(file, 4096)
    for kind, magic in MAGIC.items():
        if head.startswith(magic):
            return kind
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(f"{file} is text in UTF-16; {_UTF8}")
    if head.removeprefix(codecs.BOM_UTF8).lstrip()[:1] in (b"{", b"["):
        raise DataError(
            f"{file} is JSON, which is not read; write images and labels as Parquet, those of LEAF"
            " with a column of their writers, for data.partition=natural"
        )
    if not head:
        raise DataError(f"{file} is empty")
    if head.startswith(b"\x93NUMPY"):
        arrays = ", ".join(f"{name}=…" for name in NPZ_NAMES[0])
        raise DataError(
            f"{file} is one array of NumPy, and a data set needs four: images and labels to train"
            f" and to test with; save them by numpy.savez('images.npz', {arrays})"
        )
    if b"\0" in head:
        raise DataError(f"{file} is no Parquet, CSV, IDX or .npz file, nor one packed by gzip")
    return "csv"


def _rows(file: Path, table: Rows | None) -> Rows:
    """Open a Parquet file, row by row, or in memory if it has to be unpacked; or take a table."""
    return table or parquet_rows(_read(file) if _is_packed(file) else file, str(file))


def _idx(file: Path) -> npt.NDArray[np.uint8]:
    with readable(file):
        data = _read(file)
        shape = np.frombuffer(data, ">u4", data[3], 4).tolist()
        values = np.frombuffer(data, np.uint8, offset=4 + 4 * len(shape))
    if data[2] != 8 or len(values) != math.prod(shape):
        raise DataError(
            f"{file}: an IDX file of {shape} unsigned bytes (type 8) has {math.prod(shape):,}; this"
            f" one has type {data[2]} and {len(values):,} bytes"
        )
    return values.reshape(shape)


def _labels_of(file: Path) -> Path:
    """Return the file of labels beside an IDX file of images, packed or not."""
    plain = _plain(file.name).replace("images", "labels").replace("idx3", "idx1")
    for labels in (file.with_name(plain), file.with_name(f"{plain}.gz")):
        if "images" in file.name and labels.is_file():
            return labels
    raise DataError(
        f"{file} has no labels beside it; the name of an IDX file of images has `images` in it, and"
        " that of its labels is the same with `labels` (and idx1 for idx3)"
    )


class Header(NamedTuple):
    """Separator of a CSV file, names of its columns, and where its images are: files or pixels."""

    separator: str
    names: list[str]
    path: str | None  # column of image files
    pixels: list[str]  # columns of pixels where there is no such one
    lines: int  # before the first row


def _header(file: Path, reading: Reading) -> Header:
    stream = io.BytesIO(_read(file, 2 * _LONGEST))
    with _in_utf8(file):
        first = stream.readline(_LONGEST).decode("utf-8-sig").rstrip("\r\n")
        if is_hint := bool(_HINT.fullmatch(first)):
            first = stream.readline(_LONGEST).decode().rstrip("\r\n")
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
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise DataError(f"{file}: several columns have the name {some(twice)}; rename all but one")
    path = next((name for name in names if name.lower() in PATH_COLUMNS), None)
    asked = (reading.label_column, reading.natural_column)
    pixels = [] if path else [n for n in names if n[-1:].isdigit() and n not in asked]
    if not path and not pixels:
        raise DataError(
            f"{file}: needed is a column of image files ({', '.join(PATH_COLUMNS)}) or columns of"
            f" pixels, whose names end in a digit; found: {', '.join(names)}"[:1000]
        )
    return Header(separator, names, path, pixels, 1 + is_hint)


def _values(file: Path, header: Header) -> Any:
    """Return a CSV file as an Arrow table. All but pixels are text; only an empty value is none."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    pixels = {*header.pixels}
    data = _read(file)
    if (count := data.count(b"\n")) > MAX_IMAGES:
        raise DataError(f"{file} has {count:,} lines; allowed: {MAX_IMAGES:,}; take a part of it")
    with _in_utf8(file):
        table = arrow_csv.read_csv(
            pa.BufferReader(data),
            read_options=arrow_csv.ReadOptions(column_names=header.names, skip_rows=header.lines),
            parse_options=arrow_csv.ParseOptions(delimiter=header.separator),
            convert_options=arrow_csv.ConvertOptions(
                column_types={n: pa.uint8() if n in pixels else pa.string() for n in header.names},
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
    for name in [header.path] if header.path else header.pixels:
        if table[name].null_count:
            row = table[name].is_null().to_pylist().index(True)
            raise DataError(f"{file}, row {row}: {name!r} has no value")
    return table


def _paths(file: Path, table: Any, header: Header) -> list[Path]:
    return [file.parent / path for path in table[header.path].to_pylist()]


def _check_there(file: Path, images: Sequence[Path]) -> None:
    """Raise `DataError` if a CSV names images that are not there, with what may help."""
    missing = [row for row, image in enumerate(images) if not image.is_file()]
    if not missing:
        return
    first = images[missing[0]]
    named = os.path.relpath(first, file.parent)
    slashes = Path(str(first).replace("\\", "/"))
    like = sorted(first.parent.glob(f"{glob.escape(first.name)}.*")) if first.name else []
    remedy = (
        "write / in place of \\"
        if slashes != first and slashes.is_file()
        else f"write the ending, as in {like[0].name}"
        if like
        else f"paths begin at the folder of the CSV, {file.parent}"
    )
    is_link = "a link to nothing" if first.is_symlink() else "not there"
    raise DataError(
        f"{file}: {len(missing):,} of {len(images):,} images are not there, the first in row"
        f" {missing[0]}: {named!r} is {is_link}; {remedy}"
    )


def _folders(paths: Sequence[str]) -> list[str]:
    """Return the split that the folders of each path say: `a/train/1.png`; empty if not all do."""
    said: list[str] = []
    for path in paths:
        parts = re.split(r"[/\\]", path)[:-1]
        found = {split for part in parts if (split := split_of(part, strict=False))}
        if len(found) != 1:
            return []
        said.append(found.pop())
    return said if {"train"} < {*said} else []


def _csv(file: Path, reading: Reading) -> Rows:
    """Return the rows of a CSV file: `image` has pixels or files, other columns have what they say.

    Those are integers or text, whatever else the schema says of them: only labels need a type.
    """
    import pyarrow as pa

    header = _header(file, reading)
    table = _values(file, header)
    columns: dict[str, Sequence[Any]] = {}
    kinds = {}
    of_images = {header.path, *header.pixels}
    for name in (name for name in header.names if name not in of_images):
        values = [(value or "").strip() or None for value in table[name].to_pylist()]
        kinds[name] = _kind_of_values(values)
        # Integers where all are, else text: `01` and `1` are two values then.
        is_number = kinds[name] == "integers"
        columns[name] = [int(value) if is_number and value else value for value in values]
        # Of a column that is named for its classes, dates are names.
        is_label = name.lower() in LABEL_COLUMNS or name == reading.label_column
        if kinds[name] == "dates" and is_label:
            kinds[name] = "text"
    types = {"integers": pa.int64(), "numbers": pa.float64(), "dates": pa.date32()}
    schema = pa.schema([(name, types.get(kind, pa.string())) for name, kind in kinds.items()])
    if header.path:
        columns["image"] = _paths(file, table, header)
        if reading.test_rows is None and (said := _folders(table[header.path].to_pylist())):
            name = f"folder of {header.path}"
            columns[name], schema = said, schema.append(pa.field(name, pa.string()))
    else:
        flat = np.stack([table[name].to_numpy() for name in header.pixels], axis=1)
        columns["image"] = [*_squares(flat, file)]

    def read(names: Sequence[str]) -> Iterator[dict[str, Any]]:
        for row in zip(*map(columns.__getitem__, names), strict=True):
            yield dict(zip(names, row, strict=True))

    return Rows(schema.append(pa.field("image", pa.binary())), read)


def _check_labels(shard: Shard) -> None:
    """Raise `DataError` for labels that are numbers and words for no value."""
    label = shard.found().label
    values = (row[label] for row in shard.open().read([label])) if label else ()
    texts = [value for value in values if isinstance(value, str)]
    if _kind_of_values(texts) == "numbers and none":
        missing = Counter(value for value in texts if value.lower() in NO_VALUE)
        listed = ", ".join(f"{count} x {value!r}" for value, count in missing.items())
        raise DataError(
            f"{shard.place}: {label!r} has numbers and {listed}; leave labels that are missing"
            " empty, or name all classes by words"
        )


def _unnamed(tables: Iterable[Rows]) -> list[Path]:
    """Return the images in the folders of those that CSV files name, without these."""
    images = (row["image"] for rows in tables for row in rows.read(["image"]))
    named = {image for image in images if isinstance(image, Path)}
    there = (f for folder in sorted({n.parent for n in named}) for f in sorted(folder.iterdir()))
    return [f for f in there if is_image(f) and f not in named]


_INTEGER = re.compile(r"0|-?[1-9]\d{0,17}")  # of 64 bits
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
    with io.BytesIO(_read(file)) if _is_packed(file) else file.open("rb") as data:
        if not zipfile.is_zipfile(data) or not all(
            name.endswith(".npy") for name in zipfile.ZipFile(data).namelist()
        ):
            raise DataError(f"{file} is no .npz file of arrays; unpack a .zip, and name its folder")
        data.seek(0)
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
    return Splits([train], [test], None, [LeftOut("an array of another name", rest)])


class NpzFile(OneFile):
    """The same, as `npz:FILE`."""

    kind = "npz"


SOURCES["file:PATH"] = Entry(
    OneFile.make, "one Parquet, CSV, IDX or .npz file, packed by gzip or not", has_columns=True
)
SOURCES["npz:FILE"] = Entry(NpzFile.make, "a NumPy file of MedMNIST's or Keras's form")
