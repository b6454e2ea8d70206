"""A check of a search by labels: its best trial, the preset and its worst trial on fresh seeds."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from scipy.special import stdtrit

from fedbench.bench.config import RunConfig
from fedbench.bench.experiment.common_options import Places, Settings, Sources
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.experiment.fields import get
from fedbench.bench.results.leaderboard.statistics import (
    MIN_FOR_INTERVAL,
    t_interval,
    welch_error,
)
from fedbench.bench.results.leaderboard.studies import best_trial, worst_trial
from fedbench.bench.results.store.row import Row
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.tuning.executor import Executor
from fedbench.bench.tuning.grid import Grid
from fedbench.bench.tuning.sweep import sweep

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Confirmed:
    """One configuration on all seeds."""

    name: str  # `best trial`, `preset` or `worst trial`, or `best trial, preset` if they are one
    params: Mapping[str, Any]  # values that trials vary
    metric: str  # the linear probe's accuracy where that is measured, else k-NN's
    values: Mapping[int, float]  # accuracy by seed, in [0, 1]
    interval: tuple[float, float]  # 95 % t-interval of its mean
    gain: float | None  # mean difference to the start; None if that was not measured
    behind: tuple[float, float] | None  # the best trial, Welch's 95 % interval; None for itself


def check_confirm(seeds: int, config: RunConfig) -> None:
    """Refuse a confirmation (0 seeds = none) that could not compare anything."""
    if 0 < seeds < MIN_FOR_INTERVAL:
        raise ConfigError(
            f"--confirm: needs at least {MIN_FOR_INTERVAL} seeds for an interval (got {seeds})"
        )
    protocols, shares = config.evaluation.protocols, config.evaluation.probe_fractions
    if seeds and "knn" not in protocols and not ("linear" in protocols and 1.0 in shares):
        raise ConfigError(
            "--confirm: needs knn, or linear with 1.0 in evaluation.probe_fractions, among"
            f" evaluation.protocols (got {list(protocols)})"
        )


def confirmation(
    configure: Callable[[dict[str, Any], int], Experiment],
    trials: Sequence[Mapping[str, Any]],
    seeds: Sequence[int],
    settings: Settings,
    places: Places,
    executor: Executor,
) -> tuple[Confirmed, ...]:
    """Run the configurations on seeds that the search has not used, and compare them by labels.

    The runs are stored like all others; those that failed before run again. A configuration of
    which one fails or diverges is left out with a warning, and without the best trial nothing is
    compared. One trial at least has an objective; `configure` is the study's.
    """
    best, worst = best_trial(trials), worst_trial(trials)
    assert best is not None
    assert worst is not None
    compared = {"best trial": best["params"], "preset": {}, "worst trial": worst["params"]}
    configs = {name: configure(params, seeds[0]).config for name, params in compared.items()}
    # Values as configurations have them: a relative path of a trial is absolute there.
    named: dict[str, Mapping[str, Any]] = {
        name: {key: get(config, key) for key in best["params"]} for name, config in configs.items()
    }
    grid = Grid(
        grid="confirm",
        description="best trial, preset and worst trial",
        points=tuple(named.values()),
        methods=(configs["preset"].spec,),
    )
    # A sweep refuses a seed among the values: it has those of its cells.
    values = {key: value for key, value in (settings.set or {}).items() if key != "seed"}
    sources = Sources(settings.preset, settings.dataset, settings.config_files, values)
    given = {**vars(sources), **vars(places), **vars(executor.cluster)}
    given |= {"purpose": "confirmation", "retry_failed": True, "track": executor.tracking.names}
    result = sweep(grid, seeds=seeds, on_progress=executor.on_progress, **given)
    runs: dict[str, list[Row]] = {}
    for cell in result.cells:
        name = ", ".join(name for name, params in named.items() if params == cell["axes"])
        runs.setdefault(name, []).append(executor.store.find(cell["run_id"]))
    whole = {name: rows for name, rows in runs.items() if all(row.status == "ok" for row in rows)}
    for name in [name for name in runs if name not in whole]:
        ended = next(row for row in runs[name] if row.status != "ok")
        _log.warning("%s is not compared: run %s has status %s", name, ended.row_id, ended.status)
    first = next((rows for name, rows in whole.items() if "best trial" in name), None)
    if first is None:
        return ()
    metric = "linear_acc" if first[0].linear_acc is not None else "knn_acc"
    return tuple(
        _compared(name, named[name.split(", ")[0]], rows, first, metric)
        for name, rows in whole.items()
    )


def _compared(
    name: str, params: Mapping[str, Any], rows: list[Row], first: list[Row], metric: str
) -> Confirmed:
    values = {row.seed: getattr(row, metric) for row in rows}
    starts = [getattr(row, f"untrained_{metric}") for row in rows]
    interval = t_interval(list(values.values()))
    assert interval is not None  # of three values and more there is one
    behind = None
    if rows is not first:
        best = [getattr(row, metric) for row in first]
        error, df = welch_error(best, list(values.values()))
        half = float(stdtrit(df, 0.975)) * error
        ahead = fmean(best) - fmean(values.values())
        behind = ahead - half, ahead + half
    gain = None if None in starts else fmean(values.values()) - fmean(starts)
    return Confirmed(name, params, metric, values, interval, gain, behind)
