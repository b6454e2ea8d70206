"""Releases: all rows of a store in one Parquet file."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedbench.bench.board.changes import Change, changes, changes_text
from fedbench.bench.board.description import Description
from fedbench.bench.results.store.released import CURVE, CURVE_MEANING, RELEASE, SUMS, pack
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.schema import ROW_SCHEMA
from fedbench.bench.results.store.store import Store, open_store
from fedbench.bench.system.errors import ConfigError, StoreError
from fedbench.bench.system.files import atomic_write_bytes, write_error

_TITLE = "fedbench results: federated representation learning without labels"
_USE = """\
```sh
sha256sum --check SHA256SUMS
fedbench leaderboard --store {file}
```

```python
import pandas as pd

rows = pd.read_parquet("{file}")
```
"""
_ORIGIN = """\
Each row is one run of fedbench. `config_json` and the data of `dataset_revision` determine its
numbers to the last bit on one numeric platform (`platform`); `fedbench reproduce` repeats it.
`git_sha` names the code."""


@dataclass(frozen=True)
class Released:
    """A release that was written.

    Attributes:
        methods: method specs, sorted.
        sha256, num_bytes: of the Parquet file.
        against: version or file of the release that it was compared with.
        changes: ranks that differ between the two.
    """

    folder: Path
    version: str
    files: tuple[str, ...]
    num_rows: int
    methods: tuple[str, ...]
    sha256: str
    num_bytes: int
    against: str | None
    changes: tuple[Change, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the output of `fedbench release --json`."""
        return {**asdict(self), "folder": str(self.folder)}


def release(
    folder: Path | str,
    store: Store | Path | str | None = None,
    *,
    version: str,
    against: Store | Path | str | None = None,
) -> Released:
    """Write a release of all rows of a store with their curves.

    Equal stores give equal bytes.

    Args:
        folder: new or empty folder.
        store: see `open_store`.
        version: of the release, such as `2026.11`; letters, digits, dots and hyphens.
        against: an earlier release or a store; ranks that differ are listed with their causes.

    Raises:
        ConfigError: for a bad version, a folder that is not empty, or a store without rows.
        StoreError: for a store with files that cannot be read, or a folder that cannot be written.
    """
    folder = Path(folder).expanduser()
    if not version.replace(".", "").replace("-", "").isalnum():
        raise ConfigError(
            f"--version must be letters, digits, dots and hyphens, as 2026.11 (got {version!r})"
        )
    try:
        used = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as err:  # a name that is too long, say
        raise write_error(folder, err) from err
    if used:
        raise ConfigError(f"{str(folder)!r} is not an empty folder; name a new one")
    store = open_store(store).require()
    rows = store.rows()
    if problems := store.problems():
        raise StoreError(f"{problems[0]}; `fedbench verify` lists all damaged files")
    if not rows:
        raise ConfigError(f"there is no run in store {str(store.root)!r}; nothing to release")
    runs = [(row, store.curve(store.key(row))) for row in rows]
    data, described = pack(runs, version), _whole(rows, version)
    found: tuple[Change, ...] = ()
    files = {described.file: data}
    if against is not None:
        found = changes(open_store(against).require().rows(), rows)
        files["CHANGES.md"] = changes_text(found, str(against), version).encode()
    digest = _sha256(data)
    files |= described.files(digest, len(data))
    sums = "".join(f"{_sha256(files[name])}  {name}\n" for name in sorted(files))
    files[SUMS] = sums.encode()
    for name, content in files.items():
        atomic_write_bytes(folder / name, content)
    return Released(
        folder=folder,
        version=version,
        files=tuple(sorted(files)),
        num_rows=len(described.rows),
        methods=tuple(sorted({row.method for row in described.rows})),
        sha256=digest,
        num_bytes=len(data),
        against=None if against is None else str(against),
        changes=found,
    )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _whole(rows: Sequence[Row], version: str) -> Description:
    meaning = {"doc": CURVE_MEANING, "unit": "json"}
    return Description(
        name="fedbench-results",
        title=_TITLE,
        version=version,
        file=RELEASE,
        records="runs",
        line="run",
        holds="configuration, label-free scores, accuracy of probes, traffic, time, and a record of"
        " every round",
        origin=_ORIGIN,
        schema=ROW_SCHEMA.append(pa.field(CURVE, pa.string(), metadata=meaning)),
        rows=rows,
        use=_USE.format(file=RELEASE),
    )
