"""Parquet, Arrow and tar files in the forms of the Hugging Face Hub, read by its `datasets`."""

import hashlib
import os
import re
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from fedbench.bench.data.cache import first_line
from fedbench.bench.data.sources.base import (
    READS,
    SOURCES,
    Entry,
    PathSource,
    Request,
    Source,
    is_hidden,
)
from fedbench.bench.data.sources.decode import LeftOut, Splits
from fedbench.bench.data.sources.parquet_rows import check_footers, parquet_rows
from fedbench.bench.data.sources.rows import Rows, Shard, splits_of_shards
from fedbench.bench.data.sources.splits import KNOWN, Split, hints_at_split, some, split_of
from fedbench.bench.system.errors import ConfigError, DataError

READERS: Mapping[str, str] = {".arrow": "arrow", ".tar": "webdataset"}
"""Suffix of a file -> the part of `datasets` that reads it."""


def open_file(file: Path) -> Rows:
    """Open a Parquet file or one of `READERS`; nothing is copied."""
    suffix = file.suffix.lower()
    if suffix not in READERS:
        return parquet_rows(file, str(file))
    import glob

    import datasets

    with offline(), TemporaryDirectory() as scratch:  # the library leaves a lock file
        opened = datasets.load_dataset(
            READERS[suffix],
            data_files={"train": [glob.escape(str(file))]},
            split="train",
            streaming=True,
            cache_dir=scratch,
        )
    return rows_of(opened)


def rows_of(dataset: Any) -> Rows:
    """Return the rows of a set of the library, in which images are as they are stored."""
    from datasets import Image

    for column, feature in dataset.features.items():
        if isinstance(feature, Image):
            dataset = dataset.cast_column(column, Image(decode=False))
    schema = dataset.features.arrow_schema
    return Rows(schema, lambda columns: iter(dataset.select_columns(columns)))


@contextmanager
def offline(*, unless: bool = False) -> Iterator[None]:
    """Keep the `datasets` library from the network for a while, unless it may download."""
    import datasets
    import huggingface_hub

    # Each has its own copy of the switch, which `datasets` makes when it is imported.
    places = (datasets.config, huggingface_hub.constants)
    before = [place.HF_HUB_OFFLINE for place in places]
    try:
        for place, set_by_user in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = set_by_user or not unless
        yield
    finally:
        for place, set_by_user in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = set_by_user


NUMBERED = re.compile(r"-(?P<number>\d+)-of-(?P<count>\d+)(?:-[0-9a-f]+)?\.[a-z]+$")
"""End of a shard's name; the Hub puts a hash behind: `train-00000-of-00002-7f0de.parquet`."""


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
        order: tuple[Split, ...] = ("train", "test", "validation", "unlabelled")
        return [file for split in order for file in splits.get(split, [])]

    def splits(self, scratch: Path) -> Splits:
        files = [file for file in self.files() if file.suffix.lower() == ".parquet"]
        check_footers(files, f"{self.kind}:{self.path.name}")
        shards = {
            split: [
                Shard(str(file), partial(open_file, file), self.reading, split) for file in files
            ]
            for split, files in self._splits().items()
        }
        return splits_of_shards(shards, f"{self.kind}:{self.path.name}")

    def _splits(self) -> dict[Split, list[Path]]:
        """Return the files of each split, in order of name."""
        found: list[tuple[Split | None, Path, Path]] = []  # split, folder of its data set, file
        others: Counter[str] = Counter()
        for place, folders, names in os.walk(self.path):
            folders[:] = sorted(f for f in folders if not is_hidden(f))
            for file in sorted(Path(place, name) for name in names if not is_hidden(name)):
                # `map` and `shuffle` of `datasets` leave caches beside what they read.
                if file.suffix.lower() in self.suffixes and not file.name.startswith("cache-"):
                    found.append((*self._split(file), file))
                else:
                    others[file.suffix.lower() or "no ending"] += 1
        if not found:
            listed = some([f"{count} x {ending}" for ending, count in others.most_common()])
            raise DataError(
                f"{self}: no train-*{self.suffixes[0]} at or below it; found: {listed or 'no file'}"
            )
        named = sorted({split for split, _, _ in found if split})
        unnamed = [file for split, _, file in found if not split]
        if named and unnamed:
            rest = some([str(file.relative_to(self.path)) for file in unnamed])
            raise DataError(
                f"{self}: the names of some files say a split ({', '.join(named)}), and of these"
                f" not: {rest}; rename them ({KNOWN}), or move them elsewhere"
            )
        if len(unnamed) > 1 and any(hints_at_split(file.stem) for file in unnamed):
            raise DataError(
                f"{self}: some of these names may be short for a split:"
                f" {some([file.name for file in unnamed])}; rename them ({KNOWN})"
            )
        homes = sorted({str(home) for _, home, _ in found})
        if len(homes) > 1:
            raise DataError(f"{self} holds several data sets; name one of them: {', '.join(homes)}")
        splits: dict[Split, list[Path]] = {}
        for split, _, file in found:
            splits.setdefault(split or "train", []).append(file)
        for files in splits.values():
            _check_numbers(files)
        return splits

    def _split(self, file: Path) -> tuple[Split | None, Path]:
        """Return the split that a file or a folder around it names, and its data set's folder.

        `train/a/0.parquet` is of the set in `a`, as `test/a/0.parquet` is: the split is left out.
        """
        own = split_of(file.stem)
        above = file.relative_to(self.path).parts[:-1]
        for depth in reversed(range(len(above))):
            split = split_of(above[depth], strict=False)
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

    def splits(self, scratch: Path) -> Splits:
        for file in self.files():
            check_samples(file)
        return super().splits(scratch)


