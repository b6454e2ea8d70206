"""Parquet, Arrow and tar files in the forms of the Hugging Face Hub, read by its `datasets`."""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, NamedTuple

from fedbench.bench.data.cache import first_line
from fedbench.bench.data.labels import HIDDEN
from fedbench.bench.data.reading import Reading
from fedbench.bench.data.sources.base import (
    READS,
    SOURCES,
    Entry,
    PathSource,
    Request,
    Source,
    is_hidden,
)
from fedbench.bench.data.sources.decode import Picture, Splits
from fedbench.bench.data.sources.parquet_rows import ParquetRows, check_footers
from fedbench.bench.data.sources.splits import KNOWN, Split, some, split_of
from fedbench.bench.system.errors import ConfigError, DataError

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target", "cls", "txt")
READERS: Mapping[str, dict[str, Any]] = {
    ".arrow": {"path": "arrow"},
    ".tar": {"path": "webdataset"},
}
"""Suffix of a file -> the part of `datasets` that reads it, and its options."""

Field = tuple[str, ...]
"""A column, or a column and a field of it."""


@dataclass(frozen=True)
class Shard:
    """A file of rows."""

    place: str  # its name in messages
    open: Callable[[], Any] = field(repr=False)  # as a `datasets.IterableDataset` or `Dataset`
    reading: Reading
    labelled: bool = True

    def __iter__(self) -> Iterator[Picture]:
        """Yield the images in their order."""
        from datasets import Image

        with self._reading():
            rows = self.open()
            columns = columns_of(rows.features.arrow_schema, self.place, self.reading)
            if not self.labelled:
                columns = columns._replace(label=None)
            names = _names_of(rows.features, columns)
            used = dict.fromkeys(column[0] for column in columns if column is not None)
            rows = rows.select_columns(list(used))
            if isinstance(rows.features[columns.image[0]], Image):
                rows = rows.cast_column(columns.image[0], Image(decode=False))
            for number, row in enumerate(rows):
                place = f"{self.place}, row {number}"
                image = value_of(row, columns.image)
                content = image["bytes"] if isinstance(image, dict) else image
                if content is None:
                    raise DataError(f"{place}: no image bytes")
                client = value_of(row, columns.client)
                if columns.client and not isinstance(client, (str, int)):
                    raise DataError(
                        f"{place}: {columns.client[-1]!r} is {client!r}; needed: a value"
                    )
                label = label_of(value_of(row, columns.label), names, place)
                yield Picture(content, label, self.place, number, client)

    def class_names(self) -> tuple[str, ...] | None:
        """Return the class names that the features have, or None."""
        with self._reading():
            features = self.open().features
            columns = columns_of(features.arrow_schema, self.place, self.reading)
        return _names_of(features, columns)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn any error of the library, which raises those of every format, into a `DataError`."""
        try:
            yield
        except DataError:
            raise
        except Exception as err:
            raise DataError(f"{self.place} cannot be read ({first_line(err)})") from err


class Columns(NamedTuple):
    """Where the images, labels and clients of a shard are; None where it has none."""

    image: Field
    label: Field | None
    client: Field | None


def open_file(file: Path, suffix: str) -> Any:
    """Open a Parquet file or one of `READERS`, row by row; nothing is copied."""
    if suffix == ".parquet":
        return ParquetRows(file, str(file))
    import glob

    import datasets

    with offline(), TemporaryDirectory() as scratch:  # the library leaves a lock file
        return datasets.load_dataset(
            **READERS[suffix],
            data_files={"train": [glob.escape(str(file))]},
            split="train",
            streaming=True,
            cache_dir=scratch,
        )


@contextmanager
def offline(*, unless: bool = False) -> Iterator[None]:
    """Keep the `datasets` library from the network for a while, unless it may download."""
    import datasets
    import huggingface_hub

    places = (datasets.config, huggingface_hub.constants)
    before = [place.HF_HUB_OFFLINE for place in places]
    try:
        for place in places:
            place.HF_HUB_OFFLINE = not unless
        yield
    finally:
        for place, set_by_user in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = set_by_user


def value_of(row: Any, place: Field | None) -> Any:
    """Return a value of a row, or the feature of a column; None without a place."""
    for name in place or ():
        row = row[name]
    return row if place else None


def _names_of(features: Any, columns: Columns) -> tuple[str, ...] | None:
    names = getattr(value_of(features, columns.label), "names", None)
    return tuple(names) if names else None


def label_of(value: Any, names: tuple[str, ...] | None, place: str) -> int | str:
    """Return a label: its name among `names` if they say more than numbers; `HIDDEN` for none.

    Numbers become names, because another file may have the same names in another order.
    """
    if isinstance(value, str):
        if (text := value.strip()) == str(HIDDEN):
            raise DataError(f"{place}: the label is the text {text!r}; for none, leave it empty")
        return text or HIDDEN
    if value is None or value == HIDDEN:
        return HIDDEN
    label: int = value
    if names is None or names == tuple(map(str, range(len(names)))):
        return label
    if not 0 <= label < len(names):
        allowed = f"{HIDDEN} (none), 0..{len(names) - 1}"
        raise DataError(f"{place}: label {label} is out of range; allowed: {allowed}")
    return names[label]


def columns_of(arrow_schema: Any, place: str, reading: Reading) -> Columns:
    """Find the columns of images, labels and clients, or raise a `DataError` with all columns.

    Fields of a `.json` count as columns.
    """
    import pyarrow as pa

    def is_image(kind: Any) -> bool:
        if pa.types.is_struct(kind):
            return any(f.name == "bytes" and is_image(f.type) for f in kind.fields)
        return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))

    def is_label(kind: Any) -> bool:
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        return bool(text or pa.types.is_integer(kind))

    # WebDataset's own columns are __key__ and __url__.
    schema = [column for column in arrow_schema if column.name[:2] != "__"]
    kinds: dict[Field, Any] = {(column.name,): column.type for column in schema}
    for column in schema:
        if column.name == "json" and pa.types.is_struct(column.type):
            kinds |= {("json", inner.name): inner.type for inner in column.type.fields}
    listed = ", ".join(f"{'.'.join(name)}: {kind}" for name, kind in kinds.items())

    def find(key: str, wanted: str) -> Field:
        for name, kind in kinds.items():
            if name[-1] == wanted and is_label(kind):
                return name
        raise DataError(
            f"{key}={wanted}: {place} has no such column of integers or text; found: {listed}"
        )

    client = None
    if reading.client_column is not None:
        client = find("data.natural_column", reading.client_column)
    images = [name for name, kind in kinds.items() if is_image(kind)]
    named = [name for name in images if name[0] in IMAGE_COLUMNS]
    fitting = [name for name, kind in kinds.items() if name != client and is_label(kind)]
    labels = [name for wanted in LABEL_COLUMNS for name in fitting if name[-1].lower() == wanted]
    # Without any column that could be meant the images are unlabelled.
    meant = [name for name in kinds if name in fitting or name[0] in LABEL_COLUMNS]
    if (wanted := reading.label_column) is not None:
        labels = [find("data.label_column", wanted)]
    elif not labels and [len(name) for name in fitting] == [1]:
        labels = fitting
    if not (named or len(images) == 1) or (meant and not labels and len(meant[0]) == 1):
        raise DataError(
            f"{place}: needed are an image column ({' or '.join(IMAGE_COLUMNS)}, or the only one of"
            f" bytes) and a label column ({', '.join(LABEL_COLUMNS)}, the only other one, or"
            f" data.label_column=NAME); found: {listed}"
        )
    return Columns((named or images)[0], labels[0] if labels else None, client)


NUMBERED = re.compile(r"-(?P<number>\d+)-of-(?P<count>\d+)(?:-[0-9a-f]+)?\.[a-z]+$")


def _both(shards: Mapping[str, list[Shard]], name: str) -> Splits:
    """Return the training and test images of shards by split."""
    labelled = shards.get("train", [])
    train = [*labelled, *shards.get("unlabelled", [])]
    if not train:
        raise DataError(f"{name} has no training images; found: {', '.join(sorted(shards))}")
    test = shards.get("test") or shards.get("validation") or []
    # No client of a test image is asked for.
    test = [replace(shard, reading=shard.reading.without_clients()) for shard in test]
    # Names in the order of the first file; those of further files follow.
    names = [name for shard in labelled or test for name in shard.class_names() or ()]
    return Splits(train, test, tuple(dict.fromkeys(names)) or None)


class HubFolder(PathSource):
    """A folder with train-*.parquet and test-*.parquet (else validation-*) at any depth.

    The Hub's converted form train/0000.parquet is read too, and so is what `save_to_disk` wrote;
    files that name no split are training images where no file names one. Images are a struct
    {bytes, path} or plain bytes in `IMAGE_COLUMNS`, or in the only such column; labels integers or
    text, -1 and null for none, in `data.label_column`, else in `LABEL_COLUMNS`, else in the only
    other column of such a kind. Without a test split one image of six is held out by its content.
    """

    kind = "hub"
    suffixes: ClassVar[tuple[str, ...]] = (".parquet", ".arrow")

    def files(self) -> list[Path]:
        splits = self._splits()
        order = ("train", "test", "validation", "unlabelled")
        return [file for split in order for file in splits.get(split, [])]

    def splits(self, scratch: Path) -> Splits:
        files = [file for file in self.files() if file.suffix.lower() == ".parquet"]
        check_footers(files, f"{self.kind}:{self.path.name}")
        shards = {
            split: [
                Shard(
                    str(file),
                    partial(open_file, file, file.suffix),
                    self.reading,
                    labelled=split != "unlabelled",
                )
                for file in files
            ]
            for split, files in self._splits().items()
        }
        return _both(shards, f"{self.kind}:{self.path.name}")

    def _splits(self) -> dict[str, list[Path]]:
        """Return the files of each split, in order of name."""
        named: dict[Path, dict[str, list[Path]]] = {}
        unnamed: dict[Path, list[Path]] = {}
        for place, folders, names in os.walk(self.path):
            folders[:] = sorted(f for f in folders if not is_hidden(f))
            for file in sorted(Path(place, name) for name in names if not is_hidden(name)):
                # `map` and `shuffle` of `datasets` leave caches beside what they read.
                if file.suffix.lower() in self.suffixes and not file.name.startswith("cache-"):
                    split, home = self._split(file)
                    if split is None:
                        unnamed.setdefault(home, []).append(file)
                    else:
                        named.setdefault(home, {}).setdefault(split, []).append(file)
        if not named and not unnamed:
            raise DataError(f"{self.kind}:{self.path}: no train-*{self.suffixes[0]} at or below it")
        if named and unnamed:
            rest = [
                str(file.relative_to(self.path)) for files in unnamed.values() for file in files
            ]
            raise DataError(
                f"{self.kind}:{self.path}: the names of some files say a split"
                f" ({', '.join(sorted({s for splits in named.values() for s in splits}))}), and of"
                f" these not: {some(rest)}; rename them ({KNOWN}), or move them elsewhere"
            )
        sets = named or {home: {"train": files} for home, files in unnamed.items()}
        if len(sets) > 1:
            listed = ", ".join(map(str, sorted(sets)))
            raise DataError(
                f"{self.kind}:{self.path} holds several data sets; name one of them: {listed}"
            )
        (splits,) = sets.values()
        for files in splits.values():
            _check_numbers(files)
        return splits

    def _split(self, file: Path) -> tuple[Split | None, Path]:
        """Return the split that a file or a folder around it names, and its data set's folder."""
        own = split_of(file.stem)
        above = file.relative_to(self.path).parts[:-1]
        for depth in reversed(range(len(above))):
            split = split_of(above[depth])
            if split and own in (None, split):
                return split, self.path.joinpath(*above[:depth], *above[depth + 1 :])
        return own, file.parent


