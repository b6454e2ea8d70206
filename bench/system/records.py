"""A list of records that a notebook shows as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


class Records(list[dict[str, Any]]):
    """Records with the same keys.

    >>> Records([{"name": "a", "rounds": 3}]).to_frame().rounds.tolist()
    [3]
    """

    def to_frame(self) -> pd.DataFrame:
        """Return a line for each record."""
        import pandas as pd

        return pd.DataFrame(list(self))

    def _repr_html_(self) -> str:
        return str(self.to_frame().to_html(index=False, border=0))
