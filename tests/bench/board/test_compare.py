"""`compare`: differences of methods by scipy's tests, and of two runs by their values."""

import pytest
from scipy import stats

import fedbench
from fedbench.bench.config import RunConfig
from fedbench.bench.results.leaderboard.statistics import NO_SPREAD
from fedbench.bench.results.store.store import Store
from tests.bench.results.conftest import build_row, seeds_of

A, B = [0.50, 0.52, 0.47, 0.51, 0.49], [0.46, 0.49, 0.43, 0.47, 0.45]


@pytest.fixture
def store(tmp_path: object) -> Store:
    store = Store(f"{tmp_path}/store")
    rows = [
        *seeds_of({"simclr": A, "byol": B}, alpha=0.1),
        *seeds_of({"simclr": A, "byol": A[::-1]}, alpha=1.0),
        *seeds_of({"simclr": A[:2], "byol": B[:2]}, alpha=100.0),
    ]
    few = RunConfig.model_validate({"spec": "orchestra", "federation": {"num_rounds": 3}})
    for row in [*rows, build_row(few, linear_acc=0.6)]:
        store.write_row(row)
    return store


def test_methods_are_compared_setting_by_setting_as_scipy_does(store: Store) -> None:
    result = fedbench.compare("simclr", "byol", store)
    assert [each.setting for each in result.settings] == ["alpha 0.1", "alpha 1", "alpha 100"]
    apart, same, few = result.settings
    test = stats.ttest_ind(A, B)
    assert apart.difference == pytest.approx(0.038)
    assert (apart.low, apart.high) == pytest.approx(tuple(test.confidence_interval()))
    # Holm: the smaller of two p-values counts twice; alpha 100 has too few seeds for a test.
    assert apart.p == pytest.approx(2 * test.pvalue)
    assert (same.difference, same.p) == pytest.approx((0, 1))
    assert few.difference == pytest.approx(0.035)
    assert (few.p, few.low) == (None, None)
    assert [bool(each.untested) for each in result.settings] == [False, False, True]
    assert result.equal
    assert "simclr is ahead by 3.8 points in 1 of 2 settings" in result.sentence
    assert result.to_frame().setting.tolist() == ["alpha 0.1", "alpha 1", "alpha 100"]
    assert result.sentence.split(";")[0] in result._repr_html_()
    assert "simclr and byol: simclr is ahead" in repr(result)
    back = fedbench.compare("byol", "simclr", store).settings[0]
    assert (back.difference, back.p) == pytest.approx((-0.038, 2 * test.pvalue))


def test_a_power_calculation_finds_the_detectable_difference(store: Store) -> None:
    """Power of the t test of two lines of five seeds at 5 %, by the noncentral t distribution."""
    (one,) = fedbench.compare("simclr", "byol", store, preset="mine", metric="linear").settings[:1]
    pooled = (((5 - 1) * stats.tvar(A) + (5 - 1) * stats.tvar(B)) / 8) ** 0.5
    shift = (one.detectable or 0.0) / (pooled * (2 / 5) ** 0.5)
    limit = stats.t.ppf(1 - 0.05 / 2 / 2, 8)  # two settings share the level
    assert stats.nct.sf(limit, 8, shift) == pytest.approx(0.8, abs=1e-3)


@pytest.mark.parametrize("other", [1.0, 0.9])
def test_values_without_spread_give_a_difference_and_no_interval(
    store: Store, other: float
) -> None:
    for row in seeds_of({"rotpred": [1.0] * 3, "simsiam": [other] * 3}):
        store.write_row(row)
    (one,) = fedbench.compare("rotpred", "simsiam", store).settings
    assert one.difference == pytest.approx(1 - other)
    assert (one.low, one.high, one.test, one.p, one.detectable) == (None,) * 5
    assert one.untested == NO_SPREAD


def test_methods_that_no_setting_has_both_of_differ_in_something(store: Store) -> None:
    result = fedbench.compare("simclr", "orchestra", store)
    assert (result.equal, result.settings) == (False, ())
    assert result.differs == {"num_rounds": (RunConfig().federation.num_rounds, 3)}


def test_two_runs_stand_beside_each_other(store: Store) -> None:
    first, second = (row for row in store.rows() if row.method == "simclr" and row.alpha == 0.1
                     and row.seed < 2)  # fmt: skip
    result = fedbench.compare(first.row_id[:8], second.row_id, store)
    assert result.values["linear_acc"] == (first.linear_acc, second.linear_acc)
    assert result.differs == {"seed": (first.seed, second.seed)}
    assert result.equal
    other = next(row for row in store.rows() if row.alpha == 1.0)
    assert not fedbench.compare(first.row_id, other.row_id, store).equal


def test_what_cannot_be_compared_is_refused(store: Store) -> None:
    run_id = store.rows()[0].row_id
    for pair in (("simclr", "simclr"), ("simclr", run_id)):
        with pytest.raises(fedbench.ConfigError):
            fedbench.compare(*pair, store)
    with pytest.raises(fedbench.UnknownNameError):
        fedbench.compare("simclr", "sinclr", store)
