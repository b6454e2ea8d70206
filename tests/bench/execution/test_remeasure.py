"""Runs with the same training: measured from the weights of the first, with equal results."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from fedbench.bench.config import RunConfig
from fedbench.bench.evaluation.catalogue import needed
from fedbench.bench.execution import remeasure
from fedbench.bench.execution.export import load_run
from fedbench.bench.execution.remeasure import take_weights
from fedbench.bench.execution.result import RunResult
from fedbench.bench.execution.run import run
from fedbench.bench.method.ids import row_id
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import StoreError
from fedbench.bench.testing import tiny_config
from fedbench.bench.training.history import RoundRecord
from tests.specs import extended

TIMES = {"started_at", "finished_at", "wall_seconds", "train_seconds", "peak_memory_bytes"}
FURTHER: dict[str, Any] = {
    "protocols": ["knn", "linear", "mlp", "local", "angles"],
    "knn_neighbours": 7,
    "objective_on": "encoder",
    "mlp_epochs": 2,
}
LESS: dict[str, Any] = {"protocols": [], "untrained": False}


def execute(config: RunConfig, store: Store, **given: Any) -> tuple[RunResult, int]:
    """Return the result of a run, and the number of rounds that were trained."""
    rounds: list[int] = []

    def watch(record: RoundRecord, total: int) -> None:
        rounds.append(total)

    result = run(config, store=store, workers=1, device="cpu", on_round=watch, **given)
    return result, len(rounds)


def measured(config: RunConfig, **evaluation: Any) -> RunConfig:
    changed = {**config.evaluation.model_dump(), **evaluation}
    return RunConfig.model_validate({**config.model_dump(), "evaluation": changed})


def content(row: Row) -> dict[str, Any]:
    return row.model_dump(exclude=TIMES | {"measured_from"})


def curve(store: Store, row: Row) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in point.items() if key != "seconds"}
        for point in store.curve(row.row_id)
    ]


@pytest.fixture(scope="module")
def personal(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """Run of `pfedae`, whose clients have tensors of their own."""
    store = Store(tmp_path_factory.mktemp("personal"))
    return execute(tiny_config("pfedae"), store)[0]


@pytest.fixture
def store(personal: RunResult, tmp_path: Path) -> Store:
    """Copy of the store with that run alone."""
    root = Path(str(personal.paths["row"])).parents[1]
    return Store(shutil.copytree(root, tmp_path / "store"))


@pytest.mark.parametrize(
    "spec", extended(["simclr+uv", "pfedae", "orchestra", "cbafed", "central-ae"], "pfedae".__eq__)
)
def test_measuring_further_gives_the_row_of_a_fresh_run(tmp_path: Path, spec: str) -> None:
    """Methods with one encoder, with personal tensors, a server's optimizer, and pooled data."""
    config = tiny_config(spec, data__label_fraction=0.5 if spec == "cbafed" else 0.0)
    store, other = Store(tmp_path / "store"), Store(tmp_path / "other")
    first, _ = execute(config, store)
    further, trained = execute(measured(config, **FURTHER), store)
    fresh, rounds = execute(measured(config, **FURTHER), other)
    assert trained == 0
    assert rounds > 0
    assert further.measured_from == first.run_id
    assert (fresh.measured_from, first.measured_from) == (None, None)
    assert content(further.row) == content(fresh.row)
    assert curve(store, further.row) == curve(other, fresh.row)
    assert further.row.training_id == first.row.training_id
    assert (spent := further.row.train_seconds) == first.row.train_seconds
    own = (further.row.finished_at - further.row.started_at).total_seconds()
    assert (further.row.wall_seconds or 0) < own + (spent or 0) / 2  # without the training
    names = further.row.further
    assert {"mlp_acc", "mlp_local_acc", "angle_mean"} <= set(names)
    assert all(map(needed, names))


