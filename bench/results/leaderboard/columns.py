"""The columns of the board: what each is called, what it means, how it is computed, how it reads.

The table of a terminal, the report, the pages of the site, CSV, JSON, Markdown, LaTeX, frames and
the list in the docs are made of `BOARD`. A new column is one object there, such as

    Column(
        "hours",
        "wall time of all runs",
        lambda seeds: seeds.means(seeds.of(seeds.done, "wall_seconds") / 3600),
        title="hours",
        text=lambda line: short(line.hours),
    )
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pandas as pd

from fedbench.bench.evaluation.catalogue import needed
from fedbench.bench.evaluation.metrics import heading, is_accuracy
from fedbench.bench.evaluation.shrinkage import SHARES
from fedbench.bench.results.leaderboard.seeds import Seeds, distinct
from fedbench.bench.system.errors import UnknownNameError
from fedbench.bench.system.identity import content_id

MARKS = {"first": "*", "alike": "*", "unclear": "?", "worse": "", "untested": ""}
"""Marks of standings in the column `best`."""


# Numbers for people


def number(value: float | None, percent: bool, *, signed: bool = False) -> str:
    """A value for people: one decimal of a percentage, three of anything else; empty for None.

    >>> number(-0.0001, percent=False)  # a zero has no sign
    '0.000'
    """
    if value is None:
        return ""
    sign = "+" if signed else ""
    # Without the rounding, the last bits of a mean of 0.3055 would decide between 30.5 and 30.6.
    return f"{round(value * 100, 9):{sign}z.1f}" if percent else f"{value:{sign}z.3f}"


def mean_text(mean: float | None, half: float | None, percent: bool) -> str:
    """Return a mean, with half of its interval if there is one.

    >>> mean_text(0.394, 0.0062, percent=True), mean_text(0.3942, 0.0003, percent=True)
    ('39.4 ± 0.6', '39.42 ± 0.03')
    """
    if mean is None or half is None:
        return number(mean, percent)
    scaled = half * 100 if percent else half
    first = 1 if percent else 3
    digits = next((d for d in range(first, 5) if round(scaled, d) > 0), first)
    return f"{round(mean * 100, 9) if percent else mean:.{digits}f} ± {scaled:.{digits}f}"


def short(value: float | None) -> str:
    """Return a number of three digits, or a whole one."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def half_interval(line: Any) -> float | None:
    """Return half of the 95 % interval of a line's mean."""
    return None if line.ci95_low is None else (line.ci95_high - line.ci95_low) / 2


# Notes


class Note(NamedTuple):
    """A caveat of a line: in a few words for machines, in a sentence under a table."""

    words: str
    sentence: str


def chance_notes(at_chance: int, runs: int, minimises: bool, terms: str = "") -> list[Note]:
    """Return the notes on runs that do not test their method."""
    part = f"{at_chance} of {runs} " if at_chance < runs else ""
    of = f" in {part}runs" if part else ""
    hardly = f"loss hardly fell{of}{terms}: not 10 % below a net's that ignores the image"
    nearly = "loss is nearly the score of tuning, so that a high objective proves little"
    found = [Note(f"{part}at chance{terms}", hardly)] * bool(at_chance)
    return [*found, *[Note("minimises the objective", nearly)] * minimises]


