"""Tuning without labels: Optuna suggests, Ray Tune executes, the store remembers."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedbench.bench.evaluation.objectives.names import DEFAULT
from fedbench.bench.experiment.common_options import Places, Settings
from fedbench.bench.experiment.resolve import resolve
from fedbench.bench.experiment.steps import local_steps, without_effect
from fedbench.bench.results.leaderboard.studies import Correlation, best_trial, correlate, watched
from fedbench.bench.results.store.replicas import Difference
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.arguments import grouped
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.scratch import temporary_folder
from fedbench.bench.tuning.cluster import Cluster
from fedbench.bench.tuning.confirm import Confirmed, check_confirm, confirmation
from fedbench.bench.tuning.events import OnProgress
from fedbench.bench.tuning.executor import Cost, Executor
from fedbench.bench.tuning.halving import RungTrials
from fedbench.bench.tuning.search import Search
from fedbench.bench.tuning.study import WATCHED, Study
from fedbench.bench.tuning.trials import Trials
from fedbench.bench.tuning.verdict import Verdict

_RESULTS = (
    "status", "seeds", "params", "objective", "watched", "seed_objectives", "bytes", "spread",
    "scores",
)  # fmt: skip
"""Entries of a trial that a repetition gives again, to the last bit."""
_log = logging.getLogger(__name__)

CONFIRM_FROM = 200
"""Distance of the first seed of a confirmation from that of the search."""


@dataclass(frozen=True, repr=False)
class StudyResult:
    """The outcome of a study.

    A trial is a record of `number status objective params seeds watched seconds error` and more.
    """

    study_id: str  # its name in the store
    spec: str
    preset: str  # that trials start from
    status: str  # `finished`, or `planned` after `dry_run`
    best: Mapping[str, Any] | None  # `trial objective params`; None: none, or none can be told
    trials: tuple[Mapping[str, Any], ...] = field(repr=False)  # all of the store
    to_run: int  # trials that were, or with `dry_run` would be, executed by this call
    config_file: Path | None  # YAML with the best values; None before the study has finished
    untrained: tuple[Mapping[str, float], ...] = field(default=(), repr=False)  # by `seed`
    doubts: tuple[str, ...] = ()  # reasons because of which no best trial can be told
    cautions: tuple[str, ...] = ()  # reasons to be careful with the best values
    correlation: Correlation | None = None  # of objective and k-NN accuracy, with `watch_labels`
    objective: str = DEFAULT  # name of the score that was maximised
    fidelity: Mapping[str, Any] | None = None  # `name eta rounds sizes` of halving
    kept_errors: tuple[int, ...] = ()  # failed, and not run again: later trials depend on them
    confirmed: tuple[Confirmed, ...] = ()  # configurations on fresh seeds, with `confirm`
    repeated: tuple[Difference, ...] | None = None  # from the repetition; None: nothing repeated
    outdated: tuple[str, ...] = ()  # studies of code that is gone; with `again` they are deleted
    seconds: float = 0.0  # wall time of this call
    estimate: Cost | None = None  # of `to_run`, with `dry_run` only
    preset_params: Mapping[str, Any] = field(default_factory=dict)  # of what trials vary

    def __repr__(self) -> str:
        best = self.best and f"trial {self.best['trial']}: {self.best['params']}"
        return f"<study {self.study_id}: {len(self.trials)} trials, {self.status}, best {best}>"

    @property
    def failed(self) -> int:
        """Number of trials that ended with an error; diverged ones do not count."""
        return sum(1 for trial in self.trials if trial["status"] == "error")


@grouped
def tune(
    spec: str,
    *,
    settings: Settings,
    search: Search,
    places: Places,
    cluster: Cluster,
    confirm: int = 0,
    again: bool = False,
    track: Sequence[str] = (),
    on_progress: OnProgress | None = None,
    dry_run: bool = False,
) -> StudyResult:
    """Find a method's best settings by a label-free objective.

    The same arguments give the same trials, however often the call is interrupted; more `trials`
    extend the study. A trial that failed is run again by the next call, unless later ones were
    suggested after it, which another outcome would change. A dimension that `set`, files or the
    environment set is not searched.

    Args:
        spec: method spec.
        settings: sources of the configuration.
        search: the search.
        places: store, data and device.
        cluster: runs at a time, and their shares.
        confirm: then run best trial, preset and worst trial with so many seeds that the search has
            not used, at least 3, and compare them by labels; 0 = do not.
        again: repeat the trials that the store has, and compare them; then delete the studies that
            differ from this one only in code of packages which is not installed any more.
        track: viewers that get every round and row of the trials: `tensorboard`, `wandb`.
        on_progress: called with every event (`fedbench.bench.tuning.events`).
        dry_run: count and estimate only.

    Raises:
        FedbenchError: for configuration, data, resource or store problems. A study in which no
            trial gave an objective is no exception: its `best` is None.
        Interrupted: after a signal; the same call continues.

    >>> from fedbench.bench.testing import new_folder
    >>> folder, few = new_folder(), {"data.train_subset": 80}
    >>> study = tune("simclr", set=few, store=folder, trials=4, device="cpu", dry_run=True)
    >>> study.status, study.to_run
    ('planned', 4)
    """
    began = time.monotonic()
    search.check()
    executor = Executor.of(places, cluster, track, on_progress)
    if confirm:
        evaluated = resolve(spec, data_dir=places.cache, **vars(settings))
        check_confirm(confirm, evaluated.config)
    study = Study.of(spec, settings, search, places, executor)
    base, outdated = study.base, study.outdated()
    if "client.batch_size" not in study.space.dimensions:
        local_steps(base).check()
    for line in (*base.dataset.cautions, *without_effect(base)):
        _log.warning("%s", line)
    before = study.store.trials(study.study_id)  # ranks would depend on how many there are
    repeated = file = cost = None
    if dry_run:
        to_run = study.missing() + (study.total if again and before else 0)
        runs = study.runs(to_run) + ([evaluated] * 3 * confirm if confirm else [])
        cost = executor.cost(runs, [base] * len(study.unmeasured()))
    else:
        to_run, file = _run(study)
        if again and before:
            to_run += study.total
            repeated = _run_again(study, before)
        for study_id in outdated if again else ():
            study.store.drop_study(study_id)
    trials = study.trials()
    best = best_trial(trials)
    confirmed: tuple[Confirmed, ...] = ()
    if confirm and best is not None and not dry_run:
        # Far from those of a sweep: a run has one purpose, and would be missing on its board.
        first = base.config.seed + max(CONFIRM_FROM, search.seeds_per_trial)
        seeds = range(first, first + confirm)
        confirmed = confirmation(
            study.configure, trials, seeds, settings, places, cluster, on_progress
        )
    verdict = Verdict() if best is None else study.verdict(trials)
    return StudyResult(
        study_id=study.study_id,
        spec=base.config.spec,
        preset=base.origin.preset,
        status="planned" if dry_run else "finished",
        best=None
        if best is None or verdict.doubts
        else {"trial": best["number"], "objective": best["objective"], "params": best["params"]},
        untrained=tuple(study.untrained),
        doubts=verdict.doubts,
        cautions=verdict.cautions,
        objective=study.scoring.name,
        trials=tuple(trials),
        to_run=to_run,
        config_file=file,
        correlation=correlate(WATCHED, watched(trials, WATCHED)) if search.watch_labels else None,
        kept_errors=tuple(t["number"] for t in study.kept(trials) if t["status"] == "error"),
        confirmed=confirmed,
        repeated=repeated,
        outdated=outdated,
        fidelity=None if study.halving is None else study.halving.as_dict(),
        seconds=time.monotonic() - began,
        estimate=cost,
        preset_params=study.preset_params,
    )


def _run(study: Study) -> tuple[int, Path | None]:
    """Run the missing trials; return their number, and the file of the best values."""
    store, to_run = study.store, study.missing()
    if to_run or study.unmeasured() or study.unchecked(study.trials()):
        store.check_writable()
        with store.lock(study.study_id) as locked:
            if not locked:
                raise StoreError(
                    f"study {study.study_id} is being run by another process on this store; wait"
                    " for it, or give this one another study name"
                )
            to_run = study.missing()  # another process may have run some of them
            study.clear_up()
            kind = Trials if study.halving is None else RungTrials
            try:
                study.executor.run(kind(study, study.kept(study.trials())))
            finally:
                study.forget(study.run_name("untrained", seed) for seed in study.untrained_seeds)
    return to_run, study.end()


def _run_again(study: Study, before: Sequence[Mapping[str, Any]]) -> tuple[Difference, ...]:
    """Repeat a study in a temporary store; return how its trials differ, but for failed ones."""
    with temporary_folder() as folder:
        other = Store(folder)
        _run(replace(study, executor=study.executor.into(other)))
        now = {trial["number"]: trial for trial in other.trials(study.study_id)}
    return tuple(
        Difference(f"trial {trial['number']} {name}", trial[name], again[name])
        for trial in before
        if trial["status"] != "error" and (again := now.get(trial["number"])) is not None
        for name in _RESULTS
        if name in trial and name in again and trial[name] != again[name]
    )
