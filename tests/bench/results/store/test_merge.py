from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fedbench.bench.config import RunConfig
from fedbench.bench.results.store.merge import merge
from fedbench.bench.results.store.replicas import differences, measured_once, replica_hash
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import StoreError
from tests.bench.results.conftest import build_row, rows_in

META = {"spec": "simclr", "seed": 0, "space": {}, "sampler": "tpe", "data": "revision"}


def trial(objective: float = 0.5) -> dict[str, Any]:
    return {
        "status": "ok",
        "seeds": [0],
        "params": {"client.lr": 0.1},
        "objective": objective,
        "watched": {},
        "seconds": 1.0,
    }


@pytest.fixture
def stores(tmp_path: Path) -> tuple[Store, Store]:
    """Two stores: Anna's with seeds 0 and 1, Ben's with 1 and 2; both computed seed 1."""
    anna, ben = Store(tmp_path / "anna"), Store(tmp_path / "b e n")
    for store, seeds, hardware in ((anna, (0, 1), "laptop"), (ben, (1, 2), "cluster")):
        for seed in seeds:
            row = build_row(RunConfig(seed=seed), linear_acc=0.5 + seed / 10, hardware=hardware)
            store.write_row(row)
            store.write_curve(row.row_id, [{"round_index": 0, "loss": 1.0}])
            (store.cell_dir(row.row_id) / "lock").write_text("theirs")
    return anna, ben


def test_stores_become_one(stores: tuple[Store, Store], tmp_path: Path) -> None:
    anna, ben = stores
    target = Store(tmp_path / "both")
    dry = merge([anna, ben], target, dry_run=True)
    assert not target.root.exists()
    done = merge([anna, ben], target)
    assert (done.rows_added, done.rows_same, done.problems) == (3, 1, [])
    assert done == dry
    assert [row.seed for row in target.rows()] == [0, 1, 2]
    assert [row.hardware for row in target.rows()] == ["laptop", "laptop", "cluster"]
    for row in target.rows():
        assert target.curve(row.row_id) == [{"round_index": 0, "loss": 1.0}]
        assert (target.cell_dir(row.row_id) / "lock").read_bytes() == b""  # the one of the target
    assert (target.root / "leaderboard.parquet").exists()
    again = merge([anna, ben], target)
    assert (again.rows_added, again.rows_same) == (0, 4)


def test_a_folder_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=tmp_path.name):
        merge([tmp_path], tmp_path / "store")


def test_a_contradiction_is_refused_and_nothing_written(stores: tuple[Store, Store]) -> None:
    anna, ben = stores
    row = build_row(RunConfig(seed=3), linear_acc=0.5)
    anna.write_row(row)
    ben.write_row(row.model_copy(update={"linear_acc": 0.5 + 1e-16 * 2}))
    before = sorted(path.name for path in anna.root.rglob("*"))
    with pytest.raises(StoreError, match=rf"row {row.row_id} has linear_acc 0.5 and 0.5000"):
        merge([ben], anna)
    assert sorted(path.name for path in anna.root.rglob("*")) == before


def test_failed_rows_give_way(tmp_path: Path) -> None:
    failed, fine = Store(tmp_path / "failed"), Store(tmp_path / "fine")
    failed.write_row(build_row(status="error", error="worker died"))
    fine.write_row(build_row(linear_acc=0.5))
    assert merge([failed], fine).rows_same == 1
    assert merge([fine], failed).rows_replaced == 1
    assert failed.rows()[0].linear_acc == 0.5


def test_checkpoints_come_with_finished_runs_only(tmp_path: Path) -> None:
    failed, fine, target = (Store(tmp_path / name) for name in ("failed", "fine", "target"))
    for store, name, status in ((failed, "round-00000002-a", "error"), (fine, "round-7-b", "ok")):
        row = build_row(status=status, error="died" if status == "error" else None)
        store.write_row(row)
        store.cell_dir(row.row_id).mkdir(parents=True)
        (store.cell_dir(row.row_id) / f"{name}.safetensors").write_bytes(b"weights")
    cell = target.cell_dir(row.row_id)
    merge([failed], target)
    assert [path.name for path in cell.iterdir()] == ["lock"]
    merge([fine], failed)  # in place of what the failed attempt left
    assert sorted(p.name for p in failed.cell_dir(row.row_id).iterdir()) == [
        "lock",
        "round-7-b.safetensors",
    ]


