"""Runs that had another id in an earlier form of the store: old id -> new id.

`fedbench merge` renews a store of the earlier form, and leaves their ids beside its rows. Those of
the results and encoders that ship are in leaderboards/former-ids.json. An old id finds its run.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from fedbench.bench.system.errors import ConfigError, StoreError

FORMER = "former-ids.json"
FORMER_STORE = (
    "the runs in {store} have ids of an earlier fedbench, so that none is found again and each"
    " would be trained once more; `fedbench merge {store} --store NEW` renews them"
)
RENEWED = 4
"""Schema since which ids leave defaults out."""


def is_former(row: Any) -> bool:
    """Return True for a row with an id of the earlier form."""
    return bool(row.schema_version < RENEWED)


def current_ids(run_id: str, root: Path) -> list[str]:
    """Return the new ids of the runs whose old id begins so, sorted.

    Args:
        run_id: an old row id, or the beginning of one.
        root: folder of the store.
    """
    known = {**ids_that_ship(), **former_ids(root / FORMER)}
    if run_id in known:
        return [known[run_id]]
    return sorted({new for old, new in known.items() if old.startswith(run_id)})


def former_ids(file: Traversable) -> Mapping[str, str]:
    """Return the content of a file of old and new ids; empty if there is none.

    Raises:
        StoreError: if it does not hold ids.
    """
    try:
        ids = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as err:
        raise StoreError(f"{file}: holds no run ids ({err})") from err
    if not isinstance(ids, dict) or not all(isinstance(new, str) for new in ids.values()):
        raise StoreError(f"{file}: must map old run ids to new ones")
    return ids


@lru_cache(maxsize=1)
def ids_that_ship() -> Mapping[str, str]:
    """Return old and new ids of the results and encoders that come with fedbench."""
    return former_ids(resources.files("fedbench.leaderboards").joinpath(FORMER))


def only(run_id: str, ids: list[str]) -> str | None:
    """Return the only one of some ids, or None; a ConfigError where several runs are meant."""
    if len(ids) > 1:
        shown = ", ".join(ids[:3])
        raise ConfigError(f"{len(ids)} runs begin with {run_id!r}: {shown}; give more")
    return ids[0] if ids else None
