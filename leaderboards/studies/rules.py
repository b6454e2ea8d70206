"""Label-free rules that choose among the runs of one method; the studies board and confirmation."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Array = NDArray[np.float64]
RULES = ("objective", "sep", "loss", "loss+sep", "objective+sep")
COLLAPSIBLE = ("orchestra", "byol", "simsiam")
"""Methods whose targets come from the net alone, so that a collapsed net has the lowest loss."""


def board_rule(method: str) -> str:
    """Return the rule by which the board chooses a method's rate."""
    return "loss+sep" if method in COLLAPSIBLE else "loss"


def judge(rule: str, values: Mapping[str, Array]) -> Array:
    """Return the score of each run that is compared, (n,), higher is better.

    Args:
        rule: one of `RULES`.
        values: `loss`, `objective` and `sep` of each run, (n,); nan or infinite where undefined,
            and for a run that diverged.
    """
    terms = {
        "loss": -values["loss"],
        "objective": values["objective"],
        "sep": np.clip(values["sep"], -1.0, 1.0),
    }
    parts = [np.where(np.isfinite(values[name]), terms[name], -np.inf) for name in rule.split("+")]
    worst = np.isneginf(np.array(parts)).any(axis=0)
    if rule == "loss+sep":  # a loss has no scale to be added on
        parts = [rankdata(np.round(part * 2.0**30)) for part in parts]  # as boards compare
    return np.where(worst, -np.inf, np.sum(parts, axis=0))
