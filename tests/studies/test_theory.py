"""The study of the theory decides as its plan says, on made-up rows."""

from typing import Any

import pytest

from fedbench.bench.results.store.row import Row
from fedbench.bench.tuning.grid import load_grid
from tests.studies.conftest import made


@pytest.fixture(name="study")
def _theory(study: Any) -> Any:
    return study("theory")


def rows_of(study: Any, row: Row, sign: int) -> list[Row]:
    """Rows whose clusters mix more, by method, where accuracy falls more (or less) with alpha."""

    def score(config: Any) -> dict[str, Any]:
        place = study.METHODS.index(config.spec) + config.seed / 100
        lost = place / 10 if config.data.alpha == 0.1 else 0.0
        values = {"mixing": 0.3 + sign * lost / 2, "consistent": 0.5, "global_mi": -lost}
        return {"linear_acc": 0.5 - lost / 2, "further": {"sep": 0.1, **values}}

    return made(row, study.planned(load_grid(study.GRID)), score)


@pytest.mark.parametrize(("sign", "verdict"), [(1, "supported"), (-1, "contradicted")])
def test_what_orders_the_losses_is_supported(study: Any, row: Row, sign: int, verdict: str) -> None:
    lines = {(line[0], line[1]): line for line in study.outcome(rows_of(study, row, sign))}
    # All five seeds order the six methods alike: tau is 1, and its five values do not differ.
    assert lines["mixing", "100 → 0.1"][2] == ("+1.00 ± 0.00" if sign > 0 else "−1.00 ± 0.00")
    assert lines["mixing", "100 → 0.1"][-1] == verdict
    assert lines["consistent", "100 → 0.1"][2:] == ["+0.00 ± 0.00", "1", "not settled"]
    assert lines["global_mi", "100 → 0.1"][2:] == ["+1.00 ± 0.00", "", ""]


def test_nothing_is_said_before_the_last_run(study: Any, row: Row) -> None:
    assert study.outcome(rows_of(study, row, 1)[1:]) == []
