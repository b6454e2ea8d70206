"""Comparison of a stored run with its repetition, to the last bit.

One numeric platform gives the same bits. Rounding differs between platforms and grows over the
rounds, until two runs of one seed differ at most as two seeds do. A stored value x and a repeated
one y then are two draws from the distribution over seeds, with a standard deviation s that is
estimated with v degrees of freedom, and (y - x) / (s sqrt(2)) has Student's t distribution. The
limit of |y - x| is its quantile at a level of 5 % over all metrics (Bonferroni), at most 4, times s
sqrt(2). Without that bound three seeds would allow ten standard deviations, and more stored seeds
could make the check laxer. An encoder before training has the same weights everywhere: its
accuracies may differ by 1 % of the test images.
"""

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from fedbench.bench.evaluation.metrics import is_accuracy
from fedbench.bench.experiment.code import changed_code, not_recorded
from fedbench.bench.results.leaderboard.comparability import class_of
from fedbench.bench.results.leaderboard.statistics import rounded
from fedbench.bench.results.store.replicas import (
    Difference,
    differences,
    known_apart,
    measured_once,
    of_one_version,
    platform_of,
    results_of,
    unequal,
)
from fedbench.bench.results.store.row import METRICS, Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.training.platforms import parts_apart

LEVEL = 0.05  # probability that a run which differs like another seed exceeds a limit
WIDEST = 0.05  # largest limit of an accuracy that says anything: 5 points; a convention
_MIN_SEEDS = 3
_LARGEST_QUANTILE = 4.0
_UNTRAINED, _SHARE_OF_IMAGES = "untrained_", 0.01
ELSEWHERE = re.compile(r"_(local|train)_|few_shot_|transfer_")
"""Accuracies on other images than the test split, or that are means over draws."""


@dataclass(frozen=True)
class Spread:
    """One metric of a stored run and of its repetition, and how far they may differ."""

    metric: str  # its name
    stored: float
    now: float
    sd: float  # standard deviation of a single run; 0 for an encoder before training
    limit: float  # largest difference that is within the spread
    source: str  # seeds or test images that the standard deviation comes from

    @property
    def within(self) -> bool:
        """Return True if the values differ by no more than the limit."""
        return rounded(abs(self.now - self.stored)) <= rounded(self.limit)

    def as_dict(self) -> dict[str, Any]:
        """Part of the output of `fedbench reproduce --json`."""
        return asdict(self) | {"within": self.within}


def spreads(row: Row, again: Row, rows: Sequence[Row], num_test: int) -> tuple[Spread, ...]:
    """Compare accuracies on the test split and the objective of a run and its repetition.

    The standard deviation is over seeds of the same configuration if the store has 3 or more, else,
    of an accuracy, the binomial standard error of one run. An objective without seeds is left out.
    """
    now = again.metrics
    values = {
        name: (before, now[name])
        for name, before in row.metrics.items()
        if name == "objective" or (is_accuracy(name) and not ELSEWHERE.search(name))
        if name in now
    }
    estimates = {
        name: estimate
        for name, pair in values.items()
        if not name.startswith(_UNTRAINED)
        if (estimate := _estimate(row, name, pair, rows, num_test)) is not None
    }
    trained = tuple(
        Spread(name, *values[name], sd, _quantile(degrees, len(estimates)) * sd * 2**0.5, source)
        for name, (sd, degrees, source) in estimates.items()
    )
    untrained = tuple(
        Spread(name, *pair, 0.0, _SHARE_OF_IMAGES, f"1 % of {num_test:,} test images")
        for name, pair in values.items()
        if name.startswith(_UNTRAINED)
    )
    return trained + untrained


def _quantile(degrees: float, num_metrics: int) -> float:
    from scipy import stats  # imported here: it takes half a second

    return min(_LARGEST_QUANTILE, float(stats.t.ppf(1 - LEVEL / num_metrics / 2, degrees)))