def test_a_run_or_a_study_at_work_is_left_alone(
    stores: tuple[Store, Store], tmp_path: Path
) -> None:
    anna, ben = stores
    (row,) = [row for row in ben.rows() if row.seed == 2]
    ben.write_trial("study", 0, trial())
    ben.write_study("study", META)
    for name in ("study", row.row_id):  # studies are merged first
        with anna.lock(name) as locked:
            assert locked
            with pytest.raises(StoreError, match=name):
                merge([ben], anna)
    assert (merge([ben], anna).rows_added, anna.studies()) == (1, ["study"])


def test_what_is_finished_meanwhile_is_compared(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    anna, ben = stores
    (row,) = [row for row in ben.rows() if row.seed == 2]
    anna.write_row(row.model_copy(update={"linear_acc": 0.1}))
    rows = anna.rows()[:2]
    monkeypatch.setattr(anna, "rows", lambda: rows)  # as they were a moment ago
    with pytest.raises(StoreError, match=rf"row {row.row_id} has linear_acc 0.1 and 0.7"):
        merge([ben], anna)


def test_studies_grow_together(tmp_path: Path) -> None:
    short, long = Store(tmp_path / "short"), Store(tmp_path / "long")
    for store, count in ((short, 1), (long, 3)):
        for number in range(count):
            store.write_trial("study", number, trial(number / 10))
        store.write_study("study", {**META, "trials": count, "best": {"number": count - 1}})
    done = merge([long], short)
    assert (done.trials_added, done.trials_same) == (2, 1)
    assert [t["objective"] for t in short.trials("study")] == [0.0, 0.1, 0.2]
    assert short.study("study")["trials"] == 3
    assert merge([short], long).trials_added == 0
    failed = Store(tmp_path / "failed")
    for number, status in enumerate(("ok", "ok", "error")):
        failed.write_trial("study", number, {**trial(number / 10), "status": status})
    failed.write_study("study", {**META, "trials": 3, "best": {"number": 1}})
    merge([long], failed)  # which ran the failed trial again
    assert failed.study("study")["best"] == {"number": 2}
    (long.root / "trials" / "study" / "study.json").write_text("{")
    torn = merge([long], Store(tmp_path / "new"))
    assert (torn.trials_added, len(torn.problems)) == (0, 1)


def test_studies_that_contradict(tmp_path: Path) -> None:
    one, other, third = (Store(tmp_path / name) for name in ("one", "other", "third"))
    for store, objective, seed in ((one, 0.1, 0), (other, 0.2, 0), (third, 0.1, 1)):
        store.write_trial("study", 0, trial(objective))
        store.write_study("study", {**META, "seed": seed})
    with pytest.raises(StoreError, match="trial 0 of study"):
        merge([other], one)
    with pytest.raises(StoreError, match="trial 0 of study"):
        merge([one, other], Store(tmp_path / "new"))
    with pytest.raises(StoreError, match="study study"):
        merge([third], one)


OLD = {"schema_version": 4, "revealing_messages": None}
THEN = {"git_sha": "b" * 40}
SENT = "objective_bytes"


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        ({}, {"wall_seconds": 3.0, "argv": "x"}, []),
        ({}, {"further": {"sep": 0.6}}, ["sep"]),
        ({}, {"partition_hash": "other"}, ["partition_hash"]),
        ({"revealing_messages": None}, {}, ["revealing_messages"]),
        # An older schema lacks columns; what it has is compared, and a null of the newer one.
        (OLD, {}, []),
        (OLD | {"bytes_up": 4}, {}, ["bytes_up"]),
        (OLD, {"knn_acc": None}, ["knn_acc"]),
        # Another version of the code records other metrics, and fewer scores take fewer bytes.
        ({}, THEN | {"further": {"lidar": 3.0, "sep": 0.5}}, []),
        ({}, THEN | {"further": {"lidar": 3.0, "sep": 0.6}}, ["sep"]),
        ({"further": {"lidar": 1.0, SENT: 9.0}}, THEN | {"further": {SENT: 4.0}}, []),
        # Of one version a metric that a run lacks is undefined there.
        ({}, {"further": {"lidar": 3.0, "sep": 0.5}}, ["lidar"]),
    ],
)
def test_what_of_two_rows_is_compared(
    first: dict[str, Any], second: dict[str, Any], named: list[str]
) -> None:
    row = build_row(bytes_up=5, revealing_messages=3, knn_acc=0.5, further={"sep": 0.5})
    one, other = row.model_copy(update=first), row.model_copy(update=second)
    assert [difference.name for difference in differences(one, other)] == named
    assert [difference.name for difference in differences(other, one)] == named


