from __future__ import annotations

from collections.abc import Callable

import pytest

from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import ConfigError, StoreError


def test_runs_by_the_beginning_of_their_id(store: Store, make_row: Callable[..., Row]) -> None:
    with pytest.raises(StoreError, match="there is no store at"):
        store.find("abcd")
    for row_id in (f"{name:0<20}" for name in ("abcd0", "abcd1", "bcde0")):
        store.write_row(make_row(row_id=row_id))
    assert store.find("bcde").row_id == "bcde0" + 15 * "0"
    assert store.find("abcd1" + 15 * "0").row_id == "abcd1" + 15 * "0"
    with pytest.raises(StoreError, match=r"no run 'bcd' in store .*4 characters"):
        store.find("bcd")
    with pytest.raises(StoreError, match=r"no run 'ffff' in store"):
        store.find("ffff")
    with pytest.raises(ConfigError, match=r"^2 runs begin with 'abcd': abcd00+, abcd10+; give mor"):
        store.find("abcd")
