from __future__ import annotations

from collections.abc import Callable

import pytest

from fedbench.bench.errors import ConfigError, StoreError
from fedbench.bench.results.lookup import find_row
from fedbench.bench.results.row import Row
from fedbench.bench.results.store import Store


def test_runs_by_the_beginning_of_their_id(store: Store, make_row: Callable[..., Row]) -> None:
    with pytest.raises(StoreError, match="there is no store at"):
        find_row(store, "abcd")
    for row_id in ("abcd0", "abcd1", "abcd", "bcde0"):
        store.write_row(make_row(row_id=row_id))
    assert find_row(store, "bcde").row_id == "bcde0"
    assert find_row(store, "abcd").row_id == "abcd"  # its whole name
    with pytest.raises(StoreError, match=r"no run 'bcd' in store .*4 characters"):
        find_row(store, "bcd")
    store.write_row(make_row(row_id="bcde1"))
    with pytest.raises(ConfigError, match=r"^2 runs begin with 'bcde': bcde0, bcde1; give more"):
        find_row(store, "bcde")
