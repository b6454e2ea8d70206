"""Trackers: rows as TensorBoard event files and as runs of Weights & Biases.

A tracker gets every row after the store has it, with the records of its rounds; nothing that it
does, or fails to do, changes a result.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fedbench.bench.results.leaderboard.comparability import settings_of
from fedbench.bench.results.store.replicas import results_of
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import ResourceError, UnknownNameError
from fedbench.bench.system.packages import install_extra

Scalars = Mapping[str, float]


class Tracker(Protocol):
    """Viewer of finished runs."""

    def finished(self, row: Row, points: Sequence[Mapping[str, Any]]) -> None:
        """Show a run; a second time leaves one run with the same numbers.

        Args:
            row: of the store.
            points: a record of every round, as `Store.curve` gives them.
        """


def rounds(points: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, float, Scalars]]:
    """Rounds done, seconds since the first began, and every number of each round.

    `gigabytes` adds up both directions from the first round on.
    """
    sent, seconds = 0.0, 0.0
    for point in points:
        sent += (point.get("bytes_up") or 0) + (point.get("bytes_down") or 0)
        seconds += point.get("seconds") or 0.0
        values = {
            name: float(value)
            for name, value in point.items()
            if isinstance(value, int | float) and name not in ("round_index", "seconds")
        }
        yield int(point["round_index"]) + 1, seconds, values | {"gigabytes": sent / 1e9}


def outcome(row: Row) -> dict[str, float]:
    """Return every number of the results of a finished run."""
    values = results_of(row) | {"wall_seconds": row.wall_seconds}
    skipped = {"seed", "alpha", "participation", "num_clients", "num_rounds", "local_epochs"}
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and name not in skipped
    }


def settings(row: Row) -> dict[str, Any]:
    """Return the configuration by dotted name; lists as text."""
    config = settings_of(row.config_json)
    plain = {k: v if isinstance(v, int | float | str) else json.dumps(v) for k, v in config.items()}
    return plain | {"dataset": row.dataset, "preset": row.preset, "config_id": row.config_id}


def run_name(row: Row) -> str:
    """Return a name for lists of runs: method, alpha, seed, and the start of the row id."""
    alpha = "" if row.alpha is None else f"-alpha{row.alpha:g}"
    return f"{row.method}{alpha}-seed{row.seed}-{row.row_id[:8]}"


_RESULTS = ("objective", "knn_acc", "linear_acc", "linear_paper_acc", "mlp_acc", "final_loss")
"""Results that TensorBoard's table of hyperparameters has as columns."""


class TensorBoard:
    """Event files in `tensorboard/` of a store, one folder a run.

    Curves are scalars by round; settings and main results are a line of the page HParams.
    """

    def __init__(self, root: Path) -> None:
        self._folder = root / "tensorboard"

    def finished(self, row: Row, points: Sequence[Mapping[str, Any]]) -> None:
        """Write the events of the run, in place of earlier ones."""
        from tensorboardX import SummaryWriter
        from tensorboardX.summary import hparams

        place = self._folder / run_name(row)
        shutil.rmtree(place, ignore_errors=True)
        began = row.started_at.timestamp()
        with SummaryWriter(str(place), write_to_disk=True) as writer:
            for done, seconds, values in rounds(points):
                for name, value in values.items():
                    writer.add_scalar(f"round/{name}", value, done, walltime=began + seconds)
            last = row.rounds_done or 0
            found = outcome(row)
            results = {f"final/{name}": found[name] for name in _RESULTS if name in found}
            for name, value in results.items():
                writer.add_scalar(name, value, last, row.finished_at.timestamp())
            for part in hparams(settings(row), results):
                writer.file_writer.add_summary(part)
            table = "\n".join(f"| {k} | {v} |" for k, v in settings(row).items())
            text = f"| setting | value |\n| --- | --- |\n{table}"
            writer.add_text("settings", text, last, row.finished_at.timestamp())


class WeightsAndBiases:
    """Runs in the project `$WANDB_PROJECT`, else `fedbench`; the environment sets the rest.

    Its files go to `wandb/` of a store.
    """

    def __init__(self, root: Path) -> None:
        if importlib.util.find_spec("wandb") is None:
            raise ResourceError(f"--track wandb: needs the package wandb: {install_extra('wandb')}")
        self._root = root

    def finished(self, row: Row, points: Sequence[Mapping[str, Any]]) -> None:
        """Log the run under its row id.

        W&B takes no step twice. A run that it already has is resumed after its last step, and
        rounds of one row never change, so only the summary is written again. Offline it cannot
        know its earlier runs: every call makes a folder with the whole run; sync one of them.
        """
        import wandb

        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "fedbench",
            id=row.row_id,
            name=run_name(row),
            group=row.config_id,
            tags=[row.method, row.dataset.partition(":")[0], row.preset],
            config=settings(row),
            dir=str(self._root),
            resume="allow",
            settings=wandb.Settings(silent=True),
        )
        for done, _, values in rounds(points):
            if done >= run.step:
                run.log(dict(values), step=done)
        run.summary.update(outcome(row) | {"status": row.status})
        run.finish(exit_code=0 if row.status == "ok" else 1)


_TRACKERS: Mapping[str, Callable[[Path], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
}


class Tracking:
    """The trackers that were asked for.

    Args:
        names: any of `tensorboard`, `wandb`.
        store: rows and rounds are read from it; event files go to folders of it.

    Raises:
        UnknownNameError: for another name.
        ResourceError: for a tracker whose package is not installed.
    """

    def __init__(self, names: Collection[str], store: Store) -> None:
        for name in names:
            if name not in _TRACKERS:
                raise UnknownNameError("tracker", name, _TRACKERS)
        self._store = store
        self._trackers = {name: _TRACKERS[name](store.root) for name in names}

    def __call__(self, row_id: str) -> None:
        """Pass a row of the store to every tracker; one that fails is named in a warning."""
        for name, tracker in self._trackers.items():
            try:
                row = self._store.row(row_id)
                if row is not None:
                    tracker.finished(row, self._store.curve(row_id))
            except Exception as error:  # any service may fail in its own way; the row is safe
                what = " ".join(f"{type(error).__name__}: {error}".split())
                warnings.warn(f"{name} did not take run {row_id}: {what}", stacklevel=2)
