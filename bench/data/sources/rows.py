"""Rows of a table: the columns that hold images, labels, clients and splits."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple, Self
from unicodedata import normalize

from fedbench.bench.data.cache import readable
from fedbench.bench.data.labels import HIDDEN
from fedbench.bench.data.reading import Reading
from fedbench.bench.data.sources.decode import VALIDATION, LeftOut, Picture, Splits
from fedbench.bench.data.sources.splits import (
    Split,
    columns_that_split,
    hints_at_split,
    is_split_name,
    may_be_split,
    some,
    split_of_row,
    split_that,
    words_of,
)
from fedbench.bench.system.errors import DataError

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target", "cls", "txt")
_NO_CLASSES = frozenset(
    {
        "id", "ids", "idx", "index", "key", "uuid", "hash", "md5", "client", "user", "writer",
        "author", "site", "hospital", "center", "centre", "clinic", "institution", "patient",
        "subject", "donor", "device", "scanner", "camera", "caption", "text", "description",
        "comment", "title", "url", "link", "width", "height", "size", "age", "sex", "gender",
        "date", "time", "year", "latitude", "longitude", "patientid", "userid", "imageid",
    }
)  # fmt: skip
"""Words of columns that are no labels, be they the only column beside that of images."""
_CLASSES = frozenset({"class", "classes", "label", "labels", "category", "target"})
"""Words of columns that are labels all the same: `class_id`."""
_FIRST = 1000  # rows in which the first word of a column is looked for
_UNNAMED = re.compile(r"|unnamed: ?\d+", re.IGNORECASE)


class Columns(NamedTuple):
    """Columns of a shard with its images, labels and clients; None where it has none."""

    image: str
    label: str | None
    client: str | None


class Rows(NamedTuple):
    """An open table."""

    schema: Any  # Arrow's, whose metadata may name classes as the `datasets` library does
    read: Callable[[Sequence[str]], Iterator[dict[str, Any]]]  # yields rows of some columns


@dataclass(frozen=True)
class Shard:
    """A file of rows."""

    place: str  # its name in messages
    open: Callable[[], Rows] = field(repr=False)
    reading: Reading
    split: Split  # that its name says, or columns
    columns: Sequence[str] = ()  # those that say the split of each row
    # rows of the split, which alone are read, if columns say it; None: all, which must be of it
    count: int | None = None

    def __iter__(self) -> Iterator[Picture]:
        """Yield the images in their order."""
        image, label, client = self.found()
        with readable(self.place):
            if self.split == "unlabelled":
                label = None  # whatever the column of labels holds
            names = self.names.get(label or "", ())
            used = [*filter(None, (image, label, client)), *self.columns]
            for number, row in enumerate(self._read(used)):
                place = f"{self.place}, row {number}"
                said = self._words(row, self.columns)
                if self.count is not None:
                    if self._split_of(said, place) != self.split:
                        continue
                    said = {}
                for column, value in said.items():
                    if split_that(column, value) not in ("", None, self.split):
                        raise DataError(
                            f"{place}: {column!r} is {value!r}, but the name of the file says"
                            f" {self.split}; mend one of them, or remove the column"
                        )
                content = row[image]["bytes"] if isinstance(row[image], dict) else row[image]
                if content is None:
                    raise DataError(f"{place}: no image bytes")
                holder = row[client] if client else None
                if client and not isinstance(holder, (str, int)):
                    raise DataError(f"{place}: {short(client)!r} is {holder!r}; needed: a value")
                of_class = label_of(row[label] if label else None, names, place)
                yield Picture(content, of_class, self.place, number, holder)

    @cached_property
    def schema(self) -> Any:
        """Types of all columns, as Arrow's schema."""
        with readable(self.place):
            return self.open().schema

    @cached_property
    def kinds(self) -> dict[str, Any]:
        """Types of the columns; of fields of a `.json` in their place, as `json.label`."""
        import pyarrow as pa

        kinds: dict[str, Any] = {}
        for column in self.schema:
            kind, name = column.type, column.name
            if name == "json" and pa.types.is_struct(kind):
                kinds |= {f"json.{inner.name}": inner.type for inner in kind.fields}
            elif name[:2] != "__":  # WebDataset's own columns are __key__ and __url__
                kinds[name] = kind.value_type if pa.types.is_dictionary(kind) else kind
        return kinds

    @cached_property
    def names(self) -> dict[str, tuple[str, ...]]:
        """Names of classes by column, which the `datasets` library writes into a schema."""
        with readable(self.place):
            said = json.loads((self.schema.metadata or {}).get(b"huggingface", "{}"))
            features = said.get("info", {}).get("features") or {}
            return {
                column: tuple(normalize("NFC", name) for name in feature["names"])
                for column, feature in features.items()
                if str(self.kinds.get(column)) == "int64" and feature.get("_type") == "ClassLabel"
            }

    def found(self) -> Columns:
        """Find the columns of images, labels and clients, or raise a `DataError` with all columns.

        Labels are in the column that the configuration names, else in the first of `LABEL_COLUMNS`,
        else in the only other column of whole numbers or text, if its words may name classes.
        Several such columns are refused; without one the images are unlabelled. Columns that say
        splits are none of these.
        """
        import pyarrow as pa

        def is_image(kind: Any) -> bool:
            if pa.types.is_struct(kind):
                return any(f.name == "bytes" and is_image(f.type) for f in kind.fields)
            return str(kind) in ("binary", "large_binary", "binary_view")

        place, reading = self.place, self.reading
        kinds = {name: kind for name, kind in self.kinds.items() if name not in self.columns}
        listed = ", ".join(f"{name}: {kind}" for name, kind in kinds.items())

        def find(key: str, wanted: str) -> str:
            for name, kind in kinds.items():
                if short(name) == wanted and is_label(kind):
                    return name
            raise DataError(
                f"{key}={wanted}: {place} has no such column of integers or text; found: {listed}"
            )

        client = None
        if reading.natural_column is not None:
            client = find("data.natural_column", reading.natural_column)
        images = [name for name, kind in kinds.items() if is_image(kind)]
        known = [name for name in images if name in IMAGE_COLUMNS]
        # A column without a name numbers the rows, as pandas writes it.
        others = [name for name in kinds if name != client and not _UNNAMED.fullmatch(short(name))]
        fitting = [name for name in others if is_label(kinds[name])]
        named = [name for name in others if short(name).lower() in LABEL_COLUMNS]
        labels = [name for name in named if name in fitting]
        labels.sort(key=lambda name: LABEL_COLUMNS.index(short(name).lower()))
        words = {name: {*words_of(short(name))} for name in fitting}
        classes = [n for n in fitting if words[n] & _CLASSES or not words[n] & _NO_CLASSES]
        meant = [n for n in kinds if (classes and n in fitting) or n in LABEL_COLUMNS]
        if (wanted := reading.label_column) is not None:
            labels = [find("data.label_column", wanted)]
        elif named and not labels:
            raise DataError(
                f"{place}: {named[0]}: {kinds[named[0]]} holds no classes; needed are whole"
                f" numbers or text there, or in data.label_column=NAME; found: {listed}"
            )
        elif not labels and fitting == classes and [*map(short, fitting)] == fitting[:1]:
            labels = fitting
        is_lacking = bool(meant and not labels and short(meant[0]) == meant[0])
        if is_lacking or not (known or len(images) == 1):
            raise DataError(
                f"{place}: needed are an image column ({' or '.join(IMAGE_COLUMNS)}, or the only"
                f" one of bytes) and a label column ({', '.join(LABEL_COLUMNS)}, the only other"
                f" one, or data.label_column=NAME); found: {listed}"
            )
        return Columns((known or images)[0], labels[0] if labels else None, client)

    def read_as(self) -> str:
        """Say which column the labels are read from, and which columns are not read."""
        found = self.found()
        rest = [column for column in self.kinds if column not in {*found, *self.columns}]
        label = f"labels: column {found.label!r}" if found.label else "no column of labels"
        return label + (f"; not read: {some(rest)}" if rest else "")

    def divided(self) -> dict[Split, Self]:
        """Return the rows of each split that columns say; empty where none does."""
        if self.reading.test_rows == "none":
            return {}
        asked = self.reading.test_column
        with readable(self.place):
            first = {column: str(word) for column, word in self._first().items()}
            columns = [
                column
                for column, word in first.items()
                if may_be_split(column) or is_split_name(word) or hints_at_split(word)
            ]
            if asked is not None:
                if asked not in first:
                    raise DataError(
                        f"data.test_rows={self.reading.test_rows}: {self.place} has no column"
                        f" {asked!r} of words; it has {some([*first]) or 'none'}"
                    )
                columns = [asked]
            found: dict[tuple[Any, ...], int] = {}  # words of a row -> the first such row
            times = Counter[tuple[Any, ...]]()
            for number, row in enumerate(self._read(columns)):
                said = tuple(self._words(row, columns).values())
                found.setdefault(said, number)
                times[said] += 1
            values = dict(zip(columns, map(set, zip(*found, strict=True)), strict=False))
            used = columns_that_split(values, self.place) if asked is None else columns
            if not used:
                return {}
            splits = Counter[Split]()
            for said, number in found.items():
                given = {c: v for c, v in zip(columns, said, strict=True) if c in used}
                splits[self._split_of(given, f"{self.place}, row {number}")] += times[said]
        return {
            split: replace(self, columns=used, split=split, count=count)
            for split, count in splits.items()
        }

    def _split_of(self, said: Mapping[str, Any], place: str) -> Split:
        """Return the split of a row by its words, as the user says or as they do."""
        if self.reading.test_rows is None:
            return split_of_row(said, place)
        column, _, value = self.reading.test_rows.partition("=")
        return "test" if str(said[column]).strip() == value else "train"

    def checked(self) -> Self:
        """Return the shard with the columns whose words must be those of its name."""
        with readable(self.place):
            first = self._first().items()
            said = [c for c, word in first if may_be_split(c) and split_that(c, word) is not None]
        return replace(self, columns=said)

    def _first(self) -> dict[str, Any]:
        """Return the first words of the columns that may say a row's split."""
        asked = {self.reading.label_column, self.reading.natural_column, *LABEL_COLUMNS}
        columns = [
            column
            for column, kind in self.kinds.items()
            if is_word(column, kind) and not {short(column), short(column).lower()} & asked
        ]
        first: dict[str, Any] = {}
        for row in islice(self._read(columns), _FIRST):
            words = {c: first.get(c, word) for c, word in self._words(row, columns).items()}
            first = {column: word for column, word in words.items() if word is not None}
            if len(first) == len(columns):
                break
        return first

    def _read(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Read the rows of some columns, if any."""
        there = self.schema.names  # a table may have a column `json.label` of its own
        stored = dict.fromkeys(column if column in there else "json" for column in columns)
        for row in self.open().read([*stored]) if stored else ():
            fields = row.get("json")
            inner = fields.items() if isinstance(fields, dict) else ()
            yield {f"json.{name}": value for name, value in inner} | row

    def _words(self, row: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
        """Return the values of a row by column, names instead of the numbers of classes."""
        words = {column: row[column] for column in columns}
        for column in self.names.keys() & words.keys():
            if isinstance(words[column], int):
                words[column] = self.names[column][words[column]]
        return words


def short(column: str) -> str:
    """Return the name of a column, or of the field of a `.json` that it is."""
    return column.removeprefix("json.")


def label_of(value: Any, names: tuple[str, ...], place: str) -> int | str:
    """Return a label: its name among `names` if they say more than numbers; `HIDDEN` for none.

    Numbers become names, because another file may have the same names in another order.
    """
    if isinstance(value, str):
        if (text := value.strip()) == str(HIDDEN):
            raise DataError(f"{place}: the label is the text {text!r}; for none, leave it empty")
        return normalize("NFC", text) or HIDDEN
    if value is None or value == HIDDEN:
        return HIDDEN
    label: int = value
    if names == tuple(map(str, range(len(names)))):
        return label
    if not 0 <= label < len(names):
        allowed = f"{HIDDEN} (none), 0..{len(names) - 1}"
        raise DataError(f"{place}: label {label} is out of range; allowed: {allowed}")
    return names[label]


def is_label(kind: Any) -> bool:
    """True for the type of a column that may name classes."""
    import pyarrow as pa

    return str(kind) in ("string", "large_string", "string_view") or pa.types.is_integer(kind)


def is_word(name: str, kind: Any) -> bool:
    """True for the name and type of a column that may say splits; numbers as flags with gaps."""
    import pyarrow as pa

    flag = pa.types.is_boolean(kind) or (pa.types.is_floating(kind) and may_be_split(name))
    return is_label(kind) or bool(flag)


def splits_of_shards(
    shards: Mapping[Split, Sequence[Shard]], name: str, left_out: Sequence[LeftOut] = ()
) -> Splits:
    """Return the training and test images of shards by the split that their names say.

    Where all are of training images, columns may say the splits of the rows; elsewhere they must
    not say another one.
    """
    if set(shards) == {"train"}:
        shards = _divided(shards["train"])
    else:
        reading = next(iter(shards.values()))[0].reading
        if reading.test_column:
            raise DataError(
                f"data.test_rows={reading.test_rows}: names of files in {name} say the splits"
            )
        shards = {split: [each.checked() for each in group] for split, group in shards.items()}
    labelled = shards.get("train", [])
    train = [*labelled, *shards.get("unlabelled", [])]
    if not train:
        raise DataError(f"{name} has no training images; found: {', '.join(sorted(shards))}")
    test, rest = shards.get("test"), shards.get("validation", ())
    of_test = ["test images: those of validation"] if test is None and rest else []
    if test is None:
        test, rest = rest, ()
    counts = [shard.count for shard in rest if shard.count is not None]
    unread = [s.place if s.count is None else f"{s.place} ({s.split})" for s in rest]
    left_out = [*left_out, LeftOut(VALIDATION, unread, rows=sum(counts) if counts else None)]
    # Test images have no clients, and need no column of them.
    test = [replace(s, reading=replace(s.reading, natural_column=None)) for s in test]
    # Names in the order of the first file; those of further files follow.
    names = [
        name
        for shard in labelled or test
        for name in shard.names.get(shard.found().label or "", ())
    ]
    columns = dict.fromkeys(shard.read_as() for shard in (*train[:1], *test[:1]))
    read_as = [*columns, *of_test]
    return Splits(train, test, tuple(dict.fromkeys(names)) or None, left_out, read_as)


def _divided(shards: Sequence[Shard]) -> dict[Split, list[Shard]]:
    divided = [(shard, shard.divided()) for shard in shards]
    by_split: dict[Split, list[Shard]] = {}
    for shard, parts in divided:
        if not parts and any(others for _, others in divided):
            other = next(each.place for each, others in divided if others)
            raise DataError(
                f"a column of {other} says the split of each row, and {shard.place} has none that"
                " does; give all files this column, or none"
            )
        for split, part in (parts or {"train": shard}).items():
            by_split.setdefault(split, []).append(part)
    asked, place = shards[0].reading, shards[0].place
    if asked.test_column is not None and {*by_split} != {"train", "test"}:
        where = "no row" if "test" not in by_split else "every row"
        raise DataError(
            f"data.test_rows={asked.test_rows}: {where} of {place} has this value of"
            f" {asked.test_column!r}"
        )
    return by_split
