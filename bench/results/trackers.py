"""Trackers: rows as TensorBoard event files and as runs of Weights & Biases.

A tracker gets the rounds of a run while it goes on, and its row with the records of all rounds at
the end; nothing that it does, or fails to do, changes a result.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbench.bench.config import RunConfig
from fedbench.bench.evaluation.metrics import FINAL_LOSS, main_metrics
from fedbench.bench.results.store.replicas import results_of
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.settings import settings_of
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import ResourceError, UnknownNameError
from fedbench.bench.system.packages import install_extra

Scalars = Mapping[str, float]


@dataclass(frozen=True)
class Begun:
    """A run that goes on.

    Attributes:
        row_id: the id that its row will have.
        config_id: that of all seeds of its configuration.
        config: the configuration.
        preset: the preset that it started from.
        dataset: name of its data set's content.
        study: the tuning study that it is a trial of.
    """

    row_id: str
    config_id: str
    config: RunConfig
    preset: str
    dataset: str
    study: str | None = None

    @property
    def name(self) -> str:
        """Name for lists of runs: method, alpha, seed, and the start of the row id."""
        alpha = self.config.data.alpha_read
        given = "" if alpha is None else f"-alpha{alpha:g}"
        return f"{self.config.spec}{given}-seed{self.config.seed}-{self.row_id[:8]}"

    @property
    def settings(self) -> dict[str, Any]:
        """Configuration by dotted name, lists as text; and what it is of."""
        config = settings_of(self.config.model_dump_json())
        of = {"dataset": self.dataset, "preset": self.preset, "config_id": self.config_id}
        return {
            **{
                k: v if isinstance(v, int | float | str) else json.dumps(v)
                for k, v in config.items()
            },
            **of,
            **({} if self.study is None else {"study": self.study}),
        }


def _begun(row: Row) -> Begun:
    return Begun(row.row_id, row.config_id, row.config, row.preset, row.dataset, row.study_id)


def rounds(points: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, float, Scalars]]:
    """Rounds done, seconds since the first began, and every number of each round.

    `gigabytes` adds up both directions from the first round on.
    """
    sent, seconds = 0.0, 0.0
    for point in points:
        sent += (point.get("bytes_up") or 0) + (point.get("bytes_down") or 0)
        seconds += point.get("seconds") or 0.0
        values = _numbers(point, ("round_index", "seconds"))
        yield int(point["round_index"]) + 1, seconds, values | {"gigabytes": sent / 1e9}


def _outcome(row: Row) -> dict[str, float]:
    """Return every number of the results of a finished run."""
    values = results_of(row) | {"wall_seconds": row.wall_seconds}
    settings = ("seed", "alpha", "participation", "num_clients", "num_rounds", "local_epochs")
    return _numbers(values, settings)


def _numbers(values: Mapping[str, Any], left_out: Collection[str]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and name not in left_out
    }


class TensorBoard:
    """Event files in `tensorboard/` of a store, one folder a run.

    Curves are scalars by round; settings and main results are a line of the page HParams. Trackers
    share these methods: a run begins, has rounds, and is closed or finished.
    """

    def __init__(self, root: Path) -> None:
        self._folder = root / "tensorboard"
        self._live: Any = None
        self._began = 0.0

    def begin(self, run: Begun) -> None:
        """Write events from now on, in place of earlier ones of this run."""
        self._began = time.time()
        self._live = self._writer(run, flush_secs=5)

    def round(self, done: int, seconds: float, values: Scalars) -> None:
        """Write a round's numbers; TensorBoard reads them at its next look."""
        self._add(done, seconds, values)
        self._live.flush()

    def close(self, *, failed: bool = False) -> None:
        """Close the file, since the run ended or pauses; what it has stays."""
        if self._live is not None:
            self._live.close()
            self._live = None

    def finished(self, row: Row, points: Sequence[Mapping[str, Any]]) -> None:
        """Write the events of the run, in place of earlier ones."""
        from tensorboardX.summary import hparams

        self.close()
        run = _begun(row)
        self._began = row.started_at.timestamp()
        self._live = writer = self._writer(run)
        for each in rounds(points):
            self._add(*each)
        place, ended, found = row.rounds_done or 0, row.finished_at.timestamp(), _outcome(row)
        names = [*main_metrics(found), FINAL_LOSS.name]
        results = {f"final/{name}": found[name] for name in names if name in found}
        for name, value in results.items():
            writer.add_scalar(name, value, place, ended)
        for part in hparams(run.settings, results):
            writer.file_writer.add_summary(part)
        table = "\n".join(f"| {k} | {v} |" for k, v in run.settings.items())
        writer.add_text("settings", f"| setting | value |\n| --- | --- |\n{table}", place, ended)
        self.close()

    def _add(self, done: int, seconds: float, values: Scalars) -> None:
        for name, value in values.items():
            self._live.add_scalar(f"round/{name}", value, done, walltime=self._began + seconds)

    def _writer(self, run: Begun, **options: Any) -> Any:
        from tensorboardX import SummaryWriter

        place = self._folder / run.name
        shutil.rmtree(place, ignore_errors=True)
        return SummaryWriter(str(place), **options)


