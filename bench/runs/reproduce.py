"""Reproduction of stored runs: execute a row's configuration again and compare every bit."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from fedbench.bench.config import BENCHMARK_VERSION, RunConfig, row_id
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store, open_store
from fedbench.bench.runs.compare import Reproduction, compare
from fedbench.bench.runs.execute import OnRound, Origin, open_dataset
from fedbench.bench.runs.fields import with_code
from fedbench.bench.runs.run import run
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.scratch import temporary_folder


def reproduce(
    run_id: str,
    store: Store | Path | str | None = None,
    *,
    data_name: str | None = None,
    keep: Store | Path | str | None = None,
    data_dir: Path | str | None = None,
    workers: int | None = None,
    device: str = "auto",
    on_round: OnRound | None = None,
) -> Reproduction:
    """Run a stored row again from its configuration, in another store, and compare every bit.

    Args:
        run_id: its row id, or an unambiguous beginning of it, at least 4 characters; see
            `Store.find` for a certain replica.
        store: see `open_store`; nothing is written there.
        data_name: `data.name` to use if the data has moved since the row was made.
        keep: store for the new run; None = a temporary one.
        data_dir: cache of data sets; None = the default one.
        workers: processes that train clients; None = physical cores, or one per GPU.
        device: `auto`, `cpu` or `cuda`.
        on_round: called after every round with its record and the number of rounds.

    Raises:
        StoreError: no such row, one that failed, or one that this version of fedbench or this
            data set cannot reproduce.
        FedbenchError: for data, configuration or device problems.
    """
    store = open_store(store)
    row = store.find(run_id)
    if row.status == "error":
        raise StoreError(f"run {row.row_id} failed ({row.error}); there is no result to compare")
    with temporary_folder() if keep is None else nullcontext(keep) as place:
        other = open_store(place)
        config = _config(row, data_name, data_dir)
        result = run(
            config,
            store=other,
            origin=Origin(preset=row.preset, study_id=row.study_id, grid=row.grid),
            data_dir=data_dir,
            workers=workers,
            reuse=False,
            device=device,
            on_round=on_round,
        )
        if result.stored_before:
            raise StoreError(
                f"{str(other.root)!r} has run {row.row_id} already: nothing was run again"
            )
        return compare(store, run_id, other, result.row, data_dir)


def _config(row: Row, data_name: str | None, data_dir: Path | str | None) -> RunConfig:
    """The row's configuration, checked to be the same run with this fedbench and this data."""
    if row.benchmark_version != BENCHMARK_VERSION:
        raise StoreError(
            f"run {row.row_id} is of benchmark version {row.benchmark_version}, this fedbench of"
            f" {BENCHMARK_VERSION}: the same configuration gives other results; install"
            f" fedbench {row.package_version}"
        )
    config = row.config
    if data_name is not None:
        data = config.data.model_copy(update={"name": data_name})
        config = config.model_copy(update={"data": data})
    revision = open_dataset(config, data_dir).revision
    if row_id(config, revision) != row.row_id:
        raise StoreError(
            f"run {row.row_id} used revision {row.dataset_revision[:8]} of its data under fedbench"
            f" {row.package_version}, {config.data.name} is {revision[:8]}; name other data with"
            " --data, or install that version"
        )
    return with_code(config)
