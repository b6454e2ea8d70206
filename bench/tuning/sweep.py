"""Sweeps: all cells of a grid that the store does not have, executed by Ray Tune."""

import logging
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedbench.bench.config import RunConfig
from fedbench.bench.config.dotted import last_names
from fedbench.bench.config.partitioners import fields_not_read
from fedbench.bench.data.datasets import Dataset, content_names
from fedbench.bench.data.reading import Reading
from fedbench.bench.execution.compare import Reproduction, compare
from fedbench.bench.execution.execute import facts
from fedbench.bench.execution.outdated import outdated
from fedbench.bench.execution.remeasure import trained_before
from fedbench.bench.execution.run import command_line, forget_cell, store_run
from fedbench.bench.execution.speed_probe import check_speed
from fedbench.bench.experiment.common_options import Places, Sources
from fedbench.bench.experiment.preset_loading import load_preset
from fedbench.bench.experiment.steps import LocalSteps, local_steps, of_data, without_effect
from fedbench.bench.method import registry
from fedbench.bench.method.blame import guarded
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.settings import kept_apart
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.arguments import grouped
from fedbench.bench.system.errors import ConfigError, StoreError
from fedbench.bench.system.identity import canonical_json
from fedbench.bench.system.scratch import sweep_folders, temporary_folder
from fedbench.bench.training.checkpoint import rounds_saved
from fedbench.bench.tuning.best import find_tuned, tuned_specs
from fedbench.bench.tuning.cluster import Cluster
from fedbench.bench.tuning.events import OnProgress
from fedbench.bench.tuning.executor import Cost, Executor
from fedbench.bench.tuning.grid import Cell, Grid, load_grid, plan, presets_for
from fedbench.bench.tuning.job import Job, Outcome
from fedbench.bench.tuning.options import Cells
from fedbench.bench.tuning.ray.session import short_folder

_log = logging.getLogger(__name__)
_MOST_NAMED = 3  # methods in the caution that boards will not rank all together


