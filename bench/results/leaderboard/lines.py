"""The lines of a leaderboard: a configuration over its seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from fedbench.bench.results.leaderboard.comparability import (
    KEYS,
    settings_id,
    variants,
)
from fedbench.bench.results.leaderboard.curves import Curve, area, reached
from fedbench.bench.results.leaderboard.published import Published, dataset_name
from fedbench.bench.results.leaderboard.published import published as published_number
from fedbench.bench.results.leaderboard.statistics import LEVEL, holm, mean, paired_p, summarize
from fedbench.bench.results.store.row import Row, per_gigabyte
from fedbench.bench.system.identity import content_id


def costs(rows: Sequence[Row], value: float | None) -> dict[str, Any]:
    """Fields of a line, from the finished runs of one configuration.

    Args:
        rows: one for each seed; of privacy the weakest counts.
        value: the line's metric.
    """
    epsilons = [row.epsilon for row in rows if row.epsilon is not None]
    everywhere = bool(rows) and len(epsilons) == len(rows)
    return {
        "mb_up": _mean_megabytes(row.bytes_up for row in rows),
        "mb_down": _mean_megabytes(row.bytes_down for row in rows),
        "per_gb": mean([each for row in rows if (each := per_gigabyte(row, value)) is not None]),
        "epsilon": max(epsilons) if everywhere else None,
        "epsilon_of": rows[0].epsilon_of if everywhere else None,
        "revealing_messages": max((row.revealing_messages or 0 for row in rows), default=None),
    }


def _mean_megabytes(sizes: Iterable[int | None]) -> float | None:
    return mean([size / 1e6 for size in sizes if size is not None])


class Spent(NamedTuple):
    """What a tuning study has cost: its runs, and the data set that they were on."""

    runs: int
    dataset: str


@dataclass(frozen=True)
class Line:
    """One configuration over its seeds.

    Attributes:
        rank: 1 is best, ties share a rank; None if not ranked: nothing measured, or hyperparameters
            chosen with labels (`selection` is `oracle`).
        variant: the hyperparameters in which configurations of one method differ; else empty.
        mean, std, ci95_low, ci95_high: of the metric; std needs 2 seeds, the interval 3.
        values, seeds: the metric of each seed, in the order of seeds.
        row_ids: the runs of those seeds; `fedbench export` takes one.
        local_acc_mean, local_acc_std: the metric's probe on clients' own test images: mean over
            clients and standard deviation over them, each a mean over seeds.
        gain: mean over seeds of (trained - untrained encoder).
        mb_up_down: bytes of one run in both directions, in units of 1e6; mean over seeds.
        minutes: wall time of one run; mean over seeds.
        tune_runs: runs of the study that hyperparameters come from; None if untuned or not known.
        tuned_on: data set of that study where it is not the one of these runs; else None.
        num_diverged, num_failed: runs that ended so; a line with diverged runs ranks last.
        difference: mean - published value.
        keys: the comparability class, columns and further settings.
        settings_id: the same for equal hyperparameters, whatever the class.
        best: whether it is the first of its class or cannot be told from it (paired t-test over
            common seeds, Holm); None with fewer than 3 common seeds.
        p_best: p-value of that test, adjusted.
        area: mean of k-NN accuracy over the rounds; needs curves, as do the next three.
        rounds_to_reach: first evaluated round with the k-NN accuracy asked for, mean over seeds.
        gb_to_reach: the same in bytes of both directions, in units of 1e9.
        num_reached: seeds that got there; the two means are null unless all did.
        mb_up, mb_down: the two parts of `mb_up_down`.
        per_gb: the metric over the bytes of one run in both directions, in units of 1e9.
        epsilon, epsilon_of: differential privacy of a run, the largest over seeds, and of what;
            None unless every run has it.
        revealing_messages: messages to the server that hold something of a single image, the most
            of any seed.
    """

    rank: int | None
    method: str
    variant: str
    config_id: str
    metric: str
    mean: float | None
    std: float | None
    ci95_low: float | None
    ci95_high: float | None
    n_seeds: int
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    row_ids: tuple[str, ...]
    objective_mean: float | None
    knn_acc_mean: float | None
    linear_acc_mean: float | None
    local_acc_mean: float | None
    local_acc_std: float | None
    untrained_mean: float | None
    gain: float | None
    mb_up_down: float | None
    minutes: float | None
    collapsed: bool
    num_diverged: int
    num_failed: int
    tuned: bool
    selection: str
    preset: str
    published: Published | None
    difference: float | None
    class_id: str
    keys: Mapping[str, Any] = field(repr=False)
    settings_id: str = ""
    tune_runs: int | None = None
    tuned_on: str | None = None
    best: bool | None = None
    p_best: float | None = None
    area: float | None = None
    rounds_to_reach: float | None = None
    gb_to_reach: float | None = None
    num_reached: int | None = None
    mb_up: float | None = None
    mb_down: float | None = None
    per_gb: float | None = None
    epsilon: float | None = None
    epsilon_of: str | None = None
    revealing_messages: int | None = None

    def record(self) -> dict[str, Any]:
        """Plain values for JSON: the fields, with the columns of the class beside them."""
        flat = asdict(self)
        keys = flat.pop("keys")
        flat["seeds"], flat["values"] = list(self.seeds), list(self.values)
        return flat | {key: keys[key] for key in KEYS}


def metric_value(row: Row, metric: str) -> float | None:
    """A metric of a row by column name or by key of `metrics_json`; None if not measured."""
    if metric in Row.model_fields:
        value = getattr(row, metric)
    else:
        value = json.loads(row.metrics_json or "{}").get(metric)
    return float(value) if isinstance(value, int | float) else None


def lines_of(
    rows: Sequence[Row],
    metric: str,
    class_id: str,
    keys: Mapping[str, Any],
    look_up: bool,
    studies: Mapping[str, Spent],
) -> list[Line]:
    """The lines of one class, not ranked yet.

    Args:
        rows: of the class.
        metric: to sum up.
        class_id: of the class.
        keys: of the class.
        look_up: whether to look for the published numbers.
        studies: what each tuning study has spent, by its id.
    """
    configs: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row.config_id, row.seed, row.row_id)):
        configs.setdefault(row.config_id, []).append(row)
    variant_of = variants({config_id: runs[0] for config_id, runs in configs.items()})
    found = []
    for config_id, runs in configs.items():
        line = _line(runs, metric, variant_of[config_id], class_id, keys, look_up)
        study = studies.get(runs[0].study_id or "")
        if study is not None:
            same = dataset_name(study.dataset) == dataset_name(runs[0].dataset)
            line = replace(line, tune_runs=study.runs, tuned_on=None if same else study.dataset)
        found.append(line)
    return found


def _line(
    runs: Sequence[Row],
    metric: str,
    variant: str,
    class_id: str,
    keys: Mapping[str, Any],
    look_up: bool,
) -> Line:
    done = [row for row in runs if row.status == "ok"]
    measured = [(row, v) for row in done if (v := metric_value(row, metric)) is not None]
    values = [value for _, value in measured]
    before = [(value, metric_value(row, f"untrained_{metric}")) for row, value in measured]
    pairs = [(after, start) for after, start in before if start is not None]
    summary = summarize(values)
    local = metric.removesuffix("_acc").removesuffix("_local") + "_local_acc"
    found = published_number(runs[0], metric) if look_up else None
    difference = None
    if found is not None and summary.mean is not None:
        difference = summary.mean - found.value
    return Line(
        rank=None,
        method=runs[0].method,
        variant=variant,
        config_id=runs[0].config_id,
        metric=metric,
        mean=summary.mean,
        std=summary.std,
        ci95_low=summary.ci95_low,
        ci95_high=summary.ci95_high,
        n_seeds=len(values),
        seeds=tuple(row.seed for row, _ in measured),
        values=tuple(values),
        row_ids=tuple(row.row_id for row, _ in measured),
        objective_mean=_mean(row.objective for row in done),
        knn_acc_mean=_mean(row.knn_acc for row in done),
        linear_acc_mean=_mean(row.linear_acc for row in done),
        local_acc_mean=_mean(metric_value(row, local) for row in done),
        local_acc_std=_mean(metric_value(row, f"{local}_std") for row in done),
        untrained_mean=mean([start for _, start in pairs]),
        gain=mean([after - start for after, start in pairs]),
        mb_up_down=_mean(_megabytes(row) for row in done),
        minutes=_mean(_minutes(row) for row in done),
        collapsed=any(row.collapsed for row in done),
        num_diverged=sum(row.status == "diverged" for row in runs),
        num_failed=sum(row.status == "error" for row in runs),
        tuned=any(row.tuned for row in runs),
        selection=runs[0].selection,
        preset=runs[0].preset,
        published=found,
        difference=difference,
        class_id=class_id,
        keys=keys,
        settings_id=settings_id(runs[0]),
        **costs(done, summary.mean),
    )


def over_rounds(line: Line, curves: Mapping[str, Curve], reach: float | None) -> Line:
    """The line with the fields that come from the curves of its runs.

    Args:
        line: without them.
        curves: by row id; runs without one are left out.
        reach: k-NN accuracy to look for.
    """
    found = [curves[row_id] for row_id in line.row_ids if row_id in curves]
    there = [] if reach is None else [at for curve in found if (at := reached(curve, reach))]
    all_there = len(there) == len(found)
    return replace(
        line,
        area=_mean(area(curve) for curve in found),
        rounds_to_reach=mean([at[0] for at in there]) if all_there else None,
        gb_to_reach=mean([at[1] / 1e9 for at in there]) if all_there else None,
        num_reached=None if reach is None else len(there),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    return mean([value for value in values if value is not None])


def _megabytes(row: Row) -> float | None:
    if row.bytes_up is None or row.bytes_down is None:
        return None
    return (row.bytes_up + row.bytes_down) / 1e6


def _minutes(row: Row) -> float | None:
    return None if row.wall_seconds is None else row.wall_seconds / 60


LOWER_IS_BETTER = frozenset({"final_loss", "collapsed", "idle_clients"})


def score(metric: str, value: float) -> float:
    """The value, turned so that higher is better."""
    return -value if metric in LOWER_IS_BETTER else value


def ranked(lines: Sequence[Line]) -> tuple[Line, ...]:
    """Best first, lines with diverged runs after all others, unranked lines at the end."""

    def place(line: Line) -> tuple[bool, bool, float]:
        if line.mean is None:
            return bool(line.num_diverged), True, 0.0
        return bool(line.num_diverged), False, -score(line.metric, line.mean)

    def counts(line: Line) -> bool:
        return line.selection != "oracle" and (line.mean is not None or line.num_diverged > 0)

    ordered = sorted(
        lines,
        key=lambda line: (not counts(line), place(line), line.method, line.variant, line.config_id),
    )
    ranks: list[Line] = []
    for position, line in enumerate(ordered, start=1):
        rank: int | None = None
        if counts(line):
            tied = bool(ranks) and place(ranks[-1]) == place(line)
            rank = ranks[-1].rank if tied else position
        ranks.append(replace(line, rank=rank))
    return _with_best_set(ranks)


def _with_best_set(lines: Sequence[Line]) -> tuple[Line, ...]:
    """Mark the first line and all that a paired test over seeds cannot tell from it.

    The tests are adjusted by Holm's rule for their number. Nothing is marked where no line shares
    three seeds with the first.
    """
    if not lines or lines[0].rank is None or lines[0].mean is None or lines[0].num_diverged:
        return tuple(lines)
    first = dict(zip(lines[0].seeds, lines[0].values, strict=True))
    found: dict[str, float] = {}
    for line in lines[1:]:
        if line.rank is None or line.num_diverged:
            continue
        pairs = [
            (first[seed], value)
            for seed, value in zip(line.seeds, line.values, strict=True)
            if seed in first
        ]
        p = paired_p([pair[0] for pair in pairs], [pair[1] for pair in pairs])
        if p is not None:
            found[line.config_id] = p
    if not found:
        return tuple(lines)
    adjusted = dict(zip(found, holm(list(found.values())), strict=True))
    marked = [replace(lines[0], best=True)]
    for line in lines[1:]:
        p = adjusted.get(line.config_id)
        best = False if line.num_diverged else None if p is None else p > LEVEL
        marked.append(replace(line, best=best, p_best=p))
    return tuple(marked)


@dataclass(frozen=True)
class Group:
    """The lines of one comparability class, best first; the title says what sets it apart."""

    title: str
    keys: Mapping[str, Any]
    lines: tuple[Line, ...]

    @property
    def class_id(self) -> str:
        """Of the comparability class."""
        return content_id(self.keys)

    @property
    def unequal_budgets(self) -> bool:
        """Whether studies of different sizes chose the hyperparameters of its tuned lines."""
        return len({line.tune_runs for line in self.lines if line.tuned}) > 1
