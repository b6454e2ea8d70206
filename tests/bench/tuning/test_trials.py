"""Suggestions that neither timing nor interruptions change."""

import importlib.util
import math
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import Any, cast

import pytest
from scipy.stats import qmc

from fedbench.bench.config import ClientConfig, RunConfig, ServerConfig
from fedbench.bench.data.datasets import load_dataset
from fedbench.bench.experiment.common_options import Places
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.system.errors import ConfigError, ResourceError, StoreError
from fedbench.bench.system.seeding import derive
from fedbench.bench.tuning.cluster import Cluster
from fedbench.bench.tuning.executor import Executor
from fedbench.bench.tuning.job import Job, Outcome
from fedbench.bench.tuning.options import Search
from fedbench.bench.tuning.spaces.samplers import check_space, find_sampler
from fedbench.bench.tuning.spaces.space import (
    Choice,
    FloatRange,
    IntRange,
    SearchSpace,
    dead_dimensions,
)
from fedbench.bench.tuning.study import Study
from fedbench.bench.tuning.trials import Trials
from fedbench.bench.tuning.verdict import seen_without_effect

from .conftest import InOneProcess, KilledError

LR = FloatRange(type="float", low=1e-3, high=0.3, log=True)
SPACE: dict[str, Any] = {
    "client.lr": LR,
    "method.temperature": Choice(type="choice", values=(0.1, 0.5, 1.0)),
}
RANGES = {"client.lr": LR, "method.temperature": FloatRange(type="float", low=0.05, high=1.0)}
POINT = {"client.lr": 0.03, "method.temperature": 0.5}
Params = dict[str, Any]
Table = dict[int, dict[str, Any]]  # number -> record


def score(params: Params) -> float | None:
    """Outcome that is best at lr 0.1; a temperature of 1 is an error, high rates diverge."""
    if params.get("method.temperature") == 1.0:
        return None
    if params["client.lr"] > 0.2:
        return math.nan
    return -abs(math.log10(params["client.lr"] / 0.1))


def study(
    store: Path,
    finished: Table | None = None,
    *,
    total: int = 14,
    sampler: str = "tpe",
    batch_size: int = 4,
    seed: int = 0,
    space: Mapping[str, Any] = SPACE,
    points: Any = (POINT,),
) -> Trials:
    dataset = load_dataset("digits", train_subset=60, test_subset=30)
    plan = Study(
        search=Search(sampler=sampler, study_name="s"),
        base=Experiment(RunConfig(seed=seed)).on(dataset),
        configure=lambda params, seed: Experiment(RunConfig(seed=seed)),
        space=SearchSpace("simclr", dict(space), (), ""),
        points=points,
        total=min(total, len(points)) if sampler == "grid" else total,
        batch_size=batch_size,
        executor=Executor.of(Places(store), Cluster()),
    )
    untrained = [{"seed": seed + n, "objective": 0.0} for n in range(5)]
    plan.store.write_study(plan.study_id, {"untrained": untrained})
    return Trials(plan, [*(finished or {}).values()])


def outcome(job: Job, value: float | None) -> Outcome:
    if value is None:
        return Outcome(job, "error", error="broken")
    if not math.isfinite(value):
        return Outcome(job, "diverged")
    return Outcome(job, "ok", figures={"objective": value})


def params_of(job: Job) -> Params:
    return {key: value for key, value in job.values.items() if key != "seed"}


def search(
    *,
    finished: Table | None = None,
    die_after: int | None = None,
    order: int = 0,
    score: Callable[[Params], float | None] = score,
    **settings: Any,
) -> Table:
    """Run a study, `1 + order` trials at a time that end in an order of this seed."""
    with tempfile.TemporaryDirectory() as folder:
        trials = study(Path(folder), finished, **settings)

        def fake(job: Job) -> Outcome:
            on_further_seed = job.label.startswith(("best", "preset"))
            return outcome(job, None if on_further_seed else score(params_of(job)))

        run = InOneProcess(seed=order, width=1 + order, fake=fake, die_after=die_after)
        with suppress(KilledError):
            run(trials._study.executor, trials)
        made = {each["number"]: each for each in trials._study.trials()}
    return dict(sorted({**(finished or {}), **made}.items()))


