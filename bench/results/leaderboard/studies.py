"""Tuning studies as results: trials, cost, and correlation of the objective with metrics."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from fedbench.bench.evaluation.objectives.names import DEFAULT, GATE, OF_CLIENTS, ClientObjective
from fedbench.bench.results.leaderboard.confirmed import Confirmed, compared
from fedbench.bench.results.leaderboard.seeds import Spent
from fedbench.bench.results.leaderboard.statistics import correlation, rounded
from fedbench.bench.results.store.store import Store, open_store
from fedbench.bench.system.errors import StoreError


@dataclass(frozen=True)
class Correlation:
    """Correlation of the objective and a metric, with 95 % intervals; null with too few pairs."""

    metric: str
    n: int
    pearson: float | None
    pearson_low: float | None
    pearson_high: float | None
    spearman: float | None
    spearman_low: float | None
    spearman_high: float | None


@dataclass(frozen=True)
class StudyView:
    """A study of the store, finished or not; spec, preset and sampler may be missing there."""

    study_id: str
    spec: str
    preset: str
    sampler: str
    finished_at: str | None  # when its best values were written
    objective: str | None  # that was maximised; None = align + 0.2 unif
    best: int | None  # the trial number of the highest objective; None if no best can be told
    best_objective: float | None
    untrained: tuple[Mapping[str, float], ...] = field(repr=False)  # at random init, one per seed
    cautions: tuple[str, ...]  # what speaks against its best values
    trials: tuple[Mapping[str, Any], ...] = field(repr=False)  # by number
    correlations: tuple[Correlation, ...]  # with metrics that the search never saw
    seconds: float  # of all trials
    num_bytes: int  # sent in all trials, both directions
    fidelity: Mapping[str, Any] | None = None  # of a search by rungs
    confirmed: tuple[Confirmed, ...] = ()  # configurations on fresh seeds, by labels


class Studies(list[StudyView]):
    """The studies that can be read, and one line for every file of the store that cannot."""

    def __init__(self, views: Iterable[StudyView], problems: Iterable[str]) -> None:
        super().__init__(views)
        self.problems = tuple(problems)

    def to_frame(self) -> pd.DataFrame:
        """Return a line for each study, without its trials."""
        shown = ("study_id", "spec", "preset", "sampler", "objective", "best", "best_objective")
        return pd.DataFrame(
            [{n: getattr(view, n) for n in shown} | {"trials": len(view.trials)} for view in self]
        )

    def _repr_html_(self) -> str:
        return str(self.to_frame().to_html(index=False, border=0))


def with_ranks(trials: Sequence[Mapping[str, Any]], objective: str | None) -> list[dict[str, Any]]:
    """Return the trials of a study, with their objectives where these are ranks among them.

    The objective of a trial of status `ok` is then the mean over the terms of the share of other
    trials that it is better than, ties counted by half.
    """
    found = OF_CLIENTS.get((objective or DEFAULT).removesuffix(GATE))
    if found is None or not found.ranked:
        return [dict(trial) for trial in trials]
    ranks = mean_ranks(found, {t["number"]: t["scores"] for t in trials if t["status"] == "ok"})
    return [{**t, "objective": ranks.get(t["number"], t["objective"])} for t in trials]


def mean_ranks(
    objective: ClientObjective, scores: Mapping[int, Mapping[str, float | None]]
) -> dict[int, float]:
    """Return for each trial, by number, the mean over its terms of the share of others it beats.

    A trial of which a term is undefined has none, and counts for no other.
    """
    terms = {number: objective.terms(each) for number, each in scores.items()}
    told = {number: [*map(rounded, each)] for number, each in terms.items() if each is not None}
    frame = pd.DataFrame.from_dict(told, orient="index")
    shares = (frame.rank() - 1) / max(len(frame) - 1, 1)
    means = shares.mean(axis=1).to_dict()
    return {number: float(means[number]) for number in told}


def scored_trials(store: Store, study_id: str) -> list[dict[str, Any]]:
    """Return the trials of a study with their objectives, by number."""
    meta = store.study(study_id)
    return with_ranks(store.trials(study_id), meta.get("objective"))


def best_trial(trials: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The trial of the highest objective among those that were run to the end; ties: the first."""
    return max(filter(is_usable, trials), key=_place, default=None)


