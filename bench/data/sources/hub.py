"""`hub:PATH`: a data set of the Hugging Face Hub as a folder of Parquet or Arrow files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from fedbench.bench.data.cache import CacheWriter
from fedbench.bench.data.reading import Reading
from fedbench.bench.data.sources.base import UNLABELLED, PathSource
from fedbench.bench.data.sources.decode import Progress, hold_out, write_splits
from fedbench.bench.data.sources.tables import Table, TablePictures, table_of, texts_of
from fedbench.bench.system.errors import DataError

SPLITS = {
    "train": "train",
    "test": "test",
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(UNLABELLED, "unlabelled"),
}
FILE_NAME = re.compile(rf"(?P<split>{'|'.join(SPLITS)})(?:[-_.].*)?\.parquet")
SHARD = re.compile(r"-(?P<number>\d+)-of-(?P<count>\d+)(?:-[0-9a-f]+)?\.(?:parquet|arrow)$")
STATE = "state.json"


class HubFolder(PathSource):
    """A folder with train-*.parquet and test-*.parquet (else validation-*) at any depth.

    The Hub's converted form train/0000.parquet is read too, and so is a folder that the `datasets`
    library's `save_to_disk` wrote. Images are a struct {bytes, path} or plain bytes in `img` or
    `image`. Labels are integers, text, or lists of one of these, in `data.label_column`, else in
    `label`, `labels`, `fine_label`, `class` or `target`, else in the only other column of such a
    kind; -1 and null are none. Class names come from the Hub's schema metadata when it is there;
    text is sorted. Without a test split one image of six is held out by its content.
    """

    kind = "hub"

    def files(self) -> list[Path]:
        """Return the files of all splits."""
        return [file for files in self._splits().values() for file in files]

    def write(self, writer: CacheWriter, progress: Progress | None) -> tuple[str, ...]:
        """Write the arrays; returns the class names."""
        tables = {
            split: [table_of(file) for file in files] for split, files in self._splits().items()
        }
        return write_tables(writer, tables, f"hub:{self.path.name}", self.reading, progress)

    def _splits(self) -> dict[str, list[Path]]:
        """Return the files of the splits train, test and unlabelled, in order of name."""
        sets: dict[Path, dict[str, list[Path]]] = {}
        for place, folders, names in os.walk(self.path):
            folders[:] = sorted(f for f in folders if not f.startswith("."))
            if STATE in names:
                folder, split, files = _saved(Path(place))
                if split:
                    sets.setdefault(folder, {})[split] = files
                continue
            for name in sorted(names):
                folder, split = _split_of(Path(place), name, self.path)
                if split:
                    sets.setdefault(folder, {}).setdefault(split, []).append(Path(place, name))
        if not sets:
            raise DataError(f"hub:{self.path}: no train-*.parquet and no {STATE} at or below it")
        if len(sets) > 1:
            listed = ", ".join(map(str, sorted(sets)))
            raise DataError(f"hub:{self.path} holds several data sets; name one of them: {listed}")
        ((folder, splits),) = sets.items()
        if not {"train", "unlabelled"} & set(splits):
            raise DataError(f"hub:{self.path}: {folder} has no train-*; found: {sorted(splits)}")
        chosen = {
            "train": splits.get("train", []),
            "test": splits.get("test") or splits.get("validation") or [],
            "unlabelled": splits.get("unlabelled", []),
        }
        for files in chosen.values():
            _check_shards(files)
        return chosen


def write_tables(
    writer: CacheWriter,
    tables: Mapping[str, list[Table]],
    name: str,
    reading: Reading,
    progress: Progress | None,
) -> tuple[str, ...]:
    """Write the splits train, test and unlabelled of a data set; returns the class names."""
    texts = texts_of([*tables["train"], *tables["test"]], reading)
    train = TablePictures(tables["train"], texts, reading, tables["unlabelled"])
    names = train.class_names()
    if tables["test"]:
        # No client of a test image is asked for.
        test = TablePictures(tables["test"], texts, reading.without_clients())
        return write_splits(writer, train, test, names, progress)
    parts = hold_out(train, name)
    return write_splits(writer, *parts, names, progress)


def _saved(folder: Path) -> tuple[Path, str | None, list[Path]]:
    """Return the data set, the split and the files of a folder that `save_to_disk` wrote."""
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        files = [folder / file["filename"] for file in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise DataError(f"{folder / STATE} is not of the `datasets` library ({err!r})") from err
    for file in files:
        if not file.is_file() or file.parent != folder:
            raise DataError(f"{folder / STATE} names {file.name}, which is not there")
    if (folder.parent / "dataset_dict.json").is_file():
        return folder.parent, SPLITS.get(folder.name), files
    return folder, "train", files


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