_FIRST = 1000  # files that are looked at
_ALIKE = 5  # samples whose kinds of files the reader compares
_MANY = 20  # kinds of files in one sample: names with dots make one sample of all
_NAME = re.compile(r"(?P<sample>(?:.*/)?[^./]+)\.(?P<kind>[^/]+)")
_IMAGES = frozenset({"png", "jpg", "jpeg", "webp", "bmp", "tif", "tiff", "ppm", "pgm", "gif"})


def check_samples(file: Path) -> None:
    """Raise `DataError` unless a tar file is whole, with files of the same kinds in all samples.

    The reader stops in silence where a file is cut off, and says of others neither which file nor
    which rule it broke: one is that `.cls` holds an integer.
    """
    samples: dict[str, dict[str, str]] = {}  # name up to the first dot -> kind -> whole name
    try:
        with tarfile.open(file, "r:") as tar, file.open("rb") as stream:
            members = tar.getmembers()
            stream.seek(tar.offset)
            if stream.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
                raise DataError(f"{file} has no end of archive: it is cut off; copy it again")
            for member in members[:_FIRST]:
                match = _NAME.fullmatch(member.name)
                if match is None or not member.isfile():
                    continue
                samples.setdefault(match["sample"], {})[match["kind"]] = member.name
                label = tar.extractfile(member) if match["kind"] == "cls" else None
                if label and not re.fullmatch(rb"\s*[+-]?\d+\s*", content := label.read(1000)):
                    shown = content.decode(errors="replace")[:40]
                    raise DataError(
                        f"{file}: {member.name} is {shown!r}; .cls holds an integer, .txt text"
                        " labels"
                    )
    except (tarfile.TarError, EOFError) as err:
        raise DataError(f"{file} is damaged or cut off ({first_line(err)}); copy it again") from err
    kinds = [frozenset(sample) for sample in samples.values()]
    images = {frozenset(k for k in of if k.split(".")[-1].lower() in _IMAGES) for of in kinds}
    alike = len({*kinds[:_ALIKE]}) < 2 and len(images - {frozenset()}) < 2
    if alike and all(len(of) <= _MANY for of in kinds):
        return
    names = [name for sample in samples.values() for kind, name in sample.items() if "." in kind]
    if names:
        raise DataError(
            f"{file}: {some(names)}: a sample's name ends at the first dot, and only the ending of"
            " a file may follow; write other dots in another way, such as v1-2_000.png"
        )
    listed = [" and ".join(f".{kind}" for kind in sorted(of)) for of in dict.fromkeys(kinds)]
    raise DataError(
        f"{file}: samples have files of different kinds ({some(listed)}); all need the same, such"
        " as .png and .cls"
    )


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
        shards: dict[Split, list[Shard]] = {}
        unknown = []
        loaded = self._load()
        for split, rows in loaded.items():
            if kind := split_of(split) or ("train" if len(loaded) == 1 else None):
                shard = Shard(f"{name} ({split})", partial(rows_of, rows), reading, kind)
                shards.setdefault(kind, []).append(shard)
            else:
                unknown.append(split)
        if unknown and not {"train", "test"} <= shards.keys():
            known = ", ".join(shards) or "none"
            raise DataError(
                f"{name} has splits that are not known: {some(unknown)} (known: {known}); write"
                " them by save_to_disk under other names, and read hub:PATH"
            )
        return splits_of_shards(shards, name, [LeftOut("a split of another name", unknown)])

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
            if listed := re.search(r"available configs: \[(.*)\]", str(err)):
                names = listed[1].replace("'", "").split(", ")
                raise ConfigError(
                    f"{self.request.name} has several configurations: {some(names)}; name one of"
                    f" them, such as hf:{match['name']}/{names[0]}"
                ) from err
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
