"""A run and the store: what is there is not computed again, and spelling does not matter."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbench.bench.errors import StoreError
from fedbench.bench.results.store import Store
from fedbench.bench.runs import canonical, run
from fedbench.bench.testing import tiny_config


def test_an_alias_and_left_out_fields_are_the_same_run() -> None:
    full = tiny_config("simclr+uv")
    short = full.model_copy(update={"spec": "fed-simclr"})
    assert canonical(short) == canonical(full) == full
    partial = full.model_copy(update={"method": {"temperature": 0.5}})
    assert canonical(partial).method["temperature"] == 0.5
    assert canonical(partial).method.keys() == full.method.keys()


def test_the_second_call_reads_the_store(tmp_path: Path) -> None:
    config = tiny_config("supervised", federation__num_rounds=1)
    store = Store(tmp_path / "störe with space")
    first = run(config, store=store, data_dir=tmp_path, workers=1, device="cpu")
    second = run(config, store=store, data_dir=tmp_path, workers=1, device="cpu")
    assert (first.stored_before, second.stored_before) == (False, True)
    assert first.row == second.row
    assert [point["round_index"] for point in store.curve(first.row.row_id)] == [0]


def test_a_run_that_another_process_holds_is_refused(tmp_path: Path) -> None:
    config = tiny_config("supervised", federation__num_rounds=1)
    store = Store(tmp_path / "store")
    finished = run(config, store=store, data_dir=tmp_path, workers=1, device="cpu")
    other = Store(tmp_path / "other")
    with other.lock(finished.row.row_id) as mine:
        assert mine
        with pytest.raises(StoreError, match="another process"):
            run(config, store=other, data_dir=tmp_path, workers=1, device="cpu")
