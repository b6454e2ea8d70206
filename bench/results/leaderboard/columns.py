"""The columns of the board: what each is called, what it means, how it is computed, how it reads.

The table of a terminal, the report, the pages of the site, CSV, JSON, Markdown, LaTeX, frames and
the list in the docs are made of `BOARD`. A new column is one object there, such as

    Column(
        "hours",
        "wall time of all runs",
        lambda seeds: seeds.means(seeds.done.wall_seconds / 3600),
        "hours",
        "short",
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
from fedbench.bench.results.leaderboard.comparability import changed_by_hand, metric_values
from fedbench.bench.results.leaderboard.seeds import Seeds
from fedbench.bench.results.leaderboard.statistics import NO_SPREAD
from fedbench.bench.results.store.frame import lines
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


def short(value: float) -> str:
    """Return a number of three digits, or a whole one.

    >>> short(0.12345), short(99.96), short(999.7), short(19_700.2)
    ('0.123', '100', '1,000', '19,700')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


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
    hardly = f"loss hardly fell{of}{terms}: less than 10 % below a constant output's"
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
        tuned = "tuned elsewhere"
    named = line.variant.split(", ")
    by_hand = [] if line.tuned else [each for each in line.unlike_preset if each not in named]
    replicas = f"{line.num_replicas} replica{'s' * (line.num_replicas != 1)}"
    spread = f"{replicas}, spread {number(line.replica_spread, percent)}"
    secret = f"ε {line.epsilon or 0:.3g} for {line.epsilon_of}"
    terms = f" ({', '.join(line.at_chance)})"
    chance = chance_notes(line.num_at_chance, line.n_seeds, line.minimises_objective, terms)
    constant = line.majority_acc_mean if percent else None
    measured = line.n_seeds or line.num_diverged or line.num_failed
    found = [
        (line.num_diverged, f"{line.num_diverged} diverged", ""),
        (line.num_failed, f"{line.num_failed} failed", ""),
        (not measured, f"{heading(line.metric)} not measured", ""),
        (line.collapsed, "collapsed", "features or projections point almost one way, or lie on a"
         " line"),
        (line.contracted and not line.collapsed, "shrunk", "lost half of the spread of projections,"
         " or three quarters of the rank"),
        *((True, *note) for note in chance),
        (line.unmoved, "no weight moved", "no weight moved, so that nothing was trained"),
        (line.without_gradient, f"no gradient: {line.without_gradient}", "the loss never reached"
         f" {line.without_gradient}"),
        (constant is not None, f"largest class {number(constant, True)} %",
         f"one class has {number(constant, True)} % of the test images: a constant answer is as"
         " accurate"),
        (not gained, "not above its start", "not above the same encoder before training"),
        (line.tuned, tuned, ""),
        (by_hand, f"unlike the preset: {', '.join(by_hand)}", ""),
        (line.selection == "oracle", "tuned with labels, not ranked", ""),
        (line.epsilon is not None, secret, f"differential privacy: {secret}"),
        (line.revealing_messages, "shows single images", "a message shows the server something of a"
         " single image"),
        (line.num_replicas, spread, f"a seed has other values elsewhere: {spread}"),
        (0 < line.n_seeds < 3, "descriptive", "fewer than 3 seeds, so no interval and no test"),
        (line.n_seeds > 2 and line.ci95_low is None, "no spread", f"no interval: {NO_SPREAD}"),
    ]  # fmt: skip
    return [Note(words, sentence or words) for holds, words, sentence in found if holds]


# Columns


@dataclass(frozen=True, eq=False)
class Column:
    """A column of the board; a new one is an object in `BOARD` and nothing else."""

    name: str
    """In JSON, CSV and frames, for good: users rely on it."""
    meaning: str
    """One line, shown in the docs."""
    value: Callable[[Seeds], Any] | None = None
    """Values of all lines; None: `Seeds.table` has them, or lines of a class beside each other."""
    title: str | Callable[[str], str] = ""
    """Heading for people, perhaps by the metric that ranks; empty: for machines only."""
    text: str | Callable[[Any], str] = "plain"
    """The cell of a line for people, or a key of `FORMS`. A column without any cell is left out."""
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
        if callable(self.text):
            return self.text(line)
        value = getattr(line, self.name)
        return "" if value is None else FORMS[self.text](value)


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_plain, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


