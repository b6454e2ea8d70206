"""Two methods, or two runs, beside each other: how far apart, how sure, and what else differs."""

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.bench.board.boards import leaderboard
from fedbench.bench.config.identity import section_defaults
from fedbench.bench.evaluation.catalogue import needed
from fedbench.bench.evaluation.metrics import is_accuracy, main_metrics
from fedbench.bench.results.choice import Ranked
from fedbench.bench.results.leaderboard.comparability import as_text, class_of, differing
from fedbench.bench.results.leaderboard.separation import Separation
from fedbench.bench.results.leaderboard.statistics import LEVEL, MIN_FOR_INTERVAL, NO_SPREAD, holm
from fedbench.bench.results.report.charts import main_lines, short_titles
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.settings import completed, method_defaults
from fedbench.bench.results.store.store import Store, open_store
from fedbench.bench.system.arguments import grouped
from fedbench.bench.system.errors import ConfigError, StoreError

if TYPE_CHECKING:
    import pandas as pd

Pair = tuple[Any, Any]
"""A value of the first and of the second."""
_COSTS = ("bytes_up", "bytes_down", "wall_seconds", "simulated_hours")


@dataclass(frozen=True)
class Difference:
    """Two methods in one setting: same data, partition, budget, encoder and probe.

    The test is the board's, of these two lines alone. It is None, as its interval is, with fewer
    than three seeds of either, with seeds that diverged, or where no seed differs from another.
    """

    setting: str  # what sets it apart from the other settings
    lines: tuple[str, str]  # names on the board; of several lines of a method see `compare`
    seeds: tuple[int, int]
    means: tuple[float | None, float | None]
    difference: float | None  # first minus second
    low: float | None  # ends of the 95 % interval of the difference, not adjusted
    high: float | None
    test: str | None  # `t`, or `Welch` where variances are unequal
    p: float | None  # two-sided, adjusted by Holm for the number of settings
    detectable: float | None  # difference that is found with probability 0.8 in so many settings
    differs: Mapping[str, Pair]  # hyperparameters that both have, and how each was tuned
    untested: str  # why there is no test; empty if there is one


