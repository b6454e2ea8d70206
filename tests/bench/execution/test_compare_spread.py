from datetime import UTC, datetime, timedelta
from math import sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedbench.bench.config import RunConfig
from fedbench.bench.execution.compare import Spread, _round_differences, judge, spreads
from fedbench.bench.execution.execute import facts
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.results.store.replicas import Difference
from fedbench.bench.results.store.row import Row

STARTED = datetime(2026, 1, 1, tzinfo=UTC)


def row_of(seed: int = 0, lr: float = 0.1, **fields: Any) -> Row:
    config = RunConfig(seed=seed, client=RunConfig().client.model_copy(update={"lr": lr}))
    dataset: Any = SimpleNamespace(path=Path(), revision="revision", name="digits")
    known = facts(Experiment(config).on(dataset), "hash", STARTED, "cpu")
    return Row(**{**known, "status": "ok", "finished_at": STARTED, **fields})


def limit(spread: Spread) -> float:
    return spread.limit / sqrt(2) / spread.sd


def test_three_seeds_of_the_configuration_tell() -> None:
    rows = [row_of(seed, linear_acc=0.8 + 0.01 * seed) for seed in range(3)]
    (spread,) = spreads(rows[0], row_of(linear_acc=0.85), rows, 300)
    # 0.80, 0.81, 0.82 have the standard deviation 0.01; Student's t at 97.5 %, 2 degrees, would be
    # 4.303: more than 4 deviations are never allowed.
    assert spread.sd == pytest.approx(0.01)
    assert limit(spread) == pytest.approx(4.0)
    assert (spread.within, spread.source) == (True, "3 seeds of this configuration")
    (beyond,) = spreads(rows[0], row_of(linear_acc=0.87), rows, 300)  # allowed: 0.0566
    assert not beyond.within
    assert beyond.as_dict()["within"] is False


def test_a_seed_counts_once() -> None:
    rows = [row_of(seed, linear_acc=0.8 + 0.01 * seed, knn_acc=0.7) for seed in range(3)]
    later = STARTED + timedelta(hours=1)
    replica = row_of(1, linear_acc=0.1, knn_acc=0.7, finished_at=later)
    rows = [replica, row_of(4, status="diverged"), *rows]
    knn, linear = spreads(rows[2], row_of(linear_acc=0.8, knn_acc=0.7), rows, 300)
    assert linear.sd == pytest.approx(0.01)
    # Three equal values are no spread; nothing else is in the class, so images tell.
    assert knn.source == "binomial, 300 test images"


def test_without_seeds_the_number_of_test_images_tells() -> None:
    mlp_before = {"mlp_acc": 0.8, "mlp_local_acc": 0.1, "mlp_train_acc": 1.0}
    mlp_now = {"mlp_acc": 0.8, "mlp_local_acc": 0.2, "mlp_train_acc": 0.9}
    row = row_of(linear_acc=0.8, objective=0.5, further=mlp_before)
    again = row_of(linear_acc=0.7, objective=0.4, further=mlp_now)
    linear, mlp = spreads(row, again, [row], 400)
    assert (linear.metric, mlp.metric) == ("linear_acc", "mlp_acc")
    # sqrt(0.75 * 0.25 / 400) = 0.02165; two metrics: the normal quantile at 98.75 % is 2.2414.
    assert linear.sd == pytest.approx(0.02165, abs=1e-5)
    assert limit(linear) == pytest.approx(2.2414, abs=1e-4)
    assert (linear.within, mlp.within) == (False, True)


def test_an_encoder_before_training_has_no_seed_to_differ_by() -> None:
    rows = [row_of(s, linear_acc=0.8 + s / 10, untrained_linear_acc=0.3 + s / 10) for s in range(3)]
    again = row_of(linear_acc=0.9, untrained_linear_acc=0.32)
    linear, untrained = spreads(rows[0], again, rows, 300)
    assert (linear.metric, linear.within) == ("linear_acc", True)
    assert (untrained.limit, untrained.within) == (0.01, False)
    assert untrained.source == "1 % of 300 test images"


@pytest.mark.parametrize(
    ("changed", "rounds", "verdict", "named"),
    [
        ({}, (3, 3), "same bits", ""),
        ({"linear_acc": 0.51, "platform": "a"}, (0, 3), "different", "platform"),
        ({"linear_acc": 0.9}, (0, 3), "different", "linear_acc"),
        ({"linear_acc": None}, (0, 3), "different", "spread"),
        ({"linear_acc": 0.51, "partition_hash": "b"}, (0, 3), "different", "partition_hash"),
        ({}, (3, 4), "different", "rounds"),
    ],
)
def test_reasons(
    changed: dict[str, Any], rounds: tuple[int, int], verdict: str, named: str
) -> None:
    """Without a curve, as of a trial, the row alone is compared."""
    row = row_of(linear_acc=0.5, platform="a")
    again = row.model_copy(update={"platform": "b", **changed})
    judged = judge(row, again, [row], 2000, *([{"loss": 1.0}] * number for number in rounds))
    assert judged.verdict == verdict
    assert named in judged.reason


@pytest.mark.parametrize(
    ("images", "verdict"), [(2000, "within seed spread"), (400, "cannot tell"), (9000, "different")]
)
def test_a_wide_limit_cannot_tell(images: int, verdict: str) -> None:
    """On n images one accuracy of 0.5 has the limit 1.96 sqrt(2) sqrt(0.25 / n)."""
    row, again = row_of(linear_acc=0.5, platform="a"), row_of(linear_acc=0.52, platform="b")
    judged = judge(row, again, [row], images)
    assert judged.verdict == verdict
    (spread,) = judged.spread
    assert spread.limit == pytest.approx(1.96 * sqrt(2) * sqrt(0.51 * 0.49 / images), rel=1e-4)


def test_what_another_version_did_not_record_in_a_round_is_not_compared() -> None:
    old, new = {"loss": 1.0, "seconds": 1.0}, {"loss": 1.0, "metrics.sep": 0.5, "seconds": 2.0}
    assert _round_differences([old], [new], one_version=False) == []
    (found,) = _round_differences([old], [new], one_version=True)
    assert found == Difference("round 1 metrics.sep", None, 0.5)
    (found,) = _round_differences([old], [{**new, "loss": 2.0}], one_version=False)
    assert found == Difference("round 1 loss", 1.0, 2.0)
