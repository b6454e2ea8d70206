"""Tuning without labels: Optuna suggests, Ray Tune executes, the store remembers."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedbench.bench.execution.speed_probe import check_speed
from fedbench.bench.experiment.common_options import Places, Settings
from fedbench.bench.experiment.resolve import resolve
from fedbench.bench.experiment.steps import local_steps, of_data, without_effect
from fedbench.bench.method import registry
from fedbench.bench.method.blame import guarded
from fedbench.bench.results.leaderboard.confirmed import Confirmed
from fedbench.bench.results.leaderboard.studies import best_trial, confirmation_of
from fedbench.bench.results.store.replicas import Difference
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.arguments import grouped
from fedbench.bench.system.scratch import temporary_folder
from fedbench.bench.tuning.cluster import Cluster
from fedbench.bench.tuning.confirm import check_confirm, confirmation
from fedbench.bench.tuning.events import OnProgress
from fedbench.bench.tuning.executor import Executor
from fedbench.bench.tuning.halving import RungTrials
from fedbench.bench.tuning.options import Search
from fedbench.bench.tuning.study import Study, StudyResult
from fedbench.bench.tuning.trials import Trials

_RESULTS = (
    "status", "seeds", "params", "objective", "watched", "seed_objectives", "bytes", "spread",
    "scores",
)  # fmt: skip
"""Entries of a trial that a repetition gives again, to the last bit."""
_COMPUTE = {"client.local_epochs", "federation.num_rounds", "federation.participation"}
"""Fields that say on how many images a run trains."""
_log = logging.getLogger(__name__)

CONFIRM_FROM = 200
"""Distance of the first seed of a confirmation from that of the search."""


@grouped
@guarded()
def tune(
    spec: str,
    *,
    settings: Settings,
    search: Search,
    places: Places,
    cluster: Cluster,
    on_progress: OnProgress | None = None,
) -> StudyResult:
    """Find a method's best settings by a label-free objective.

    The same arguments give the same trials, however often the call is interrupted; more `trials`
    extend the study. A trial that failed is run again by the next call, unless later ones were
    suggested after it, which another outcome would change. A dimension that `set`, files or the
    environment set is not searched. `confirm` takes seeds that the search has not used, at least 3;
    `again` also deletes the studies that differ from this one only in code of packages which is not
    installed any more.

    Args:
        spec: method spec.
        settings: sources of the configuration.
        search: the search.
        places: store, data and device.
        cluster: runs at a time, and their shares.
        on_progress: called with every event (`fedbench.bench.tuning.events`).

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
    confirm, again, dry_run = search.confirm, search.again, search.dry_run
    executor = Executor.of(places, cluster, search.track, on_progress)
    if confirm:
        evaluated = resolve(spec, data_dir=places.cache, **vars(settings))
        check_confirm(confirm, evaluated.config)
    study = Study.of(spec, settings, search, places, executor)
    base, outdated = study.base, study.outdated()
    if "client.batch_size" not in study.space.dimensions:
        local_steps(base).check()
    executor.check([(base, ""), *([(evaluated, "--confirm")] if confirm else [])])
    caution = registry.parse_spec(spec)[0].cls.objective_caution if study.scoring.is_default else ""
    cautions = [f"{spec}: {caution}"] if caution else []
    for line in (*of_data(base), *without_effect(base), *cautions):
        _log.warning("%s", line)
    if costly := _COMPUTE & study.space.dimensions.keys():
        _log.warning(
            "the search space varies %s: a trial that trains more scores higher by that alone; the"
            " table shows the images of each",
            ", ".join(sorted(costly)),
        )
    before = study.store.trials(study.study_id)  # ranks would depend on how many there are
    if study.missing() or again:
        check_speed(base, executor.device, begun=bool(study.stored))
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
    confirmed: tuple[Confirmed, ...] = ()
    trials = study.trials()
    if confirm and best_trial(trials) is not None and not dry_run:
        # Far from those of a sweep: a run has one purpose, and would be missing on its board.
        first = base.config.seed + max(CONFIRM_FROM, search.seeds_per_trial)
        seeds = range(first, first + confirm)
        kept = confirmation(study.configure, trials, seeds, settings, places, executor)
        study.note(confirmation=kept)
        confirmed = confirmation_of(study.store, study.stored, trials)
    return study.result(
        status="planned" if dry_run else "finished",
        to_run=to_run,
        config_file=file,
        confirmed=confirmed,
        repeated=repeated,
        outdated=outdated,
        seconds=time.monotonic() - began,
        estimate=cost,
    )


def _run(study: Study) -> tuple[int, Path | None]:
    """Run the missing trials; return their number, and the file of the best values."""
    to_run = study.missing()
    if to_run or study.unmeasured() or study.unchecked(study.trials()):
        with study.alone() as kept:
            to_run = study.missing()  # another process may have run some of them
            trials = Trials if study.halving is None else RungTrials
            study.executor.run(trials(study, kept))
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
        if trial[name] != again[name]
    )
