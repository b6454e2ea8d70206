"""Runs and the store: stored results are not computed again, however the spec is spelled."""

import math
import shlex
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fedbench.bench.config import DataConfig
from fedbench.bench.execution import workers
from fedbench.bench.execution.describe import describe
from fedbench.bench.execution.execute import facts
from fedbench.bench.execution.export import load_run
from fedbench.bench.execution.result import RunResult
from fedbench.bench.execution.run import command_line, reproduce, run
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.method import registry
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import ConfigError, DataError, ResourceError, StoreError
from fedbench.bench.testing import tiny_config
from fedbench.bench.training.history import RoundRecord
from tests.bench.data.files import folder

CONFIG = tiny_config("supervised", federation__num_rounds=1, evaluation__protocols=())


def again(store: Store) -> RunResult:
    return run(CONFIG, store=store, workers=1, device="cpu")


def test_a_run_that_another_process_holds_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.lock(Experiment(CONFIG).ids.row) as locked:
        assert locked
        with pytest.raises(StoreError):
            again(store)


def test_code_that_changed_since_it_was_read_trains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither this process, which holds the old code, nor a worker, which imports the new."""
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry.entries()))
    monkeypatch.syspath_prepend(str(tmp_path))
    file, module = tmp_path / "edited_method.py", "edited_method"
    text = (
        "from fedbench.bench.method.registry import register\n"
        "from fedbench.methods.supervised import Supervised\n"
        "register('edited')(type('Edited', (Supervised,), {'__module__': __name__}))\n"
    )
    file.write_text(text)
    import_module(module)
    store, rounds = Store(tmp_path / "store"), {"federation__num_rounds": 1}
    config = tiny_config("edited", **rounds)
    row = run(config, store=store, data_dir=tmp_path, workers=1, device="cpu").row
    assert row.code
    file.write_text(f"{text}SCALE = 2\n")
    other = tiny_config("edited", seed=1, **rounds)
    with pytest.raises(ResourceError, match="'edited'"):
        run(other, store=store, data_dir=tmp_path, workers=1, device="cpu")
    experiment = Experiment(config, data_dir=tmp_path)
    with pytest.raises(ResourceError, match="'edited'"):
        workers._runner(experiment, tmp_path, "cpu")
    assert [row.row_id for row in store.rows()] == [row.row_id]
    file.write_text(f"{text}# two\n")  # only a comment
    workers._runner(experiment, tmp_path, "cpu")
    run(other, store=store, data_dir=tmp_path, workers=1, device="cpu")


def test_time_between_checkpoints_is_the_users(tmp_path: Path) -> None:
    """With an hour between, a run of milliseconds writes its last checkpoint alone."""
    config = tiny_config("simclr", federation__num_rounds=3)
    rows, written = [], []
    for seconds in (None, 3600.0):
        store = Store(tmp_path / str(seconds))
        files: set[str] = set()

        def watch(
            record: RoundRecord, total: int, store: Store = store, files: set[str] = files
        ) -> None:
            files |= {path.name for path in store.root.rglob("round-*.safetensors")}

        result = run(config, store=store, workers=1, on_round=watch, checkpoint_seconds=seconds)
        rows.append(result.row)
        written.append(sorted(files))
    names = [f"round-{number:08d}.safetensors" for number in (1, 2, 3)]
    assert written == [names, names[2:]]
    assert rows[0].objective == rows[1].objective
    for refused in (-1.0, math.nan):
        with pytest.raises(ConfigError, match="--checkpoint-seconds"):
            run(config, store=Store(tmp_path / "none"), checkpoint_seconds=refused)


def test_the_recorded_command_line_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["sweep", "--set", "evaluation.rounds=[1, 3]", "--store", "my store"]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/fedbench", *words])
    assert shlex.split(command_line()) == ["fedbench", *words]
    monkeypatch.setattr(sys, "argv", ["/lib/fedbench/__main__.py", *words])
    assert shlex.split(command_line()) == ["python", "-m", "fedbench", *words]


def test_what_a_script_has_registered_has_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config("byol")
    assert Experiment(config).workers() is None
    monkeypatch.setattr(registry.parse_spec("byol")[0].cls, "__module__", "__main__")
    own = Experiment(config)
    assert own.workers() == own.workers(1) == 1
    with pytest.raises(ConfigError, match="'byol'"):
        own.workers(2)


@pytest.mark.parametrize(
    ("spec", "fields", "named"),
    [
        ("semifed", {"data__label_fraction": 0.0}, r"data\.label_fraction"),
        ("simclr", {"evaluation__labels_from": "held-out"}, r"data\.held_out"),
        ("simclr+scaffold", {"server__aggregator": "median"}, "Median"),
    ],
)
def test_a_configuration_made_by_hand_is_checked_as_a_resolved_one(
    tmp_path: Path, spec: str, fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        run(tiny_config(spec, **fields), store=tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_a_leaderboard_that_a_killed_process_left_behind_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store")
    row = again(store).row
    board = store.root / "leaderboard.parquet"
    whole = board.read_bytes()
    for content in (None, b"stale"):
        board.unlink()
        if content is not None:
            board.write_bytes(content)
        assert again(store).stored_before
        assert board.read_bytes() == whole

    def read_only(*_: object) -> None:
        raise StoreError("the file system is read-only")

    board.unlink()
    monkeypatch.setattr(Store, "_write", read_only)
    assert again(store).row == row


def test_a_torn_row_is_run_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(tmp_path / "store")
    row = again(store).row
    path = store.root / "rows" / f"{row.row_id}.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    anew = again(store)
    assert not anew.stored_before
    assert store.row(row.row_id) == anew.row
    assert "torn or altered" in caplog.text


def test_a_run_that_cannot_be_made_again_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    row = again(store).row

    def put(row: Row) -> str:
        for path in (store.root / "rows").glob("*.parquet"):
            path.unlink()
        store.write_row(row)
        return row.row_id

    ended: dict[str, Any] = {"status": "error", "error": "it fell", "finished_at": row.finished_at}
    failed = Row(**facts(Experiment(CONFIG), "", row.started_at, "cpu"), **ended)
    elsewhere = row.model_copy(update={"dataset_revision": "0" * 64})
    for changed, named in (
        (failed, "it fell"),
        (row.model_copy(update={"benchmark_version": "4"}), "benchmark version 4"),
        (elsewhere.model_copy(update={"row_id": "0" * 20}), "revision 00000000"),
    ):
        with pytest.raises(StoreError, match=named):
            reproduce(put(changed), store)
    for changed, error, named in (
        (failed, StoreError, "it fell"),
        (elsewhere, DataError, "revision 00000000"),
        (row.model_copy(update={"partition_hash": "0"}), StoreError, "in another way"),
    ):
        with pytest.raises(error, match=named):
            load_run(store, put(changed))
    described = describe(put(row.model_copy(update={"preset": "gone"})), store)
    assert "'gone'" in described.sources_unknown
    assert len(described.commands) == 1  # the preset that the other one names is not here
    with pytest.raises(StoreError, match="nothing was run again"):
        reproduce(put(row), store, keep=store)
    (tmp_path / "photos").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "photos" / "one.png")
    with pytest.raises(DataError, match=r"^folder:.*photos: of 1 images"):
        reproduce(row.row_id, store, data_name=str(tmp_path / "photos"))


def test_a_run_is_reproduced_where_the_folder_of_its_images_has_moved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = folder(tmp_path / "photos", **{"train/a": 20, "train/b": 20, "test/a": 5, "test/b": 5})
    config = CONFIG.model_copy(update={"data": DataConfig(name=name, num_clients=2)})
    store, cache = Store(tmp_path / "store"), tmp_path / "cache"
    row = run(config, store=store, data_dir=cache, workers=1, device="cpu").row
    (tmp_path / "photos").rename(tmp_path / "moved")
    given: dict[str, Any] = {"workers": 1, "device": "cpu"}
    assert reproduce(row.row_id, store, data_dir=cache, **given).verdict == "same bits"
    assert str(cache) in caplog.text  # nobody takes the moved folder for the one that was read
    with pytest.raises(DataError, match="--data"):
        reproduce(row.row_id, store, data_dir=tmp_path / "other", **given)
