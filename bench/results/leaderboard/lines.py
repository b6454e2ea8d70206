"""Lines of a leaderboard: one training configuration over its seeds, ranked within its class.

A configuration may have several rows of one seed: runs that were measured again, and replicas from
other machines. For each metric the row counts that has it and finished first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from fedbench.bench.evaluation.catalogue import needed
from fedbench.bench.evaluation.metrics import is_accuracy
from fedbench.bench.evaluation.shrinkage import FIGURES, shrinkage
from fedbench.bench.results.chance import NO_MARKS, Marks
from fedbench.bench.results.leaderboard.comparability import (
    KEYS,
    Meaning,
    class_id,
    contender,
    hyperparameters,
    metric_value,
    settings_id,
)
from fedbench.bench.results.leaderboard.curves import (
    CURVE_METRICS,
    Curve,
    area,
    common_rounds,
    longest,
    reached,
)
from fedbench.bench.results.leaderboard.data_names import is_on
from fedbench.bench.results.leaderboard.published import Published, published_number
from fedbench.bench.results.leaderboard.separation import Separation
from fedbench.bench.results.leaderboard.statistics import (
    LEVEL,
    mean,
    rounded,
    summarize,
)
from fedbench.bench.results.store.row import Row, per_gigabyte


class Spent(NamedTuple):
    """Cost of a tuning study: the number of its runs, and name and revision of its data set."""

    runs: int
    dataset: str
    revision: str = ""


@dataclass(frozen=True)
class Line:
    """One training configuration over its seeds.

    Attributes:
        rank: 1 is best, ties share a rank; None if not ranked: nothing measured, or hyperparameters
            chosen with labels (`selection` is `oracle`).
        variant: the hyperparameters in which configurations of its method differ, where a class has
            several lines of the method; else empty.
        label: its name in tables and charts: the method, and a part of `variant`; see `labels`.
        joined_by: lines of a method that have it in common are one contender over the classes.
        mean, std, ci95_low, ci95_high: of the metric; std needs 2 seeds, the interval 3.
        values, seeds: the metric of each seed, in the order of seeds.
        row_ids: the runs that those values are from; `fedbench export` takes one.
        local_acc_mean, local_acc_std: the metric's probe on clients' own test images: mean over
            clients and standard deviation over them, each a mean over seeds.
        objective_mean, knn_acc_mean, linear_acc_mean: of these metrics over the seeds, from runs
            that measured them as most lines of the class do; None without any.
        gain: mean over seeds of (trained - untrained encoder).
        mb_up_down: bytes of one run in both directions, in units of 1e6; mean over seeds.
        minutes: wall time of one run; mean over seeds.
        collapsed, contracted: whether the encoder of a run has collapsed, or its projections have
            lost half of the spread that they had before training.
        unmoved: whether a run that was to train has moved no weight.
        at_chance: terms of the loss that ended at chance in a run of it, which does not test its
            method; see `bench.results.chance`.
        num_at_chance: such runs.
        minimises_objective: whether the method's loss is the objective that chooses settings.
        num_diverged, num_failed: runs that ended so; a line with diverged runs ranks last.
        difference: mean - published value.
        keys: the comparability class, columns and further settings.
        settings_id: the same for equal hyperparameters, whatever the class.
        tune_runs: runs of the study that hyperparameters come from; None if untuned or not known.
        tuned_on: data set of that study if it is another than that of these runs; else None.
        best: True for the first line of its class and for those that a t-test over seeds (see
            `separation`) does not tell from it; None where one of the two has fewer than 3 seeds.
        p_best: p-value of that test, adjusted.
        detectable: smallest difference to the first line that the test finds with probability 0.8.
        ties: letter of a group whose lines are not told from its first; None with fewer than 3
            seeds.
        area: mean of k-NN accuracy over the rounds; needs curves that were evaluated after the
            same rounds as those of most lines, as do the next three.
        rounds_to_reach: first evaluated round with the k-NN accuracy asked for, mean over seeds.
        gb_to_reach: the same in bytes of both directions, in units of 1e9.
        num_reached: seeds that got there; the two means are null unless all did.
        mb_up, mb_down: the two parts of `mb_up_down`.
        per_gb: the metric over the bytes of one run in both directions, in units of 1e9.
        epsilon, epsilon_of: differential privacy of a run, the largest over seeds, and what it
            protects; None unless every run has it.
        revealing_messages: messages to the server that hold something of a single image, the most
            of any seed.
        num_replicas: further runs of these seeds that got another value, as on another machine.
        replica_spread: largest minus smallest value of one seed, the most of any seed; None
            without replicas.
        curve_ids: the runs of the seeds whose curves have the most evaluations.
        reproduced: people who reproduced its runs, of the run with the fewest; None where the store
            has no reproductions.
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
    contracted: bool
    unmoved: bool
    at_chance: tuple[str, ...]
    num_at_chance: int
    minimises_objective: bool
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
    detectable: float | None = None
    ties: str | None = None
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
    num_replicas: int = 0
    replica_spread: float | None = None
    curve_ids: tuple[str, ...] = field(default=(), repr=False)
    reproduced: int | None = None
    label: str = ""
    joined_by: str = ""
    hyperparameters: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def num_tried(self) -> int:
        """Seeds that measured the metric or diverged."""
        return self.n_seeds + self.num_diverged

    def record(self) -> dict[str, Any]:
        """Plain values for JSON: the fields, with the columns of the class beside them."""
        flat = asdict(self)
        for name in ("keys", "curve_ids", "joined_by", "hyperparameters"):
            del flat[name]
        if self.reproduced is None:
            del flat["reproduced"]
        flat["seeds"], flat["values"] = list(self.seeds), list(self.values)
        flat["at_chance"] = list(self.at_chance)
        return flat | {key: self.keys[key] for key in KEYS}


