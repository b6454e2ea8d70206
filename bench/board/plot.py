"""Charts of what `leaderboard`, `studies` and `partition` return, each a matplotlib figure.

A method has one colour and one symbol in all of them, those of the report; intervals are of 95 %
over seeds. A figure shows itself in a notebook; `savefig("x.svg")` or `("x.png")` writes it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import optuna
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from fedbench.bench.data.partition import PartitionSummary
from fedbench.bench.evaluation.metrics import heading, is_accuracy
from fedbench.bench.execution.picture import Picture
from fedbench.bench.experiment.fields import show
from fedbench.bench.results.leaderboard.curves import CURVE_METRICS, Curve, Losses, load_curves
from fedbench.bench.results.leaderboard.entries import Group
from fedbench.bench.results.leaderboard.formats import Ranking
from fedbench.bench.results.leaderboard.studies import StudyView, is_usable
from fedbench.bench.results.report import charts
from fedbench.bench.results.report.colours import COLOURS, SYMBOLS, Look, looks
from fedbench.bench.results.store.store import Store, open_store
from fedbench.bench.system.errors import ConfigError, UnknownNameError
from fedbench.bench.tuning.spaces.samplers import quiet

__all__ = ["Picture", "accuracy", "cost", "curves", "loss", "partition", "search"]

_COSTS = {"bytes": ("mb", "MB sent, both directions"), "minutes": ("minutes", "minutes of a run")}
_MIN_TRIALS = 10
"""Trials below which the importance of hyperparameters is noise."""
_INTERVAL = ["mean", "low", "high"]
_ALONG = {
    "rounds": ("round", "rounds"),
    "bytes": ("gb", "GB sent"),
    "hours": ("hours", "simulated hours"),
}


def accuracy(ranking: Ranking, axis: str | None = None) -> Picture:
    """Draw the metric of a ranking against an axis of its settings, a line a method.

    Args:
        ranking: of `fedbench.leaderboard`, over two settings or more that differ in one value.
        axis: such as `alpha`; default: the first that there is.

    Raises:
        ConfigError: where no axis has two settings with one method.
        UnknownNameError: for another axis.
    """
    found = charts.sweeps(ranking.board)
    if not found:
        raise ConfigError("no axis: accuracy needs a method in two settings that differ in one key")
    first_of_axis = {chart["axis"]: chart for chart in reversed(found)}
    chart = _known("axis", axis or found[0]["axis"], first_of_axis)
    points = pd.DataFrame(chart["points"])
    steps = sorted(points.x.unique())
    points["place"] = points.x.map(steps.index)
    label = chart["axis"].replace("_", " ")
    figure = _lines(points, "place", ranking.board.metric, chart["title"], label)
    figure.axes[0].set_xticks(range(len(steps)), [f"{step:g}" for step in steps])
    return figure


def cost(
    ranking: Ranking, over: Literal["bytes", "minutes"] = "bytes", setting: str | None = None
) -> Picture:
    """Draw the metric of a ranking against what a run sends or takes, a dot a method.

    Args:
        ranking: of `fedbench.leaderboard`.
        over: `bytes` or `minutes`.
        setting: part of a table's title; default: the table with the most methods and seeds.
    """
    group, (key, label) = _group(ranking, setting), _known("over", over, _COSTS)
    points = charts.points_of(group)
    return _lines(points[points.main], key, ranking.board.metric, group.title, label, apart=False)


def curves(
    ranking: Ranking,
    over: Literal["rounds", "bytes", "hours"] = "rounds",
    setting: str | None = None,
    *,
    metric: str | None = None,
    store: Store | Path | str | None = None,
) -> Picture:
    """Draw the accuracy of each method at its evaluations; `evaluation.every` makes more of them.

    Args:
        ranking: of `fedbench.leaderboard`.
        over: `rounds`, `bytes` sent until then, or simulated `hours` of runs with devices.
        setting: part of a table's title; default: the table with the most methods and seeds.
        metric: `linear_acc` or `knn_acc`; default: the one with more evaluations.
        store: that the ranking is of.
    """
    group, (key, label) = _group(ranking, setting), _known("over", over, _ALONG)
    group, found, _ = _with_curves(group, store)
    main = charts.main_lines(group.frame).set_index("label").method
    points = charts.curves_of(group, found).reindex(columns=["name", "metric", key, *_INTERVAL])
    times = {name: sum(points.metric == name) for name in CURVE_METRICS}
    metric = metric or max(times, key=times.__getitem__)
    _known("metric", metric, times)
    shown = points.assign(method=points.name.map(main))
    shown = shown[points.metric == metric].dropna(subset=["method", key])
    if shown.empty:
        raise ConfigError(f"no curve of {metric} over {over} in {group.title!r}")
    return _lines(shown, key, metric, group.title, label)


def loss(
    ranking: Ranking,
    setting: str | None = None,
    *,
    store: Store | Path | str | None = None,
) -> Picture:
    """Draw the mean training loss by round, a panel a method: losses have different units.

    Args:
        ranking: of `fedbench.leaderboard`.
        setting: part of a table's title; default: the table with the most methods and seeds.
        store: that the ranking is of.
    """
    group, _, losses = _with_curves(_group(ranking, setting), store)
    points = charts.losses_of(group, losses)
    if points.empty:
        raise ConfigError(f"no losses are stored of {group.title!r}")
    of_names = _by_name(points)
    columns = min(len(of_names), 3)
    figure = Picture(2.8 * columns + 0.4, 2.2 * -(-len(of_names) // columns) + 0.5)
    figure.suptitle(group.title, fontsize=9)
    panels = figure.panels(len(of_names), columns)
    for axes, (name, look, of) in zip(panels, of_names, strict=True):
        axes.plot(of["round"], of["mean"], color=look.colour, linewidth=1.8)
        axes.set_title(name, fontsize=9)
        axes.set(xlabel="rounds", ylabel="loss")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _plain(axes)
    return figure


def search(study: StudyView) -> Picture:
    """Draw each trial's objective against each hyperparameter, best trial ringed.

    A title has the share of the objective's variance that the hyperparameter explains, by fANOVA of
    Hutter et al. 2014 in Optuna's implementation, from ten trials on. Trials without an objective,
    such as those that diverged, are crosses at the lower edge and count in no share: where one
    value makes all of them fail, that share is too small.

    Args:
        study: one of `fedbench.studies`.
    """
    trials = [trial for trial in study.trials if is_usable(trial)]
    failed = [trial for trial in study.trials if trial["objective"] is None and trial["params"]]
    of_first = trials[0]["params"] if trials else {}
    values_of = {n: [trial["params"].get(n) for trial in trials] for n in of_first}
    lost_of = {n: [trial["params"].get(n) for trial in failed] for n in of_first}
    names = [n for n in of_first if len({*map(repr, values_of[n] + lost_of[n])}) > 1]
    if not names:
        raise ConfigError(f"study {study.study_id!r} has no two finished trials that differ")
    scores = [trial["objective"] for trial in trials]
    # Where all trials score the same, nothing explains it.
    tell = len(trials) >= _MIN_TRIALS and min(scores) < max(scores)
    shares = _importance(trials, names) if tell else {}
    names.sort(key=lambda name: -shares.get(name, 0.0))
    figure = Picture(2.5 * len(names) + 0.6, 3)
    without = f" · × {len(failed)} without an objective" if failed else ""
    by = " · share of variance by fANOVA" if shares else ""
    figure.suptitle(f"{study.study_id} · {len(trials)} trials{without}{by}", fontsize=9)
    look = looks([study.spec])[study.spec]
    colour, marker = look.colour, SYMBOLS[look.symbol]
    best = int(np.argmax(scores))
    for axes, name in zip(figure.panels(len(names)), names, strict=True):
        values, lost = values_of[name], lost_of[name]
        within = _distribution([*values, *lost])
        shown: Callable[[Any], Any] = show
        if isinstance(within, FloatDistribution):
            shown = float
            axes.set_xscale("log" if within.log else "linear")
        xs = [shown(value) for value in values]
        if lost:
            edge = axes.get_xaxis_transform()  # 0 is the lower end, whatever the objective
            crosses, low = [shown(value) for value in lost], [0.03] * len(lost)
            axes.plot(crosses, low, "x", color="grey", markersize=5, transform=edge)
        axes.scatter(xs, scores, s=22, color=colour, marker=marker, alpha=0.8, linewidths=0)
        axes.scatter(xs[best : best + 1], scores[best : best + 1], s=70, facecolors="none",
                     edgecolors="black")  # fmt: skip
        share = f" · {shares[name]:.0%}" if name in shares else ""
        axes.set_title(f"{name.rpartition('.')[2]}{share}", fontsize=9)
        _plain(axes)
    figure.supylabel("objective", fontsize=9)
    return figure


def partition(summary: PartitionSummary, most: int = 40) -> Picture:
    """Draw how many images of each class each client has.

    Args:
        summary: of `fedbench.partition`.
        most: clients, the first ones.
    """
    counts = np.array(summary.record["class_counts"][:most])
    figure = Picture(7, 3.6)
    (axes,) = figure.panels(1)
    left = np.zeros(len(counts))
    for label, of_class in enumerate(counts.T):
        colour, clients = COLOURS[label % len(COLOURS)], range(len(counts))
        axes.bar(clients, of_class, bottom=left, color=colour, width=0.9, label=f"{label}")
        left += of_class
    number = summary.record["num_clients"]
    shown = f"{number} clients" if number <= most else f"the first {most} of {number:,} clients"
    axes.set(xlabel="client", ylabel="images", title=f"{summary.dataset} · {shown}")
    axes.title.set_fontsize(9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _plain(axes)
    if counts.shape[1] <= 20:
        figure.explain(axes, title="class", fontsize=8)
    return figure


# What charts have in common


def _group(ranking: Ranking, setting: str | None) -> Group:
    groups = [g for g in ranking.board.groups if setting is None or setting in g.title]
    if not groups:
        raise ConfigError(
            ranking.nothing
            or f"no table has {setting!r} in its title; titles: "
            + "; ".join(group.title for group in ranking.board.groups)
        )
    return max(groups, key=lambda g: (g.frame.method.nunique(), int(g.frame.n_seeds.sum())))


def _known(what: str, name: str, known: Mapping[str, Any]) -> Any:
    if name not in known:
        raise UnknownNameError(what, name, known)
    return known[name]


def _with_curves(
    group: Group, store: Store | Path | str | None
) -> tuple[Group, Mapping[str, Curve], dict[str, Losses]]:
    """Return the group with its runs that have curves (`curve_ids`), curves and losses by id."""
    opened, frame = open_store(store).require(), group.frame
    rows = opened.frame()
    ids = {run_id for each in frame.run_ids for run_id in each}
    found, losses, _ = load_curves(opened, rows[rows.row_id.isin(ids)])
    there = frame.run_ids.map(lambda ids: tuple(run_id for run_id in ids if run_id in found))
    return replace(group, frame=frame.assign(curve_ids=there)), found, losses


def _by_name(points: pd.DataFrame) -> list[tuple[str, Look, pd.DataFrame]]:
    """Return name and look of each line, and its points in their order."""
    chosen = charts.styles(dict(zip(points.name, points.method, strict=True)), ())
    return [(str(name), chosen[str(name)], of) for name, of in points.groupby("name", sort=False)]


def _lines(
    points: pd.DataFrame, key: str, metric: str, title: str, label: str, *, apart: bool = True
) -> Picture:
    """Draw a line for each name over a column, in percent if the metric is an accuracy.

    Lines stand a little beside each other (`apart`), so that none hides the intervals of another.
    """
    figure = Picture(7, 3.8)
    (axes,) = figure.panels(1)
    axes.set(xlabel=label, ylabel=heading(metric))
    axes.set_title(title, fontsize=9, loc="left")
    _plain(axes)
    scale = 100 if is_accuracy(metric) else 1
    drawn = _by_name(points := points.dropna(subset=["mean", key]))
    xs = np.unique(points[key].astype(float))
    span, gap = (np.ptp(xs), np.diff(xs).min()) if len(xs) > 1 else (1.0, 1.0)
    room = max(min(gap / 2, span / 6), span / 12)
    for index, (name, look, of) in enumerate(drawn):
        of_line = scale * of[_INTERVAL].astype(float)
        half = ((of_line.high - of_line.low) / 2).fillna(0.0)
        beside = apart * room * (index - (len(drawn) - 1) / 2) / len(drawn)
        axes.errorbar(
            of[key].astype(float) + beside, of_line["mean"], half, color=look.colour, label=name,
            marker=SYMBOLS[look.symbol], markersize=5, linewidth=1.4, elinewidth=1.6,
        )  # fmt: skip
    figure.explain(axes, "upper", fontsize=8)
    return figure


def _plain(axes: Axes) -> None:
    axes.grid(axis="y", alpha=0.3)
    axes.tick_params(labelsize=8)


def _distribution(values: Sequence[Any]) -> BaseDistribution:
    """Return the range of the values of a hyperparameter, or their list."""
    if not all(isinstance(value, float) for value in values):
        return CategoricalDistribution(list(dict.fromkeys(values)))
    low, high = min(values), max(values)
    return FloatDistribution(low, high, log=low > 0 and high >= 10 * low)


def _importance(trials: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, float]:
    of = {name: _distribution([trial["params"][name] for trial in trials]) for name in names}
    with quiet():
        study = optuna.create_study(direction="maximize")
    for trial in trials:
        params = {name: trial["params"][name] for name in names}
        study.add_trial(
            optuna.create_trial(params=params, distributions=of, value=trial["objective"])
        )
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    return optuna.importance.get_param_importances(study, evaluator=evaluator)
