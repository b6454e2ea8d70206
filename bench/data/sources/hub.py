"""`hub:PATH`: the Hugging Face Hub's layout, a folder with train-*.parquet and test-*.parquet."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.bench.data.cache import CacheWriter, first_line
from fedbench.bench.data.sources.base import PathSource
from fedbench.bench.data.sources.decode import Picture, Progress, write_splits
from fedbench.bench.system.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target")
SPLITS = {"train": "train", "test": "test", "validation": "validation", "val": "validation"}
FILE_NAME = re.compile(r"(?P<split>train|test|validation|val)(?:[-_.].*)?\.parquet")
SHARD = re.compile(r"-(?P<number>\d+)-of-(?P<count>\d+)(?:-[0-9a-f]+)?\.parquet$")
ROWS = 512  # rows read at a time


class HubParquet(PathSource):
    """A folder with train-*.parquet and test-*.parquet (else validation-*) at any depth.

    The Hub's converted form train/0000.parquet is read too. Images are a struct {bytes, path} or
    plain bytes in `img` or `image`; labels are integers in `label`, `labels`, `fine_label`, `class`
    or `target`. Class names come from the Hub's schema metadata when it is there.
    """

    kind = "hub"

    def files(self) -> list[Path]:
        """Return the files of both splits."""
        train, test = self._splits()
        return [*train, *test]

    def write(self, writer: CacheWriter, progress: Progress | None) -> tuple[str, ...]:
        """Write the four arrays; returns the class names."""
        train, test = (ParquetPictures(files) for files in self._splits())
        return write_splits(writer, train, test, train.class_names(), progress)

    def _splits(self) -> tuple[list[Path], list[Path]]:
        """Return the files of the training and of the test split, in order of name."""
        sets: dict[Path, dict[str, list[Path]]] = {}
        for place, folders, names in os.walk(self.path):
            folders[:] = sorted(f for f in folders if not f.startswith("."))
            for name in sorted(names):
                folder, split = _split_of(Path(place), name, self.path)
                if split:
                    sets.setdefault(folder, {}).setdefault(split, []).append(Path(place, name))
        if not sets:
            raise DataError(f"hub:{self.path}: no train-*.parquet at or below it")
        if len(sets) > 1:
            listed = ", ".join(map(str, sorted(sets)))
            raise DataError(f"hub:{self.path} holds several data sets; name one of them: {listed}")
        ((folder, splits),) = sets.items()
        test = splits.get("test") or splits.get("validation")
        if "train" not in splits or not test:
            missing = "test-*.parquet (or validation-*.parquet)" if "train" in splits else "train-*"
            raise DataError(f"hub:{self.path}: {folder} has no {missing}; found: {sorted(splits)}")
        for files in (splits["train"], test):
            _check_shards(files)
        return splits["train"], test


@dataclass(frozen=True)
class ParquetPictures:
    """Images of one split, file by file, row by row."""

    files: list[Path]

    def __iter__(self) -> Iterator[Picture]:
        """Yield the pictures in the order of the files.

        Raises:
            DataError: a file is torn, a column is missing, or a value is.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        for file in self.files:
            row = 0
            try:
                with pq.ParquetFile(file) as parquet:
                    image, label = _columns(parquet.schema_arrow, file)
                    for batch in parquet.iter_batches(ROWS, columns=[image, label]):
                        images: Any = batch.column(batch.schema.get_field_index(image))
                        if pa.types.is_struct(images.type):
                            images = images.field("bytes")
                        labels = batch.column(batch.schema.get_field_index(label)).to_pylist()
                        for data, value in zip(images.to_pylist(), labels, strict=True):
                            if data is None or value is None:
                                what = "label" if value is None else "image bytes"
                                raise DataError(f"{file}, row {row}: no {what}")
                            yield Picture(file, value, row, data)
                            row += 1
            except (pa.ArrowException, OSError) as err:
                raise _unreadable(file, row, err) from err

    def class_names(self) -> tuple[str, ...] | None:
        """Return the class names of the Hub's schema metadata, or None."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            schema = pq.read_schema(self.files[0])
        except (pa.ArrowException, OSError) as err:
            raise _unreadable(self.files[0], 0, err) from err
        _, label = _columns(schema, self.files[0])
        try:
            metadata = json.loads((schema.metadata or {})[b"huggingface"])
            names = metadata["info"]["features"][label]["names"]
        except (KeyError, TypeError, ValueError, RecursionError):
            return None  # the key is optional, and so is every part of it
        return tuple(map(str, names)) if isinstance(names, list) and names else None


def _split_of(folder: Path, name: str, root: Path) -> tuple[Path, str | None]:
    """Return the folder of a file's data set and its split; None for a file of no split."""
    if match := FILE_NAME.fullmatch(name):
        return folder, SPLITS[match["split"]]
    if name.endswith(".parquet") and folder.name in SPLITS and folder != root:
        return folder.parent, SPLITS[folder.name]
    return folder, None


def _check_shards(files: list[Path]) -> None:
    """Raise `DataError` unless the numbers in the names make one complete set."""
    shards = [match for file in files if (match := SHARD.search(file.name))]
    if not shards:
        return
    counts = {int(match["count"]) for match in shards}
    numbers = sorted(int(match["number"]) for match in shards)
    if len(counts) > 1 or numbers != list(range(counts.pop())):
        raise DataError(
            f"{files[0].parent}: the shards do not make one whole split:"
            f" {', '.join(file.name for file in files[:6])}{' …' if len(files) > 6 else ''}"
        )


def _columns(schema: pa.Schema, file: Path) -> tuple[str, str]:
    """Names of the image and of the label column."""
    import pyarrow as pa

    def is_bytes(kind: Any) -> bool:
        return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))

    def is_image(kind: Any) -> bool:
        if pa.types.is_struct(kind):
            return any(f.name == "bytes" and is_bytes(f.type) for f in kind.fields)
        return is_bytes(kind)

    kinds = {field.name: field.type for field in schema}
    image = next((n for n in IMAGE_COLUMNS if n in kinds and is_image(kinds[n])), None)
    label = next((n for n in LABEL_COLUMNS if n in kinds and pa.types.is_integer(kinds[n])), None)
    if image is None or label is None:
        columns = ", ".join(f"{name}: {kind}" for name, kind in kinds.items())
        raise DataError(
            f"{file}: needed are an image column ({' or '.join(IMAGE_COLUMNS)}: struct of bytes and"
            f" path) and an integer label column ({', '.join(LABEL_COLUMNS)}); found: {columns}"
        )
    return image, label


def _unreadable(file: Path, row: int, err: BaseException) -> DataError:
    return DataError(f"{file} cannot be read as Parquet at or after row {row} ({first_line(err)})")