@dataclass(frozen=True)
class Group:
    """Lines of one comparability class, best first.

    Attributes:
        title: names what sets the class apart.
        keys: of the class.
        lines: of the class.
        unscaled: the keys that a grid's rules scaled, and their values without that.
    """

    title: str
    keys: Mapping[str, Any]
    lines: tuple[Line, ...]
    unscaled: Mapping[str, Any] = field(default_factory=dict)

    @property
    def class_id(self) -> str:
        """Identity of the comparability class."""
        return class_id(self.keys)

    @property
    def unequal_budgets(self) -> bool:
        """True if hyperparameters of its tuned lines come from studies of different sizes."""
        return len({line.tune_runs for line in self.lines if line.tuned}) > 1

    @property
    def uneven_curves(self) -> bool:
        """True if curves of some lines lack rounds after which others were evaluated."""
        with_area = [line for line in self.lines if line.area is not None]
        return bool(with_area) and any(line.curve_ids for line in self.lines if line.area is None)


def lines_of(
    rows: Sequence[Row],
    metric: str,
    keys: Mapping[str, Any],
    look_up: bool,
    studies: Mapping[str, Spent],
    curves: Mapping[str, Curve] | None = None,
    reach: float | None = None,
    marks: Mapping[str, Marks] | None = None,
) -> list[Line]:
    """Return the lines of one class, not ranked yet.

    Args:
        rows: of the class.
        metric: to sum up.
        keys: of the class.
        look_up: look for the published numbers.
        studies: cost of each tuning study, by its id.
        curves: by row id; None = leave the fields out that come from them.
        reach: k-NN accuracy to look for in the curves.
        marks: of rows, by row id.
    """
    configs: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (contender(row), row.seed, *_first_finished(row))):
        configs.setdefault(contender(row), []).append(row)
    meanings = {
        name: Meaning([_having(runs, name) for runs in configs.values()], name)
        for name in {*SECONDARY, *([_local(metric)] if is_accuracy(metric) else [])}
    }
    lines = [
        _line(
            config_id,
            _Runs(runs, metric, meanings, curves or {}),
            keys,
            # Runs that have not measured the metric may differ in what decides its meaning.
            published_number((_having(runs, metric) or runs)[0], metric) if look_up else None,
            next(filter(None, (studies.get(row.study_id or "") for row in runs)), None),
            marks or {},
        )
        for config_id, runs in configs.items()
    ]
    return lines if curves is None else over_rounds(lines, curves, reach)


SECONDARY = ("objective", "knn_acc", "linear_acc")
"""Metrics that a table has beside the one it is ranked by."""


def _local(metric: str) -> str:
    """Return the metric of the same probe on clients' own test images."""
    return metric.removesuffix("_acc").removesuffix("_local") + "_local_acc"


def _having(rows: Sequence[Row], metric: str) -> list[Row]:
    """Return the finished rows that measured a metric."""
    return [row for row in rows if row.status == "ok" and metric_value(row, metric) is not None]


def _first_finished(row: Row) -> tuple[Any, ...]:
    """Return a key that sorts runs by their end, and those of the same moment by content."""
    scores = (row.objective, row.knn_acc, row.linear_acc, row.metrics_json)
    return row.finished_at, row.row_id, str(scores)