@dataclass(frozen=True, repr=False)
class SweepResult:
    """The outcome of a sweep; cells are in the order of the grid.

    A cell is a record of `run_id method seed axes scaled status metrics error` and more: `planned`
    has not run, `study` is that of its tuned values, `measured_from` is the run whose training it
    has, and `local_steps` counts the steps of a client in a round, over all clients (None for a
    cell that did not have to run).
    """

    grid: str
    preset: str  # the preset, or presets, that cells start from
    planned: int  # cells of the grid
    skipped: int  # cells that were in the store already
    done: int  # executed by this call, or by another process meanwhile, and not failed
    diverged: int  # cells of `done` that diverged
    failed: int  # cells that ended with an error, now or (without `retry_failed`) before
    to_run: int  # cells that were, or with `dry_run` would be, executed
    measured: int  # cells of `to_run` that take the weights of another run
    cells: tuple[Mapping[str, Any], ...] = field(repr=False)
    repeated: tuple[Reproduction, ...] = field(default=(), repr=False)  # with `again`
    outdated: tuple[str, ...] = ()  # runs of code that is gone; with `again` they are deleted
    seconds: float = 0.0  # wall time
    estimate: Cost | None = None  # of `to_run`, with `dry_run` only

    def __repr__(self) -> str:
        return (
            f"<sweep {self.grid}: {self.planned} cells, {self.skipped} in the store already,"
            f" {self.done} done, {self.failed} failed>"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the output of `fedbench sweep --json`."""
        comparisons = [each.as_dict() for each in self.repeated]
        return asdict(replace(self, repeated=())) | {"repeated": comparisons}


@grouped
@guarded()
def sweep(
    grid: Grid | str | Path,
    *,
    sources: Sources,
    which: Cells,
    places: Places,
    cluster: Cluster,
    on_progress: OnProgress | None = None,
) -> SweepResult:
    """Run every cell of a grid that the store does not have.

    Results do not depend on `concurrency`, on the order of completion, or on interruptions.

    `methods` also replace those that join the grid (`join_tuned`). Each study or file of `tuned` is
    for its method; `auto` = the latest finished study of the same code, data set and preset.
    `again` implies `retry_failed`, and deletes the runs that differ from a cell only in code of
    other packages which is not installed any more.

    Args:
        grid: its name, a YAML file, or a `Grid`; without `preset`, cells start from the presets
            that it names.
        sources: sources of the configurations.
        which: the cells.
        places: store, data and device.
        cluster: cells at a time, and their shares.
        on_progress: called with every event (`fedbench.bench.tuning.events`).

    Raises:
        FedbenchError: for configuration, data, resource or store problems. A cell that fails is a
            row of status `error`, and no exception.
        Interrupted: after a signal; the same call continues.

    >>> from fedbench.bench.testing import new_folder
    >>> folder, few = new_folder(), {"data.train_subset": 80}
    >>> given = {"methods": ["simclr"], "seeds": [0], "store": folder, "device": "cpu"}
    >>> swept = sweep("heterogeneity", set=few, dry_run=True, **given)
    >>> swept.planned == swept.to_run == len(swept.cells)
    True
    """
    began = time.monotonic()
    executor = Executor.of(places, cluster, which.track, on_progress)
    store, again, dry_run = executor.store, which.again, which.dry_run
    grid = grid if isinstance(grid, Grid) else load_grid(grid)
    presets = presets_for(grid, sources.preset, sources.config_files)
    shared = {**vars(sources), "methods": which.methods, "seeds": which.seeds}
    shared |= {"content": content_names(places.cache), "data_dir": places.cache}
    cells: list[Cell] = []
    for preset in presets:
        settings = {**shared, "preset": preset}
        if which.methods is None and grid.join_tuned:
            settings["methods"] = _with_tuned(grid.under_preset(preset), store, preset)
        cells += planned_cells(grid, store, which.tuned, settings)
    for cell in {cell.config.spec: cell for cell in cells}.values():
        cell.experiment.workers(2)  # raises: cells run in processes of their own
    # Seed by seed across presets too, so that what is cut short has compared all under some seeds.
    order = list(dict.fromkeys(cell.config.seed for cell in cells))
    cells.sort(key=lambda cell: order.index(cell.config.seed))
    for line in unranked(cells):
        _log.warning("%s", line)
    named: dict[str, Cell] = {}  # two presets may give one run
    for cell in cells:
        named.setdefault(cell.experiment.ids.row, cell)
    stored = {row.row_id: row for row in reversed(store.rows())}  # the first of replicas
    settled = {"ok", "diverged"} if which.retry_failed or again else {"ok", "diverged", "error"}

    done_before = {i: stored[i] for i in named if i in stored and stored[i].status in settled}
    purpose = which.purpose
    others = Counter(row.purpose for row in done_before.values() if row.purpose != purpose)
    for other, number in others.items():
        stay = "%d of these runs were made for %s and stay so; for %s name other --seeds"
        _log.warning(stay, number, other, purpose)
    all_jobs = []
    for cell in named.values():
        scaled = {scaled.key: scaled.base for scaled in cell.scaled}
        known: dict[str, Any] = {"grid": grid.grid, "argv": command_line(), "scaled": scaled}
        origin = replace(cell.experiment.origin, purpose=purpose, **known)
        experiment = cell.experiment.under(origin)
        values = {"method": cell.config.spec, "seed": cell.config.seed, **_axes(cell)}
        all_jobs.append(executor.job(experiment, label=label(cell), values=values))
    jobs = [job for job in all_jobs if job.row_id not in done_before]
    repeats = [job for job in all_jobs if again and job.row_id in done_before]
    to_run = {job.row_id for job in jobs}
    counted = all_jobs if dry_run else jobs
    steps = {job.row_id: local_steps(job.experiment) for job in counted}
    _check_steps(grid.grid, [(job.label, steps[job.row_id]) for job in jobs])
    executor.check((job.experiment, job.label) for job in jobs)
    lines = Counter(
        line
        for job in counted
        for line in (*of_data(job.experiment), *without_effect(job.experiment))
    )
    for line, times in lines.items():
        _log.warning("in %d of %d cells, %s", times, len(steps), line)
    _check_speed(jobs, done_before.values(), executor)
    jobs = _with_earlier(jobs, stored.values())
    measured = {job.row_id: _measured_from(store, job, stored, executor.device) for job in jobs}
    source = _Rows(jobs, store, already=len(named) - len(jobs))
    cost = None
    if dry_run:
        runs = [job.experiment for job in jobs if not measured[job.row_id]]
        runs += [job.experiment for job in repeats]
        trained = [job.experiment for job in jobs if measured[job.row_id]]
        cost = executor.cost(runs, trained)
    if cluster.checkpoints is not None and not dry_run:
        _forget_moved(executor.cells, named.keys() - to_run)
    if jobs and not dry_run:
        store.check_writable()
        try:
            executor.run(source)
        finally:
            if source.made:
                store.refresh()
    elif not dry_run:
        sweep_folders(short_folder())  # left by killed commands
        with suppress(StoreError):  # one that cannot be written stays as it is
            store.refresh()
    made, rows = source.made.values(), stored | source.made
    repeated = _run_again(repeats, executor) if repeats and not dry_run else ()
    current = [rows[i] for i in named if i in rows]
    if off := [row for row in made if "switched_off" in row.environment]:
        some = f"{off[0].row_id[:8]} {off[0].environment['switched_off']}"
        _log.warning("%d of %d runs left something out, as run %s", len(off), len(made), some)
    if still := [row for row in made if row.without_gradient]:
        parts = ", ".join(still[0].without_gradient)
        text = "in %d of %d runs the loss never reached a part of the net, such as %s of %s"
        _log.warning(text, len(still), len(made), parts, still[0].method)
    ended = [row.status for row in made]
    old_failures = sum(rows[i].status == "error" for i in named if i not in to_run)
    return SweepResult(
        grid=grid.grid,
        preset=", ".join(load_preset(preset).preset for preset in presets),
        planned=len(named),
        skipped=len(named) - len(jobs) - old_failures,
        done=len(ended) - ended.count("error"),
        diverged=ended.count("diverged"),
        failed=ended.count("error") + old_failures,
        to_run=len(jobs) + len(repeats),
        measured=sum(i is not None for i in measured.values()),
        cells=tuple(
            _record(i, cell, rows.get(i), i in to_run, measured.get(i), steps.get(i))
            for i, cell in named.items()
        ),
        repeated=repeated,
        outdated=outdated(store, current, drop=again and not dry_run),
        seconds=time.monotonic() - began,
        estimate=cost,
    )


def _run_again(jobs: Sequence[Job], executor: Executor) -> tuple[Reproduction, ...]:
    """Run stored cells again in a temporary store, and compare each with its row."""
    with temporary_folder() as folder:
        other = Store(folder)
        source = _Rows([replace(job, store=other.root, track=()) for job in jobs], other, already=0)
        executor.into(other).run(source)
        tested = {job.row_id: len(job.experiment.dataset.test_labels) for job in jobs}
        return tuple(
            compare(executor.store, i, other, row, tested[i]) for i, row in source.made.items()
        )


def _with_tuned(grid: Grid, store: Store, preset: str) -> list[str]:
    """Return the methods of a grid, then those that the store has tuned under a preset."""
    specs = [registry.canonical_spec(spec) for spec in grid.methods]
    joined = [spec for spec in tuned_specs(store, load_preset(preset).preset) if spec not in specs]
    if joined:
        joint = "%s: tuned in this store, so beside the methods of grid %s; for the values, --tuned"
        _log.warning(joint, ", ".join(joined), grid.grid)
    return specs + joined


def planned_cells(
    grid: Grid,
    store: Store,
    tuned: str | Path | Sequence[str | Path] | None,
    settings: Mapping[str, Any],
) -> list[Cell]:
    """Return the cells of one preset on their data sets, with the best values for each of these."""
    opened: dict[tuple[Any, ...], Dataset] = {}

    def on_dataset(cell: Cell) -> Cell:
        data = cell.config.data
        key = (data.name, data.train_subset, data.test_subset, Reading.of(data))
        if key not in opened:
            opened[key] = cell.experiment.dataset
        return replace(cell, experiment=cell.experiment.on(opened[key]))

    cells = [*map(on_dataset, plan(grid, **settings))]
    if tuned is None:
        return cells
    preset = load_preset(settings["preset"]).preset
    named = ("preset", "dataset", "config_files", "set")
    given = Sources(**{name: settings[name] for name in named if name in settings})
    by_data: dict[str, list[Cell]] = {}
    for cell in cells:
        by_data.setdefault(cell.experiment.dataset.whole, []).append(cell)
    found: list[Cell] = []
    for whole, of in by_data.items():
        specs = list(dict.fromkeys(cell.config.spec for cell in of))
        if "data.name" in grid.keys:
            given = replace(given, dataset=of[0].config.data.name)
        best = find_tuned(store, tuned, specs, preset, of[0].experiment.dataset, given)
        cells = [*map(on_dataset, plan(grid, **settings, tuned=best))]
        found += [cell for cell in cells if cell.experiment.dataset.whole == whole]
    return found


def _with_earlier(jobs: Sequence[Job], rows: Iterable[Row]) -> list[Job]:
    """Return the jobs with the ids of the runs that have the same training."""
    known: dict[str, list[str]] = {}
    for row in rows:
        if row.training_id is not None and row.status != "error":
            known.setdefault(row.training_id, []).append(row.row_id)
    with_earlier = []
    for job in jobs:
        ids = known.setdefault(job.experiment.ids.training, [])
        with_earlier.append(replace(job, earlier=tuple(ids)))
        ids.append(job.row_id)
    return with_earlier


def _measured_from(store: Store, job: Job, stored: Mapping[str, Row], device: str) -> str | None:
    """Return the id of the run, stored or planned, whose weights make a training unnecessary."""
    rows = [row for i in job.earlier if i in stored for row in store.replicas(i)]
    earlier = trained_before(rows, store, job.experiment, device)
    if earlier is not None:
        return earlier.row_id
    done = {row.row_id for row in rows if row.status != "error"}
    planned = [i for i in job.earlier if i not in done]
    return planned[0] if planned and not job.experiment.config.evaluation.between_rounds else None


def _forget_moved(checkpoints: Store, identities: Collection[str]) -> None:
    """Delete folders of stored cells that a killed process had not deleted after it copied them."""
    for identity in identities:
        if checkpoints.cell_dir(identity).is_dir():
            with checkpoints.lock(identity) as mine:
                if mine:
                    forget_cell(checkpoints, identity)


class _Rows:
    """Source of cells in the order of the grid, which writes a row for each.

    A cell whose weights another cell is training waits for that.
    """

    checks = 0

    def __init__(self, jobs: Sequence[Job], store: Store, already: int) -> None:
        self._waiting, self._store = deque(jobs), store
        self._began = datetime.now(UTC)
        self.ended, self.total = already, already + len(jobs)
        self.made: dict[str, Row] = {}  # by id, in the order in which they ended
        self._running: set[str] = set()

    @property
    def finished(self) -> bool:
        return not self._waiting

    def next(self) -> Job | None:
        for job in self._waiting:
            # Evaluations between rounds need the training itself.
            between = job.experiment.config.evaluation.between_rounds
            if between or self._running.isdisjoint(job.earlier):
                self._waiting.remove(job)
                self._running.add(job.row_id)
                return job
        return None

    def done(self, outcome: Outcome) -> None:
        row, job = outcome.row, outcome.job
        self._running.discard(job.row_id)
        if row is None:
            known = facts(job.experiment, "", self._began, job.device)  # "": no partition is known
            ended = datetime.now(UTC)
            row = Row(**known, status="error", error=outcome.error, finished_at=ended)
        if row.status == "error" or outcome.status == "elsewhere":
            self._store.write_row(row)  # of elsewhere: unless the store is on another disk, there
        else:
            elsewhere = None if job.checkpoints is None else job.folder
            store_run(self._store, row, elsewhere=elsewhere, history=outcome.history)
        self.made[job.row_id] = row


def _axes(cell: Cell) -> dict[str, Any]:
    """Return the values of a cell's axes, without those that its partition does not read."""
    unread = {f"data.{name}" for name in fields_not_read(cell.config.data.partition)}
    return {key: value for key, value in cell.axes.items() if key not in unread}


def label(cell: Cell) -> str:
    """Return a cell in words: `simclr alpha=0.1 seed=0`."""
    shown = _axes(cell)
    if "data.name" in shown:
        shown["data.name"] = cell.config.data.public_name
    last = last_names(shown)
    axes = [f"{last[key]}={value}" for key, value in shown.items()]
    return " ".join([cell.config.spec, *axes, f"seed={cell.config.seed}"])


def unranked(cells: Iterable[Cell]) -> Iterator[str]:
    """Yield a line for each preset whose own values keep methods apart on boards."""
    points: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        shared = {k: v for k, v in cell.axes.items() if not k.startswith("method.")}
        point = canonical_json([cell.config.seed, shared])
        points.setdefault((cell.experiment.origin.preset, point), []).append(cell)
    told = set[str]()
    for (preset, _), of in points.items():
        if preset in told or len({cell.config.spec for cell in of}) == 1:
            continue
        tasks = [(cell, kept_apart(cell.config.model_dump(mode="json"))) for cell in of]
        names = [
            name
            for name in tasks[0][1]
            if len({canonical_json(task.get(name)) for _, task in tasks}) > 1
            and all(_of_preset(cell, name) for cell in of)
        ]
        if names:
            told.add(preset)
            sides: dict[str, dict[str, None]] = {}  # equal values -> the methods that have them
            for cell, task in tasks:
                values = canonical_json([task.get(name) for name in names])
                sides.setdefault(values, {})[cell.config.spec] = None
            *rest, most = sorted([*sides.values()][::-1], key=len)  # of equal ones the first
            others = ", ".join(most) if len(most) <= _MOST_NAMED else "the others"
            yield (
                f"preset {preset} gives {' and '.join(', '.join(side) for side in rest)} other"
                f" values of {', '.join(names)} than {others}: boards will not rank them together;"
                " to compare them, --set one value for all"
            )


def _of_preset(cell: Cell, name: str) -> bool:
    """Return whether a value is that of the preset or the default, maybe scaled by the grid."""
    scaled = any(each.key == name for each in cell.scaled)
    return scaled or cell.experiment.sources[name].startswith(("preset ", "default"))


def _check_speed(jobs: Sequence[Job], done: Iterable[Row], executor: Executor) -> None:
    """Check the first job of each means of speed; what is done, or has rounds, goes on with it."""

    def means(config: RunConfig) -> tuple[str, bool]:
        return config.client.precision, config.client.compile

    asked = {means(job.experiment.config): job.experiment for job in reversed(jobs)}
    begun = {means(row.config) for row in done}
    begun |= {means(job.experiment.config) for job in jobs if rounds_saved(job.folder)}
    for key, experiment in asked.items():
        check_speed(experiment, executor.device, begun=key in begun)


def _check_steps(grid: str, cells: Sequence[tuple[str, LocalSteps]]) -> None:
    """Refuse cells in which nobody trains, and warn of those with clients that never do."""
    empty = [(label, s) for label, s in cells if s.idle_clients == s.num_clients]
    if empty:
        label, steps = empty[0]
        raise ConfigError(
            f"grid {grid!r}: in {len(empty)} of {len(cells)} cells no client would ever make a"
            f" local step, for example in {label}: {steps.reason}"
        )
    partial = [(label, s) for label, s in cells if s.idle_clients]
    if partial:
        label, steps = max(partial, key=lambda item: item[1].idle_clients)
        counts = f"{len(partial)} of {len(cells)} cells have clients that never train"
        _log.warning("%s; most of them %s: %s", counts, label, steps.idle)


def _record(
    identity: str,
    cell: Cell,
    row: Row | None,
    ran: bool,
    measured: str | None,
    steps: LocalSteps | None,
) -> dict[str, Any]:
    return {
        "run_id": identity,
        "method": cell.config.spec,
        "seed": cell.config.seed,
        "axes": _axes(cell),
        "scaled": [scaled.text for scaled in cell.scaled],
        "study": cell.experiment.origin.study_id,
        "local_steps": None if steps is None else steps.as_dict(),
        "status": row.status if row is not None else "planned",
        "stored_before": row is not None and not ran,
        "measured_from": measured if row is None else row.measured_from,
        "metrics": row.metrics if row is not None and row.status == "ok" else {},
        "error": row.error if row is not None else None,
    }