def test_a_difference_has_both_values() -> None:
    row = build_row(bytes_up=5, further={"sep": 0.5})
    other = row.model_copy(update={"bytes_up": 4, "further": {}, "git_sha": "b" * 40})
    assert [*map(str, differences(other, row))] == ["bytes_up 4 and 5"]
    assert measured_once(other, row) == measured_once(row, other) == ["sep"]


SSE, AVX = "x86_64 sse, cpu, 00000001", "x86_64 avx2, cpu, 00000002"


def bits(store: Store) -> set[tuple[str, float | None, str | None]]:
    return {(row.row_id, row.linear_acc, row.platform) for row in store.rows()}


@pytest.fixture
def platforms(tmp_path: Path) -> tuple[Store, Store, Row, Row]:
    """Two stores with one run, whose bits differ since the platforms do; the second was faster."""
    one, other = Store(tmp_path / "one"), Store(tmp_path / "other")
    late = build_row(linear_acc=0.5, platform=SSE)
    earlier = late.finished_at - timedelta(hours=1)
    early = build_row(linear_acc=0.6, platform=AVX, finished_at=earlier)
    for store, row in ((one, late), (other, early)):
        store.write_row(row)
        store.write_curve(row.row_id, [{"round_index": 0, "loss": row.linear_acc}])
    return one, other, late, early


def test_other_platforms_make_replicas(platforms: tuple[Store, Store, Row, Row]) -> None:
    one, other, late, early = platforms
    copies = [Store(store.root.with_name(f"copy of {store.root.name}")) for store in (one, other)]
    for copy, store in zip(copies, (one, other), strict=True):
        merge([store], copy)
    assert merge([other], one, dry_run=True).replicas_added == 1
    for store, source, first in ((one, copies[1], late), (other, copies[0], early)):
        done = merge([source], store)
        assert (done.rows_added, done.replicas_added, done.rows_same) == (0, 1, 0)
        assert merge([source], store).replicas_added == 0  # again changes nothing
        assert merge(copies, store).rows_same == 2
        names = sorted(path.stem for path in (store.root / "rows").iterdir())
        assert names[0] == first.row_id  # whichever was there first has the plain name
        assert names[1].startswith(f"{first.row_id}@")
        # Readers take the row that finished first, whatever its name.
        assert store.rows() == store.replicas(early.row_id) == [early, late]
        assert store.row(early.row_id) == store.finished(early.row_id) == early
        for row in (early, late):
            assert store.curve(store.key(row)) == [{"round_index": 0, "loss": row.linear_acc}]
            assert store.find(f"{row.row_id[:4]}@{replica_hash(row)[:5]}") == row
        assert store.find(early.row_id[:6]) == early
        assert rows_in(store.root / "leaderboard.parquet") == [early, late]
        assert not store.write_row(late)
        assert store.problems() == []
    assert bits(one) == bits(other)
    with pytest.raises(
        StoreError, match=r"has no replicas that begin with @ffff; it has \w+@\w+, \w+@\w+"
    ):
        one.find(f"{early.row_id}@ffff")


def test_other_bits_of_one_platform_are_a_contradiction(
    platforms: tuple[Store, Store, Row, Row],
) -> None:
    one, other, _, early = platforms
    merge([other], one)
    third = Store(one.root.with_name("third"))
    third.write_row(early.model_copy(update={"linear_acc": 0.7}))
    with pytest.raises(StoreError, match=rf"linear_acc 0.6 and 0.7 .* both from {AVX}"):
        merge([third], one)
    assert len(one.rows()) == 2
