"""Pack the runs of a store, as of a study that has ended, into a few files.

Usage: `python leaderboards/pack.py STORE`. Rows and curves in files of their own go to
`STORE/packed/`, below 1 MB a file, and every command reads them there; new runs get files of their
own again. Checkpoints and studies stay where they are.
"""

import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path

import pyarrow as pa

from fedbench import open_store
from fedbench.bench.results.store.files import PACKED, pack
from fedbench.bench.results.store.schema import nested_settings, row_table, table_bytes
from fedbench.bench.results.store.store import Store

RUNS = 300
"""In a file, which has 0.4 to 0.8 MB then."""


def packs(store: Store) -> tuple[Mapping[str, bytes], pa.Schema]:
    """Return the files of all runs of a store by name, and the columns that they have."""
    rows = store.rows()
    version = max(row.finished_at for row in rows).strftime("%Y.%m")
    runs = [
        [(row, store.curve(store.key(row))) for row in replicas]
        for _, replicas in groupby(rows, attrgetter("row_id"))
    ]
    flat = chain.from_iterable(runs)
    if lost := [row.row_id for row, curve in flat if row.rounds_done and not curve]:
        raise SystemExit(
            f"{store.root}: {len(lost)} runs have no curve, such as {lost[0]}; copy their"
            " cells/*/curve.parquet too, then pack"
        )
    parts = [chain(*runs[at : at + RUNS]) for at in range(0, len(runs), RUNS)]
    # What is text in one file and a truth value in another could not be read together.
    nested = nested_settings(row_table(rows))
    tables = [pack([*part], version, nested) for part in parts]
    files = {f"{PACKED}/runs-{n}.parquet": table_bytes(table) for n, table in enumerate(tables, 1)}
    schemas = [table.schema for table in tables]
    return files, pa.unify_schemas(schemas, promote_options="permissive")


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Replace the rows and curves of a store by packed ones."""
    (folder / PACKED).mkdir(exist_ok=True)
    for old in (folder / PACKED).iterdir():
        old.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    shutil.rmtree(folder / "rows", ignore_errors=True)
    for curve in folder.glob("cells/*/curve.parquet"):
        curve.unlink()
        with suppress(OSError):  # it has a checkpoint
            curve.parent.rmdir()


if __name__ == "__main__":
    write(Path(sys.argv[1]), packs(open_store(sys.argv[1]))[0])
