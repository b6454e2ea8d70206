"""Dimensional collapse in part: an encoder that has shrunk, so that its objective says little."""

from collections.abc import Mapping

SHARES = {"projection_std_ratio": 0.5, "effective_rank": 0.25}
"""Shares of the values before training below which an encoder has shrunk; conventions. A rank does
not see that all distances shrink, and the spread does not see that only one direction is left."""
_TEXTS = {"projection_std_ratio": "spread of projections", "effective_rank": "rank of features"}


def shrinkage(after: Mapping[str, float | None], before: Mapping[str, float | None]) -> str:
    """Describe how an encoder has shrunk, by its metrics and those before training; "" if not."""
    fallen = [
        f"{_TEXTS[name]} {value:.3g}, {start:.3g} before training"
        for name, share in SHARES.items()
        if (value := after.get(name)) is not None
        and (start := before.get(name)) is not None
        and value < share * start
    ]
    if not fallen:
        return ""
    return (
        f"{'; '.join(fallen)}: they shrank, or the run is too short to fill the statistics of"
        " batch norm, and the objective says little"
    )
