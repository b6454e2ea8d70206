"""Data sets in the forms of the Hugging Face Hub: Parquet, Arrow and tar files, and its names."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from fedbench.bench.data.cache import first_line
from fedbench.bench.data.sources.base import (
    SOURCES,
    SPLIT_NAMES,
    Entry,
    PathSource,
    Request,
    Source,
)
from fedbench.bench.data.sources.decode import Splits
from fedbench.bench.data.sources.huggingface import Shard, Shards, offline, open_file, splits_of
from fedbench.bench.system.errors import ConfigError, DataError

FILE_NAME = re.compile(rf"(?P<split>{'|'.join(SPLIT_NAMES)})(?:[-_.].*)?\.[a-z]+")
NUMBERED = re.compile(r"-(?P<number>\d+)-of-(?P<count>\d+)(?:-[0-9a-f]+)?\.[a-z]+$")


class HubFolder(PathSource):
    """A folder with train-*.parquet and test-*.parquet (else validation-*) at any depth.

    The Hub's converted form train/0000.parquet is read too, and so is a folder that the `datasets`
    library's `save_to_disk` wrote; files that name no split are training images where no file names
    one. Images are a struct {bytes, path} or plain bytes in `img` or `image`, or in the only such
    column. Labels are integers, text, or lists of one of these, in `data.label_column`, else in
    `label`, `labels`, `fine_label`, `class` or `target`, else in the only other column of such a
    kind; -1 and null are none. Class names come from the set's features; text is sorted. Without a
    test split one image of six is held out by its content.
    """

    kind = "hub"
    suffixes: ClassVar[tuple[str, ...]] = (".parquet", ".arrow")

    def files(self) -> list[Path]:
        """Return the files of all splits."""
        splits = self._splits()
        order = dict.fromkeys(SPLIT_NAMES.values())
        return [file for split in order for file in splits.get(split, [])]

    def splits(self, scratch: Path) -> Splits:
        """Return the images of both splits."""
        shards: Shards = {
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
        return splits_of(shards, f"{self.kind}:{self.path.name}")

    def _splits(self) -> dict[str, list[Path]]:
        """Return the files of each split, in order of name."""
        named: dict[Path, dict[str, list[Path]]] = {}
        unnamed: dict[Path, dict[str, list[Path]]] = {}
        for place, folders, names in os.walk(self.path):
            folders[:] = sorted(f for f in folders if not f.startswith("."))
            for file in sorted(Path(place, name) for name in names if name[0] != "."):
                if file.suffix not in self.suffixes:
                    continue
                match = FILE_NAME.fullmatch(file.name)
                of_folder = SPLIT_NAMES.get(file.parent.name) if file.parent != self.path else None
                if match:
                    sets, folder, split = named, file.parent, SPLIT_NAMES[match["split"]]
                elif of_folder:
                    sets, folder, split = named, file.parent.parent, of_folder
                else:
                    sets, folder, split = unnamed, file.parent, "train"
                sets.setdefault(folder, {}).setdefault(split, []).append(file)
        sets = named or unnamed
        if not sets:
            raise DataError(f"{self.kind}:{self.path}: no train-*{self.suffixes[0]} at or below it")
        if len(sets) > 1:
            listed = ", ".join(map(str, sorted(sets)))
            raise DataError(
                f"{self.kind}:{self.path} holds several data sets; name one of them: {listed}"
            )
        (splits,) = sets.values()
        for files in splits.values():
            _check_numbers(files)
        return splits


class WebDataset(HubFolder):
    """Shards `train-000000.tar`, `test-000000.tar` (else `val-…`), `unlabelled-…`, or any names.

    A sample is the files of one name up to the first dot: an image, and its label in `.cls` as an
    integer, in `.txt` as text or in a field of `.json`: `data.label_column`, else `label`,
    `labels`, `fine_label`, `class` or `target`. All samples have files of the same kinds; -1 or
    none is an image without a label. Shards without a split in their names are training images, of
    which one of six is held out.
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

    Raises:
        ConfigError: the name has another form.
    """

    request: Request

    def __post_init__(self) -> None:
        """Check the form of the name."""
        if not HUB_NAME.fullmatch(self.request.name):
            raise ConfigError(
                f"data set {self.request.name}: needed is hf:OWNER/NAME, hf:OWNER/NAME/CONFIG, or"
                " either with @REVISION"
            )

    @property
    def key(self) -> str:  # type: ignore[override]
        """Name of the cache folder."""
        text = self.request.name.removeprefix("hf:")
        slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60]
        return f"hf-{slug}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def identity(self) -> str:
        """Return the name: a set that is in the cache is not looked up again."""
        return f"hf/{self.request.name.removeprefix('hf:')}"

    def splits(self, scratch: Path) -> Splits:
        """Return the images of both splits."""
        name, reading, shards = self.request.name, self.request.reading, Shards()
        for split, rows in self._load().items():
            if kind := SPLIT_NAMES.get(split):
                labelled = kind != "unlabelled"
                shard = Shard(f"{name} ({split})", partial(_same, rows), reading, labelled, True)
                shards.setdefault(kind, []).append(shard)
        return splits_of(shards, name)

    def _load(self) -> Mapping[str, Any]:
        import datasets

        match = HUB_NAME.fullmatch(self.request.name)
        assert match is not None  # as checked when it was made
        download = self.request.download
        try:
            with offline(unless=download):
                found: Mapping[str, Any] = datasets.load_dataset(
                    match["name"], match["config"], revision=match["revision"]
                )
        except Exception as err:  # the library raises those of every format and of the network
            remedy = f"; if it is not downloaded yet, run: {self.request.command}"
            raise DataError(
                f"{self.request.name} cannot be loaded ({first_line(err)})"
                f"{'' if download else remedy}"
            ) from err
        return found


def _same(rows: Any) -> Any:
    return rows


SOURCES["hub:PATH"] = Entry(
    HubFolder.make, "a folder of Parquet files, or one that save_to_disk wrote", has_columns=True
)
SOURCES["webdataset:PATH"] = Entry(WebDataset.make, "a folder of tar shards", has_columns=True)
SOURCES["hf:OWNER/NAME"] = Entry(HubName, has_columns=True)
