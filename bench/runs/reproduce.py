"""Run a stored row again from itself, and compare."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedbench.bench.config import BENCHMARK_VERSION, RunConfig, row_id
from fedbench.bench.results.store.merge import Difference, differences, results_of
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.runs import run as runs
from fedbench.bench.runs.execute import OnRound, Origin, open_dataset
from fedbench.bench.system.errors import StoreError


@dataclass(frozen=True)
class Reproduction:
    """A row, and the same run done again.

    Attributes:
        row_id: of the run.
        method: its spec.
        seed: its seed.
        num_results: values that were compared.
        num_rounds: rounds that were compared; 0 if the store has no curve of the run.
        differences: values that are not the same to the last bit; empty = reproduced.
        environment: what the two were made with, where it differs: name to (then, now).
        row: the new row.
    """

    row_id: str
    method: str
    seed: int
    num_results: int
    num_rounds: int
    differences: tuple[Difference, ...]
    environment: Mapping[str, tuple[str | None, str | None]]
    row: Row = field(repr=False)

    @property
    def same(self) -> bool:
        """Whether every bit agrees."""
        return not self.differences

    def as_dict(self) -> dict[str, Any]:
        """What `fedbench reproduce --json` prints."""
        found = {name: getattr(self, name) for name in ("row_id", "method", "seed")}
        return found | {
            "same": self.same,
            "num_results": self.num_results,
            "num_rounds": self.num_rounds,
            "differences": [asdict(each) for each in self.differences],
            "environment": {name: list(pair) for name, pair in self.environment.items()},
        }


def reproduce(
    store: Store,
    identity: str,
    *,
    data_name: str | None = None,
    keep: Store | None = None,
    data_dir: Path | None = None,
    workers: int | None = None,
    device: str = "auto",
    on_round: OnRound | None = None,
) -> Reproduction:
    """Execute the configuration in a row once more, elsewhere, and compare every result.

    Args:
        store: holds the row; nothing is written there.
        identity: the row's id, or an unambiguous beginning of it.
        data_name: `data.name` to use where the data lies elsewhere than when the row was made.
        keep: a store for the new run; None = a temporary one.
        data_dir: cache of data sets; None = the default one.
        workers: processes that train clients.
        device: `auto`, `cpu` or `cuda`.
        on_round: called after every round.

    Raises:
        StoreError: no such row, one that failed, or one that this version of fedbench or this
            data set cannot reproduce.
        FedbenchError: for data, configuration or device problems.
    """
    row = store.find(identity)
    identity = row.row_id
    if row.status == "error":
        raise StoreError(f"run {identity} failed ({row.error}); there is no result to compare")
    if keep is not None and keep.root.resolve() == store.root.resolve():
        raise StoreError(f"--keep {str(keep.root)!r} is the store itself; name another folder")
    config = _config(row, data_name, data_dir)
    with ExitStack() as stack:
        if keep is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fedbench-"))
            keep = Store(folder)
        finished = runs.run(
            config,
            store=keep,
            origin=Origin(preset=row.preset, study_id=row.study_id, grid=row.grid),
            data_dir=data_dir,
            workers=workers,
            device=device,
            on_round=on_round,
        )
        if finished.stored_before:
            raise StoreError(
                f"{str(keep.root)!r} has run {identity} already: nothing was run again"
            )
        again = finished.row
        before, after = store.curve(identity), keep.curve(identity)
    found = differences(row, again)
    found += _round_differences(
        before, after, same_schema=row.schema_version == again.schema_version
    )
    return Reproduction(
        row_id=identity,
        method=row.method,
        seed=row.seed,
        num_results=len(results_of(row)),
        num_rounds=min(len(before), len(after)),
        differences=tuple(found),
        environment=_environment(row, again),
        row=again,
    )


def _config(row: Row, data_name: str | None, data_dir: Path | None) -> RunConfig:
    """The row's configuration, if it still is the same run here."""
    if row.benchmark_version != BENCHMARK_VERSION:
        raise StoreError(
            f"run {row.row_id} is of benchmark version {row.benchmark_version}, this fedbench of"
            f" {BENCHMARK_VERSION}: the same configuration gives other results; install"
            f" fedbench {row.package_version}"
        )
    config = RunConfig.model_validate_json(row.config_json)
    if data_name is not None:
        data = config.data.model_copy(update={"name": data_name})
        config = config.model_copy(update={"data": data})
    revision = open_dataset(config, data_dir).revision
    if revision == row.dataset_revision and row_id(config, revision) != row.row_id:
        raise StoreError(
            f"run {row.row_id} is of fedbench {row.package_version}, whose configuration had other"
            " fields; install that version"
        )
    if row_id(config, revision) != row.row_id:
        raise StoreError(
            f"run {row.row_id} used revision {row.dataset_revision[:8]} of its data,"
            f" {config.data.name} is {revision[:8]}; name the right one with --data"
        )
    return config


def _round_differences(
    before: list[dict[str, Any]], after: list[dict[str, Any]], *, same_schema: bool
) -> list[Difference]:
    """Values of rounds that differ, and how many there are; time is no result.

    A run without a curve, such as a trial, is compared by its row alone. Unless both are of one
    schema, traffic that the stored rounds do not know is not compared.
    """
    if not before:
        return []
    number = [Difference("rounds", len(before), len(after))] if len(before) != len(after) else []
    return number + [
        Difference(f"round {index + 1} {name}", old.get(name), new.get(name))
        for index, (old, new) in enumerate(zip(before, after, strict=False))
        for name in dict.fromkeys([*old, *new])
        if name != "seconds" and old.get(name) != new.get(name)
        if same_schema or not name.startswith("traffic.") or old.get(name) is not None
    ]


def _environment(then: Row, now: Row) -> dict[str, tuple[str | None, str | None]]:
    def named(row: Row) -> dict[str, str | None]:
        versions: dict[str, str | None] = json.loads(row.env_json or "{}")
        own = {name: getattr(row, name) for name in ("package_version", "git_sha", "hardware")}
        return versions | own | {"device": row.device}

    old, new = named(then), named(now)
    return {
        name: (old.get(name), new.get(name))
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    }