def notes(line: Any) -> list[Note]:
    """Return what speaks against a line, or must be known before it is compared."""
    percent, score = is_accuracy(line.metric), needed(line.metric).score
    gained = line.gain is None or score(line.untrained_mean + line.gain) > score(
        line.untrained_mean
    )
    tuned = f"tuned in {line.tune_runs} runs"
    if line.tuned_on is not None:
        tuned += f" on {line.tuned_on}"
    elif line.tune_runs is None:
        tuned = "said to be tuned"
    replicas = f"{line.num_replicas} replica{'s' * (line.num_replicas != 1)}"
    spread = f"{replicas}, spread {number(line.replica_spread, percent)}"
    secret = f"ε {line.epsilon or 0:.3g} for {line.epsilon_of}"
    terms = f" ({', '.join(line.at_chance)})"
    found = {
        Note(f"{line.num_diverged} diverged", ""): line.num_diverged,
        Note(f"{line.num_failed} failed", ""): line.num_failed,
        Note(f"{heading(line.metric)} not measured", ""): not (
            line.n_seeds or line.num_diverged or line.num_failed
        ),
        Note("collapsed", "features or projections point almost one way, or lie on a line"): (
            line.collapsed
        ),
        Note("shrunk", "lost half of the spread of projections, or three quarters of the rank"): (
            line.contracted and not line.collapsed
        ),
        **dict.fromkeys(
            chance_notes(line.num_at_chance, line.n_seeds, line.minimises_objective, terms), True
        ),
        Note("no weight moved", "no weight moved, so that nothing was trained"): line.unmoved,
        Note("not above its start", "not above the same encoder before training"): not gained,
        Note(tuned, ""): line.tuned,
        Note("tuned with labels, not ranked", ""): line.selection == "oracle",
        Note(secret, f"differential privacy: {secret}"): line.epsilon is not None,
        Note("shows single images", "a message shows the server something of a single image"): (
            line.revealing_messages
        ),
        Note(spread, f"a seed has other values elsewhere: {spread}"): line.num_replicas,
        Note("descriptive", "fewer than 3 seeds, so no interval and no test"): (
            0 < line.n_seeds < 3
        ),
        Note(f"reproduced by {line.reproduced}", ""): line.reproduced,
    }
    return [Note(note.words, note.sentence or note.words) for note, holds in found.items() if holds]


# Columns


@dataclass(frozen=True, eq=False)
class Column:
    """A column of the board; a new one is an object in `BOARD` and nothing else."""

    name: str
    """In JSON, CSV and frames, for good: users rely on it."""
    meaning: str
    """One line, shown in the docs."""
    value: Callable[[Seeds], Any] | None = None
    """Values of all lines; None: ranks, names and tests between the lines of a class give it."""
    title: str | Callable[[str], str] = ""
    """Heading for people, perhaps by the metric that ranks; empty: for machines only."""
    text: Callable[[Any], str] | None = None
    """The cell of a line for people; empty for nothing. A column without any cell is left out."""
    narrow: int = 0
    """A narrow terminal leaves out the columns with the highest numbers first; 0: it stays."""
    always: bool = False
    """Shown even if all cells are empty."""
    explains: Mapping[str, str] = field(default_factory=dict)
    """Words of the heading or of cells -> what they mean, shown below tables that have them."""

    def heading(self, metric: str) -> str:
        """Return the heading of the column in a board of a metric; empty if it is not shown."""
        return self.title if isinstance(self.title, str) else self.title(metric)

    def cell(self, line: Any) -> str:
        """Return the cell of a line for people."""
        if self.text is not None:
            return self.text(line)
        value = getattr(line, self.name)
        texts = map(_plain, value if isinstance(value, tuple) else [value])
        return " ".join(texts)


