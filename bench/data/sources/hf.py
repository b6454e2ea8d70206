"""`hf:OWNER/NAME`: a data set of the Hugging Face Hub, through the `datasets` library."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedbench.bench.data.cache import CacheWriter, first_line
from fedbench.bench.data.reading import PLAIN, Reading
from fedbench.bench.data.sources.decode import Progress
from fedbench.bench.data.sources.hub import SPLITS, write_tables
from fedbench.bench.data.sources.tables import ROWS, Table
from fedbench.bench.system.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

NAME = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(?:/(?P<config>[\w.-]+))?(?:@(?P<revision>[\w./-]+))?")


@dataclass(frozen=True)
class HubName:
    """A data set by its name on the Hub: OWNER/NAME, OWNER/NAME/CONFIG, either with @REVISION.

    `fedbench data prepare` may download it; otherwise the library reads its own cache offline.
    """

    text: str
    reading: Reading = PLAIN
    command: str = ""
    download: bool = False
    kind: ClassVar[str] = "hf"

    def __post_init__(self) -> None:
        """Check the form of the name."""
        if not NAME.fullmatch(self.text):
            raise ConfigError(
                f"data set hf:{self.text}: needed is hf:OWNER/NAME, hf:OWNER/NAME/CONFIG, or either"
                " with @REVISION"
            )

    @property
    def key(self) -> str:
        """Name of the cache folder."""
        slug = re.sub(r"[^a-z0-9]+", "-", self.text.lower()).strip("-")[:60]
        return f"hf-{slug}-{hashlib.sha256(self.text.encode()).hexdigest()[:12]}"

    def identity(self) -> str:
        """Return the name: a set that is in the cache is not looked up again."""
        return f"hf/{self.text}"

    def require(self) -> None:
        """Raise `DataError` with the remedy when the library is not there."""
        try:
            import datasets  # noqa: F401
        except ImportError as err:
            raise DataError(
                f"hf:{self.text} needs the library `datasets` ({first_line(err)}); run: pip install"
                " 'fedbench-ssl[hub]', or give a folder of Parquet files: hub:PATH"
            ) from err

    def write(self, writer: CacheWriter, progress: Progress | None) -> tuple[str, ...]:
        """Write the arrays; returns the class names."""
        splits: dict[str, list[Table]] = {}
        for name, split in self._load().items():
            if name in SPLITS:
                table = LibraryTable(Path(f"hf:{self.text} ({name})"), split)
                splits.setdefault(SPLITS[name], []).append(table)
        if not {"train", "unlabelled"} & set(splits):
            raise DataError(f"hf:{self.text} has no split called train")
        chosen = {
            "train": splits.get("train", []),
            "test": splits.get("test") or splits.get("validation") or [],
            "unlabelled": splits.get("unlabelled", []),
        }
        return write_tables(writer, chosen, f"hf:{self.text}", self.reading, progress)

    def _load(self) -> Mapping[str, Any]:
        import datasets

        match = NAME.fullmatch(self.text)
        assert match is not None  # as checked when it was made
        try:
            with _offline(not self.download):
                found: Mapping[str, Any] = datasets.load_dataset(
                    match["name"], match["config"], revision=match["revision"]
                )
        except Exception as err:  # the library raises those of every format and of the network
            remedy = "" if self.download else f"; if it is not downloaded yet, run: {self.command}"
            raise DataError(f"hf:{self.text} cannot be loaded ({first_line(err)}){remedy}") from err
        return found


@contextmanager
def _offline(offline: bool) -> Iterator[None]:
    """Keep the `datasets` library from the network for a while."""
    import datasets
    import huggingface_hub

    places = (datasets.config, huggingface_hub.constants)
    before = [place.HF_HUB_OFFLINE for place in places]
    try:
        for place, set_by_user in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = set_by_user or offline
        yield
    finally:
        for place, set_by_user in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = set_by_user


@dataclass(frozen=True, eq=False)
class LibraryTable:
    """A split as the `datasets` library gives it."""

    path: Path
    split: Any = field(repr=False)

    def schema(self) -> pa.Schema:
        """Return its schema with the Hub's metadata."""
        schema: pa.Schema = self.split.features.arrow_schema
        return schema

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield its rows; images that the library keeps as files are read."""
        from datasets.table import embed_table_storage

        chosen = self.split.select_columns(list(columns)).with_format("arrow")
        for table in chosen.iter(ROWS):
            yield from embed_table_storage(table).combine_chunks().to_batches()