def _estimate(
    row: Row, metric: str, pair: tuple[float, float], rows: Sequence[Row], num_test: int
) -> tuple[float, float, str] | None:
    """Return standard deviation, degrees of freedom, and source; None if nothing tells."""
    identity = class_of(row, metric)
    seeds: dict[int, float] = {}
    for other in sorted(rows, key=lambda other: other.finished_at):
        alike = other.config_id == row.config_id and class_of(other, metric) == identity
        if alike and other.status == "ok" and (value := other.metrics.get(metric)) is not None:
            seeds.setdefault(other.seed, value)
    number = len(seeds)
    if number >= _MIN_SEEDS and (deviation := statistics.stdev(seeds.values())) > 0:
        return deviation, number - 1, f"{number} seeds of this configuration"
    if not is_accuracy(metric):
        return None
    share = min(max(sum(pair) / 2, 0.0), 1.0)
    error = math.sqrt(share * (1 - share) / num_test)
    return error, math.inf, f"binomial, {num_test:,} test images"


Verdict = Literal["same bits", "within seed spread", "cannot tell", "different"]

_LOSS = re.compile(r"^(final_loss|round \d+ loss)$")
_NAMES = frozenset({"row_id", "config_id", "training_id"})
"""Columns that name a run by its configuration and its code."""
_ROUNDED = frozenset(
    {
        *METRICS,
        "bytes_up", "bytes_down", "traffic_json", "revealing_messages", "smallest_group",
        "epsilon", "delta", "privacy_json",
    }
)  # fmt: skip
"""Columns that rounding may change; all others follow from configuration and data exactly."""


@dataclass(frozen=True)
class Reproduction:
    """A stored run compared with its repetition.

    Only between numeric platforms a verdict is `within seed spread`, or `cannot tell` where more
    than 5 points of an accuracy are within it.
    """

    differences: tuple[Difference, ...]  # not the same to the last bit; empty = reproduced
    spread: tuple[Spread, ...]  # of metrics, if the platforms are known to differ
    verdict: Verdict
    reason: str  # of the verdicts `cannot tell` and `different`; empty otherwise
    num_rounds: int  # that were compared; 0 if the store has no curve of the run
    not_compared: tuple[str, ...]  # metrics that only one has, made by another version of the code
    environment: Mapping[str, tuple[str | None, str | None]]  # that differs: name to (then, now)
    parts_apart: tuple[str, ...]  # of the run that the two processors compute differently
    row: Row = field(repr=False)  # the new one
    claimed: Row = field(repr=False)  # the stored one

    @property
    def limit(self) -> float | None:
        """Return the largest difference of an accuracy that is within the spread of seeds."""
        return max((each.limit for each in self.spread if is_accuracy(each.metric)), default=None)

    @property
    def run_id(self) -> str:
        """Row id of the run."""
        return self.claimed.row_id

    @property
    def num_results(self) -> int:
        """Return the number of values of the row that were compared."""
        return len(results_of(self.claimed).keys() - self.not_compared)

    def as_dict(self) -> dict[str, Any]:
        """The output of `fedbench reproduce --json`."""
        plain = {item.name: getattr(self, item.name) for item in fields(self) if item.repr}
        return {
            "run_id": self.run_id,
            "method": self.claimed.method,
            "seed": self.claimed.seed,
            "same": not self.differences,
            "limit": self.limit,
            "platform": {"stored": platform_of(self.claimed), "now": platform_of(self.row)},
            "num_results": self.num_results,
            **plain,
            "spread": [spread.as_dict() for spread in self.spread],
            "differences": [asdict(difference) for difference in self.differences],
        }