def test_points_come_first_and_the_search_learns() -> None:
    assert search()[0]["params"] == POINT

    def late(sampler: str) -> float:
        """Mean distance from the best rate, in powers of ten, of trials 20 to 39."""
        tables = [search(total=40, sampler=sampler, seed=seed) for seed in range(3)]
        rates = [t[n]["params"]["client.lr"] for t in tables for n in range(20, 40)]
        return mean(abs(math.log10(rate / 0.1)) for rate in rates)

    assert late("tpe") < 0.8 * late("random")


def test_a_grid_visits_its_points_in_order_and_no_others(tmp_path: Path) -> None:
    grid = [{"client.lr": lr, "method.temperature": 0.1} for lr in (0.001, 0.01, 0.1)]
    trials = study(tmp_path, sampler="grid", total=20, points=grid)
    jobs = [job for job in (trials.next() for _ in range(4)) if job is not None]
    assert list(map(params_of, jobs)) == grid
    for job in jobs:
        trials.done(outcome(job, 0.0))
    further = [trials.next() for _ in range(7)]  # of the best, and of a preset that is no point
    assert [job and job.label for job in further] == [
        *(f"{which} seed={seed}" for which in ("best", "preset") for seed in (1, 2, 3)),
        None,
    ]
    for one in further[:6]:
        trials.done(outcome(cast(Job, one), 0.0))
    assert trials.finished


@pytest.mark.parametrize(
    ("sampler", "told"), [("tpe", ("PRUNED", None)), ("gp", ("COMPLETE", 0.5))]
)
def test_a_diverged_trial_ranks_last_and_an_error_says_nothing(
    sampler: str, told: tuple[str, float | None], tmp_path: Path
) -> None:
    trials = study(tmp_path, total=8, sampler=sampler)
    jobs = [job for job in (trials.next() for _ in range(5)) if job is not None]
    assert len(jobs) == 4  # the batch is out
    assert not trials.finished
    for job, value in zip(jobs, [math.nan, 0.5, None, 1.0], strict=True):
        trials.done(outcome(job, value))
    ended = [(trial.state.name, trial.value) for trial in trials._optuna.trials]
    assert ended == [told, ("COMPLETE", 0.5), ("FAIL", None), ("COMPLETE", 1.0)]


def test_stored_trials_with_other_parameters_are_refused() -> None:
    table = search(total=6)
    table[5]["params"]["client.lr"] = 0.2
    with pytest.raises(StoreError, match="trial 5"):
        search(total=8, finished=table)


def test_samplers_whose_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ResourceError, match="greenlet"):
        find_sampler("gp")
    with pytest.raises(ResourceError, match="cmaes"):
        find_sampler("cmaes")


def test_sobol_points_follow_the_given_ones_in_order() -> None:
    settings: dict[str, Any] = {"space": RANGES, "sampler": "sobol"}
    table = search(total=16, **settings)
    assert table[0]["params"] == POINT
    points = qmc.Sobol(2, seed=derive(0, "sampler") % 2**32).random(16)[:15]  # in [0, 1)
    rates = [table[number]["params"]["client.lr"] for number in range(1, 16)]
    assert rates == pytest.approx([1e-3 * 300**first for first, _ in points])
    assert search(total=8, **settings) == {n: table[n] for n in range(8)}
    resumed = search(total=16, **settings, finished={n: table[n] for n in (0, 3, 7)})
    assert resumed == table
    assert search(total=16, **settings, seed=1) != table


