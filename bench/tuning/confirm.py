"""A check of a search by labels: its best trial, the preset and its worst trial on fresh seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from scipy import stats

from fedbench.bench.config import RunConfig
from fedbench.bench.results.leaderboard.statistics import t_interval
from fedbench.bench.results.leaderboard.studies import best_trial, worst_trial
from fedbench.bench.runs.arguments import Places, Settings, Sources
from fedbench.bench.runs.fields import get
from fedbench.bench.system.errors import StoreError
from fedbench.bench.tuning.cluster import Cluster
from fedbench.bench.tuning.events import OnProgress
from fedbench.bench.tuning.grid import Grid
from fedbench.bench.tuning.sweep import sweep


@dataclass(frozen=True)
class Confirmed:
    """One configuration on all seeds.

    Attributes:
        name: `best trial`, `preset` or `worst trial`, or `best trial, preset` where they are one.
        params: values that trials vary.
        metric: the accuracy: of the linear probe where that is measured.
        values: it by seed, in [0, 1].
        mean: of the values.
        low: lower end of the mean's 95 % t-interval.
        high: upper end.
        gain: mean difference to the encoder at random init.
        behind: how far it lies below the best trial, Welch's 95 % interval; None for that one.
    """

    name: str
    params: Mapping[str, Any]
    metric: str
    values: Mapping[int, float]
    mean: float
    low: float
    high: float
    gain: float
    behind: tuple[float, float] | None


def confirmation(
    base: RunConfig,
    trials: Sequence[Mapping[str, Any]],
    seeds: Sequence[int],
    settings: Settings,
    places: Places,
    cluster: Cluster,
    on_progress: OnProgress | None,
) -> tuple[Confirmed, ...]:
    """Run the configurations on seeds that the search has not used, and compare them by labels.

    The runs are stored like all others.

    Args:
        base: the preset's configuration, which trials start from.
        trials: of the study, one at least with an objective.
        seeds: three or more.
        settings: sources of the preset's configuration.
        places: store, data and device.
        cluster: runs at a time, and their shares.
        on_progress: called with every event of the runs.

    Raises:
        StoreError: for a run that failed.
    """
    best, worst = best_trial(trials), worst_trial(trials)
    assert best is not None
    assert worst is not None
    named: dict[str, Mapping[str, Any]] = {
        "best trial": best["params"],
        "preset": {name: get(base, name) for name in best["params"]},
        "worst trial": worst["params"],
    }
    sources = Sources(settings.preset, settings.set, settings.config_files)
    grid = Grid.model_validate(
        {
            "grid": "confirm",
            "description": "best trial, preset and worst trial",
            "points": list(named.values()),
            "methods": [base.spec],
            "seeds": list(seeds),
        }
    )
    result = sweep(grid, **vars(sources), **vars(places), **vars(cluster), on_progress=on_progress)
    store = places.open_store()
    rows = [store.find(cell["run_id"]) for cell in result.cells]
    if failed := [row.row_id for row in rows if row.status != "ok"]:
        raise StoreError(f"run {failed[0]} of the confirmation failed; `fedbench show` says why")
    metric = "linear_acc" if all(row.linear_acc is not None for row in rows) else "knn_acc"
    values: dict[str, dict[int, float]] = {}
    gains: dict[str, list[float]] = {}
    for cell, row in zip(result.cells, rows, strict=True):
        names = ", ".join(name for name, params in named.items() if params == cell["axes"])
        values.setdefault(names, {})[row.seed] = getattr(row, metric)
        gains.setdefault(names, []).append(
            getattr(row, metric) - getattr(row, f"untrained_{metric}")
        )
    first = next(found for names, found in values.items() if "best trial" in names)
    confirmed = []
    for names, found in values.items():
        low, high = t_interval(list(found.values())) or (math.nan, math.nan)
        confirmed.append(
            Confirmed(
                name=names,
                params=named[names.split(", ")[0]],
                metric=metric,
                values=found,
                mean=fmean(found.values()),
                low=low,
                high=high,
                gain=fmean(gains[names]),
                behind=None if found is first else _behind(found, first),
            )
        )
    return tuple(confirmed)


def _behind(found: Mapping[int, float], first: Mapping[int, float]) -> tuple[float, float]:
    test = stats.ttest_ind(list(first.values()), list(found.values()), equal_var=False)
    interval = test.confidence_interval(0.95)
    return float(interval.low), float(interval.high)
