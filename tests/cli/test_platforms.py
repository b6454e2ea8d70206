"""One run under two instruction sets, the other in a new process: variables are read once."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedbench
from fedbench.bench.results.store.replicas import replica_key
from fedbench.bench.results.store.store import Store

pytestmark = [
    pytest.mark.extended,  # two processes that train
    pytest.mark.skipif(platform.machine() != "x86_64", reason="caps instruction sets of x86"),
]
CAPPED = {
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "ATEN_CPU_CAPABILITY": "default",
    "OPENBLAS_CORETYPE": "Nehalem",
}
TINY = ("--set", "federation.num_rounds=2", "--set", "data.train_subset=400", "--seed", "0")
PLACE = ("--workers", "1", "--device", "cpu")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """Stores of two instruction sets with the same run, and its id."""
    root = tmp_path_factory.mktemp("platforms")
    tiny = {"federation.num_rounds": 2, "data.train_subset": 400}
    plain = fedbench.run("simclr", set=tiny, seed=0, store=root / "a", workers=1, device="cpu")
    command = [sys.executable, "-m", "fedbench", "run", "simclr", *TINY, *PLACE, "--json"]
    command += ["--store", str(root / "b")]
    capped = subprocess.run(
        command, env={**os.environ, **CAPPED}, check=True, stdout=subprocess.PIPE
    )
    assert json.loads(capped.stdout)["run_id"] == plain.run_id
    return root / "a", root / "b", plain.run_id


def test_stores_of_two_instruction_sets_merge_and_rank(
    stores: tuple[Path, Path, str], call: Callable[..., Any], tmp_path: Path
) -> None:
    plain, capped, run_id = stores
    both = []
    for order in ((plain, capped), (capped, plain)):
        target = tmp_path / order[0].name
        merged = call("merge", *order, "--store", target)
        assert merged.code == 0, merged.err
        assert call("merge", *order, "--store", target, "--json").json["rows_same"] == 2
        both.append(Store(target))
    rows = both[0].rows()
    assert rows == both[1].rows()
    assert [row.row_id for row in rows] == [run_id, run_id]
    assert len({row.platform for row in rows}) == 2
    assert "onednn sse41" in (rows[1].platform or "")
    records = [row.platforms[0] for row in rows]
    assert all(records[0][part] != records[1][part] for part in ("onednn", "aten", "numpy_blas"))
    hashes = set()  # of the encoder of the second row, from both stores
    for store in both:
        # Few test images: accuracies of so short a run may agree, the objective does not.
        ranked = call("leaderboard", "--metric", "objective", "--store", store.root, "--json")
        assert ranked.code == 0, ranked.err
        (line,) = ranked.json["rows"]
        assert (line["n_seeds"], line["num_replicas"]) == (1, 1)
        assert line["mean"] == rows[0].objective  # it finished first
        for row in rows:
            assert len(store.curve(store.key(row))) == 2
        name = replica_key(rows[1])
        exported = call("export", name, tmp_path / "encoder.safetensors", "--store", store.root)
        assert exported.code == 0, exported.err
        hashes.add(exported.out.split()[-1])
    assert len(hashes) == 1
