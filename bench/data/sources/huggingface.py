"""Images in files and sets that Hugging Face's `datasets` reads: columns, rows, class names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from fedbench.bench.data.cache import first_line
from fedbench.bench.data.labels import HIDDEN
from fedbench.bench.data.reading import Reading
from fedbench.bench.data.sources.decode import Picture, Splits
from fedbench.bench.system.errors import DataError

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target", "cls", "txt")
READERS: Mapping[str, dict[str, Any]] = {
    ".parquet": {"path": "parquet", "batch_size": 512},  # by itself it takes a row group at a time
    ".arrow": {"path": "arrow"},
    ".tar": {"path": "webdataset"},
}
"""Suffix of a file -> the part of `datasets` that reads it, and its options."""

Field = tuple[str, ...]
"""A column, or a column and a field of it."""


@dataclass(frozen=True)
class Shard:
    """A file of rows, or a split of a set of the Hub.

    Attributes:
        place: its name in messages.
        open: returns it as a `datasets.IterableDataset` or `Dataset`.
        reading: names of columns.
        labelled: whether its labels are read.
        has_paths: whether an image may be the path of a file.
    """

    place: str
    open: Callable[[], Any] = field(repr=False)
    reading: Reading
    labelled: bool = True
    has_paths: bool = False

    def __iter__(self) -> Iterator[Picture]:
        """Yield the images in their order.

        Raises:
            DataError: the file is torn, a column is missing, or a value is.
        """
        with self._reading():
            yield from self._pictures()

    def _pictures(self) -> Iterator[Picture]:
        from datasets import Image

        rows = self.open()
        columns = columns_of(rows.features.arrow_schema, self.place, self.reading)
        if not self.labelled:
            columns = columns._replace(label=None)
        used = dict.fromkeys(column[0] for column in columns if column is not None)
        rows = rows.select_columns(list(used))
        if isinstance(rows.features[columns.image[0]], Image):
            rows = rows.cast_column(columns.image[0], Image(decode=False))
        for number, row in enumerate(rows):
            place = f"{self.place}, row {number}"
            image = value_of(row, columns.image)
            content = image["bytes"] if isinstance(image, dict) else image
            if content is None and self.has_paths and image["path"]:
                content = Path(image["path"])
            if content is None:
                raise DataError(f"{place}: no image bytes")
            client = value_of(row, columns.client)
            if columns.client and not isinstance(client, (str, int)):
                raise DataError(f"{place}: {columns.client[-1]!r} is {client!r}; needed: a value")
            label = single_label(value_of(row, columns.label), place)
            yield Picture(content, label, self.place, number, client)

    def class_names(self) -> tuple[str, ...] | None:
        """Return the class names that the features have, or None."""
        with self._reading():
            features = self.open().features
            columns = columns_of(features.arrow_schema, self.place, self.reading)
        feature = value_of(features, columns.label)
        names = getattr(getattr(feature, "feature", feature), "names", None)
        return tuple(names) if names else None

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


Shards = dict[str, list[Shard]]
"""Shards by what they hold: train, test, validation, unlabelled."""


def splits_of(shards: Shards, name: str) -> Splits:
    """Return the splits train, with what is unlabelled, and test, else validation.

    Raises:
        DataError: there are no training images.
    """
    labelled = shards.get("train", [])
    train = [*labelled, *shards.get("unlabelled", [])]
    if not train:
        raise DataError(f"{name} has no training images; found: {', '.join(sorted(shards))}")
    test = shards.get("test") or shards.get("validation") or []
    # No client of a test image is asked for.
    test = [replace(shard, reading=shard.reading.without_clients()) for shard in test]
    return Splits(train, test, labelled[0].class_names() if labelled else None)


def open_file(file: Path, suffix: str) -> Any:
    """Open a file of `READERS` as a `datasets.IterableDataset`; nothing is copied."""
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
    """Keep the `datasets` library from the network for a while."""
    import datasets
    import huggingface_hub

    places = (datasets.config, huggingface_hub.constants)
    before = [place.HF_HUB_OFFLINE for place in places]
    try:
        for place, set_by_user in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = set_by_user or not unless
        yield
    finally:
        for place, set_by_user in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = set_by_user


def value_of(row: Any, place: Field | None) -> Any:
    """Return a value of a row, or the feature of a column; None without a place."""
    for name in place or ():
        row = row[name]
    return row if place else None


def single_label(value: Any, place: str) -> int | str:
    """Return a label, or the only one of a list; `HIDDEN` for none."""
    if isinstance(value, list):
        if len(value) != 1 or value[0] is None:
            raise DataError(f"{place}: {len(value)} labels in a list; allowed: one")
        (value,) = value
    if value is None:
        return HIDDEN
    label: int | str = value.strip() if isinstance(value, str) else value
    return label


def columns_of(arrow_schema: Any, place: str, reading: Reading) -> Columns:
    """Find the columns of images, labels and clients; fields of a `.json` count as columns.

    Raises:
        DataError: there is no such column, or several could be meant.
    """
    import pyarrow as pa

    def is_image(kind: Any) -> bool:
        if pa.types.is_struct(kind):
            return any(f.name == "bytes" and is_image(f.type) for f in kind.fields)
        return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))

    def is_label(kind: Any) -> bool:
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            kind = kind.value_type
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
            f" bytes) and a label column ({', '.join(LABEL_COLUMNS)}, or the only other one of"
            f" integers or text, or data.label_column=NAME); found: {listed}"
        )
    return Columns((named or images)[0], labels[0] if labels else None, client)