def _plain(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def cells(line: Any, columns: Sequence[Column] = ()) -> dict[str, str]:
    """Return a line of the board for people, by heading; empty where nothing was measured.

    `columns` are shown under their names if they have no heading; default: those with a heading.
    """
    titled = [(column, column.heading(line.metric)) for column in columns or BOARD]
    named = [(column, title or column.name) for column, title in titled if title or columns]
    return {title: column.cell(line) for column, title in named}


def columns_named(names: Collection[str], metric: str) -> tuple[Column, ...]:
    """Return columns by their names or headings, rank and method first.

    Raises:
        UnknownNameError: for a name that no column has.
    """
    by_name = {column.name: column for column in BOARD}
    by_name |= {c.heading(metric).removesuffix(" %"): c for c in BOARD if c.heading(metric)}
    for name in names:
        if name.removesuffix(" %") not in by_name:
            raise UnknownNameError("column", name, sorted(by_name))
    found = [by_name[name] for name in ("rank", "method")]
    return tuple(dict.fromkeys([*found, *(by_name[name.removesuffix(" %")] for name in names)]))


def _spread(line: Any) -> str:
    """Three seeds or more: mean ± half of the interval; two: the mean and both values."""
    percent, half = is_accuracy(line.metric), half_interval(line)
    text = mean_text(line.mean, half, percent)
    if line.n_seeds > 1 and half is None:
        text += f" ({', '.join(number(value, percent) for value in line.values)})"
    return text


def _local(line: Any) -> str:
    if line.local_acc_mean is None or line.metric.endswith("_local_acc"):
        return ""
    sd = "" if line.local_acc_std is None else f" (sd {number(line.local_acc_std, True)})"
    return number(line.local_acc_mean, True) + sd


def _published(line: Any) -> str:
    if line.published is None:
        return ""
    percent = is_accuracy(line.metric)
    text = number(line.published.value, percent)
    return text + f" ({number(line.difference, percent, signed=True)})" * (
        line.difference is not None
    )


def _reached(name: str) -> Callable[[Any], str]:
    """Rounds or GB to the accuracy asked for, or the number of seeds if not all got there."""

    def text(line: Any) -> str:
        if line.num_reached is None or not line.n_seeds:
            return ""
        value = getattr(line, name)
        return f"{line.num_reached} of {line.n_seeds} seeds" if value is None else short(value)

    return text


def _minutes(line: Any) -> str:
    value = line.minutes
    return "" if value is None else f"{value:.{1 if value >= 0.1 else 2}f}"


def _other(name: str) -> Callable[[str], str]:
    """Return the heading of a metric, unless the board is ranked by it."""
    return lambda metric: "" if name == metric else heading(name)


def _of_metric(name: str, percent: bool) -> Callable[[Any], str]:
    return lambda line: number(getattr(line, name), percent)


def _per_gb(line: Any) -> str:
    scale = 100 if is_accuracy(line.metric) else 1
    return "" if line.per_gb is None else short(scale * line.per_gb)


def _summary(name: str) -> Callable[[Seeds], Any]:
    return lambda seeds: [getattr(each, name) for each in seeds.summaries]


def _rounds(name: str) -> Callable[[Seeds], Any]:
    return lambda seeds: seeds.over_rounds[name]


def _start(seeds: Seeds) -> Any:
    return seeds.means(seeds.start)


def _per_byte(seeds: Seeds) -> Any:
    moved = seeds.of(seeds.done, "bytes_up", "bytes_down").fillna(0).sum(axis="columns") / 1e9
    means = [each.mean for each in seeds.summaries]
    mean = seeds.done["at"].map(dict(zip(seeds.first["at"], means, strict=True)))
    return seeds.means((mean.astype("float64") / moved)[moved > 0])


def _clients_own(suffix: str) -> Callable[[Seeds], Any]:
    """Means of the probe on clients' own images; none of a metric that is no accuracy."""

    def value(seeds: Seeds) -> Any:
        if not is_accuracy(seeds.metric):
            return None
        local = seeds.metric.removesuffix("_acc").removesuffix("_local") + "_local_acc"
        return seeds.means_alike(f"{local}{suffix}", local)

    return value


def _contracted(seeds: Seeds) -> Any:
    done = seeds.done[seeds.of(seeds.done, "num_rounds") > 0]
    shrunk = pd.Series(False, done.index)
    for name, share in SHARES.items():
        shrunk |= seeds.figures(done, name) < share * seeds.figures(done, f"untrained_{name}")
    return seeds.any(shrunk)


def _epsilon(seeds: Seeds) -> Any:
    every = seeds.of(seeds.done, "epsilon")
    return seeds.most(every.fillna(math.inf)).where(lambda largest: largest < math.inf, None)


def _epsilon_of(seeds: Seeds) -> Any:
    protects = seeds.of(seeds.done.drop_duplicates("at"), "epsilon_of")
    by_line = dict(zip(seeds.rows["at"][protects.index], protects, strict=True))
    return [None if pd.isna(epsilon) else by_line[at] for at, epsilon in _epsilon(seeds).items()]


def _replicas(seeds: Seeds) -> Any:
    further = (seeds.replicas["nunique"] - 1).groupby("at").sum()
    return further.reindex(seeds.first["at"], fill_value=0).astype(int)


def _replica_spread(seeds: Seeds) -> Any:
    spread = seeds.replicas["max"] - seeds.replicas["min"]
    return spread.groupby("at").max().reindex(seeds.first["at"])


def _difference(seeds: Seeds) -> Any:
    pairs = zip(seeds.summaries, seeds.published, strict=True)
    return [None if p is None or s.mean is None else s.mean - p.value for s, p in pairs]


def _reproduced(seeds: Seeds) -> Any:
    if (people := seeds.beside.get("reproduced")) is None:
        return None
    return [
        min((people.get(i, 0) for i in ids), default=0)
        for ids in seeds.lists(seeds.measured.row_id)
    ]


def _settings_id(seeds: Seeds) -> Any:
    ids = {text: content_id(json.loads(text)) for text in {*seeds.settings}}
    return [ids[text] for text in seeds.settings]


_TEST = "(t test over seeds, Holm, 5 %)"

BOARD = (
    Column(
        "rank",
        "1 is best, ties share a rank; null if not ranked: nothing measured, or oracle",
        title="rank",
        text=lambda line: "" if line.rank is None else str(line.rank),
        always=True,
    ),
    Column(
        "method",
        "method spec",
        lambda seeds: seeds.of(seeds.first, "method"),
        title="method",
        text=lambda line: str(line.label),
        always=True,
    ),
    Column(
        "variant", "hyperparameters in which lines of its method differ, where a class has several"
    ),
    Column("label", "name in tables and charts"),
    Column(
        "config_id", "identity of the training configuration", lambda seeds: seeds.first.config_id
    ),
    Column("metric", "ranked by", lambda seeds: seeds.metric),
    Column(
        "mean",
        "of the metric over seeds",
        _summary("mean"),
        title=heading,
        text=_spread,
        explains={"±": "± half of the 95 % interval over seeds; of 2 seeds both values"},
    ),
    Column("std", "likewise; needs 2 seeds", _summary("std")),
    Column("ci95_low", "95 % t-interval of the mean; needs 3 seeds", _summary("ci95_low")),
    Column("ci95_high", "likewise", _summary("ci95_high")),
    Column(
        "best",
        "the first of its class, or not told from it by a t-test; null with fewer than 3 seeds",
        title="best",
        text=lambda line: MARKS[line.standing],
        narrow=2,
        explains={
            "*": f"*: the best, or not significantly different from it {_TEST}",
            "?": "?: the seeds cannot tell whether it is below the first; on the first, whether"
            " any is",
        },
    ),
    Column(
        "ties",
        "letter of a group whose lines are not told from its first",
        title="ties",
        text=lambda line: line.ties or "",
        narrow=6,
        explains={
            "ties": f"ties: lines with one letter are not told from the best of them {_TEST}"
        },
    ),
    Column("standing", "place beside the first of its class, see `separation.STANDINGS`"),
    Column("p_best", "p-value of the test against the first of the class, adjusted"),
    Column(
        "detectable", "smallest difference to the first that the test finds with probability 0.8"
    ),
    Column(
        "n_seeds",
        "seeds that measured the metric",
        lambda seeds: [each.n for each in seeds.summaries],
        title="seeds",
        text=lambda line: str(line.n_seeds),
        narrow=1,
        always=True,
    ),
    Column("seeds", "these seeds", lambda seeds: seeds.lists(seeds.measured.seed)),
    Column("values", "the metric of each", lambda seeds: seeds.lists(seeds.measured.value)),
    Column(
        "run_ids",
        "the runs that those values are from; `fedbench export` takes one",
        lambda seeds: seeds.lists(seeds.measured.row_id),
    ),
    Column("untrained_mean", "of the metric before training", _start),
    Column(
        "gain",
        "mean of trained - untrained",
        lambda seeds: seeds.means(seeds.gain),
        title="gain",
        text=lambda line: number(line.gain, is_accuracy(line.metric), signed=True),
        narrow=4,
        explains={"gain": "gain: over the same encoder before training"},
    ),
    Column(
        "local_acc_mean",
        "the probe on clients' own test images, mean over clients",
        _clients_own(""),
        title="local %",
        text=_local,
        narrow=7,
        explains={"local": "local: on each client's own test images, mean and sd over clients"},
    ),
    Column(
        "local_acc_std", "standard deviation over clients, mean over seeds", _clients_own("_std")
    ),
    Column(
        "linear_acc_mean",
        "mean of runs that measured it as most lines of the class did",
        lambda seeds: seeds.means_alike("linear_acc"),
        title=_other("linear_acc"),
        text=_of_metric("linear_acc_mean", True),
        narrow=4,
    ),
    Column(
        "knn_acc_mean",
        "likewise",
        lambda seeds: seeds.means_alike("knn_acc"),
        title=_other("knn_acc"),
        text=_of_metric("knn_acc_mean", True),
        narrow=5,
    ),
    Column(
        "objective_mean",
        "likewise",
        lambda seeds: seeds.means_alike("objective"),
        title=_other("objective"),
        text=_of_metric("objective_mean", False),
        narrow=8,
    ),
    Column(
        "area",
        "mean k-NN accuracy over the rounds; needs curves, as do the next three",
        _rounds("area"),
        title="area %",
        text=lambda line: number(line.area, True),
        narrow=9,
        explains={
            "area": "area: mean k-NN accuracy over rounds; rounds to, GB to: k-NN accuracy"
            " {reach:g} %"
        },
    ),
    Column(
        "rounds_to_reach",
        "first evaluated round with the accuracy asked for, mean over seeds",
        _rounds("rounds_to_reach"),
        title="rounds to",
        text=_reached("rounds_to_reach"),
        narrow=3,
    ),
    Column(
        "gb_to_reach",
        "the same in bytes of both directions [1e9 B]",
        _rounds("gb_to_reach"),
        title="GB to",
        text=_reached("gb_to_reach"),
        narrow=3,
    ),
    Column(
        "num_reached",
        "seeds that got there; the two means are null unless all did",
        _rounds("num_reached"),
    ),
    Column(
        "mb_up",
        "client to server, one run [1e6 B]",
        lambda seeds: seeds.means(seeds.of(seeds.done, "bytes_up") / 1e6),
        title="MB up",
        text=lambda line: short(line.mb_up),
        narrow=10,
    ),
    Column(
        "mb_down",
        "server to clients, likewise",
        lambda seeds: seeds.means(seeds.of(seeds.done, "bytes_down") / 1e6),
        title="MB down",
        text=lambda line: short(line.mb_down),
        narrow=12,
    ),
    Column(
        "mb_up_down",
        "both directions of one run [1e6 B]",
        lambda seeds: seeds.means(
            seeds.of(seeds.done, "bytes_up", "bytes_down").sum(axis="columns", skipna=False) / 1e6
        ),
    ),
    Column(
        "per_gb",
        "the metric over bytes in both directions [1 / 1e9 B]",
        _per_byte,
        title=lambda metric: "% / GB" if is_accuracy(metric) else "per GB",
        text=_per_gb,
        narrow=13,
    ),
    Column(
        "minutes",
        "wall time of one run on the device that most runs of the class had",
        lambda seeds: seeds.means(seeds.minutes),
        title="minutes",
        text=_minutes,
        narrow=11,
    ),
    Column(
        "published",
        "the published number of the same setting",
        lambda seeds: seeds.published,
        title="published",
        text=_published,
        narrow=5,
    ),
    Column("difference", "mean - published number", _difference),
    Column(
        "notes",
        "what speaks against the line, or must be known before it is compared",
        title="notes",
        text=lambda line: ", ".join(line.notes),
        narrow=3,
    ),
    Column(
        "collapsed",
        "whether the encoder of a run has collapsed",
        lambda seeds: seeds.any(seeds.figures(seeds.done, "collapsed") > 0),
    ),
    Column(
        "contracted",
        "whether projections have lost half of their spread before training",
        _contracted,
    ),
    Column(
        "unmoved",
        "whether a run that was to train has moved no weight",
        lambda seeds: seeds.any(seeds.of(seeds.done, "unmoved")),
    ),
    Column(
        "at_chance",
        "terms of the loss that ended at chance, see `bench.results.chance`",
        lambda seeds: [distinct(mark.at_chance for mark in each) for each in seeds.marks],
    ),
    Column(
        "num_at_chance",
        "such runs",
        lambda seeds: [sum(bool(mark.at_chance) for mark in each) for each in seeds.marks],
    ),
    Column(
        "minimises_objective",
        "whether the method's loss is the objective that chooses settings",
        lambda seeds: [any(mark.minimises_objective for mark in each) for each in seeds.marks],
    ),
    Column(
        "num_diverged",
        "runs that diverged; a line with any ranks last",
        lambda seeds: seeds.counts(seeds.ends[seeds.ends.status == "diverged"]),
    ),
    Column(
        "num_failed",
        "runs that failed",
        lambda seeds: [
            all_ - ended
            for all_, ended in zip(
                seeds.counts(seeds.rows.drop_duplicates("slot")),
                seeds.counts(seeds.ends),
                strict=True,
            )
        ],
    ),
    Column(
        "tuned",
        "whether hyperparameters come from a study",
        lambda seeds: seeds.any(seeds.of(seeds.rows, "tuned")),
    ),
    Column("selection", "how they were chosen", lambda seeds: seeds.of(seeds.first, "selection")),
    Column(
        "tune_runs",
        "runs of the study that they come from; null if untuned or not known",
        lambda seeds: [runs for runs, _ in seeds.studies],
    ),
    Column(
        "tuned_on",
        "data set of that study if it is another one",
        lambda seeds: [dataset for _, dataset in seeds.studies],
    ),
    Column(
        "preset", "that the first run started from", lambda seeds: seeds.of(seeds.first, "preset")
    ),
    Column(
        "epsilon",
        "differential privacy, the largest over seeds; null unless every run has it",
        _epsilon,
    ),
    Column("epsilon_of", "what it protects", _epsilon_of),
    Column(
        "revealing_messages",
        "messages that hold something of a single image, the most of any seed",
        lambda seeds: seeds.most(seeds.of(seeds.done, "revealing_messages").fillna(0)),
    ),
    Column(
        "num_replicas",
        "further runs of these seeds that got another value, as on another machine",
        _replicas,
    ),
    Column(
        "replica_spread",
        "largest minus smallest value of one seed, the most of any seed",
        _replica_spread,
    ),
    Column(
        "reproduced",
        "people who reproduced its runs, of the run with the fewest; null if the store has no"
        " reproductions",
        _reproduced,
    ),
    Column("class_id", "identity of the comparability class", lambda seeds: seeds.first.class_id),
    Column("settings_id", "the same for equal hyperparameters, whatever the class", _settings_id),
)
"""Every column of the board, in the order of tables and machine formats."""

WHOLE = ("revealing_messages", "tune_runs", "num_reached")
"""Columns of whole numbers that may be null."""