FORMS: Mapping[str, Callable[[Any], str]] = {
    "plain": _plain,
    "percent": lambda value: number(value, True),
    "score": lambda value: number(value, False),
    "short": short,
    "minutes": lambda value: f"{value:.{1 if value >= 0.1 else 2}f}",
    "listed": ", ".join,
}
"""How values that are there read."""


def cells(line: Any, columns: Sequence[Column] = ()) -> dict[str, str]:
    """Return a line of the board for people, by heading; empty where nothing was measured.

    `columns` are shown under their names if they have no heading; default: those with a heading.
    """
    shown = columns or [column for column in BOARD if column.heading(line.metric)]
    return {column.heading(line.metric) or column.name: column.cell(line) for column in shown}


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
    """Three seeds or more: mean ± half of the interval, if any; two: the mean and both values."""
    percent = is_accuracy(line.metric)
    text = mean_text(line.mean, half_interval(line), percent)
    if line.n_seeds == 2:
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

    def cell(line: Any) -> str:
        if line.num_reached is None or not line.n_seeds:
            return ""
        value = getattr(line, name)
        return f"{line.num_reached} of {line.n_seeds} seeds" if value is None else short(value)

    return cell


def _other(name: str) -> Callable[[str], str]:
    """Return the heading of a metric, unless the board is ranked by it."""
    return lambda metric: "" if name == metric else heading(name)


def _per_gb(line: Any) -> str:
    scale = 100 if is_accuracy(line.metric) else 1
    return "" if line.per_gb is None else short(scale * line.per_gb)


def _alike(name: str) -> Callable[[Seeds], Any]:
    return lambda seeds: seeds.means_alike(name)


def _megabytes(*names: str) -> Callable[[Seeds], Any]:
    return lambda seeds: seeds.means(seeds.done[[*names]].sum(axis="columns", skipna=False) / 1e6)


def _terms(seeds: Seeds) -> Any:
    return [tuple(dict.fromkeys(t for m in each for t in m.at_chance)) for each in seeds.marks]


def _failed(seeds: Seeds) -> Any:
    every = seeds.rows.drop_duplicates("slot")
    return seeds.counts(every[~every.slot.isin(seeds.ends.slot)])


def _per_byte(seeds: Seeds) -> Any:
    moved = seeds.done[["bytes_up", "bytes_down"]].fillna(0).sum(axis="columns") / 1e9
    mean = seeds.done["at"].map(seeds.table.set_index("at")["mean"])
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
    done = seeds.done[seeds.done.num_rounds > 0]
    shrunk = pd.Series(False, done.index)
    for name, share in SHARES.items():
        shrunk |= metric_values(done, name) < share * metric_values(done, f"untrained_{name}")
    return seeds.any(shrunk)


def _epsilon(seeds: Seeds) -> Any:
    largest = seeds.most(seeds.done.epsilon.fillna(math.inf))
    return largest.where(largest < math.inf, None)


def _epsilon_of(seeds: Seeds) -> Any:
    protects = seeds.done.drop_duplicates("at").set_index("at").epsilon_of
    return [None if pd.isna(epsilon) else protects[at] for at, epsilon in _epsilon(seeds).items()]


def _difference(seeds: Seeds) -> Any:
    pairs = zip(seeds.table["mean"], seeds.published, strict=True)
    return [None if p is None or mean is None else mean - p.value for mean, p in pairs]


def _settings_id(seeds: Seeds) -> Any:
    ids = {text: content_id(json.loads(text)) for text in {*seeds.settings}}
    return [ids[text] for text in seeds.settings]