@dataclass(frozen=True, repr=False)
class Comparison:
    """Two methods over the settings where both ran, or two runs."""

    names: tuple[str, str]
    metric: str
    settings: tuple[Difference, ...]  # of methods
    shared: str  # part of the title that all settings have
    values: Mapping[str, Pair]  # of runs: metrics and costs
    differs: Mapping[str, Pair]  # of runs, or of methods that never ran in one setting
    equal: bool  # in data, partition, budget, encoder and probe
    sentence: str  # what is to be concluded
    problems: tuple[str, ...] = ()  # a line per unreadable file of the store

    def as_dict(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return asdict(self)

    def to_frame(self) -> "pd.DataFrame":
        """Return a line for each setting, or for each metric and cost of two runs."""
        import pandas as pd

        if self.settings:
            return pd.DataFrame(map(vars, self.settings))
        return pd.DataFrame.from_dict(dict(self.values), orient="index", columns=[*self.names])

    def _repr_html_(self) -> str:
        table = self.to_frame().to_html(index=not self.settings, border=0)
        return f"{table}<p>{html.escape(self.sentence)}</p>"

    def __repr__(self) -> str:
        return f"<{self.names[0]} and {self.names[1]}: {self.sentence}>"


@grouped
def compare(
    first: str, second: str, store: Store | Path | str | None = None, *, chosen: Ranked
) -> Comparison:
    """Compare two methods in every setting where both ran, or two runs.

    Of a method that has several lines in a setting, the one with the most seeds counts, and of
    those the best; the name of a line on the board, as `simclr (lr=0.03)`, chooses another.

    Args:
        first: a method spec, a line of the board, or a run id; what differences are of.
        second: the same; it is subtracted.
        store: see `open_store`.
        chosen: which runs are compared, and by what.

    Raises:
        ConfigError: for one thing twice, or a run id that several runs have.
        UnknownNameError: for an unknown method, grid, metric, data set or preset.
        StoreError: for a store or a run that is not there.

    >>> from fedbench.bench.testing import demo_store
    >>> run_id = demo_store().rows()[0].row_id
    >>> compare(run_id, "simclr", demo_store())
    Traceback (most recent call last):
    ...
    fedbench.bench.system.errors.ConfigError: compare two methods or two runs; got one of each
    """
    store = open_store(store).require()
    if first == second:
        raise ConfigError(f"compare two different things; both are {first!r}")
    methods = [name.partition(" (")[0] for name in (first, second)]
    known = {*store.frame().method}
    of_runs = [name not in known and _is_run_id(name) for name in methods]
    if all(of_runs):
        return _runs(store.find(first), store.find(second), chosen.metric)
    if any(of_runs):
        raise ConfigError("compare two methods or two runs; got one of each")
    board = leaderboard(store, methods=[*{*methods}], **vars(chosen))
    if board.nothing:
        raise StoreError(board.nothing)
    return _methods(board.board, (first, second), board.problems)


def _is_run_id(name: str) -> bool:
    return len(name) >= 4 and {*name.partition("@")[0]} <= {*"0123456789abcdef"}


# Methods


def _methods(board: Any, names: tuple[str, str], problems: tuple[str, ...]) -> Comparison:
    both: list[tuple[str, Pair]] = []
    alone: dict[str, list[Any]] = {name: [] for name in names}
    for group in board.groups:
        of_group = _line(group.frame, names[0]), _line(group.frame, names[1])
        for name, line in zip(names, of_group, strict=True):
            if line is not None:
                alone[name].append(group)
        if None not in of_group and of_group[0].label != of_group[1].label:
            both.append((group.title, of_group))
    for name in names:
        if not alone[name]:
            lines = ", ".join(dict.fromkeys(e.label for e in board.entries))
            raise StoreError(f"no result of {name!r} here; the lines are {lines}")
    if not both:
        return _never_together(board.metric, names, alone, problems)
    titles = [title for title, _ in both]
    shared = [p for p in titles[0].split(" · ") if all(p in each.split(" · ") for each in titles)]
    tests = [_separation(*lines) for _, lines in both]
    p = iter(holm([test.p(0, 1) for test, _ in tests if test is not None]))
    number = sum(test is not None for test, _ in tests)
    shorts = short_titles(titles) if len(titles) > 1 else [""]
    settings = []
    for short, (_, (a, b)), (test, untested) in zip(shorts, both, tests, strict=True):
        low, high = (None, None) if test is None else test.interval(0, 1)
        each = Difference(
            setting=short,
            lines=(a.label, b.label),
            seeds=(a.n_seeds, b.n_seeds),
            means=(a.mean, b.mean),
            difference=None if None in (a.mean, b.mean) else a.mean - b.mean,
            low=low,
            high=high,
            test=None if test is None else "Welch" if test.welch else "t",
            p=None if test is None else next(p),
            detectable=None if test is None else test.detectable(0, 1, number),
            differs=_differing_lines(a, b),
            untested=untested,
        )
        settings.append(each)
    said = _conclusion(settings, names, board.metric)
    return Comparison(
        names, board.metric, (*settings,), " · ".join(shared), {}, {}, True, said, problems
    )


def _line(frame: "pd.DataFrame", name: str) -> Any:
    """Return the line of this name on the board, else that which stands for the method."""
    found = frame[frame.label == name]
    if found.empty:
        found = main_lines(frame[frame.method == name])
    return next(found.itertuples(index=False, name="Line"), None)


def _separation(first: Any, second: Any) -> tuple[Separation | None, str]:
    """Return the test of two lines, or why there is none."""
    if first.num_diverged or second.num_diverged:
        return None, "seeds diverged"
    if min(len(first.values), len(second.values)) < MIN_FOR_INTERVAL:
        return None, "it needs three seeds of both"
    test = Separation({0: first.values, 1: second.values})
    return (test, "") if test.places else (None, NO_SPREAD)


def _differing_lines(first: Any, second: Any) -> dict[str, Pair]:
    """Return the hyperparameters of both lines that differ, and how each was tuned."""

    def whole(line: Any) -> dict[str, Any]:
        given = line.hyperparameters
        tuned = f"in {line.tune_runs} runs" if line.tune_runs else "yes" if line.tuned else "no"
        defaults = {**section_defaults(), **method_defaults(line.method, given)}
        return {**defaults, **given, "tuned": tuned}

    a, b = whole(first), whole(second)
    both = (a.keys() & b.keys()) - {"spec"}
    return {name: (a[name], b[name]) for name in sorted(both) if a[name] != b[name]}


def _conclusion(settings: Sequence[Difference], names: tuple[str, str], metric: str) -> str:
    better = needed(metric).score
    tested = [each for each in settings if each.p is not None]
    number = len(tested)

    def where(count: int, all_of: str = "all") -> str:
        some = all_of if count == number else f"{count} of"
        return f" in {some} {number} settings" if number > 1 else ""

    parts, told = [], [each for each in tested if each.p is not None and each.p <= LEVEL]
    for name, sign in zip(names, (1, -1), strict=True):
        ahead = [each for each in told if sign * better(each.difference or 0.0) > 0]
        if ahead:
            sizes = [abs(each.difference or 0.0) for each in ahead]
            parts.append(f"{name} is ahead by {_sizes(sizes, metric)}{where(len(ahead))}")
    if left := [each for each in tested if each not in told]:
        seen = _sizes([each.detectable or 0.0 for each in left], metric)
        parts.append(
            f"no difference is seen{where(len(left), 'any of')}; one of {seen} would have been,"
            " four times in five"
        )
    for reason, count in Counter(each.untested for each in settings if each.untested).items():
        some = f" in {count} of {len(settings)} settings" if len(settings) > 1 else ""
        parts.append(f"no test and no interval{some}: {reason}")
    return "; ".join(parts)


def _sizes(values: Sequence[float], metric: str) -> str:
    """Return differences as `3.9 to 4.8 points`."""
    scale, unit = (100, " points") if is_accuracy(metric) else (1, "")
    form = "{:.1f}" if is_accuracy(metric) else "{:.3g}"
    ends = dict.fromkeys(form.format(scale * value) for value in (min(values), max(values)))
    return " to ".join(ends) + unit


def _never_together(
    metric: str, names: tuple[str, str], alone: Mapping[str, Sequence[Any]], problems: Any
) -> Comparison:
    """Say what differs between the two settings, one of each method, that are most alike."""
    pairs = [(a.keys, b.keys) for a in alone[names[0]] for b in alone[names[1]]]
    nearest = min(pairs, key=lambda pair: len(differing(pair)))
    keys_a, keys_b = nearest
    differs = {name: (keys_a.get(name), keys_b.get(name)) for name in differing(nearest)}
    of = ", ".join(f"{name} {as_text(a)} and {as_text(b)}" for name, (a, b) in differs.items())
    said = f"not comparable: no setting has results of both; the nearest two differ in {of}"
    return Comparison(names, metric, (), "", {}, differs, False, said, problems)


# Runs


def _runs(first: Row, second: Row, metric: str) -> Comparison:
    rows = first, second
    measured = first.metrics, second.metrics
    shown = main_metrics({*measured[0], *measured[1]})
    wanted = metric if any(metric in each for each in measured) else f"{metric}_acc"
    a, b = ({**vars(row), **row.metrics} for row in rows)
    listed = dict.fromkeys([*shown, wanted, *_COSTS])
    pairs = {name: (a.get(name), b.get(name)) for name in listed}
    values = {name: pair for name, pair in pairs.items() if pair != (None, None)}
    configs = [completed(row.settings) | {"code": row.code} for row in rows]
    both = configs[0].keys() & configs[1].keys()
    names = [n for n in differing(configs) if n in both or not n.startswith("method.")]
    differs = {name: (configs[0].get(name), configs[1].get(name)) for name in names}
    ranked_by = wanted if wanted in values else "linear_acc"
    equal = class_of(first, ranked_by) == class_of(second, ranked_by)
    said = "one run each: seeds alone may differ as much, and no test is possible"
    if not equal:
        said = "not comparable: data, partition, budget, encoder or probe differ; " + said
    elif first.method != second.method:
        said += f"; fedbench compare {first.method} {second.method} compares their seeds"
    ids = first.row_id, second.row_id
    return Comparison(ids, ranked_by, (), "", values, differs, equal, said, ())
