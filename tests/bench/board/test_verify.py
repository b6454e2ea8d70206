"""`verify`: counts by kind, every kind of damage, rows against their configuration, reruns."""

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from fedbench.bench.board.verify import chosen, verify
from fedbench.bench.execution.run import run
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.checksums import json_with_checksum
from fedbench.bench.testing import tiny_config
from fedbench.bench.tuning.best import best_file, write_best
from tests.specs import flip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = Store(tmp_path_factory.mktemp("verify") / "store")
    run(tiny_config("pfedae"), store=store, workers=1, device="cpu")
    meta: dict[str, Any] = {"spec": "pfedae", "preset": "demo", "study_id": "s"}
    meta |= {"best": {"params": {"client.lr": 0.1}}, "cautions": []}
    store.write_study("s", meta)
    store.write_trial("s", 0, {"status": "ok", "objective": 0.5})
    write_best(best_file(store, "s"), meta)
    decision = store.root / "trials" / "s" / "bracket-0" / "rung-0.json"
    decision.parent.mkdir()
    decision.write_text(json_with_checksum({"kept": [0]}))
    return store.root


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def test_a_store_that_is_well(whole: Path) -> None:
    result = verify(whole)
    assert result.ok
    assert {kind.kind: kind.files for kind in result.kinds} == {
        "rows": 1, "trials": 1, "studies": 1, "best values": 1, "curves": 1, "checkpoints": 1,
        "clients": 4, "partitions": 1, "rounds": 1, "leaderboard": 1, "rungs": 1,
        "marks": 1,
    }  # fmt: skip
    assert not any(kind.damaged for kind in result.kinds)
    assert result.bytes == sum(
        path.stat().st_size for path in whole.rglob("*") if path.is_file() and path.name != "lock"
    )
    assert result.as_dict()["ok"] is True


def test_a_run_that_has_lost_its_curve_is_named(whole: Path, copy: Path) -> None:
    """As when rows alone are copied. The row's own results are whole, so nothing is damaged."""
    assert verify(whole).without_curve == ()
    (curve,) = copy.glob("cells/*/curve.parquet")
    curve.unlink()
    result = verify(copy)
    assert result.ok
    assert result.without_curve == (curve.parent.name,)


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [
        ("rows", "rows/*.parquet"),
        ("trials", "trials/s/0.parquet"),
        ("studies", "trials/s/study.json"),
        ("best values", "trials/s/best.yaml"),
        ("rungs", "trials/s/bracket-0/rung-0.json"),
        ("curves", "cells/*/curve.parquet"),
        ("checkpoints", "cells/*/round-*"),
        ("clients", "cells/*/clients/0-*"),
        ("partitions", "cells/*/partition.safetensors"),
        ("rounds", "cells/*/history.jsonl"),
        ("leaderboard", "leaderboard.parquet"),
        ("marks", "at-chance.json"),
    ],
)
def test_a_flipped_bit_in_each_kind(copy: Path, kind: str, pattern: str) -> None:
    (path,) = copy.glob(pattern)
    flip(path, path.stat().st_size // 2)
    result = verify(copy)
    (damage,) = result.damaged
    assert (damage.file, damage.kind) == (str(path), kind)
    assert "altered" in damage.problem or "does not fit" in damage.problem
    assert damage.remedy
    (counted,) = [counted for counted in result.kinds if counted.kind == kind]
    assert counted.damaged == 1


def test_rows_must_agree_with_their_configuration(copy: Path) -> None:
    store = Store(copy)
    (row,) = store.rows()
    (copy / "rows" / f"{row.row_id}.parquet").unlink()
    store.write_row(row.model_copy(update={"seed": 7}))
    (damage,) = verify(copy).damaged
    assert damage.problem == f"seed is 7 but its configuration gives {row.seed}"
    gone = row.settings | {"code": {"probes:gone": "0"}}
    gone["evaluation"]["protocols"].append("gone")
    (copy / "rows" / f"{row.row_id}.parquet").unlink()
    store.write_row(row.model_copy(update={"settings": gone}))
    assert not verify(copy).damaged  # what is not installed here cannot be checked


def test_a_rerun_finds_numbers_that_agree_with_each_other(copy: Path) -> None:
    """One more of 40 test images right: only to train the run again tells."""
    store, seen = Store(copy), list[str]()
    (row,) = store.rows()

    def watch(run_id: str) -> Any:
        return nullcontext(lambda *_: seen.append(run_id))

    place: dict[str, Any] = {"workers": 1, "device": "cpu", "on_rerun": watch}
    honest = verify(copy, rerun=3, **place)
    assert [again.verdict for again in honest.reruns] == ["same bits"]
    assert seen == [row.row_id] * row.num_rounds
    forged = row.model_copy(update={"knn_acc": (row.knn_acc or 0) + 1 / 40})
    (copy / "rows" / f"{row.row_id}.parquet").unlink()
    store.write_row(forged)
    assert verify(copy).ok
    found = verify(copy, rerun=1, **place)
    assert (found.ok, found.damaged, found.differ) == (False, (), (row.row_id,))
    (difference,) = found.reruns[0].differences
    assert (difference.name, difference.second) == ("knn_acc", row.knn_acc)


def test_rows_to_repeat_follow_from_all_of_them() -> None:
    rows = [f"{number:020x}" for number in range(20)]
    assert chosen(rows, 3) == chosen(rows, 5)[:3]
    assert chosen(rows, 3) != chosen([*rows, "f" * 20], 3)
    assert chosen(rows, 0) == []
