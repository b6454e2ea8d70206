"""Lines of a leaderboard: one configuration over its seeds, ranked within its class."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from fedbench.bench.results.leaderboard.comparability import KEYS, settings_id, variants
from fedbench.bench.results.leaderboard.curves import Curve, area, reached
from fedbench.bench.results.leaderboard.published import (
    Published,
    dataset_name,
    published_number,
)
from fedbench.bench.results.leaderboard.statistics import LEVEL, holm, mean, paired_p, summarize
from fedbench.bench.results.metrics import score
from fedbench.bench.results.store.row import Row, per_gigabyte
from fedbench.bench.system.identity import content_id


class Spent(NamedTuple):
    """Cost of a tuning study: the number of its runs, and the data set that they were on."""

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
        num_diverged, num_failed: runs that ended so; a line with diverged runs ranks last.
        difference: mean - published value.
        keys: the comparability class, columns and further settings.
        settings_id: the same for equal hyperparameters, whatever the class.
        tune_runs: runs of the study that hyperparameters come from; None if untuned or not known.
        tuned_on: data set of that study if it is another than that of these runs; else None.
        best: True for the first line of its class and for those that a paired t-test over common
            seeds (Holm) cannot tell from it; None with fewer than 3 common seeds.
        p_best: p-value of that test, adjusted.
        area: mean of k-NN accuracy over the rounds; needs curves, as do the next three.
        rounds_to_reach: first evaluated round with the k-NN accuracy asked for, mean over seeds.
        gb_to_reach: the same in bytes of both directions, in units of 1e9.
        num_reached: seeds that got there; the two means are null unless all did.
        mb_up, mb_down: the two parts of `mb_up_down`.
        per_gb: the metric over the bytes of one run in both directions, in units of 1e9.
        epsilon, epsilon_of: differential privacy of a run, the largest over seeds, and what it
            protects; None unless every run has it.
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


@dataclass(frozen=True)
class Group:
    """Lines of one comparability class, best first; the title names what sets the class apart."""

    title: str
    keys: Mapping[str, Any]
    lines: tuple[Line, ...]

    @property
    def class_id(self) -> str:
        """Identity of the comparability class."""
        return content_id(self.keys)

    @property
    def unequal_budgets(self) -> bool:
        """True if hyperparameters of its tuned lines come from studies of different sizes."""
        return len({line.tune_runs for line in self.lines if line.tuned}) > 1


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
    keys: Mapping[str, Any],
    look_up: bool,
    studies: Mapping[str, Spent],
) -> list[Line]:
    """Return the lines of one class, not ranked yet.

    Args:
        rows: of the class.
        metric: to sum up.
        keys: of the class.
        look_up: look for the published numbers.
        studies: cost of each tuning study, by its id.
    """
    configs: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row.config_id, row.seed, row.row_id)):
        configs.setdefault(row.config_id, []).append(row)
    variant_of = variants({config_id: runs[0] for config_id, runs in configs.items()})
    return [
        _line(
            runs,
            metric,
            variant_of[config_id],
            keys,
            published_number(runs[0], metric) if look_up else None,
            studies.get(runs[0].study_id or ""),
        )
        for config_id, runs in configs.items()
    ]


def _line(
    runs: Sequence[Row],
    metric: str,
    variant: str,
    keys: Mapping[str, Any],
    published: Published | None,
    study: Spent | None,
) -> Line:
    first = runs[0]
    done = [row for row in runs if row.status == "ok"]
    measured = [(row, v) for row in done if (v := metric_value(row, metric)) is not None]
    values = [value for _, value in measured]
    before = [(value, metric_value(row, f"untrained_{metric}")) for row, value in measured]
    pairs = [(after, start) for after, start in before if start is not None]
    summary = summarize(values)
    local = metric.removesuffix("_acc").removesuffix("_local") + "_local_acc"
    difference = None
    if published is not None and summary.mean is not None:
        difference = summary.mean - published.value
    tuned_on = None
    if study is not None and dataset_name(study.dataset) != dataset_name(first.dataset):
        tuned_on = study.dataset
    epsilons = [row.epsilon for row in done if row.epsilon is not None]
    private = bool(done) and len(epsilons) == len(done)
    return Line(
        rank=None,
        method=first.method,
        variant=variant,
        config_id=first.config_id,
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
        mb_up_down=_mean((row.bytes_up_down for row in done), unit=1e6),
        minutes=_mean((row.wall_seconds for row in done), unit=60),
        collapsed=any(row.collapsed for row in done),
        num_diverged=sum(row.status == "diverged" for row in runs),
        num_failed=sum(row.status == "error" for row in runs),
        tuned=any(row.tuned for row in runs),
        selection=first.selection,
        preset=first.preset,
        published=published,
        difference=difference,
        class_id=content_id(keys),
        keys=keys,
        settings_id=settings_id(first),
        tune_runs=None if study is None else study.runs,
        tuned_on=tuned_on,
        mb_up=_mean((row.bytes_up for row in done), unit=1e6),
        mb_down=_mean((row.bytes_down for row in done), unit=1e6),
        per_gb=_mean(per_gigabyte(row, summary.mean) for row in done),
        epsilon=max(epsilons) if private else None,
        epsilon_of=done[0].epsilon_of if private else None,
        revealing_messages=max((row.revealing_messages or 0 for row in done), default=None),
    )


def _mean(values: Iterable[float | None], unit: float = 1) -> float | None:
    return mean([value / unit for value in values if value is not None])


def over_rounds(line: Line, curves: Mapping[str, Curve], reach: float | None) -> Line:
    """Return the line with the fields that come from the curves of its runs.

    Args:
        line: without them.
        curves: by row id; runs without one are left out.
        reach: k-NN accuracy to look for.
    """
    known = [curves[row_id] for row_id in line.row_ids if row_id in curves]
    there = [] if reach is None else [at for curve in known if (at := reached(curve, reach))]
    all_there = len(there) == len(known)
    return replace(
        line,
        area=_mean(area(curve) for curve in known),
        rounds_to_reach=mean([at[0] for at in there]) if all_there else None,
        gb_to_reach=mean([at[1] / 1e9 for at in there]) if all_there else None,
        num_reached=None if reach is None else len(there),
    )


def ranked(lines: Sequence[Line]) -> tuple[Line, ...]:
    """Return the lines best first: lines with diverged runs behind others, unranked ones last."""

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
    numbered: list[Line] = []
    for position, line in enumerate(ordered, start=1):
        rank: int | None = None
        if counts(line):
            tied = bool(numbered) and place(numbered[-1]) == place(line)
            rank = numbered[-1].rank if tied else position
        numbered.append(replace(line, rank=rank))
    return _with_best_set(numbered)


def _with_best_set(lines: Sequence[Line]) -> tuple[Line, ...]:
    """Mark the first line and all that a paired test over seeds cannot tell from it.

    The tests are adjusted by Holm's rule for their number. Nothing is marked where no line shares
    three seeds with the first.
    """
    if not lines or lines[0].rank is None or lines[0].mean is None or lines[0].num_diverged:
        return tuple(lines)
    first = dict(zip(lines[0].seeds, lines[0].values, strict=True))
    p_values: dict[str, float] = {}
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
            p_values[line.config_id] = p
    if not p_values:
        return tuple(lines)
    adjusted = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    marked = [replace(lines[0], best=True)]
    for line in lines[1:]:
        p = adjusted.get(line.config_id)
        best = False if line.num_diverged else None if p is None else p > LEVEL
        marked.append(replace(line, best=best, p_best=p))
    return tuple(marked)
