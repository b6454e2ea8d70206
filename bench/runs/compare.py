"""Comparison of a stored run with its repetition, to the last bit.

One numeric platform gives the same bits; another may differ as much as another seed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

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
from fedbench.bench.runs.spread import Spread, spreads, widest

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
class Reproduction:
    """A stored run compared with its repetition.

    Attributes:
        row_id: of the run.
        method: its spec.
        seed: its seed.
        num_results: values of the row that were compared.
        num_rounds: rounds that were compared; 0 if the store has no curve of the run.
        not_compared: metrics that only one of the two runs has, since another version of the code
            made the other.
        differences: values that are not the same to the last bit; empty = reproduced.
        platforms: numeric platforms of the stored run and of this one.
        spread: metrics with the spread of seeds, if the platforms are known to differ.
        verdict: `same bits`; for another numeric platform only, `within seed spread`, or `cannot
            tell` where more than 5 points of an accuracy are within it; `different`.
        reason: the cause of the verdicts `cannot tell` and `different`; empty otherwise.
        environment: versions and hardware that differ: name to (then, now).
        row: the new row.
        claimed: the stored row.
    """

    row_id: str
    method: str
    seed: int
    num_results: int
    num_rounds: int
    not_compared: tuple[str, ...]
    differences: tuple[Difference, ...]
    platforms: tuple[str, str]
    spread: tuple[Spread, ...]
    verdict: Verdict
    reason: str
    environment: Mapping[str, tuple[str | None, str | None]]
    row: Row = field(repr=False)
    claimed: Row = field(repr=False)

    @property
    def limit(self) -> float | None:
        """Return the largest difference of an accuracy that is within the spread of seeds."""
        return widest(self.spread)

    @property
    def same(self) -> bool:
        """Return True if every bit agrees."""
        return not self.differences

    def as_dict(self) -> dict[str, Any]:
        """The output of `fedbench reproduce --json`."""
        plain = {item.name: getattr(self, item.name) for item in fields(self) if item.repr}
        stored, now = plain.pop("platforms")
        return plain | {
            "same": self.same,
            "limit": self.limit,
            "platform": {"stored": stored, "now": now},
            "spread": [spread.as_dict() for spread in self.spread],
            "differences": [asdict(difference) for difference in self.differences],
        }


def same_platform(store: Store, row: Row, again: Row) -> Row:
    """Return the replica of a row that the platform of its repetition computed, else the row."""
    alike = (r for r in store.replicas(row.row_id) if r.platform == again.platform)
    return next(alike, row)


def compare(
    store: Store, row: Row, other: Store, again: Row, data_dir: Path | str | None
) -> Reproduction:
    """Compare a stored run with its repetition, rows and curves.

    Args:
        store: has the run, and others for the spread of seeds.
        row: the stored row.
        other: has the repetition.
        again: its row.
        data_dir: cache of data sets; None = the default one.
    """
    before, after = store.curve(store.key(row)), other.curve(again.row_id)
    of_rounds = _round_differences(
        before, after, same_schema=row.schema_version == again.schema_version
    )
    num_test = len(open_dataset(again.config, data_dir).test_labels)
    judged = judge(row, again, store.rows(), num_test, of_rounds)
    not_compared = measured_once(row, again)
    return Reproduction(
        row_id=row.row_id,
        method=row.method,
        seed=row.seed,
        num_results=len(results_of(row).keys() - not_compared),
        num_rounds=min(len(before), len(after)),
        not_compared=tuple(not_compared),
        differences=judged.differences,
        platforms=(platform_of(row), platform_of(again)),
        spread=judged.spread,
        verdict=judged.verdict,
        reason=judged.reason,
        environment=_environment(row, again),
        row=again,
        claimed=row,
    )


class Judgement(NamedTuple):
    """Comparison of a row with another of the same run; fields as in `Reproduction`."""

    differences: tuple[Difference, ...]
    spread: tuple[Spread, ...]
    verdict: Verdict
    reason: str


def judge(
    row: Row,
    again: Row,
    rows: Sequence[Row],
    num_test: int,
    of_rounds: Sequence[Difference] = (),
) -> Judgement:
    """Compare a stored row with its repetition.

    Args:
        row: the stored row.
        again: its repetition.
        rows: all rows of the store, for the spread of seeds.
        num_test: images of the test split.
        of_rounds: differences between their curves.
    """
    of_row, of_rounds = differences(row, again), list(of_rounds)
    changed = changed_code(row.config.code, again.config.code)
    if changed:  # other code is another run by name
        of_row = [d for d in of_row if d.name not in _NAMES]
    apart = known_apart(row, again)
    spread = spreads(row, again, rows, num_test) if apart else ()
    reason = _reason(of_row, of_rounds, spread, apart=apart)
    wide = [f"{part.limit * 100:.1f} of {part.metric}" for part in spread if part.too_wide]
    verdict: Verdict
    if not of_row and not of_rounds:
        verdict = "same bits"
    elif changed:
        verdict, reason = "different", f"the code of {', '.join(changed)} is not the recorded one"
    elif reason:
        verdict = "different"
    elif wide:
        verdict = "cannot tell"
        reason = f"more than 5 points are within the spread: {', '.join(wide)}"
    else:
        verdict = "within seed spread"
    return Judgement((*of_row, *of_rounds), spread, verdict, reason)


def _reason(
    of_row: list[Difference], of_rounds: list[Difference], spread: Sequence[Spread], *, apart: bool
) -> str:
    """Return why another platform does not explain the differences; empty if it does."""
    if not of_row and not of_rounds:
        return ""
    if not apart:
        return "the numeric platform is not known to be another one"
    exact = [d for d in of_row if d.name in Row.model_fields and d.name not in _ROUNDED]
    exact += [d for d in of_rounds if d.name == "rounds"]
    if exact:
        return f"{exact[0].name} does not depend on the platform"
    if not spread:
        return "no metric can be compared with a spread"
    beyond = [part.metric for part in spread if not part.within]
    return f"{', '.join(beyond)} differ by more than seeds do" if beyond else ""


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