class WeightsAndBiases:
    """Runs in the project `$WANDB_PROJECT`, else `fedbench`; the environment sets the rest.

    Its files go to `wandb/` of a store.
    """

    def __init__(self, root: Path) -> None:
        if importlib.util.find_spec("wandb") is None:
            raise ResourceError(f"--track wandb: needs the package wandb: {install_extra('wandb')}")
        self._root = root
        self._live: Any = None

    def begin(self, run: Begun) -> None:
        """Open the run, or one of this id that was broken off."""
        import wandb

        self._live = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "fedbench",
            id=run.row_id,
            name=run.name,
            group=run.config_id,
            tags=[run.config.spec, run.dataset.partition(":")[0], run.preset],
            config=run.settings,
            dir=str(self._root),
            resume="allow",
            settings=wandb.Settings(silent=True),
        )

    def round(self, done: int, seconds: float, values: Scalars) -> None:
        """Log a round that W&B does not have yet."""
        if done >= self._live.step:
            self._live.log(dict(values), step=done)

    def close(self, *, failed: bool) -> None:
        """Close the run, which goes on later unless it failed."""
        if self._live is not None:
            self._live.finish(exit_code=int(failed))
            self._live = None

    def finished(self, row: Row, points: Sequence[Mapping[str, Any]]) -> None:
        """Log the run under its row id.

        W&B takes no step twice. A run that it already has is resumed after its last step, and
        rounds of one row never change, so only the summary is written again. Offline it cannot
        know its earlier runs: every call makes a folder with the whole run; sync one of them.
        """
        live = self._live is not None
        if not live:
            self.begin(_begun(row))
        for done, seconds, values in rounds(points):
            if done > self._live.step or not live:  # of a live run the last step is there
                self.round(done, seconds, values)
        self._live.summary.update(_outcome(row) | {"status": row.status})
        self.close(failed=row.status != "ok")


TRACKERS: Mapping[str, Callable[[Path], TensorBoard | WeightsAndBiases]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
}


class Tracking:
    """The trackers that were asked for.

    Args:
        names: any of `tensorboard`, `wandb`.
        store: rows and rounds are read from it; event files go to folders of it.
        on_failure: called with a text for each tracker that fails; None = it is a warning.

    Raises:
        UnknownNameError: for another name.
        ResourceError: for a tracker whose package is not installed.
    """

    def __init__(
        self,
        names: Collection[str],
        store: Store,
        on_failure: Callable[[str], None] | None = None,
    ) -> None:
        for name in names:
            if name not in TRACKERS:
                raise UnknownNameError("tracker", name, TRACKERS)
        self.names = tuple(names)
        self._store, self._on_failure = store, on_failure
        self._trackers = {name: TRACKERS[name](store.root) for name in names}
        self._live: list[str] = []
        self._points: list[Mapping[str, Any]] = []

    def begin(self, run: Begun, points: Sequence[Mapping[str, Any]] = ()) -> None:
        """Open a run in every tracker, with the records of rounds that an earlier attempt made."""
        self._points = []
        self._live = [*self._trackers]
        self._each("begin", run)
        for point in points:
            self.round(point)

    def round(self, record: Mapping[str, Any]) -> None:
        """Pass the record of a round of the run that goes on, flat as in its curve."""
        self._points.append(record)
        *_, last = rounds(self._points)
        self._each("round", *last)

    def close(self, *, failed: bool = True) -> None:
        """Let go of a run that ended with an error, or pauses."""
        self._each("close", failed=failed)

    def _each(self, hook: str, *given: Any, **options: Any) -> None:
        """Call every tracker that takes rounds; one that fails takes no more of this run."""
        for name in [*self._live]:
            try:
                getattr(self._trackers[name], hook)(*given, **options)
            except Exception as error:  # any service may fail in its own way
                self._live.remove(name)
                self._failed(f"{name} takes no rounds of a run any more", error)

    def __call__(self, row_id: str) -> None:
        """Pass a row of the store to every tracker, with its curve."""
        row = self._store.row(row_id)
        if row is not None:
            self.end(row, self._store.curve(row_id))

    def end(self, row: Row, points: Sequence[Mapping[str, Any]]) -> None:
        """Pass a row to every tracker, with the records of all rounds, flat as in its curve."""
        for name, tracker in self._trackers.items():
            try:
                tracker.finished(row, points)
            except Exception as error:  # any service may fail in its own way; the row is safe
                self._failed(f"{name} did not take run {row.row_id}", error)

    def _failed(self, what: str, error: Exception) -> None:
        text = f"{what}: {' '.join(f'{type(error).__name__}: {error}'.split())}"
        if self._on_failure is None:
            warnings.warn(text, stacklevel=3)
        else:
            self._on_failure(text)
