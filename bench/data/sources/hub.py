"""`hub:PATH`: the Hugging Face Hub's layout, a folder with train-*.parquet and test-*.parquet."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.bench.data.cache import CacheWriter, first_line
from fedbench.bench.data.sources.base import PathSource
from fedbench.bench.data.sources.decode import HELD_OUT, Part, Picture, Progress, write_splits
from fedbench.bench.system.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

LOGGER = logging.getLogger(__name__)

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target")
SPLITS = {
    "train": "train",
    "test": "test",
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
}
FILE_NAME = re.compile(rf"(?P<split>{'|'.join(SPLITS)})(?:[-_.].*)?\.parquet")
SHARD = re.compile(r"-(?P<number>\d+)-of-(?P<count>\d+)(?:-[0-9a-f]+)?\.parquet$")
ROWS = 512  # rows read at a time


class HubParquet(PathSource):
    """A folder with train-*.parquet and test-*.parquet (else validation-*) at any depth.

    The Hub's converted form train/0000.parquet is read too. Images are a struct {bytes, path} or
    plain bytes in `img` or `image`. Labels are integers, text, or lists of one of these, in
    `label`, `labels`, `fine_label`, `class` or `target`, else in the only other column of such a
    kind. Class names come from the Hub's schema metadata when it is there; text is sorted. Without
    a test split one image of six is held out by its content.
    """

    kind = "hub"

    def files(self) -> list[Path]:
        """Return the files of both splits."""
        train, test = self._splits()
        return [*train, *test]

    def write(self, writer: CacheWriter, progress: Progress | None) -> tuple[str, ...]:
        """Write the four arrays; returns the class names."""
        train_files, test_files = self._splits()
        texts = _texts([*train_files, *test_files])
        train = ParquetPictures(train_files, texts)
        names = train.class_names()
        if test_files:
            test = ParquetPictures(test_files, texts)
            return write_splits(writer, train, test, names, progress)
        LOGGER.warning(
            "hub:%s has no test split: one image of %d, by its content, is a test image",
            self.path.name,
            HELD_OUT,
        )
        return write_splits(writer, Part(train, False), Part(train, True), names, progress)

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
        test = splits.get("test") or splits.get("validation") or []
        if "train" not in splits:
            raise DataError(f"hub:{self.path}: {folder} has no train-*; found: {sorted(splits)}")
        for files in (splits["train"], test):
            _check_shards(files)
        return splits["train"], test


@dataclass(frozen=True)
class ParquetPictures:
    """Images of one split, file by file, row by row.

    Attributes:
        files: in order.
        texts: class by label, where labels are text.
    """

    files: list[Path]
    texts: Mapping[str, int] = field(default_factory=dict)

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
                            single = _single(value, file, row)
                            number = self.texts[single] if isinstance(single, str) else single
                            yield Picture(file, number, row, data)
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
        if self.texts:
            return tuple(self.texts)
        try:
            metadata = json.loads((schema.metadata or {})[b"huggingface"])
            names = metadata["info"]["features"][label]["names"]
        except (KeyError, TypeError, ValueError, RecursionError):
            return None  # the key is optional, and so is every part of it
        return tuple(map(str, names)) if isinstance(names, list) and names else None


def _texts(files: Sequence[Path]) -> dict[str, int]:
    """Number the labels of all files in order of their text; empty if labels are integers."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names: set[str] = set()
    for file in files:
        try:
            with pq.ParquetFile(file) as parquet:
                _, label = _columns(parquet.schema_arrow, file)
                if not _is_label(parquet.schema_arrow.field(label).type, text=True):
                    continue
                values = parquet.read(columns=[label]).column(0).to_pylist()
        except (pa.ArrowException, OSError) as err:
            raise _unreadable(file, 0, err) from err
        for row, value in enumerate(values):
            if value is not None:
                names.add(str(_single(value, file, row)))
    return {name: number for number, name in enumerate(sorted(names))}


def _single(value: Any, file: Path, row: int) -> Any:
    """Return a label, or the only one of a list."""
    if not isinstance(value, list):
        return value
    if len(value) != 1 or value[0] is None:
        raise DataError(f"{file}, row {row}: {len(value)} labels in a list; allowed: one")
    return value[0]


def _is_label(kind: Any, *, text: bool | None = None) -> bool:
    """True for integers and text, or lists of these; `text` asks for text alone."""
    import pyarrow as pa

    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = kind.value_type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    is_text = bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
    return is_text if text else is_text or bool(pa.types.is_integer(kind))


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
    fitting = [name for name, kind in kinds.items() if name != image and _is_label(kind)]
    label = next((name for name in LABEL_COLUMNS if name in fitting), None)
    if label is None and len(fitting) == 1:
        (label,) = fitting
    if image is None or label is None:
        columns = ", ".join(f"{name}: {kind}" for name, kind in kinds.items())
        raise DataError(
            f"{file}: needed are an image column ({' or '.join(IMAGE_COLUMNS)}: struct of bytes and"
            f" path) and a label column ({', '.join(LABEL_COLUMNS)}, or the only other one of"
            f" integers or text); found: {columns}"
        )
    return image, label


def _unreadable(file: Path, row: int, err: BaseException) -> DataError:
    return DataError(f"{file} cannot be read as Parquet at or after row {row} ({first_line(err)})")
