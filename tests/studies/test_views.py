"""The study of views decides as its plan says, on made-up rows and by hand."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats


@pytest.fixture(name="study")
def _views(study: Any) -> Any:
    return study("views")


def test_rates_are_chosen_as_the_board_chose_them(study: Any) -> None:
    """The committed rows of the board, by this reader and rule: README's means at alpha 0.1."""
    rows = study.read(study.BOARD, study.WIDE)
    found = study.judged(rows, study.rates(rows))
    means = {name: round(float(values.mean()), 1) for name, values in found.items()}
    assert (means["simclr"], means["orchestra"], means["byol"]) == (42.9, 37.8, 38.1)
    assert {*found} == {*study.METHODS, "supervised"}


def test_rates_by_hand(study: Any) -> None:
    """Orchestra: ranks by loss 4, 3, 2, 1 and by SEP 1, 3, 2, 4; sums 5, 6, 4, 5: 0.01.

    simclr takes the lowest loss, but at 0.003 a run diverged: 0.01 as well.
    """
    lines = [
        {"method": method, "rate": rate, "seed": seed, "loss": loss, "sep": sep, "accuracy": 40.0}
        | {"before": 30.0, "ok": (method, rate, seed) != ("simclr", 0.003, 101)}
        for method in ("orchestra", "simclr")
        for rate, loss, sep in zip(
            [0.003, 0.01, 0.03, 0.1], [1.0, 2, 3, 4], [0.1, 0.3, 0.2, 5.0], strict=True
        )
        for seed in (100, 101)
    ]
    assert study.rates(pd.DataFrame(lines)) == {"orchestra": 0.01, "simclr": 0.01}


def test_a_change_of_a_lead_is_welchs_with_four_groups(study: Any) -> None:
    """With two groups it is SciPy's Welch test; the lead falls from 5 to -1, a change of -6."""
    spread = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    a, b = 3 + spread, 2 + 2 * spread
    two = study.welch([(a, 1), (b, -1)], 0.05)
    assert two["p"] == pytest.approx(stats.ttest_ind(a, b, equal_var=False).pvalue)
    wide = {"simclr": 45 + spread, "orchestra": 40 + spread, "byol": 38 + spread}
    narrow = {"simclr": 39 + spread, "orchestra": 40 + spread, "byol": 38 + spread}
    table = study.changes(wide, narrow)
    assert dict(table["effect"]) == pytest.approx({"simclr": -6.0, "byol": 0.0})
    assert [*table["verdict"]] == ["differs", "not settled"]
    assert study.turned(wide, narrow) == []  # 39 and 40 are not told apart
    narrow["simclr"] = 35 + spread
    assert study.turned(wide, narrow) == ["simclr - orchestra", "simclr - byol"]
    assert study.order(wide, narrow)[0] == pytest.approx(-1 / 3)  # one of three pairs stays