class _Runs:
    """The rows of a line.

    Attributes:
        rows: all of them, by seed and end.
        measured: for each seed the row that the metric is from, and its value.
        done: for each seed that row, or one that lacks the metric.
        num_diverged, num_failed: seeds that ended so.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        metric: str,
        meanings: Mapping[str, Meaning],
        curves: Mapping[str, Curve],
    ) -> None:
        self.rows, self.metric, self._meanings = rows, metric, meanings
        by_seed: dict[int, list[Row]] = {}
        for row in rows:
            by_seed.setdefault(row.seed, []).append(row)
        ended = [[row for row in runs if row.status != "error"] for runs in by_seed.values()]
        self.num_failed = sum(not runs for runs in ended)
        self.num_diverged = sum(runs[0].status == "diverged" for runs in ended if runs)
        self._seeds = [
            [row for row in runs if row.status == "ok"]
            for runs in ended
            if runs and runs[0].status == "ok"
        ]
        self.measured = [(row, v) for runs in self._seeds for row, v in _values(runs, metric)[:1]]
        counted = {row.seed: row for row, _ in self.measured}
        self.done = [counted.get(runs[0].seed, runs[0]) for runs in self._seeds]
        with_curves = [self._with_curve(runs, curves) for runs in self._seeds]
        self.curve_ids = tuple(row.row_id for row in with_curves if row is not None)

    def of(self, metric: str, beside: str | None = None) -> list[tuple[Row, float]]:
        """Return for each seed the row that a metric of the table is from, and its value.

        Args:
            metric: the metric.
            beside: the metric whose settings count, if it is another one.
        """
        if metric == self.metric:
            return self.measured
        meaning = self._meanings[beside or metric]
        chosen = [_values([r for r in runs if r in meaning], metric)[:1] for runs in self._seeds]
        return [pair for pairs in chosen for pair in pairs]

    def mean(self, metric: str, beside: str | None = None) -> float | None:
        """Return the mean of a metric of the table over the seeds."""
        return mean([value for _, value in self.of(metric, beside)])

    def gains(self) -> list[tuple[float, float]]:
        """Return the metric of each seed after and before training."""
        pairs = []
        runs_of = {runs[0].seed: runs for runs in self._seeds}
        for row, value in self.measured:
            before = _values([row, *runs_of[row.seed]], f"untrained_{self.metric}")
            pairs += [(value, start) for _, start in before[:1]]
        return pairs

    def replicas(self) -> tuple[int, float | None]:
        """Return the number of replicas, and the largest spread of one seed."""
        values = [{value for _, value in _values(runs, self.metric)} for runs in self._seeds]
        several = [each for each in values if len(each) > 1]
        spread = max((max(each) - min(each) for each in several), default=None)
        return sum(len(each) - 1 for each in several), spread

    def _with_curve(self, runs: Sequence[Row], curves: Mapping[str, Curve]) -> Row | None:
        alike = [
            row
            for row in runs
            if row.row_id in curves
            and all(
                row in self._meanings[name]
                for name in CURVE_METRICS
                if name != self.metric and metric_value(row, name) is not None
            )
        ]
        return max(alike, key=lambda row: longest(curves[row.row_id]), default=None)


def _values(rows: Sequence[Row], metric: str) -> list[tuple[Row, float]]:
    return [(row, v) for row in rows if (v := metric_value(row, metric)) is not None]


def _shrunk(row: Row) -> bool:
    after = {name: metric_value(row, name) for name in FIGURES}
    before = {name: metric_value(row, f"untrained_{name}") for name in FIGURES}
    return bool(shrinkage(after, before))


def _line(
    config_id: str,
    runs: _Runs,
    keys: Mapping[str, Any],
    published: Published | None,
    study: Spent | None,
    marks: Mapping[str, Marks],
) -> Line:
    first, done, metric = runs.rows[0], runs.done, runs.metric
    of_rows = [marks.get(row.row_id, NO_MARKS) for row in done]
    values = [value for _, value in runs.measured]
    gains = runs.gains()
    summary = summarize(values)
    local = _local(metric)
    difference = None
    if published is not None and summary.mean is not None:
        difference = summary.mean - published.value
    tuned_on = None
    if study is not None and study.revision != first.dataset_revision:
        tuned_on = None if is_on(first, study.dataset) else study.dataset
    epsilons = [row.epsilon for row in done if row.epsilon is not None]
    private = bool(done) and len(epsilons) == len(done)
    num_replicas, replica_spread = runs.replicas()
    return Line(
        rank=None,
        method=first.method,
        variant="",
        label=first.method,
        hyperparameters=hyperparameters(first),
        config_id=config_id,
        metric=metric,
        mean=summary.mean,
        std=summary.std,
        ci95_low=summary.ci95_low,
        ci95_high=summary.ci95_high,
        n_seeds=len(values),
        seeds=tuple(row.seed for row, _ in runs.measured),
        values=tuple(values),
        row_ids=tuple(row.row_id for row, _ in runs.measured),
        objective_mean=runs.mean("objective"),
        knn_acc_mean=runs.mean("knn_acc"),
        linear_acc_mean=runs.mean("linear_acc"),
        local_acc_mean=runs.mean(local) if is_accuracy(metric) else None,
        local_acc_std=runs.mean(f"{local}_std", beside=local) if is_accuracy(metric) else None,
        untrained_mean=mean([start for _, start in gains]),
        gain=mean([after - start for after, start in gains]),
        mb_up_down=_mean((row.bytes_up_down for row in done), unit=1e6),
        minutes=_mean((row.wall_seconds for row in done), unit=60),
        collapsed=any(row.collapsed for row in done),
        contracted=any(map(_shrunk, done)),
        unmoved=any(row.unmoved for row in done),
        at_chance=tuple(dict.fromkeys(term for mark in of_rows for term in mark.at_chance)),
        num_at_chance=sum(bool(mark.at_chance) for mark in of_rows),
        minimises_objective=any(mark.minimises_objective for mark in of_rows),
        num_diverged=runs.num_diverged,
        num_failed=runs.num_failed,
        tuned=any(row.tuned for row in runs.rows),
        selection=first.selection,
        preset=first.preset,
        published=published,
        difference=difference,
        class_id=class_id(keys),
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
        num_replicas=num_replicas,
        replica_spread=replica_spread,
        curve_ids=runs.curve_ids,
    )


def _mean(values: Iterable[float | None], unit: float = 1) -> float | None:
    return mean([value / unit for value in values if value is not None])


def over_rounds(
    lines: Sequence[Line], curves: Mapping[str, Curve], reach: float | None
) -> list[Line]:
    """Return the lines of a class with the fields that come from the curves of their runs.

    Curves are compared at the evaluations that most lines have; lines that lack some of these have
    no such fields. Lines without any evaluation between first and last count only if all are so.

    Args:
        lines: without them.
        curves: by row id; runs without one are left out.
        reach: k-NN accuracy to look for.
    """
    known = [[curves[row_id] for row_id in line.curve_ids] for line in lines]
    shared = [common_rounds(of_line) for of_line in known]
    counts = Counter(rounds for rounds in shared if len(rounds) > 2) or Counter(shared)
    at = max(sorted(counts), key=lambda rounds: (counts[rounds], len(rounds)), default=())
    return [
        _with_curves(line, [curve.at(at) for curve in of_line], reach)
        if of_line and {*at} <= {*rounds}
        else line
        for line, of_line, rounds in zip(lines, known, shared, strict=True)
    ]


def _with_curves(line: Line, known: Sequence[Curve], reach: float | None) -> Line:
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
        return bool(line.num_diverged), False, -rounded(needed(line.metric).score(line.mean))

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
    return _tested(numbered)


def _tested(lines: Sequence[Line]) -> tuple[Line, ...]:
    """Return the lines of a class with the groups that tie, and the tests against the first."""
    tests = separation(lines)
    letters = tests.groups()
    lines = [replace(line, ties=letters.get(i)) for i, line in enumerate(lines)]
    if 0 not in letters or len(letters) < 2:
        return tuple(lines)
    others = tests.places[1:]
    p = tests.adjusted(0, others)
    marked = [replace(lines[0], best=True)]
    for i, line in enumerate(lines[1:], start=1):
        best = False if line.num_diverged else p[i] > LEVEL if i in p else None
        least = tests.detectable(0, i, len(others)) if i in p else None
        marked.append(replace(line, best=best, p_best=p.get(i), detectable=least))
    return tuple(marked)


def separation(lines: Sequence[Line]) -> Separation:
    """Return the tests between the ranked lines of a class, which are in the order of ranks."""
    return Separation(
        {
            i: line.values
            for i, line in enumerate(lines)
            if line.rank is not None and not line.num_diverged
        }
    )
