"""What a study comes to: its best trial, its files, its record."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedbench.bench.resolve import Resolved
from fedbench.bench.results.statistics import pearson, spearman
from fedbench.bench.results.store import Store
from fedbench.bench.results.studies import best_trial
from fedbench.bench.tuning.cost import Cost
from fedbench.bench.tuning.trials import Plan, failed_trials
from fedbench.bench.tuning.tuned import best_file, write_best

WATCHED = "knn_acc"
"""What `watch_labels` measures beside the objective."""


@dataclass(frozen=True)
class StudyResult:
    """The outcome of a study.

    Attributes:
        study_id: its name in the store.
        spec: method spec.
        preset: the preset that trials start from.
        status: `finished`, or `planned` after `dry_run`.
        best: `trial`, `objective`, `params`; None while no trial has an objective.
        trials: every trial of the store: `number status objective params seeds watched seconds
            error` and more.
        to_run: trials that were, or with `dry_run` would be, executed now.
        config_file: YAML with the best values; None without them, or before the study has finished.
        correlation: `pearson`, `spearman`, `n` of objective and k-NN accuracy, with `watch_labels`.
        kept_errors: trials that failed and are not run again, since later ones were suggested
            after them.
        seconds: wall time of this call.
        estimate: with `dry_run` only.
    """

    study_id: str
    spec: str
    preset: str
    status: str
    best: Mapping[str, Any] | None
    trials: tuple[Mapping[str, Any], ...] = field(repr=False)
    to_run: int
    config_file: Path | None
    correlation: Mapping[str, float | int | None] | None = None
    kept_errors: tuple[int, ...] = ()
    seconds: float = 0.0
    estimate: Cost | None = None

    @property
    def failed(self) -> int:
        """Trials that ended with an error; those that diverged are not among them."""
        return sum(1 for trial in self.trials if trial["status"] == "error")

    def as_dict(self) -> dict[str, Any]:
        """What `fedbench tune --json` prints."""
        file = None if self.config_file is None else str(self.config_file)
        return {**asdict(self), "trials": [dict(t) for t in self.trials], "config_file": file}


def finish(
    store: Store,
    study_id: str,
    base: Resolved,
    meta: Mapping[str, Any],
    trials: Sequence[Mapping[str, Any]],
) -> Path | None:
    """Write a study's best values and its description; the file of the values, or None."""
    best = best_trial(trials)
    if best is None:
        return None
    path = best_file(store, study_id)
    earlier = store.study(study_id) or {}
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    done = {
        **meta,
        "trials": len(trials),
        "best": {key: best[key] for key in ("number", "objective", "params")},
        "finished_at": now,
    }
    unchanged = all(earlier.get(key) == done[key] for key in ("trials", "best"))
    if not (unchanged and earlier.get("finished_at") and path.exists()):
        write_best(path, base.config.spec, base.preset, study_id, best["params"])
        store.write_study(study_id, done)
    return path


def study_result(
    study: Plan,
    base: Resolved,
    status: str,
    trials: Sequence[Mapping[str, Any]],
    to_run: int,
    file: Path | None,
    began: float,
    cost: Cost | None,
) -> StudyResult:
    """The result of a call of `tune` that began at `began` (monotonic seconds)."""
    best = best_trial(trials)
    pairs = [
        (trial["objective"], trial["watched"][WATCHED])
        for trial in trials
        if trial["objective"] is not None and trial["watched"].get(WATCHED) is not None
    ]
    objectives, accuracies = [p[0] for p in pairs], [p[1] for p in pairs]
    correlation = {
        "pearson": pearson(objectives, accuracies),
        "spearman": spearman(objectives, accuracies),
        "n": len(pairs),
    }
    return StudyResult(
        study_id=study.study_id,
        spec=base.config.spec,
        preset=base.preset,
        status=status,
        best=None
        if best is None
        else {
            "trial": best["number"],
            "objective": best["objective"],
            "params": dict(best["params"]),
        },
        trials=tuple(trials),
        to_run=to_run,
        config_file=file,
        correlation=correlation if study.watched else None,
        kept_errors=failed_trials(trials, study.batch_size)[1],
        seconds=time.monotonic() - began,
        estimate=cost,
    )