def worst_trial(trials: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The trial of the lowest objective among those that were run to the end; ties: the last."""
    return min(filter(is_usable, trials), key=_place, default=None)


def is_usable(trial: Mapping[str, Any]) -> bool:
    """Return whether a trial was run to its end and has an objective."""
    return trial["status"] == "ok" and trial["objective"] is not None


def _place(trial: Mapping[str, Any]) -> tuple[float, int]:
    return trial["objective"], -trial["number"]


def watched(trials: Sequence[Mapping[str, Any]], metric: str) -> list[tuple[float, float]]:
    """Return objective and metric of each usable trial that has measured this metric."""
    usable = filter(is_usable, trials)
    pairs = ((trial["objective"], trial["watched"].get(metric)) for trial in usable)
    return [(objective, value) for objective, value in pairs if value is not None]


def correlate(metric: str, pairs: Sequence[tuple[float, float]]) -> Correlation:
    """Correlate the objective with a metric, whose values are second in the pairs."""
    x, y = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return Correlation(metric, len(x), *correlation(x, y), *correlation(x, y, ranks=True))


def _study_view(store: Store, study_id: str) -> StudyView:
    meta, trials = store.study(study_id), scored_trials(store, study_id)
    best = best_trial(trials)
    names = dict.fromkeys(name for trial in trials for name in trial["watched"])
    return StudyView(
        study_id=study_id,
        spec=str(meta.get("spec", "")),
        preset=str(meta.get("preset", "")),
        sampler=str(meta.get("sampler", "")),
        finished_at=meta.get("finished_at"),
        objective=meta.get("objective"),
        fidelity=meta.get("fidelity"),
        best=None if best is None or meta.get("recommended") else best["number"],
        best_objective=None if best is None else best["objective"],
        untrained=tuple(meta.get("untrained") or ()),
        cautions=tuple(meta.get("cautions") or ()),
        trials=tuple(trials),
        correlations=tuple(correlate(name, watched(trials, name)) for name in names),
        seconds=sum(trial["seconds"] or 0.0 for trial in trials),
        num_bytes=sum(int(trial.get("bytes") or 0) for trial in trials),
        confirmed=confirmation_of(store, meta, trials),
    )


def confirmation_of(
    store: Store, meta: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]
) -> tuple[Confirmed, ...]:
    """Return what `tune` with `confirm` found for the trials that are best and worst now.

    `meta` is the description of the study. Of other trials there is nothing.
    """
    kept, ends = meta.get("confirmation"), (best_trial(trials), worst_trial(trials))
    if not kept or kept["trials"] != [trial and trial["number"] for trial in ends]:
        return ()
    return compared(store, kept["compared"])


def studies(store: Store | Path | str | None = None) -> Studies:
    """Read the tuning studies of a store: trials, cost, correlations of the objective.

    Args:
        store: see `open_store`; `problems` of the result names the files that cannot be read.

    Raises:
        StoreError: for a store that is not there or cannot be read.

    >>> from fedbench.bench.testing import demo_store
    >>> len(studies(demo_store()))
    0
    """
    store = open_store(store).require()
    views = []
    for study_id in store.studies():
        with suppress(StoreError):
            views.append(_study_view(store, study_id))
    return Studies(views, store.problems())


def spent(store: Store, studies: Iterable[str]) -> dict[str, Spent]:
    """Return runs and data set of each study that the store has and that ended.

    An unreadable study is left out: `Store.problems` names it.
    """
    costs = {}
    for study_id in set(studies) & set(store.studies()):
        with suppress(StoreError):
            meta = store.study(study_id)
            if meta.get("finished_at"):
                runs = int(meta["trials"]) * int(meta["seeds_per_trial"])
                of, revision = str(meta.get("dataset", "")), str(meta.get("data", ""))
                costs[study_id] = Spent(runs, of, revision)
    return costs
