"""Tiny runs of every method and variant give the numbers that `expected_runs.json` holds.

On a processor of the file's kind every bit is the same. On another kind of the same platform, runs
that compute the same on fixed images stay within `LAST_BITS`, the others within `RELATIVE`. On
another platform a number may differ by what another rounding makes of it: how far a run moves is
measured there, by a second run without oneDNN.
"""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.contract.expected_runs import (
    ACCURACIES,
    FILE,
    Values,
    held,
    in_new_process,
    parts,
    runs,
    shown,
)
from tests.specs import extended

MARGIN = 30
"""How many times further than oneDNN's rounding another platform's may carry a run."""
RELATIVE = 1e-4
"""Least tolerance: 1,000 times the rounding of single precision."""
LAST_BITS = 1e-12
"""Tolerance of a run whose hashes agree: it trains alike, but a score in double precision may meet
the operation that differs where the fixed images do not. An emulated Haswell shows 1 in 17."""
IMAGES = 2 / 20
"""Tolerance of accuracies: two of the test images."""
STRAYS = 1 / 50
"""Share of runs that may go beyond: in a few, one rounding is magnified and another is not."""


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return json.loads(FILE.read_text())  # type: ignore[no-any-return]


def test_every_method_and_variant_is_expected(expected: dict[str, Any]) -> None:
    assert [*expected["runs"]] == [*runs()], "python -m tests.contract.expected_runs"


@pytest.mark.slow
@pytest.mark.timeout(1800)  # half a minute on an idle core
@pytest.mark.parametrize("part", ["test", *extended(["extended"], bool)])
def test_runs_give_the_expected_numbers(expected: dict[str, Any], part: str) -> None:
    """In `make test` each method, variant and add-on; other compositions in the extended run."""
    measured = in_new_process(part)
    assert [*measured["runs"]] == parts()[part]
    found = {key: held(run, expected["names"]) for key, run in measured["runs"].items()}
    if measured["platform"] == expected["platform"]:
        assert unexpected({**measured, "runs": found}, expected) == []
        return
    otherwise = in_new_process(part, "--no-onednn")["runs"]
    strays = []
    for key, run in found.items():
        moved = _distance(shown(run), otherwise[key]["numbers"])
        if _differs(run, expected["runs"][key], max(MARGIN * moved, RELATIVE)):
            strays.append(key)
    assert len(strays) <= STRAYS * len(found), strays


def unexpected(measured: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Return the runs of the file's platform that are wrong."""
    same_kind = measured["roots"] == expected["roots"]
    wrong = []
    for key, run in measured["runs"].items():
        wanted = expected["runs"][key]
        allowed = LAST_BITS if run["arithmetic"] == wanted["arithmetic"] else RELATIVE
        if run != wanted if same_kind else _differs(run, wanted, allowed):
            wrong.append(key)
    return wrong


@pytest.mark.parametrize(
    ("roots", "arithmetic", "change", "is_wrong"),
    [
        ("same", "same", 0.0, False),
        ("same", "other", 1e-6, True),  # as a change of the code does on the file's processor
        ("other", "same", 1e-15, False),
        ("other", "same", 1e-6, True),
        ("other", "other", 1e-5, False),  # the largest seen on an Intel processor is 1.25e-5
        ("other", "other", 1e-3, True),  # as a loss that is multiplied by 1.001
    ],
)
def test_a_wrong_number_is_found_on_either_kind_of_processor(
    expected: dict[str, Any], roots: str, arithmetic: str, change: float, is_wrong: bool
) -> None:
    key, run = next(iter(expected["runs"].items()))
    loss = run["1.loss"] * (1 + change)
    changed = {**run, "1.loss": loss, "bits": run["bits"] if loss == run["1.loss"] else "other"}
    if arithmetic == "other":
        changed["arithmetic"] = "other"
    measured = {
        "roots": expected["roots"] if roots == "same" else "other",
        "runs": {**expected["runs"], key: changed},
    }
    assert unexpected(measured, expected) == [key] * is_wrong


def _differs(run: Mapping[str, Any], wanted: Mapping[str, Any], allowed: float) -> bool:
    """Return True if a number differs by a share above `allowed`, or an accuracy by `IMAGES`."""
    numbers = shown(run)
    images = max((abs(v - wanted[n]) for n, v in numbers.items() if n in ACCURACIES), default=0.0)
    return images > IMAGES + 1e-9 or _distance(numbers, wanted) > allowed


def _distance(numbers: Values, others: Values) -> float:
    """Largest relative difference between numbers that are no accuracies."""
    pairs = [(v, others[name]) for name, v in numbers.items() if name not in ACCURACIES]
    return max(abs(a - b) / max(abs(a), abs(b), 0.01) for a, b in pairs)
