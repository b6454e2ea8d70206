"""Suggestions that neither timing nor interruptions change."""

from __future__ import annotations

import importlib.util
import itertools
import math
import random
from collections.abc import Callable, Mapping
from statistics import mean

import optuna
import pytest

from fedbench.bench.system.errors import ConfigError, ResourceError, StoreError, UnknownNameError
from fedbench.bench.tuning.suggester import Params, Suggester, ToldTrial, check_sampler

SPACE = {
    "client.lr": optuna.distributions.FloatDistribution(1e-3, 0.3, log=True),
    "method.temperature": optuna.distributions.CategoricalDistribution((0.1, 0.5, 1.0)),
}
POINT = {"client.lr": 0.03, "method.temperature": 0.5}
Table = dict[int, ToldTrial]


def score(params: Params) -> float | None:
    """Outcome that is best at lr 0.1; a temperature of 1 is an error, high rates diverge."""
    if params["method.temperature"] == 1.0:
        return None
    if params["client.lr"] > 0.2:
        return math.nan
    return -abs(math.log10(params["client.lr"] / 0.1))


def search(
    *,
    total: int = 14,
    finished: Mapping[int, ToldTrial] | None = None,
    stop_after: int | None = None,
    order: Callable[[list[int]], int] = min,
    sampler: str = "tpe",
    batch_size: int = 4,
    seed: int = 0,
) -> Table:
    """Run a study; `order` picks which of the running trials ends next."""
    suggester = Suggester(
        "s",
        SPACE,
        sampler=sampler,
        seed=seed,
        total=total,
        batch_size=batch_size,
        points=[POINT],
        told=finished,
    )
    table, running = dict(finished or {}), dict[int, Params]()
    for _ in range(1000):
        while (suggestion := suggester.ask()) is not None:
            running[suggestion.number] = suggestion.params
        if suggester.exhausted:
            break
        number = order(list(running))
        params = running.pop(number)
        table[number] = ToldTrial(params, score(params))
        if stop_after is not None and len(table) - len(finished or {}) >= stop_after:
            break
        suggester.tell(number, score(params))
    return table


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_the_order_in_which_trials_end_leaves_no_trace(sampler: str) -> None:
    shuffle = random.Random(3)
    expected = search(sampler=sampler)
    assert sorted(expected) == list(range(14))
    assert search(sampler=sampler, order=max) == expected
    assert search(sampler=sampler, order=shuffle.choice) == expected
    assert search(sampler=sampler, seed=1) != expected


def test_a_study_that_is_killed_again_and_again_ends_with_the_same_trials() -> None:
    expected, shuffle = search(), random.Random(5)
    table: Table = {}
    for lost in itertools.cycle([3, 1, 2]):
        table = search(finished=table, stop_after=lost, order=shuffle.choice)
        if len(table) == 14:
            break
    assert table == expected


def test_more_trials_extend_a_study() -> None:
    assert search(total=13, finished=search(total=6)) == search(total=13)


def test_points_come_first_and_the_search_learns() -> None:
    assert search()[0].params == POINT

    def late(sampler: str) -> float:
        """Mean distance from the best rate, in powers of ten, of trials 20 to 39."""
        tables = [search(total=40, sampler=sampler, seed=seed) for seed in range(3)]
        rates = [t[n].params["client.lr"] for t in tables for n in range(20, 40)]
        return mean(abs(math.log10(rate / 0.1)) for rate in rates)

    assert late("tpe") < 0.8 * late("random")


def test_a_grid_visits_its_points_in_order_and_no_others() -> None:
    grid = [{"client.lr": lr, "method.temperature": 0.1} for lr in (0.001, 0.01, 0.1)]
    suggester = Suggester("s", SPACE, sampler="grid", total=20, batch_size=4, points=grid)
    seen = [suggester.ask() for _ in range(4)]
    assert [s.params for s in seen if s is not None] == grid
    for number in range(3):
        suggester.tell(number, 0.0)
    assert suggester.exhausted


def test_a_diverged_trial_ranks_last_and_an_error_says_nothing() -> None:
    suggester = Suggester("s", SPACE, total=8, batch_size=4)
    for _ in range(4):
        assert suggester.ask() is not None
        assert not suggester.exhausted
    assert suggester.ask() is None  # the batch is out
    for number, value in enumerate([math.nan, math.inf, None, 1.0]):
        suggester.tell(number, value)
    states = [trial.state.name for trial in suggester._study.trials]
    assert states == ["PRUNED", "PRUNED", "FAIL", "COMPLETE"]


def test_stored_trials_with_other_parameters_are_refused() -> None:
    table = search(total=6)
    table[5] = ToldTrial({**table[5].params, "client.lr": 0.2}, 0.0)
    with pytest.raises(StoreError, match=r"trial 5 of study 's' .* another study name"):
        search(total=8, finished=table)


def test_unknown_and_unavailable_samplers(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'random'"):
        check_sampler("randon")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ResourceError, match=r"greenlet.*fedbench-ssl\[gp\]"):
        check_sampler("gp")
    with pytest.raises(ResourceError, match=r"package cmaes: .*fedbench-ssl\[cmaes\]"):
        check_sampler("cmaes")


RANGES = {
    "client.lr": optuna.distributions.FloatDistribution(1e-3, 0.3, log=True),
    "method.temperature": optuna.distributions.FloatDistribution(0.05, 1.0),
}


def test_sobol_points_have_the_index_of_their_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SPACE", RANGES)
    table = search(total=16, sampler="sobol")
    assert table[0].params == POINT
    rates = [math.log(table[number].params["client.lr"] / 1e-3) for number in range(1, 16)]
    cells = {int(rate / math.log(300) * 16) for rate in rates}
    assert len(cells) == 15  # at most one of 16 points lies in each sixteenth of the range
    assert search(total=8, sampler="sobol") == {n: table[n] for n in range(8)}
    resumed = search(total=16, sampler="sobol", finished={n: table[n] for n in (0, 3, 7)})
    assert resumed == table
    assert search(total=16, sampler="sobol", seed=1) != table


def test_cmaes_is_replayed_and_converges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "SPACE", RANGES)
    table = search(total=60, sampler="cmaes")
    part = search(total=60, sampler="cmaes", stop_after=21)
    assert search(total=60, sampler="cmaes", finished=part, order=max) == table
    errors = [abs(math.log10(table[n].params["client.lr"] / 0.1)) for n in range(60)]
    assert mean(errors[-20:]) < mean(errors[1:21]) / 2


def test_cmaes_needs_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"method.temperature is a choice .* --sampler tpe"):
        search(sampler="cmaes")
    monkeypatch.setitem(globals(), "SPACE", {"client.lr": RANGES["client.lr"]})
    with pytest.raises(ConfigError, match=r"one dimension, client\.lr"):
        search(sampler="cmaes")


def test_trials_that_fell_early_rank_by_their_rounds() -> None:
    suggester = Suggester("s", RANGES, total=4, batch_size=2)
    for rounds in ((1, None), (2, None)):
        for number, end in enumerate(rounds):
            suggestion = suggester.ask()
            assert suggestion is not None
            assert suggestion.number % 2 == number
            suggester.tell(suggestion.number, 0.5, end)
    states = [trial.state.name for trial in suggester._study.trials]
    assert states == ["PRUNED", "COMPLETE"] * 2
    assert suggester._study.trials[2].intermediate_values == {2: 0.5}