class WebDataset(HubFolder):
    """Shards `train-000000.tar`, `test-000000.tar` (else `val-…`), `unlabelled-…`, or any names.

    A sample is the files of one name up to the first dot: an image, and its label in `.cls` as an
    integer, in `.txt` as text or in a field of `.json`, named as the columns of `HubFolder`. All
    samples have files of the same kinds.
    """

    kind = "webdataset"
    suffixes = (".tar",)


def _check_numbers(files: list[Path]) -> None:
    """Raise `DataError` unless the numbers in the names make one complete split."""
    shards = [match for file in files if (match := NUMBERED.search(file.name))]
    if not shards:
        return
    counts = {int(match["count"]) for match in shards}
    numbers = sorted(int(match["number"]) for match in shards)
    if len(counts) > 1 or numbers != list(range(counts.pop())):
        raise DataError(
            f"{files[0].parent}: the shards do not make one whole split:"
            f" {', '.join(file.name for file in files[:6])}{' …' if len(files) > 6 else ''}"
        )


HUB_NAME = re.compile(
    r"hf:(?P<name>[\w.-]+/[\w.-]+)(?:/(?P<config>[\w.-]+))?(?:@(?P<revision>[\w./-]+))?"
)


@dataclass(frozen=True)
class HubName(Source):
    """A data set by its name on the Hub: OWNER/NAME, OWNER/NAME/CONFIG, either with @REVISION.

    `fedbench data prepare` may download it; otherwise the library reads its own cache offline.
    """

    request: Request

    @property
    def key(self) -> str:  # type: ignore[override]
        """Name of the cache folder."""
        text = self.request.name.removeprefix("hf:")
        slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60]
        return f"hf-{slug}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def identity(self) -> str:
        """Return the name: a set that is in the cache is not looked up again."""
        return f"hf/{READS}/{self.request.name.removeprefix('hf:')}"

    def splits(self, scratch: Path) -> Splits:
        name, reading = self.request.name, self.request.reading
        shards: dict[str, list[Shard]] = {}
        for split, rows in self._load().items():
            if kind := split_of(split):
                opened = partial(lambda rows: rows, rows)
                shard = Shard(f"{name} ({split})", opened, reading, labelled=kind != "unlabelled")
                shards.setdefault(kind, []).append(shard)
        return _both(shards, name)

    def _load(self) -> Mapping[str, Any]:
        import datasets

        match = HUB_NAME.fullmatch(self.request.name)
        if match is None:
            needed = "hf:OWNER/NAME, hf:OWNER/NAME/CONFIG, or either with @REVISION"
            raise ConfigError(f"data set {self.request.name}: needed is {needed}")
        download = self.request.download
        try:
            with offline(unless=download):
                found: Mapping[str, Any] = datasets.load_dataset(
                    match["name"], match["config"], revision=match["revision"]
                )
        except Exception as err:  # the library raises those of every format and of the network
            remedy = "" if download else f"; if it is not there yet, run: {self.request.command}"
            raise DataError(
                f"{self.request.name} cannot be loaded ({first_line(err)}){remedy}"
            ) from err
        return found


SOURCES["hf:OWNER/NAME"] = Entry(HubName, has_columns=True)
SOURCES["hub:PATH"] = Entry(
    HubFolder.make,
    "a folder of Parquet files, or one that save_to_disk wrote",
    has_columns=True,
    suffixes=frozenset(HubFolder.suffixes),
)
SOURCES["webdataset:PATH"] = Entry(
    WebDataset.make,
    "a folder of tar shards",
    has_columns=True,
    suffixes=frozenset(WebDataset.suffixes),
)