def test_a_folder_of_taken_weights_stands_alone(personal: RunResult, store: Store) -> None:
    config, first = tiny_config("pfedae"), personal
    further, _ = execute(measured(config, **FURTHER), store)
    shutil.rmtree(store.cell_dir(first.run_id))
    loaded = load_run(store, further.run_id)
    assert loaded.row == further.row
    loaded.select(0)
    third, trained = execute(measured(config, protocols=["knn"]), store)
    assert (third.measured_from, trained) == (further.run_id, 0)


def test_evaluations_between_rounds_need_the_training(tmp_path: Path) -> None:
    config, store = tiny_config("simclr"), Store(tmp_path / "store")
    first, _ = execute(config, store)
    closer, trained = execute(measured(config, every=1), store)
    assert (closer.measured_from, trained) == (None, 2)
    assert closer.row.training_id == first.row.training_id
    assert closer.row.linear_acc == first.row.linear_acc
    # The curve of the other direction has none of the evaluations between rounds.
    later = Store(tmp_path / "later")
    execute(measured(config, every=1), later)
    plain, trained = execute(config, later)
    assert trained == 0
    assert curve(later, plain.row) == curve(store, first.row)


@pytest.mark.parametrize(
    "damage", extended(["checkpoint", "history", "personal"], "checkpoint".__ne__)
)
def test_damaged_weights_are_trained_again(
    personal: RunResult, store: Store, tmp_path: Path, damage: str
) -> None:
    config, folder = measured(tiny_config("pfedae"), **LESS), store.cell_dir(personal.run_id)
    (checkpoint,) = folder.glob("round-*")
    own = min((folder / "clients").glob("*"))
    history = folder / "history.jsonl"
    path = {"checkpoint": checkpoint, "history": history, "personal": own}[damage]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    again, trained = execute(config, store)
    fresh, _ = execute(config, Store(tmp_path / "other"))
    assert (again.measured_from, trained) == (None, 2)
    assert again.row.training_id == personal.row.training_id
    assert content(again.row) == content(fresh.row)


def test_another_platform_trains_itself(tmp_path: Path) -> None:
    """Its weights have other bits, so that the earlier run is no source of the later one."""
    config, store = tiny_config("simclr"), Store(tmp_path / "store")
    first, _ = execute(config, store)
    (path,) = (tmp_path / "store" / "rows").glob("*.parquet")
    path.unlink()
    store.write_row(first.row.model_copy(update={"platforms": [], "platform": "elsewhere"}))
    further, trained = execute(measured(config, **LESS), store)
    assert (further.measured_from, trained) == (None, 2)


def test_weights_that_were_taken_are_no_training(personal: RunResult, store: Store) -> None:
    """A call was killed after it had taken weights; then the run that they are from goes away."""
    first, further = personal, measured(tiny_config("pfedae"), **LESS)
    folder = store.cell_dir(row_id(further, first.row.dataset_revision))
    assert take_weights(store, first.row, folder)
    (store.root / "rows" / f"{first.run_id}.parquet").unlink()
    again, trained = execute(further, store)
    assert (again.measured_from, trained) == (None, 2)
    assert again.row.resumes == 0


@pytest.mark.parametrize("copies", extended([1, 4], (1).__eq__))
def test_a_call_that_dies_while_it_takes_weights_leaves_none(
    personal: RunResult, store: Store, monkeypatch: pytest.MonkeyPatch, copies: int
) -> None:
    """It dies after the files of one client or of all four, before the checkpoint's."""
    first, further = personal, measured(tiny_config("pfedae"), **LESS)
    folder = store.cell_dir(row_id(further, first.row.dataset_revision))
    made: list[str] = []
    real = shutil.copyfile

    def copy(source: str, target: str, **how: bool) -> None:
        if len(made) == copies:
            raise InterruptedError
        real(source, target, **how)
        made.append(target)

    def write(path: Path, data: bytes) -> None:
        raise StoreError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", copy)
        patch.setattr(remeasure, "atomic_write_bytes", write)
        with pytest.raises(StoreError):
            take_weights(store, first.row, folder)
    assert len(made) == copies
    again, trained = execute(further, store, reuse=False)
    assert (again.measured_from, trained, again.row.resumes) == (None, 2, 0)
