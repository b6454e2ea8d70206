"""Tiny runs of every method and variant give the numbers that `expected_runs.json` holds.

On the platform of the file every bit is the same. Elsewhere a number may differ by what another
rounding makes of it: how far a run moves is measured there, by a second run without oneDNN.
"""

import json
from typing import Any

import pytest

from tests.contract.expected_runs import (
    ACCURACIES,
    FILE,
    Values,
    digest,
    in_new_process,
    runs,
    shown,
)

MARGIN = 30
"""How many times further than oneDNN's rounding another platform's may carry a run."""
RELATIVE = 1e-4
"""Least tolerance: 1,000 times the rounding of single precision."""
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
@pytest.mark.timeout(1800)  # a minute on an idle core
def test_runs_give_the_expected_numbers(expected: dict[str, Any]) -> None:
    measured = in_new_process()
    if measured["platform"] == expected["platform"]:
        found = {
            key: {"bits": digest(numbers, expected["names"]), **shown(numbers)}
            for key, numbers in measured["runs"].items()
        }
        assert found == expected["runs"]
        return
    otherwise = in_new_process("--no-onednn")["runs"]
    strays = []
    for key, numbers in measured["runs"].items():
        wanted = expected["runs"][key]
        allowed = max(MARGIN * _distance(shown(numbers), otherwise[key]), RELATIVE)
        changed = [
            n
            for n, v in shown(numbers).items()
            if n in ACCURACIES and abs(v - wanted[n]) > IMAGES + 1e-9
        ]
        if changed or _distance(shown(numbers), wanted) > allowed:
            strays.append(key)
    assert len(strays) <= STRAYS * len(expected["runs"]), strays


def _distance(numbers: Values, others: Values) -> float:
    """Largest relative difference between numbers that are no accuracies."""
    pairs = [(v, others[name]) for name, v in numbers.items() if name not in ACCURACIES]
    return max(abs(a - b) / max(abs(a), abs(b), 0.01) for a, b in pairs)
