"""Ids that runs had before the first release: leaderboards/former-ids.json maps old to new ones.

They stand in papers, cards of encoders and notes; `Store.find` takes them like present ones.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources


@cache
def former_ids() -> Mapping[str, str]:
    """Return old and new ids of the results and encoders that ship."""
    file = resources.files("fedbench.leaderboards").joinpath("former-ids.json")
    ids: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
    return ids


def current_ids(run_id: str) -> list[str]:
    """Return the new ids of the runs whose old id is this one, or begins so; sorted."""
    known = former_ids()
    if run_id in known:
        return [known[run_id]]
    return sorted({new for old, new in known.items() if old.startswith(run_id)})
