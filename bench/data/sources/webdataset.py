"""`webdataset:PATH`: tar shards in the layout of the WebDataset library."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from fedbench.bench.data.cache import CacheWriter, first_line
from fedbench.bench.data.labels import HIDDEN
from fedbench.bench.data.reading import PLAIN, Reading
from fedbench.bench.data.sources.base import IMAGE_SUFFIXES, PathSource
from fedbench.bench.data.sources.decode import Picture, Progress, hold_out, write_splits
from fedbench.bench.data.sources.hub import SPLITS
from fedbench.bench.data.sources.tables import LABEL_COLUMNS
from fedbench.bench.system.errors import DataError

FILE_NAME = re.compile(rf"(?P<split>{'|'.join(SPLITS)})(?:[-_.].*)?\.tar")


class Sample(NamedTuple):
    """Files of one shard that share a name: by extension, in lower case."""

    shard: Path
    number: int
    name: str
    files: Mapping[str, bytes]

    @property
    def place(self) -> str:
        """Shard and name, for messages."""
        return f"{self.shard}, sample {self.name}"


class WebDataset(PathSource):
    """Shards `train-000000.tar`, `test-000000.tar` (else `val-…`), `unlabelled-…`, or any names.

    A sample is the files of one name up to the first dot: an image, and its label in `.cls`, `.txt`
    or a field of `.json`: `data.label_column`, else `label`, `labels`, `fine_label`, `class` or
    `target`. Labels are integers or text, -1 or none for an image without one. Shards without a
    split in their names are training images, of which one of six is held out.
    """

    kind = "webdataset"

    def files(self) -> list[Path]:
        """Return the shards of all splits."""
        return [shard for shards in self._splits().values() for shard in shards]

    def write(self, writer: CacheWriter, progress: Progress | None) -> tuple[str, ...]:
        """Write the arrays; returns the class names."""
        splits, reading = self._splits(), self.reading
        texts = self._texts([*splits["train"], *splits["test"]])
        train = ShardPictures([*splits["train"], *splits["unlabelled"]], texts, reading)
        names = tuple(texts) or None
        if splits["test"]:
            test = ShardPictures(splits["test"], texts, reading.without_clients())
            return write_splits(writer, train, test, names, progress)
        return write_splits(
            writer, *hold_out(train, f"webdataset:{self.path.name}"), names, progress
        )

    def _splits(self) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {"train": [], "test": [], "validation": [], "unlabelled": []}
        shards = sorted(f for f in self.path.rglob("*.tar") if f.name[0] != ".")
        for shard in shards:
            match = FILE_NAME.fullmatch(shard.name)
            parent = shard.parent.name if shard.parent != self.path else ""
            found[SPLITS[match["split"]] if match else SPLITS.get(parent, "train")].append(shard)
        if not found["train"] and not found["unlabelled"]:
            raise DataError(f"webdataset:{self.path}: no train-*.tar at or below it")
        validation = found.pop("validation")
        return {**found, "test": found["test"] or validation}

    def _texts(self, shards: list[Path]) -> dict[str, int]:
        """Number labels that are text in their order; empty if all are integers."""
        labels = {label_of(s, self.reading) for shard in shards for s in samples(shard)} - {None}
        if not any(isinstance(label, str) for label in labels):
            return {}
        return {word: number for number, word in enumerate(sorted(map(str, labels)))}


@dataclass(frozen=True)
class ShardPictures:
    """Images of one split, shard by shard.

    Attributes:
        shards: in order; those called unlabelled have no labels.
        texts: class by label, where labels are text.
        reading: fields of the label and of the client.
    """

    shards: list[Path]
    texts: Mapping[str, int] = field(default_factory=dict)
    reading: Reading = PLAIN

    def __iter__(self) -> Iterator[Picture]:
        """Yield the pictures in the order of the shards."""
        for shard in self.shards:
            for sample in samples(shard):
                images = [
                    data for kind, data in sample.files.items() if f".{kind}" in IMAGE_SUFFIXES
                ]
                if len(images) != 1:
                    raise DataError(f"{sample.place} has {len(images)} images; needed: one")
                label = label_of(sample, self.reading)
                if label is not None and self.texts:
                    label = self.texts[str(label)]
                client = None
                if (column := self.reading.client_column) is not None:
                    client = _fields(sample).get(column)
                    if not isinstance(client, (str, int)):
                        raise DataError(
                            f"data.natural_column={column}: {sample.place} has no such field of"
                            f" integers or text in its .json; found: {', '.join(_fields(sample))}"
                        )
                yield Picture(
                    shard, HIDDEN if label is None else int(label), sample.number, images[0], client
                )


def samples(shard: Path) -> Iterator[Sample]:
    """Yield the samples of a shard in order.

    Raises:
        DataError: it is no tar file, or torn.
    """
    number, name, files = 0, None, dict[str, bytes]()
    try:
        with tarfile.open(shard) as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                if not member.isfile() or path.name[0] == ".":
                    continue
                base, _, kind = path.name.partition(".")
                key = str(path.with_name(base))
                if key != name:
                    if name is not None:
                        yield Sample(shard, number, name, files)
                        number += 1
                    name, files = key, {}
                content = tar.extractfile(member)
                assert content is not None  # of a regular file
                files[kind.lower()] = content.read()
    except (tarfile.TarError, OSError, EOFError) as err:
        raise DataError(f"{shard} cannot be read as a tar file ({first_line(err)})") from err
    if name is not None:
        yield Sample(shard, number, name, files)


def label_of(sample: Sample, reading: Reading) -> int | str | None:
    """Return a sample's label, None for none.

    Raises:
        DataError: it has no field of that name, or one of another kind.
    """
    match = FILE_NAME.fullmatch(sample.shard.name)
    if match and SPLITS[match["split"]] == "unlabelled":
        return None
    value: Any = None
    if (wanted := reading.label_column) is not None:
        fields = _fields(sample)
        if wanted not in fields:
            raise DataError(
                f"data.label_column={wanted}: {sample.place} has no such field in its .json; found:"
                f" {', '.join(fields)}"
            )
        value = fields[wanted]
    elif text := next(
        (sample.files[kind] for kind in ("cls", "txt") if kind in sample.files), None
    ):
        value = text.decode(errors="replace").strip()
        value = int(value) if re.fullmatch(r"-?\d{1,9}", value) else value
    else:
        fields = _fields(sample)
        value = next((fields[name] for name in LABEL_COLUMNS if name in fields), None)
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, str))):
        raise DataError(f"{sample.place}: label {value!r} is neither a whole number nor text")
    return value


def _fields(sample: Sample) -> Mapping[str, Any]:
    try:
        fields = json.loads(sample.files.get("json", b"{}"))
    except (ValueError, RecursionError) as err:
        raise DataError(f"{sample.place}: its .json cannot be read ({err})") from err
    return fields if isinstance(fields, dict) else {}
