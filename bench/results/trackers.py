"""Trackers: rows as TensorBoard event files and as runs of Weights & Biases.

A tracker gets the rounds of a run while it goes on, and its row with the records of all rounds at
the end; nothing that it does, or fails to do, changes a result.
"""

import importlib.util
import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

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
    began: float = field(default_factory=time.time)  # seconds since 1970

    @classmethod
    def of(cls, row: Row) -> Self:
        """Return what a row says of the run while it went on."""
        ids, began = (row.row_id, row.config_id), row.started_at.timestamp()
        return cls(*ids, row.config, row.preset, row.dataset, row.study_id, began)

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
        config = settings_of(self.config.model_dump(mode="json"))
        plain = int | float | str
        return {k: v if isinstance(v, plain) else json.dumps(v) for k, v in config.items()} | of


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
        self._run: Any = None

    def begin(self, run: Begun) -> None:
        """Write events from now on, in place of earlier ones of this run."""
        from tensorboardX import SummaryWriter

        place = self._folder / run.name
        shutil.rmtree(place, ignore_errors=True)
        # `flush` leaves out what its thread has not taken yet; that follows within these seconds.
        self._live, self._run = SummaryWriter(str(place), flush_secs=5), run

    def round(self, done: int, seconds: float, values: Mapping[str, float]) -> None:
        """Write a round's numbers; TensorBoard reads them at its next look."""
        # As if rounds had followed the start without a pause: records have no time of day.
        for name, value in values.items():
            self._live.add_scalar(f"round/{name}", value, done, self._run.began + seconds)
        self._live.flush()

    def finished(self, row: Row) -> None:
        """Write the main results, and the settings that they are of."""
        from tensorboardX.summary import hparams

        found = _outcome(row)
        names = [*main_metrics(found), FINAL_LOSS.name]
        results = {f"final/{name}": found[name] for name in names if name in found}
        for name, value in results.items():
            self._live.add_scalar(name, value, row.rounds_done or 0, row.finished_at.timestamp())
        # `add_hparams` would write them as another run, in a folder below this one.
        for part in hparams(self._run.settings, results):
            self._live.file_writer.add_summary(part)
        self.close()

    def close(self, *, failed: bool = False) -> None:
        """Close the file, since the run ended or pauses; what it has stays."""
        self._live.close()


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
            # W&B itself reads the variable only where no project is given.
            project=os.environ.get("WANDB_PROJECT") or "fedbench",
            id=run.row_id,
            name=run.name,
            group=run.config_id,
            tags=[run.config.spec, run.dataset.partition(":")[0], run.preset],
            config=run.settings,
            dir=str(self._root),
            resume="allow",
            reinit="create_new",  # else a run of the calling program would take ours and be ended
            settings=wandb.Settings(silent=True),
        )

    def round(self, done: int, seconds: float, values: Mapping[str, float]) -> None:
        """Log a round that W&B does not have yet, since it takes no step twice."""
        if done >= self._live.step:
            self._live.log(dict(values), step=done)

    def finished(self, row: Row) -> None:
        """Add the outcome to the run's summary."""
        self._live.summary.update(_outcome(row) | {"status": row.status})
        self.close(failed=row.status != "ok")

    def close(self, *, failed: bool) -> None:
        """Close the run, which goes on later unless it failed."""
        self._live.finish(exit_code=int(failed))


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
        self._live: list[str] | None = None  # those that follow a run; None = it has not begun
        self._rounds, self._seconds, self._sent = 0, 0.0, 0.0  # passed so far

    def begin(self, run: Begun, points: Sequence[Mapping[str, Any]] = ()) -> None:
        """Open a run in every tracker, with the records of rounds that an earlier attempt made."""
        self._live = [*self._trackers]
        self._rounds, self._seconds, self._sent = 0, 0.0, 0.0
        self._each("begin", run)
        for point in points:
            self.round(point)

    def round(self, record: Mapping[str, Any]) -> None:
        """Pass the numbers of a round, flat as in its curve, and all `gigabytes` sent so far.

        A run that resumes repeats the rounds after its last checkpoint: they are passed once.
        """
        if record["round_index"] < self._rounds:
            return
        self._rounds += 1
        self._seconds += record.get("seconds") or 0.0
        self._sent += (record.get("bytes_up") or 0) + (record.get("bytes_down") or 0)
        values = _numbers(record, ("round_index", "seconds")) | {"gigabytes": self._sent / 1e9}
        self._each("round", int(record["round_index"]) + 1, self._seconds, values)

    def close(self, *, failed: bool = True) -> None:
        """Let go of a run that ended with an error, or pauses."""
        self._each("close", failed=failed)
        self._live = None

    def end(self, row: Row, points: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Pass a row to every tracker, and the records of rounds that these have not got yet.

        Without records they are those of the row's curve in the store.
        """
        if not self.names:
            return
        if self._live is None:
            self.begin(Begun.of(row))
        rounds = self._store.curve(row.row_id) if points is None else points
        for point in rounds[self._rounds :]:
            self.round(point)
        self._each("finished", row)
        self._live = None

    def _each(self, hook: str, *given: Any, **options: Any) -> None:
        """Call the trackers that follow the run; one that fails is left out from then on."""
        for name in [*(live := self._live or [])]:
            try:
                getattr(self._trackers[name], hook)(*given, **options)
            except Exception as error:  # any service may fail in its own way; the row is safe
                live.remove(name)
                why = " ".join(f"{type(error).__name__}: {error}".split())
                self._on_failure(f"{name} takes no more of this run: {why}")
