"""Releases: all rows of a store, or the runs of a grid as a table, in one Parquet file."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedbench.bench.board.changes import Change, changes, changes_text
from fedbench.bench.board.description import Description
from fedbench.bench.evaluation.objectives.of_clients import OF_CLIENTS
from fedbench.bench.evaluation.objectives.registry import objectives
from fedbench.bench.results.search_table import Run, choose, search_table
from fedbench.bench.results.store.checked import SUMS
from fedbench.bench.results.store.released import CURVE, CURVE_MEANING, RELEASE, pack
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.schema import ROW_SCHEMA, table_bytes
from fedbench.bench.results.store.store import Store, open_store
from fedbench.bench.system.errors import ConfigError, StoreError
from fedbench.bench.system.files import atomic_write_bytes

_TITLE = "fedbench results: federated representation learning without labels"
_TABLE_TITLE = "fedbench table of {name}: hyperparameters of federated learning without labels"
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
_USE_TABLE = """\
```sh
sha256sum --check SHA256SUMS
```

```python
import pandas as pd

lines = pd.read_parquet("{file}")
last = lines.groupby("row_id").tail(1)
```

A line is a run after a round at which it was measured; round 0 is the encoder before training.
Columns such as `client.lr` are settings, empty where a method has no such setting; settings that
all runs of a method share are in the metadata of the file (`fedbench.settings`). Label-free scores
and accuracies (`*_acc`) are of the line's round, costs are from the start to this round.
"""
_TABLE_ORIGIN = """\
Each line is of a run of fedbench, which `row_id` names; the store that the table was made from has
its whole row. `fedbench.table` in the metadata of the file says which columns are settings, how
the runs were measured (`measured_by`), and on which images (`dataset_revision`)."""


@dataclass(frozen=True)
class Released:
    """A release that was written.

    Attributes:
        folder: where it lies.
        version: of the release.
        files: their names.
        num_rows: rows in it.
        methods: method specs, sorted.
        sha256: of the Parquet file.
        num_bytes: its size.
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
    table: str | None = None,
    row_ids: Collection[str] | None = None,
) -> Released:
    """Write a release; see `fedbench.release`, `row_ids` are the runs of the grid `table`."""
    folder = Path(folder).expanduser()
    if not version or not version.replace(".", "").replace("-", "").isalnum():
        raise ConfigError(
            "--version must be letters, digits, dots and hyphens, such as 2026.11"
            f" (got {version!r})"
        )
    if table is not None and against is not None:
        raise ConfigError("--against: a table has no ranks to compare; leave it out, or --table")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{str(folder)!r} is not an empty folder; name a new one")
    store = open_store(store).require()
    rows = store.rows()
    if problems := store.problems():
        raise StoreError(f"{problems[0]}; `fedbench verify` lists all damaged files")
    if row_ids is not None:
        rows = [row for row in rows if row.row_id in row_ids]
    if not rows:
        of = "" if table is None else f" of grid {table!r}"
        raise ConfigError(f"there is no run{of} in store {str(store.root)!r}; nothing to release")
    runs = [(row, store.curve(store.key(row))) for row in rows]
    if table is None:
        data, described = pack(runs, version), _whole(rows, version)
    else:
        data, described = _table(runs, table, version)
    found: tuple[Change, ...] = ()
    files = {described.file: data}
    if against is not None:
        found = changes(open_store(against).require().rows(), rows)
        files["CHANGES.md"] = changes_text(found, str(against), version).encode()
    digest = hashlib.sha256(data).hexdigest()
    files |= described.files(digest, len(data))
    sums = "".join(
        f"{hashlib.sha256(content).hexdigest()}  {name}\n"
        for name, content in sorted(files.items())
    )
    for name, content in (*files.items(), (SUMS, sums.encode())):
        atomic_write_bytes(folder / name, content)
    return Released(
        folder=folder,
        version=version,
        files=tuple(sorted((*files, SUMS))),
        num_rows=len(described.rows),
        methods=tuple(sorted({row.method for row in described.rows})),
        sha256=digest,
        num_bytes=len(data),
        against=None if against is None else str(against),
        changes=found,
    )


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


def _meanings() -> dict[str, str]:
    """Return what the label-free scores are, by metric."""
    found = {one.metrics[0]: one.formula for one in OF_CLIENTS.values() if not one.exploratory}
    for objective in objectives().values():
        meaning = (objective.__doc__ or objective.formula).splitlines()[0]
        better = " Lower is better." if objective.metric.better == "lower" else ""
        found[objective.metric.name] = f"{meaning}{better}"
    return found


def _table(runs: Sequence[Run], grid: str, version: str) -> tuple[bytes, Description]:
    """Return the Parquet bytes of a table and its description."""
    runs = choose(runs)
    path = Path(grid)
    name = path.stem if path.suffix in (".yaml", ".yml") else path.name
    table, file = search_table(runs, version, _meanings()), f"{name}.parquet"
    return table_bytes(table), Description(
        name=f"fedbench-table-{name}",
        title=_TABLE_TITLE.format(name=name),
        version=version,
        file=file,
        records="lines",
        line="run and measured round",
        holds="hyperparameters, and label-free scores, accuracy of probes, traffic and time after"
        " every round that was measured",
        origin=_TABLE_ORIGIN,
        schema=table.schema,
        rows=[row for row, _ in runs],
        use=_USE_TABLE.format(file=file),
    )
