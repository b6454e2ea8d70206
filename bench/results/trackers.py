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


@dataclass(frozen=True)
class Begun:
    """A run that goes on, with the ids that its row will have."""

    row_id: str
    config_id: str
    config: RunConfig
    preset: str
    dataset: str  # name of its content
    study: str | None = None  # of which it is a trial

    @classmethod
    def of(cls, row: Row) -> Begun:
        """Return what a row says of the run while it went on."""
        return cls(row.row_id, row.config_id, row.config, row.preset, row.dataset, row.study_id)

    @property
    def name(self) -> str:
        """Name for lists of runs: method, alpha, seed, and the start of the row id."""
        alpha = self.config.data.alpha_read
        given = "" if alpha is None else f"-alpha{alpha:g}"
        return f"{self.config.spec}{given}-seed{self.config.seed}-{self.row_id[:8]}"

    @property
    def settings(self) -> dict[str, Any]:
        """Configuration by dotted name, lists as text; and what it is of."""
        of = {"dataset": self.dataset, "preset": self.preset, "config_id": self.config_id}
        of |= {} if self.study is None else {"study": self.study}
        config = settings_of(self.config.model_dump_json())
        plain = int | float | str
        return {k: v if isinstance(v, plain) else json.dumps(v) for k, v in config.items()} | of


def rounds(points: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, float, dict[str, float]]]:
    """Rounds done, seconds since the first began, and every number of each round.

    `gigabytes` adds up both directions from the first round on.
    """
    sent = seconds = 0.0
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

    Curves are scalars by round; settings and main results are a line of the page HParams.
    """

    def __init__(self, root: Path) -> None:
        self._folder = root / "tensorboard"
        self._live: Any = None
        self._began = 0.0

    def begin(self, run: Begun) -> None:
        """Write events from now on, in place of earlier ones of this run."""
        self._open(run, time.time())

    def round(self, done: int, seconds: float, values: Mapping[str, float]) -> None:
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
        run = Begun.of(row)
        self._open(run, row.started_at.timestamp())
        for each in rounds(points):
            self._add(*each)
        place, ended, found = row.rounds_done or 0, row.finished_at.timestamp(), _outcome(row)
        names = [*main_metrics(found), FINAL_LOSS.name]
        results = {f"final/{name}": found[name] for name in names if name in found}
        for name, value in results.items():
            self._live.add_scalar(name, value, place, ended)
        for part in hparams(run.settings, results):
            self._live.file_writer.add_summary(part)
        self.close()

    def _add(self, done: int, seconds: float, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._live.add_scalar(f"round/{name}", value, done, walltime=self._began + seconds)

    def _open(self, run: Begun, began: float) -> None:
        from tensorboardX import SummaryWriter

        place = self._folder / run.name
        shutil.rmtree(place, ignore_errors=True)
        self._live, self._began = SummaryWriter(str(place), flush_secs=5), began


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

    def round(self, done: int, seconds: float, values: Mapping[str, float]) -> None:
        """Log a round that W&B does not have yet."""
        if done >= self._live.step:
            self._live.log(dict(values), step=done)

    def close(self, *, failed: bool) -> None:
        """Close the run, which goes on later unless it failed."""
        if self._live is not None:
            self._live.finish(exit_code=int(failed))
            self._live = None

    def finished(self, row: Row, points: Sequence[Mapping[str, Any]]) -> None:
        """Log the run under its row id: W&B takes no step twice, so only those that it lacks."""
        live = self._live is not None
        if not live:
            self.begin(Begun.of(row))
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
    """The trackers that were asked for; one that fails warns, and a run goes on without it.

    Args:
        names: any of `tensorboard`, `wandb`.
        store: rows and rounds are read from it; event files go to folders of it.
        on_failure: called with a text for each tracker that fails; default: a warning.

    Raises:
        UnknownNameError: for another name.
        ResourceError: for a tracker whose package is not installed.
    """

    def __init__(
        self,
        names: Collection[str],
        store: Store,
        on_failure: Callable[[str], object] = warnings.warn,
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
        self._points, self._live = [], [*self._trackers]
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

    def __call__(self, row_id: str) -> None:
        """Pass a row of the store to every tracker, with its curve."""
        row = self._store.row(row_id)
        if row is not None:
            self.end(row, self._store.curve(row_id))

    def end(self, row: Row, points: Sequence[Mapping[str, Any]]) -> None:
        """Pass a row to every tracker, with the records of all rounds, flat as in its curve."""
        for name in self._trackers:
            self._call(name, f"did not take run {row.row_id}", "finished", row, points)

    def _each(self, hook: str, *given: Any, **options: Any) -> None:
        """Call every tracker that takes rounds; one that fails takes no more of this run."""
        what = "takes no rounds of a run any more"
        self._live = [n for n in self._live if self._call(n, what, hook, *given, **options)]

    def _call(self, name: str, what: str, hook: str, *given: Any, **options: Any) -> bool:
        try:
            getattr(self._trackers[name], hook)(*given, **options)
        except Exception as error:  # any service may fail in its own way; the row is safe
            why = " ".join(f"{type(error).__name__}: {error}".split())
            self._on_failure(f"{name} {what}: {why}")
            return False
        return True
