"""Comparison of a stored run with its repetition, to the last bit.

One numeric platform gives the same bits; another may differ as much as another seed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from fedbench.bench.evaluation.metrics import is_accuracy
from fedbench.bench.results.store.replicas import (
    Difference,
    differences,
    known_apart,
    measured_once,
    platform_of,
    results_of,
)
from fedbench.bench.results.store.row import METRICS, Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.runs.code import changed_code
from fedbench.bench.runs.execute import open_dataset
from fedbench.bench.runs.spread import Spread, spreads

Verdict = Literal["same bits", "within seed spread", "cannot tell", "different"]
REPRODUCED: frozenset[Verdict] = frozenset({"same bits", "within seed spread"})

_NAMES = frozenset({"row_id", "config_id", "training_id"})
"""Columns that name a run by its configuration and its code."""
_ROUNDED = frozenset(
    {
        *METRICS,
        *("bytes_up", "bytes_down", "traffic_json", "revealing_messages", "smallest_group"),
        *("epsilon", "delta", "privacy_json"),
    }
)
"""Columns that rounding may change; all others follow from configuration and data exactly."""


@dataclass(frozen=True)
class Judgement:
    """Comparison of a row with another of the same run.

    Attributes:
        differences: values that are not the same to the last bit; empty = reproduced.
        spread: metrics with the spread of seeds, if the platforms are known to differ.
        verdict: `same bits`; for another numeric platform only, `within seed spread`, or `cannot
            tell` where more than 5 points of an accuracy are within it; `different`.
        reason: the cause of the verdicts `cannot tell` and `different`; empty otherwise.
    """

    differences: tuple[Difference, ...]
    spread: tuple[Spread, ...]
    verdict: Verdict
    reason: str

    @property
    def limit(self) -> float | None:
        """Return the largest difference of an accuracy that is within the spread of seeds."""
        return max((each.limit for each in self.spread if is_accuracy(each.metric)), default=None)


@dataclass(frozen=True)
class Reproduction(Judgement):
    """A stored run compared with its repetition.

    Attributes:
        num_rounds: rounds that were compared; 0 if the store has no curve of the run.
        not_compared: metrics that only one of the two runs has, since another version of the code
            made the other.
        environment: versions and hardware that differ: name to (then, now).
        row: the new row.
        claimed: the stored row.
    """

    num_rounds: int
    not_compared: tuple[str, ...]
    environment: Mapping[str, tuple[str | None, str | None]]
    row: Row = field(repr=False)
    claimed: Row = field(repr=False)

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


def compare(
    store: Store, run_id: str, other: Store, again: Row, data_dir: Path | str | None
) -> Reproduction:
    """Compare a stored run with its repetition, rows and curves.

    Of replicas, the one from the repetition's numeric platform is compared, else the one that
    finished first; `run_id@HASH` names another.
    """
    row = store.find(run_id)
    if "@" not in run_id:
        alike = (r for r in store.replicas(row.row_id) if r.platform == again.platform)
        row = next(alike, row)
    before, after = store.curve(store.key(row)), other.curve(again.row_id)
    of_rounds = _round_differences(
        before, after, same_schema=row.schema_version == again.schema_version
    )
    num_test = len(open_dataset(again.config, data_dir).test_labels)
    judged = judge(row, again, store.rows(), num_test, of_rounds)
    return Reproduction(
        **vars(judged),
        num_rounds=min(len(before), len(after)),
        not_compared=tuple(measured_once(row, again)),
        environment=_environment(row, again),
        row=again,
        claimed=row,
    )


def judge(
    row: Row,
    again: Row,
    rows: Sequence[Row],
    num_test: int,
    of_rounds: Sequence[Difference] = (),
) -> Judgement:
    """Compare a stored row with its repetition."""
    of_row = differences(row, again)
    changed = changed_code(row.config.code, again.config.code)
    if changed:  # other code is another run by name
        of_row = [d for d in of_row if d.name not in _NAMES]
    apart = known_apart(row, again)
    spread = spreads(row, again, rows, num_test) if apart else ()
    found = (*of_row, *of_rounds)
    return Judgement(found, spread, *_verdict(found, spread, changed, apart=apart))


def _verdict(
    found: Sequence[Difference], spread: Sequence[Spread], changed: Sequence[str], *, apart: bool
) -> tuple[Verdict, str]:
    """Return the verdict on differences, and its reason."""
    if not found:
        return "same bits", ""
    if changed:
        return "different", f"the code of {', '.join(changed)} is not the recorded one"
    if not apart:
        return "different", "the numeric platform is not known to be another one"
    for difference in found:
        name = difference.name
        if (name in Row.model_fields and name not in _ROUNDED) or name == "rounds":
            return "different", f"{name} does not depend on the platform"
    if not spread:
        return "different", "no metric can be compared with a spread"
    if beyond := [part.metric for part in spread if not part.within]:
        return "different", f"{', '.join(beyond)} differ by more than seeds do"
    if wide := [f"{part.limit * 100:.1f} of {part.metric}" for part in spread if part.too_wide]:
        return "cannot tell", f"more than 5 points are within the spread: {', '.join(wide)}"
    return "within seed spread", ""


def _round_differences(
    before: list[dict[str, Any]], after: list[dict[str, Any]], *, same_schema: bool
) -> list[Difference]:
    """Differences in values of rounds and in their number, apart from seconds.

    A run without a curve, such as a trial, is compared by its row alone. If the schemas differ,
    traffic that the stored rounds do not record is not compared.
    """
    if not before:
        return []
    number = [Difference("rounds", len(before), len(after))] if len(before) != len(after) else []
    return number + [
        Difference(f"round {index + 1} {name}", old.get(name), new.get(name))
        for index, (old, new) in enumerate(zip(before, after, strict=False))
        for name in dict.fromkeys([*old, *new])
        if name != "seconds" and old.get(name) != new.get(name)
        if same_schema or not name.startswith("traffic.") or old.get(name) is not None
    ]


def _environment(then: Row, now: Row) -> dict[str, tuple[str | None, str | None]]:
    def named(row: Row) -> dict[str, str | None]:
        versions: dict[str, str | None] = json.loads(row.env_json or "{}")
        columns = ("package_version", "git_sha", "hardware", "device")
        columns_of = {name: getattr(row, name) for name in columns}
        return versions | columns_of | {"numeric platform": platform_of(row)}

    old, new = named(then), named(now)
    return {
        name: (old.get(name), new.get(name))
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    }
