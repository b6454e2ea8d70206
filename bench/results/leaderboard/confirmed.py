"""Best trial, preset and worst trial of a search on seeds that it has not used, by labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fedbench.bench.results.leaderboard.statistics import t_interval, welch_error
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store


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


def compared(store: Store, configurations: Sequence[Mapping[str, Any]]) -> tuple[Confirmed, ...]:
    """Compare configurations, records of `name params runs`, by their stored runs.

    One of which a run failed, diverged or is gone is left out, and without the best trial nothing
    is compared.
    """
    whole: list[tuple[Mapping[str, Any], list[Row]]] = []
    for each in configurations:
        rows = [row for run_id in each["runs"] if (row := store.finished(run_id)) is not None]
        if len(rows) == len(each["runs"]) and all(row.status == "ok" for row in rows):
            whole.append((each, rows))
    first = next((rows for each, rows in whole if "best trial" in each["name"]), None)
    if first is None:
        return ()
    metric = "linear_acc" if first[0].linear_acc is not None else "knn_acc"
    return tuple(_beside(each["name"], each["params"], rows, first, metric) for each, rows in whole)


def _beside(
    name: str, params: Mapping[str, Any], rows: list[Row], first: list[Row], metric: str
) -> Confirmed:
    from scipy.special import stdtrit

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
