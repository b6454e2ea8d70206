"""Findings count trials of equal compute, and their intervals know which pairs share a method."""

import pandas as pd
import pytest
from scipy import stats

from fedbench.leaderboards.studies import findings

from .conftest import ROOT, STUDIES

COSTS = (
    *("federation.num_rounds", "federation.participation", "client.local_epochs"),
    *("client.batch_size", "data.train_subset", "data.num_clients", "model.width"),
)


def table(pairs: dict[tuple[str, str], float]) -> pd.DataFrame:
    """Return what `preset` loses more than `objective`, by data and method."""
    index = pd.MultiIndex.from_tuples(pairs, names=["data", "method"])
    return pd.DataFrame({"preset": [*pairs.values()], "objective": 0.0}, index)


def test_an_interval_is_students_over_methods() -> None:
    """A second data set on which each method does the same is no further evidence."""
    values = {"simclr": 1.0, "byol": -0.5, "orchestra": 2.5, "spectral": 0.2}
    once = table({("cifar10", method): value for method, value in values.items()})
    found = findings.apart(once, "preset", "objective")
    expected = stats.ttest_1samp([*values.values()], 0.0).confidence_interval()
    assert found[:3] == pytest.approx((0.8, expected.low, expected.high))
    twice = pd.concat([once, once.rename(index={"cifar10": "fashion-mnist"})])
    assert findings.apart(twice, "preset", "objective") == pytest.approx(found)


@pytest.mark.slow
def test_trials_that_are_compared_cost_the_same() -> None:
    searches = findings.searches()
    assert len(searches) == 25
    assert len(findings.choosing()) == 18
    for search, trials in searches.items():
        counted = findings.equal(trials)
        for field in COSTS:
            assert counted[field].astype(str).nunique() == 1, (search, field)
        assert len(counted) == len(trials) or search[0] == "selection"


def words(difference: findings.Difference) -> str:
    """Return a difference with its interval, as pages have it."""
    value, low, high, _ = difference
    return f"{value:.1f} [{low:.1f}, {high:.1f}]".replace("-", "−")


@pytest.mark.slow
def test_pages_say_what_choosing_loses() -> None:
    """README, pages, studies and log, at equal compute; what was pooled before, at any."""
    pairs, eight = findings.choosing(), findings.choosing(findings.EIGHT)
    eight_at_any = findings.choosing(findings.EIGHT, any_compute=True)
    first, first_at_any = (findings.choosing(("selection",), cost) for cost in (False, True))
    lost, equal, older = pairs.mean(), first.mean(), first_at_any.mean()
    gain, over_preset, by_labels = (
        findings.apart(pairs, *pair)
        for pair in (("random", "objective"), ("preset", "objective"), ("preset", "labels"))
    )
    before, now = (findings.apart(table, "preset", "objective") for table in (eight_at_any, eight))
    was, is_left = f"{before.value:.1f}", f"{now.value:.1f}".replace("-", "−")
    labels_before, labels_now = (
        findings.apart(table, "preset", "labels").value for table in (eight_at_any, eight)
    )
    by_data = pairs.groupby(level="data").mean()
    ahead = by_data.preset - by_data.objective
    by_cell, tests = findings.announced()
    assert (len(by_cell), len(pairs)) == (10, 18)
    primary, failed = tests.iloc[0], by_cell.loc["cifar10"].objective
    epochs = findings.longer()
    methods = pairs.index.get_level_values("method").nunique()
    loses, random = f"loses {lost.objective:.1f} points to the best", f"{lost.random:.1f}."
    for page, sayings in {
        ROOT / "README.md": (
            f"tuning without labels gains {gain.value:.1f} points over a random choice",
            f"It {loses} setting, a random choice {random}",
            f"loses {lost.preset:.1f}, labels {lost.labels:.1f}.",
            f"{was} points over the preset, {is_left} at equal compute",
        ),
        ROOT / "docs" / "findings.md": (
            f"gains {gain.value:.1f} points of accuracy over a random choice",
            f"without labels {loses} trial, a random one {random}",
            f"The preset loses {lost.preset:.1f}, a choice by labels {lost.labels:.1f}.",
            f"The {gain.value:.1f} points have a 95 % interval of"
            f" [{gain.low:.1f}, {gain.high:.1f}], over {methods} methods.",
            f"the gain is {words(over_preset)}, by labels {words(by_labels)};"
            f" {over_preset.seen:.1f} and {by_labels.seen:.1f} would have been seen",
            f"the score is {-ahead['cifar10']:.1f} points behind it, on Fashion-MNIST"
            f" {ahead['fashion-mnist']:.1f} ahead",
            f"τ is {lost.tau:.2f} over a seed's trials, {lost['tau of the better half']:.2f} over",
            f"loses {primary['mean']:.1f} points more than labels, 90 % interval"
            f" [{primary.low:.1f}, {primary.high:.1f}]".replace("-", "−"),
            f"by {failed['fedx']:.1f} and {failed['mim']:.1f}.",
            f"over the preset, {was} points, was longer training",
            f"at the preset's compute {is_left} is left",
            f"{epochs[4]} of its {epochs.sum()} choices have 4",
            f"Its best trials are {older.preset - equal.preset:.1f} points above",
            f"falls from {words(before)} to {words(now)}, with labels from"
            f" {labels_before:.1f} to {labels_now:.1f}.",
        ),
        ROOT / "docs" / "tuning.md": (
            f"the chosen trial {loses}, a random one {random}",
            f"A good preset loses {lost.preset:.1f}, labels {lost.labels:.1f}:",
        ),
        ROOT / "docs" / "objectives.md": (
            f"the default loses {lost.objective:.1f} points, the last loss"
            f" {lost['last loss']:.1f}, SEP {lost.SEP:.1f}",
        ),
        STUDIES / "selection" / "README.md": (
            f"Of the objective's {epochs.sum()} choices {epochs[4]} have 4",
            f"the objective loses {older.objective:.1f} points to the best and the preset"
            f" {older.preset:.1f}.",
            f"2 epochs, {first.trials.min():.0f} to {first.trials.max():.0f} of 24,",
            f"the objective loses {equal.objective:.1f} and the preset {equal.preset:.1f};"
            f" labels lose {equal.labels:.1f}, a random trial {equal.random:.1f}",
        ),
        STUDIES / "equivalence" / "README.md": (
            f"as was found later, {eight.objective.mean():.1f} and {eight.labels.mean():.1f}",
        ),
        STUDIES / "log.md": (
            f"objective {lost.objective:.2f}, preset {lost.preset:.2f}, labels {lost.labels:.2f},"
            f" k-NN {lost['k-NN']:.2f}, last loss {lost['last loss']:.2f}, SEP {lost.SEP:.2f},"
            f" random {lost.random:.2f}.",
            "random minus objective {:.2f} [{:.2f}, {:.2f}]".format(*gain),
            "minus objective {:.2f} [{:.2f}, {:.2f}] ({:.1f} would".format(*over_preset).replace(
                "-", "−"
            ),
            "preset minus labels {:.2f} [{:.2f}, {:.2f}] ({:.1f})".format(*by_labels).replace(
                "-", "−"
            ),
            f"the preset lost {eight_at_any.preset.mean():.2f} points and the objective"
            f" {eight_at_any.objective.mean():.2f}",
            f"they lose {eight.preset.mean():.2f} and {eight.objective.mean():.2f}.",
        ),
    }.items():
        text = page.read_text("utf-8")
        for saying in sayings:
            assert saying in text, (page.name, saying)