def test_cmaes_is_replayed_and_converges() -> None:
    settings: dict[str, Any] = {"space": RANGES, "sampler": "cmaes", "total": 60}
    table = search(**settings)
    part = search(**settings, die_after=21, order=2)
    assert search(**settings, finished=part, order=1) == table
    errors = [abs(math.log10(table[n]["params"]["client.lr"] / 0.1)) for n in range(60)]
    assert mean(errors[-20:]) < mean(errors[1:21]) / 2


def test_cmaes_searches_one_range_too() -> None:
    one: dict[str, Any] = {"client.lr": RANGES["client.lr"]}
    table = search(space=one, sampler="cmaes", total=40)
    errors = [abs(math.log10(table[n]["params"]["client.lr"] / 0.1)) for n in range(40)]
    assert mean(errors[-10:]) < mean(errors[1:11]) / 2


def test_cmaes_needs_ranges() -> None:
    distributions = SearchSpace("simclr", SPACE, (), "").distributions()
    check_space("tpe", distributions)
    with pytest.raises(ConfigError, match=r"method\.temperature"):
        check_space("cmaes", distributions)


TWO = {"method.temperature": Choice(type="choice", values=(0.1, 0.5, 0.1))}
SIX: dict[str, Any] = {**TWO, "client.batch_size": IntRange(type="int", low=8, high=24, step=8)}


@pytest.mark.parametrize("sampler", ["tpe", "random", "sobol"])
def test_no_setting_of_a_finite_space_is_tried_twice(sampler: str) -> None:
    assert [SearchSpace("simclr", space, (), "").size for space in (TWO, SIX, SPACE)] == [
        2,
        6,
        None,
    ]
    settings: dict[str, Any] = {"space": SIX, "sampler": sampler, "points": (), "batch_size": 2}
    settings["score"] = lambda params: params["method.temperature"]
    table = search(total=6, **settings)
    assert len({tuple(each["params"].values()) for each in table.values()}) == 6
    assert search(total=4, **settings) == {n: table[n] for n in range(4)}
    part = {n: table[n] for n in (0, 1, 3)}
    assert search(total=6, finished=part, order=1, **settings) == table


def test_dimensions_that_no_run_reads_are_named_or_refused() -> None:
    fixed = {"server.beta2": Choice(type="choice", values=(0.9, 0.99))}

    def dead(space: dict[str, Any], optimizer: Any = "average", **given: Any) -> dict[str, str]:
        def configure(params: Params) -> RunConfig:
            chosen = params.get("server.optimizer", optimizer)
            return RunConfig(server=ServerConfig(optimizer=chosen), **given)

        return dead_dimensions(SearchSpace("simclr", space, (), ""), configure)

    assert dead({**RANGES, **fixed}) == {"server.beta2": "server.optimizer=average"}
    assert dead({**RANGES, **fixed}, "yogi") == {}
    momentum = {"client.momentum": FloatRange(type="float", low=0.1, high=0.9)}
    adam = ClientConfig(optimizer="adam")
    assert [*dead({**RANGES, **momentum}, client=adam)] == ["client.momentum"]
    both = Choice(type="choice", values=("average", "adagrad"))
    assert [*dead({"server.optimizer": both, **fixed})] == ["server.beta2"]
    either = Choice(type="choice", values=("average", "adam"))
    assert dead({"server.optimizer": either, **fixed}) == {}
    with pytest.raises(ConfigError, match=r"server\.beta2.*server\.optimizer=average"):
        dead(fixed)


def test_a_dimension_is_seen_to_change_nothing() -> None:
    points = [{"a": a, "b": b} for a in (1, 2) for b in (3, 4)]

    def seen(score: Callable[..., float]) -> list[str]:
        return seen_without_effect([{"params": p, "objective": score(**p)} for p in points])

    assert seen(lambda a, b: a) == ["b"]
    assert seen(lambda a, b: 0.0) == ["a", "b"]
    assert seen(lambda a, b: a * b) == []
