"""All cells of a grid that are not in the store yet, through Ray Tune."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedbench.bench.config import row_id
from fedbench.bench.results.metrics import FINAL_METRICS
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.runs.execute import Origin
from fedbench.bench.runs.run import command_line, refresh_quietly, store_run
from fedbench.bench.system.compute import physical_cores
from fedbench.bench.tuning.best import AUTO, find_tuned
from fedbench.bench.tuning.cell import CellJob, Outcome, error_row
from fedbench.bench.tuning.cost import Cost, Revisions, estimate_cost, worth_measuring
from fedbench.bench.tuning.events import OnProgress
from fedbench.bench.tuning.grid import Cell, Grid, load_grid, plan, presets_for
from fedbench.bench.tuning.ray.executor import (
    choose_concurrency,
    choose_share,
    estimate_device,
    remove_stale_marks,
    run_source,
)


@dataclass(frozen=True)
class SweepResult:
    """The outcome of a sweep; cells are in the order of the grid.

    Attributes:
        grid: its name.
        preset: the preset, or presets, that cells start from.
        planned: cells of the grid.
        skipped: those that were in the store already.
        done: those that were executed now, here or by another process, and did not fail.
        diverged: those of `done` that diverged.
        failed: those that ended with an error, now or (without `retry_failed`) before.
        to_run: those that were, or with `dry_run` would be, executed.
        cells: `row_id method seed axes scaled status metrics error` each; status `planned` = not
            run.
        seconds: wall time.
        estimate: with `dry_run` only.
        predicted: what a long sweep was predicted to cost, measured before it began.
    """

    grid: str
    preset: str
    planned: int
    skipped: int
    done: int
    diverged: int
    failed: int
    to_run: int
    cells: tuple[Mapping[str, Any], ...] = field(repr=False)
    seconds: float = 0.0
    estimate: Cost | None = None
    predicted: Cost | None = None

    def as_dict(self) -> dict[str, Any]:
        """What `fedbench sweep --json` prints."""
        return {**asdict(self), "cells": [dict(cell) for cell in self.cells]}


def sweep(
    grid: Grid | str | Path,
    *,
    store: Store,
    preset: str | None = None,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    files: Sequence[Path] = (),
    overrides: Mapping[str, Any] | None = None,
    tuned: str | Path | Sequence[str | Path] | None = None,
    retry_failed: bool = False,
    concurrency: int | None = None,
    gpus_per_trial: float | None = None,
    cpus_per_trial: int = 1,
    address: str | None = None,
    checkpoint_dir: Path | None = None,
    data_dir: Path | None = None,
    device: str = "auto",
    on_progress: OnProgress | None = None,
    dry_run: bool = False,
    environ: Mapping[str, str] | None = None,
) -> SweepResult:
    """Run every cell of a grid that the store does not have.

    Results do not depend on `concurrency`, on the order of completion, or on interruptions.

    Args:
        grid: a grid, its name, or a YAML file.
        store: where rows are looked up and kept.
        preset: what cells start from; None = the one that a file names, else those that the grid
            names, else `demo`.
        methods: method specs in place of the grid's.
        seeds: seeds in place of the grid's.
        files: YAML files over the preset.
        overrides: dotted names to values, as `--set` gives them.
        tuned: `auto` = the latest finished study of each method on the same data set and preset;
            or ids of studies or files that `tune` wrote, each for its method.
        retry_failed: run cells again whose row has the status `error`.
        concurrency: cells at a time; None = physical cores, or what the GPUs or the cluster hold.
        gpus_per_trial: may be a fraction; None = one where `device` calls for it.
        cpus_per_trial: processes that train the clients of one run on CPUs.
        address: of a Ray cluster; None = this machine.
        checkpoint_dir: where runs keep their checkpoints while they last; None = the store. Runs of
            a node that is lost go on elsewhere if all nodes see this folder.
        data_dir: cache of data sets; None = the default one.
        device: `auto`, `cpu` or `cuda`.
        on_progress: called with every event.
        dry_run: count and estimate only.
        environ: environment variables; None = those of the process.

    Raises:
        FedbenchError: for configuration, data, resource or store problems. A cell that fails is a
            row of status `error`, and no exception.
        Interrupted: after a signal; the same call continues.
    """
    began = time.monotonic()
    need = choose_share(device, gpus_per_trial, cpus_per_trial, address)
    grid = grid if isinstance(grid, Grid) else load_grid(grid)
    presets = presets_for(grid, preset, files)
    settings = {"methods": methods, "seeds": seeds, "config_files": files, "set": overrides}
    cells: list[Cell] = []
    for each in presets:
        cells += _planned(grid, store, tuned, {**settings, "preset": each, "environ": environ})
    order = list(dict.fromkeys(cell.config.seed for cell in cells))
    cells.sort(key=lambda cell: order.index(cell.config.seed))
    revisions = Revisions(data_dir)
    named: dict[str, Cell] = {}
    for cell in cells:
        named.setdefault(row_id(cell.config, revisions(cell.config)), cell)
    stored = {row.row_id: row for row in store.rows()}
    settled = {"ok", "diverged"} if retry_failed else {"ok", "diverged", "error"}
    waiting = [
        identity
        for identity in named
        if identity not in stored or stored[identity].status not in settled
    ]
    origin_line = command_line()
    jobs = [
        CellJob(
            cell=identity,
            row_id=identity,
            label=_label(named[identity]),
            config=named[identity].config,
            origin=Origin(named[identity].preset, named[identity].study, grid.grid, origin_line),
            store=store.root.resolve(),
            data_dir=None if data_dir is None else data_dir.resolve(),
            dataset=revisions.dataset(named[identity].config).path,
            revision=revisions(named[identity].config),
            checkpoints=None if checkpoint_dir is None else checkpoint_dir.resolve(),
            workers=need.cpus,
        )
        for identity in waiting
    ]
    source = _Rows(jobs, store, revisions, already=len(named) - len(jobs))
    estimate = predicted = None
    configs = [job.config for job in jobs]
    measurable = address is None or need.gpus == 0
    if dry_run or (measurable and worth_measuring(configs, revisions)):
        at_a_time = choose_concurrency(concurrency, need, address) or physical_cores()
        at_hand = estimate_device(need)
        cost = estimate_cost(configs, data_dir, at_hand, at_a_time, workers=need.cpus)
        estimate, predicted = (cost, None) if dry_run else (None, cost)
    if jobs and not dry_run:
        store.check_writable()
        try:
            run_source(
                source,
                need=need,
                concurrency=concurrency,
                address=address,
                root=checkpoint_dir or store.root,
                on_progress=on_progress,
            )
        finally:
            if source.outcomes:
                store.refresh()
    elif not dry_run:
        remove_stale_marks(checkpoint_dir or store.root)
        refresh_quietly(store)
    rows = stored | {o.job.row_id: o.row for o in source.outcomes if o.row is not None}
    fresh = [outcome.status for outcome in source.outcomes]
    old_failures = sum(
        1 for identity in named if identity not in waiting and rows[identity].status == "error"
    )
    return SweepResult(
        grid=grid.grid,
        preset=", ".join(presets),
        planned=len(named),
        skipped=len(named) - len(jobs) - old_failures,
        done=len(fresh) - fresh.count("error"),
        diverged=sum(1 for o in source.outcomes if o.row and o.row.status == "diverged"),
        failed=fresh.count("error") + old_failures,
        to_run=len(jobs),
        cells=tuple(_record(i, cell, rows.get(i), i in waiting) for i, cell in named.items()),
        seconds=time.monotonic() - began,
        estimate=estimate,
        predicted=predicted,
    )


def _planned(
    grid: Grid,
    store: Store,
    tuned: str | Path | Sequence[str | Path] | None,
    settings: Mapping[str, Any],
) -> list[Cell]:
    """The cells of one preset; each takes what `auto` finds for its own data set."""
    cells = plan(grid, **settings)
    if tuned is None:
        return cells
    names = list(dict.fromkeys(cell.config.data.public_name for cell in cells))
    found: list[Cell] = []
    for name in names if tuned == AUTO else names[:1]:
        here = [cell for cell in cells if tuned != AUTO or cell.config.data.public_name == name]
        specs = list(dict.fromkeys(cell.config.spec for cell in here))
        best = find_tuned(store, tuned, specs, settings["preset"], name)
        made = plan(grid, **settings, tuned=best)
        found += [cell for cell in made if tuned != AUTO or cell.config.data.public_name == name]
    return found


class _Rows:
    """Hands out cells in the order of the grid and keeps a row for each."""

    def __init__(
        self, jobs: Sequence[CellJob], store: Store, revisions: Revisions, already: int
    ) -> None:
        self._waiting = deque(jobs)
        self._store, self._revisions = store, revisions
        self._began = datetime.now(UTC)
        self.ended, self.total = already, already + len(jobs)
        self.outcomes: list[Outcome] = []

    @property
    def finished(self) -> bool:
        """Whether every job has been handed out."""
        return not self._waiting

    def next(self) -> CellJob | None:
        """The next cell."""
        return self._waiting.popleft() if self._waiting else None

    def done(self, outcome: Outcome) -> None:
        """Write the row of a cell that has ended."""
        row, job = outcome.row, outcome.job
        if row is None:
            message = outcome.error or f"ended as {outcome.status}"
            row = error_row(job, message, self._revisions(job.config), self._began)
            self._store.write_row(row)
        elif outcome.status == "elsewhere":
            self._store.write_row(row)  # already there, unless the store is on another disk
        else:
            elsewhere = None if job.checkpoints is None else job.folder
            store_run(self._store, row, elsewhere=elsewhere, history=outcome.history)
        self.outcomes.append(
            Outcome(job, outcome.status, row, outcome.error, outcome.seconds, outcome.bytes)
        )


def _label(cell: Cell) -> str:
    shown = {**cell.axes}
    if "data.name" in shown:
        shown["data.name"] = cell.config.data.public_name
    axes = [f"{key.rpartition('.')[2]}={value}" for key, value in shown.items()]
    return " ".join([cell.config.spec, *axes, f"seed={cell.config.seed}"])


def _record(identity: str, cell: Cell, row: Row | None, was_waiting: bool) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    if row is not None and row.status == "ok":
        metrics = {name: getattr(row, name) for name in FINAL_METRICS}
        metrics |= json.loads(row.metrics_json or "{}")
    return {
        "row_id": identity,
        "method": cell.config.spec,
        "seed": cell.config.seed,
        "axes": dict(cell.axes),
        "scaled": [each.text for each in cell.scaled],
        "status": row.status if row is not None else "planned",
        "stored_before": row is not None and not was_waiting,
        "metrics": metrics,
        "error": row.error if row is not None else None,
    }