def compare(store: Store, run_id: str, other: Store, again: Row, num_test: int) -> Reproduction:
    """Compare a stored run with its repetition, rows and curves, on so many test images.

    Of replicas, the one from the repetition's numeric platform is compared, else the one that
    finished first; `run_id@HASH` names another.
    """
    row = store.find(run_id)
    if "@" not in run_id:
        alike = (
            r
            for r in store.replicas(row.row_id)
            if r.platform == again.platform and not known_apart(r, again)
        )
        row = next(alike, row)
    curves = store.curve(store.key(row)), other.curve(again.row_id)
    return judge(row, again, store.rows(), num_test, *curves)


def judge(
    row: Row,
    again: Row,
    rows: Sequence[Row],
    num_test: int,
    before: Sequence[Mapping[str, Any]] = (),
    after: Sequence[Mapping[str, Any]] = (),
) -> Reproduction:
    """Compare a stored row and its curve with those of its repetition."""
    of_row = differences(row, again)
    changed = changed_code(row.config.code, again.config.code)
    if changed:  # other code is another run by name
        of_row = [d for d in of_row if d.name not in _NAMES]
    apart, parts = known_apart(row, again), parts_apart(row.platforms, again.platforms)
    spread = spreads(row, again, rows, num_test) if apart else ()
    one_version = of_one_version(row, again)
    found = (*of_row, *_round_differences(before, after, one_version=one_version))
    return Reproduction(
        found,
        spread,
        *_verdict(found, spread, changed, apart=apart, parts=parts),
        num_rounds=min(len(before), len(after)),
        not_compared=tuple(measured_once(row, again)),
        environment=_environment(row, again),
        parts_apart=tuple(parts),
        row=again,
        claimed=row,
    )


def _verdict(
    found: Sequence[Difference],
    spread: Sequence[Spread],
    changed: Sequence[str],
    *,
    apart: bool,
    parts: Sequence[str],
) -> tuple[Verdict, str]:
    """Return the verdict on differences, and its reason."""
    if not found:
        return "same bits", ""
    if changed:
        return "different", not_recorded(changed)
    if not apart:
        if not parts:
            return "different", "the numeric platform is not known to be another one"
        what = " and ".join(parts)
        return "different", f"the code may have changed, and so compute {what} otherwise"
    for difference in found:
        name = difference.name
        if (name in Row.model_fields and name not in _ROUNDED) or name == "rounds":
            return "different", f"{name} does not depend on the platform"
        if parts and "training" not in parts and _LOSS.search(name):
            return "different", f"{name} differs, and both processors train alike"
    if not spread:
        return "different", "no metric can be compared with a spread"
    if beyond := [part.metric for part in spread if not part.within]:
        return "different", f"{', '.join(beyond)} differ by more than seeds do"
    wide = [part for part in spread if is_accuracy(part.metric) and part.limit > WIDEST]
    if texts := [f"{part.limit * 100:.1f} of {part.metric}" for part in wide]:
        return "cannot tell", f"more than 5 points are within the spread: {', '.join(texts)}"
    return "within seed spread", ""


def _round_differences(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], *, one_version: bool
) -> list[Difference]:
    """Differences in values of rounds and in their number, apart from seconds.

    A run without a curve, such as a trial, is compared by its row alone. What only one of two
    versions of the code has recorded is not compared.
    """
    if not before:
        return []
    number = [Difference("rounds", len(before), len(after))] if len(before) != len(after) else []
    return number + [
        replace(found, name=f"round {index + 1} {found.name}")
        for index, (old, new) in enumerate(zip(before, after, strict=False))
        for found in unequal(old, new)
        if found.name != "seconds"
        if one_version or (found.name in old and found.name in new)
    ]


def _environment(then: Row, now: Row) -> dict[str, tuple[str | None, str | None]]:
    def named(row: Row) -> dict[str, str | None]:
        versions: dict[str, str | None] = row.environment
        columns = ("package_version", "git_sha", "hardware", "device")
        columns_of = {name: getattr(row, name) for name in columns}
        return versions | columns_of | {"numeric platform": platform_of(row)}

    return {found.name: (found.first, found.second) for found in unequal(named(then), named(now))}