_TEST = "(t test over seeds, Holm, 5 %)"
BEST = f"the best, or not significantly different from it {_TEST}"
_UNCLEAR = (
    "?: too few seeds to say whether it is as good as the best; on the best line: no line is told"
    " from it"
)
_TIES = f"ties: lines that share a letter do not differ significantly from their best {_TEST}"
_AREA = "area: mean k-NN accuracy over rounds; rounds to, GB to: k-NN accuracy {reach:g} %"
_LOCAL = "local: on each client's own test images, mean and sd over clients"
_OTHER = "mean of runs that measured it as most lines of the class did"
_REACH = "first evaluated round with the accuracy asked for, mean over seeds"

BOARD = (
    Column("rank", "1 is best, ties share it; null if not ranked", None, "rank", always=True),
    Column("method", "spec", None, "method", lambda line: line.label, always=True),
    Column("variant", "hyperparameters in which lines of a method differ, if a class has several"),
    Column("label", "name in tables and charts"),
    Column("config_id", "identity of the training configuration"),
    Column("metric", "ranked by", lambda seeds: seeds.metric),
    Column(
        "mean", "of the metric over seeds", None, heading, _spread,
        explains={"±": "± half of the 95 % interval over seeds; of 2 seeds both values"},
    ),
    Column("std", "likewise; needs 2 seeds"),
    Column("ci95_low", "95 % t-interval of the mean; needs 3 seeds, not all alike"),
    Column("ci95_high", "likewise"),
    Column(
        "best", "the first, or not told from it by a t-test; null where nothing is tested", None,
        "best", lambda line: MARKS[line.standing], 2, explains={"*": f"*: {BEST}", "?": _UNCLEAR},
    ),
    Column(
        "ties", "letter of a group whose lines are not told from its first", None, "ties",
        narrow=6, explains={"ties": _TIES},
    ),
    Column("standing", "place beside the first of its class, see `separation.STANDINGS`"),
    Column("p_best", "p-value of the test against the first of the class, adjusted"),
    Column("detectable", "smallest difference to the first that is found with probability 0.8"),
    Column(
        "n_seeds", "seeds that measured the metric", lambda seeds: seeds.counts(seeds.measured),
        "seeds", always=True,
    ),
    Column("seeds", "these seeds", lambda seeds: seeds.lists(seeds.measured.seed)),
    Column("values", "the metric of each", lambda seeds: seeds.lists(seeds.measured.value)),
    Column(
        "run_ids", "the runs that those values are from; `fedbench export` takes one",
        lambda seeds: seeds.lists(seeds.measured.row_id),
    ),
    Column("untrained_mean", "before training", lambda seeds: seeds.means(seeds.start)),
    Column(
        "gain", "mean of trained - untrained", lambda seeds: seeds.means(seeds.gain), "gain",
        lambda line: number(line.gain, is_accuracy(line.metric), signed=True), 4,
        explains={"gain": "gain: over the same encoder before training"},
    ),
    Column(
        "local_acc_mean", "the probe on clients' own test images, mean over clients",
        _clients_own(""), "local %", _local, 7, explains={"local": _LOCAL},
    ),
    Column("local_acc_std", "deviation over clients, mean over seeds", _clients_own("_std")),
    Column("linear_acc_mean", _OTHER, _alike("linear_acc"), _other("linear_acc"), "percent", 4),
    Column("knn_acc_mean", "likewise", _alike("knn_acc"), _other("knn_acc"), "percent", 5),
    Column(
        "balanced_linear_acc_mean", "likewise, mean of classes; where one has far more test images",
        _alike("balanced_linear_acc"), _other("balanced_linear_acc"), "percent", 6,
    ),
    Column(
        "balanced_knn_acc_mean", "likewise",
        _alike("balanced_knn_acc"), _other("balanced_knn_acc"), "percent", 9,
    ),
    Column("majority_acc_mean", "of a constant answer there", _alike("majority_acc")),
    Column("objective_mean", "likewise", _alike("objective"), _other("objective"), "score", 8),
    Column(
        "area", "mean k-NN accuracy over the rounds; needs curves, as do the next four",
        None, "area %", "percent", 9, explains={"area": _AREA},
    ),
    Column("rounds_to_reach", _REACH, None, "rounds to", _reached("rounds_to_reach"), 3),
    Column("gb_to_reach", "in bytes [1e9 B]", None, "GB to", _reached("gb_to_reach"), 3),
    Column("hours_to_reach", "in simulated hours of the devices", None, "hours to", "short", 3),
    Column("num_reached", "seeds that got there; null means unless all"),
    Column("mb_up", "sent by clients [1e6 B]", _megabytes("bytes_up"), "MB up", "short", 10),
    Column("mb_down", "sent to clients", _megabytes("bytes_down"), "MB down", "short", 12),
    Column("mb_up_down", "both directions of one run", _megabytes("bytes_up", "bytes_down")),
    Column(
        "per_gb", "the metric over bytes [1 / 1e9 B]", _per_byte,
        lambda metric: "% / GB" if is_accuracy(metric) else "per GB", _per_gb, 13,
    ),
    Column(
        "minutes", "wall time of one run on the device that most runs of the class had",
        lambda seeds: seeds.means(seeds.minutes), "minutes", "minutes", 11,
    ),
    Column(
        "published", "the published number of the same setting", lambda seeds: seeds.published,
        "published", _published, 5,
    ),
    Column("difference", "mean - published number", _difference),
    Column("notes", "what speaks against the line, in words", None, "notes", "listed", 3),
    Column(
        "collapsed", "whether the encoder of a run has collapsed",
        lambda seeds: seeds.any(metric_values(seeds.done, "collapsed") > 0),
    ),
    Column("contracted", "whether projections have lost half of their spread", _contracted),
    Column(
        "unmoved", "whether a run that was to train has moved no weight",
        lambda seeds: seeds.any(seeds.done.unmoved),
    ),
    Column(
        "without_gradient", "trained parts of the net that the loss of a run never reached",
        lambda seeds: [
            ", ".join(sorted({*each})) or None for each in seeds.lists(seeds.done.without_gradient)
        ],
    ),
    Column("at_chance", "terms of the loss that ended at chance", _terms),
    Column(
        "num_at_chance", "such runs",
        lambda seeds: [sum(bool(mark.at_chance) for mark in each) for each in seeds.marks],
    ),
    Column(
        "minimises_objective", "whether its loss is the score of tuning",
        lambda seeds: [any(mark.minimises_objective for mark in each) for each in seeds.marks],
    ),
    Column(
        "num_diverged", "runs that diverged; behind others; no rank if all did",
        lambda seeds: seeds.counts(seeds.ends[seeds.ends.status == "diverged"]),
    ),
    Column("num_failed", "runs that failed", _failed),
    Column(
        "tuned", "whether hyperparameters come from a study",
        lambda seeds: seeds.any(seeds.rows.tuned),
    ),
    Column("selection", "how they were chosen"),
    Column("tune_runs", "runs of that study; null if untuned or not known"),
    Column("tuned_on", "data set of that study if it is another one"),
    Column("preset", "that the first run started from"),
    Column(
        "unlike_preset", "hyperparameters that differ from this preset's",
        lambda seeds: [*map(changed_by_hand, lines(seeds.first))],
    ),
    Column("epsilon", "differential privacy, the largest; null unless every run has it", _epsilon),
    Column("epsilon_of", "what it protects", _epsilon_of),
    Column(
        "revealing_messages", "with something of a single image, most of any seed",
        lambda seeds: seeds.most(seeds.done.revealing_messages.fillna(0)).astype("Int64"),
    ),
    Column("num_replicas", "further runs of these seeds that got another value"),
    Column("replica_spread", "of the values of one seed, the most of any seed"),
    Column("class_id", "identity of the comparability class"),
    Column("settings_id", "equal for equal hyperparameters, whatever the class", _settings_id),
)  # fmt: skip
"""Every column of the board, in the order of tables and machine formats."""
