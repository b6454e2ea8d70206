"""Sweeps: every cell once, failures as rows, same results through Ray."""

import json
import pickle
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from fedbench.bench.config import BENCHMARK_VERSION, RunConfig
from fedbench.bench.execution.execute import facts
from fedbench.bench.execution.run import run
from fedbench.bench.experiment.experiment import Experiment, Origin
from fedbench.bench.experiment.resolve import resolve
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import ConfigError, FedbenchError, ResourceError, StoreError
from fedbench.bench.terminal.show_tuning import local_steps
from fedbench.bench.tuning.grid import Grid, Scale, cells_of, check_grid, load_grid, plan
from fedbench.bench.tuning.job import Job, Outcome
from fedbench.bench.tuning.sweep import SweepResult, _with_tuned, label, planned_cells, sweep
from fedbench.bench.tuning.tune import tune
from tests.bench.results.conftest import rank
from tests.specs import TIMES

from . import conftest
from .conftest import KilledError, Use, last, make_job

SMALL = {**conftest.SMALL, "evaluation.protocols": ["knn"]}
GRID = Grid(
    grid="small",
    description="for tests",
    axes={"data.alpha": (0.1, 100.0)},
    methods=("simclr", "supervised"),
    seeds=(0,),
)


def small(store: Path, **settings: Any) -> Any:
    return sweep(GRID, store=store, set={**SMALL, **settings.pop("set", {})}, **settings)


def rows(store: Path) -> list[dict[str, Any]]:
    return [row.model_dump(exclude=TIMES) for row in Store(store).rows()]


def counts(result: Any) -> tuple[int, ...]:
    return result.planned, result.skipped, result.done, result.diverged, result.failed


def test_a_label_tells_fields_of_one_name_apart() -> None:
    axes = {"method.weight": (0.1,), "method.feddecorr.weight": (0.2,)}
    grid = GRID.model_copy(update={"methods": ("lejepa+feddecorr",), "axes": axes})
    assert "method.feddecorr.weight=0.2" in label(*plan(grid, environ={}))


def test_again_repeats_what_is_stored_and_runs_the_rest(
    tmp_path: Path, in_one_process: Use
) -> None:
    executor = in_one_process(width=1)
    small(tmp_path, methods=["simclr"])
    before, ran = rows(tmp_path), len(executor.ran)
    again = small(tmp_path, again=True)
    assert counts(again) == (4, 2, 2, 0, 0)
    assert [(each.run_id, each.verdict) for each in again.repeated] == [
        (cell["run_id"], "same bits") for cell in again.cells if cell["stored_before"]
    ]
    assert len(executor.ran) == ran + 4
    assert all(row in rows(tmp_path) for row in before)
    planned = small(tmp_path, again=True, dry_run=True)
    assert (planned.to_run, planned.skipped, planned.repeated) == (4, 4, ())


def test_again_deletes_rows_of_code_that_is_gone_and_no_others(
    tmp_path: Path, in_one_process: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The method's class is said to be of another package, whose code changes."""
    hashes = {"simclr": "old"}

    def code(config: RunConfig) -> dict[str, str]:
        return {name: value for name, value in hashes.items() if name == config.spec}

    monkeypatch.setattr("fedbench.bench.experiment.fields.foreign_code", code)
    in_one_process(width=1)
    small(tmp_path)
    store = Store(tmp_path)
    old = [row.row_id for row in store.rows() if row.code]
    hashes["simclr"] = "new"
    first = small(tmp_path)
    assert ([*first.outdated], len(store.rows())) == (sorted(old), 6)
    again = small(tmp_path, methods=["simclr"], again=True)
    assert [*again.outdated] == sorted(old)
    assert len(store.rows()) == 4


def test_every_cell_runs_once_whatever_the_order(
    tmp_path: Path, in_one_process: Use, caplog: pytest.LogCaptureFixture
) -> None:
    in_one_process(width=1)
    first = small(tmp_path / "a")
    assert counts(first) == (4, 0, 4, 0, 0)
    for cell in first.cells:
        assert (cell["status"], sorted(cell["axes"])) == ("ok", ["data.alpha"])
        assert 0 <= cell["metrics"]["knn_acc"] <= 1
    again = in_one_process()
    assert counts(small(tmp_path / "a", purpose="selection")) == (4, 4, 0, 0, 0)
    assert again.ran == []
    planned = small(tmp_path / "a", dry_run=True)
    assert (planned.to_run, planned.estimate.hours) == (0, 0)
    assert "4 of these runs were made for evaluation and stay so" in caplog.text
    board = tmp_path / "a" / "leaderboard.parquet"
    whole = board.read_bytes()
    board.unlink()  # as if the first process had been killed before it wrote this file
    small(tmp_path / "a")
    assert board.read_bytes() == whole

    in_one_process(seed=3, die_after=2)
    with pytest.raises(KilledError):
        small(tmp_path / "b")
    rest = in_one_process(seed=1)
    assert counts(small(tmp_path / "b")) == (4, 2, 2, 0, 0)
    assert len(rest.ran) == 2
    assert rows(tmp_path / "b") == rows(tmp_path / "a")


def test_folders_of_stored_cells_that_a_killed_process_left_elsewhere_are_deleted(
    tmp_path: Path, in_one_process: Use
) -> None:
    in_one_process()
    store, elsewhere = tmp_path / "s", Store(tmp_path / "fast")
    places: dict[str, Any] = {"methods": ["supervised"], "checkpoint_dir": elsewhere.root}
    first = small(store, **places)
    stored, running = (cell["run_id"] for cell in first.cells)
    (store / "rows" / f"{running}.parquet").unlink()
    for identity in (stored, running):
        elsewhere.cell_dir(identity).mkdir(parents=True, exist_ok=True)
        (elsewhere.cell_dir(identity) / "left").write_text("by a killed process")
    small(store, **places, dry_run=True)
    assert elsewhere.cell_dir(stored).exists()
    with elsewhere.lock(stored):
        small(store, **places)
        assert elsewhere.cell_dir(stored).exists()
    assert not elsewhere.cell_dir(running).exists()  # it has run, and was moved into the store
    small(store, **places)
    assert list((elsewhere.root / "cells").iterdir()) == []


def test_failed_cells_are_rows_and_are_retried_on_demand(
    tmp_path: Path, in_one_process: Use
) -> None:
    def fail(job: Job) -> Outcome:
        return Outcome(job, "error", error=f"no luck with {job.experiment.config.spec}")

    in_one_process(fake=fail)
    result = small(tmp_path)
    assert counts(result) == (4, 0, 0, 0, 4)
    assert result.cells[0]["error"] == "no luck with simclr"
    assert {row.status for row in Store(tmp_path).rows()} == {"error"}
    idle = in_one_process()
    assert counts(small(tmp_path)) == (4, 0, 0, 0, 4)
    assert idle.ran == []
    assert counts(small(tmp_path, retry_failed=True)) == (4, 0, 4, 0, 0)


def test_diverged_cells_are_done(tmp_path: Path, in_one_process: Use) -> None:
    in_one_process()
    result = small(tmp_path, methods=["supervised"], set={"client.lr": 1e30})
    assert counts(result) == (2, 0, 2, 2, 0)
    assert counts(small(tmp_path, methods=["supervised"], set={"client.lr": 1e30})) == (
        2, 2, 0, 0, 0,
    )  # fmt: skip


def test_a_cell_reports_how_it_ended(tmp_path: Path) -> None:
    made = make_job(tmp_path)
    row = last(made)["outcome"].row
    assert row.status == "ok"
    lost = pickle.loads(pickle.dumps(make_job(tmp_path / "b")))  # without the open data set
    vars(lost.experiment)["data"] = replace(lost.experiment.data, path=tmp_path / "nowhere")
    failed = last(lost)["outcome"]
    assert failed.status == "error"
    assert "\n" not in failed.error
    with Store(tmp_path).lock("cell"):
        assert last(made) == {"status": "busy"}
    blocked = tmp_path / "file"
    blocked.write_text("")
    message = last(make_job(blocked))
    assert (message["status"], type(message["error"])) == ("abort", StoreError)
    assert str(blocked) in str(message["error"])
    Store(tmp_path).write_row(row)  # another process has finished it
    elsewhere = last(made)["outcome"]
    assert (elsewhere.status, elsewhere.row) == ("elsewhere", row)


def test_each_data_set_takes_its_own_studies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dataset(experiment: Experiment) -> SimpleNamespace:
        name = experiment.config.data.name
        return SimpleNamespace(name=name, whole=f"content of {name}")

    monkeypatch.setattr(Experiment, "dataset", property(dataset))
    store = Store(tmp_path / "s")
    for number, name in enumerate(["digits", "hub:/far/cifar10"]):
        study = {
            "study_id": f"s{number}", "spec": "simclr", "preset": "demo", "finished_at": "2026",
            "trials": 1, "seeds_per_trial": 1, "whole": f"content of {name.rpartition('/')[2]}",
            "benchmark": BENCHMARK_VERSION, "best": {"params": {"client.lr": 0.01 + number}},
        }  # fmt: skip
        store.write_study(f"s{number}", study)

    axes = {"data.name": ["cifar10", "digits", "mnist"]}
    settings: dict[str, Any] = {"preset": "demo", "environ": {}, "methods": ["simclr"]}

    def planned(number: int, tuned: str) -> list[tuple[str, str | None, float]]:
        parts = {"grid": "g", "description": "d", "methods": ["simclr"], "seeds": [0]}
        grid = check_grid({**parts, "axes": {"data.name": axes["data.name"][:number]}}, "g.yaml")
        cells = planned_cells(grid, store, tuned, settings)
        return [
            (c.config.data.name, c.experiment.origin.study_id, c.config.client.lr) for c in cells
        ]

    assert planned(2, "auto") == [("cifar10", "s1", 1.01), ("digits", "s0", 0.01)]
    assert planned(2, "s0") == [("cifar10", "s0", 0.01), ("digits", "s0", 0.01)]
    settings["set"] = {"client.batch_size": 8}
    command = "fedbench tune simclr --preset demo --dataset mnist --set=client.batch_size=8 --store"
    with pytest.raises(ConfigError, match=f"'mnist'.*`{command} {store.root}`"):
        planned(3, "auto")


def test_what_the_store_has_tuned_joins_the_methods(tmp_path: Path) -> None:
    store = Store(tmp_path)
    studies: dict[str, Any] = {
        "byol": {},
        "simclr": {},
        "mim": {"preset": "laptop"},
        "fedx": {"finished_at": None},
    }
    for spec, change in {**studies, "gone": {}, "ssd": {"benchmark": "0"}}.items():
        meta = {"spec": spec, "preset": "demo", "finished_at": "2026"}
        meta["benchmark"] = BENCHMARK_VERSION
        store.write_study(spec, {**meta, **change})
    grid = load_grid("local-epochs")
    assert _with_tuned(grid, store, "demo") == [*grid.methods, "byol"]


FURTHER = {"evaluation.protocols": ["knn", "linear"], "evaluation.knn_neighbours": 5}


def test_cells_that_are_trained_already_are_measured(tmp_path: Path, in_one_process: Use) -> None:
    """Other protocols over a swept store train nothing, and give the rows of a fresh store."""
    in_one_process()
    first = small(tmp_path / "a")
    planned = small(tmp_path / "a", set=FURTHER, dry_run=True)
    sources = [cell["run_id"] for cell in first.cells]
    assert (planned.to_run, planned.measured) == (4, 4)
    assert [cell["measured_from"] for cell in planned.cells] == sources
    trained = small(tmp_path / "none", set=FURTHER, dry_run=True)
    assert (trained.to_run, trained.measured) == (4, 0)
    assert planned.estimate.bytes_up == 0 < trained.estimate.bytes_up
    further = small(tmp_path / "a", set=FURTHER)
    assert further.measured == 4
    assert [cell["measured_from"] for cell in further.cells] == sources
    small(tmp_path / "b", set=FURTHER)
    ids = {cell["run_id"] for cell in further.cells}

    def results(store: Path) -> list[dict[str, Any]]:
        plain = [{**row, "measured_from": None} for row in rows(store)]
        return [row for row in plain if row["row_id"] in ids]

    assert results(tmp_path / "a") == results(tmp_path / "b")
    closer = small(tmp_path / "a", set={**FURTHER, "evaluation.every": 1}, dry_run=True)
    assert closer.measured == 0


def test_one_training_serves_all_values_of_an_evaluation_axis(
    tmp_path: Path, in_one_process: Use
) -> None:
    """Cells that share weights run one after the other, whatever the concurrency."""
    grid = GRID.model_copy(update={"axes": {"evaluation.knn_neighbours": (1, 5, 9)}})
    in_one_process(width=4)
    planned = sweep(grid, store=tmp_path, set=SMALL, dry_run=True)
    assert (planned.to_run, planned.measured) == (6, 4)
    sweep(grid, store=tmp_path, set=SMALL)
    sources = [row.measured_from for row in Store(tmp_path).rows()]
    assert sources.count(None) == 2
    assert len({row.training_id for row in Store(tmp_path).rows()}) == 2
    assert len(rank(Store(tmp_path).rows(), metric="objective").entries) == 2
    assert len(rank(Store(tmp_path).rows(), metric="knn").groups) == 3


def test_values_that_follow_an_axis_are_recorded(tmp_path: Path, in_one_process: Use) -> None:
    axes, scaling = {"data.num_clients": (8, 4)}, Scale(by="linear", of="data.num_clients")
    grid = GRID.model_copy(update={"axes": axes, "scaling": {"client.lr": scaling}})
    in_one_process()
    settings = {key: value for key, value in SMALL.items() if key != "data.num_clients"}
    values = {**settings, "client.lr": 0.1}
    sweep(grid, store=tmp_path, set=values, methods=["supervised"])
    records = {row.num_clients: row.scaled for row in Store(tmp_path).rows()}
    assert records == {8: {"client.lr": 0.1}, 4: {}}


def row_of(config: RunConfig, preset: str = "demo") -> Row:
    """Return a row of `run`, which names no grid."""
    now = datetime(2026, 1, 2, tzinfo=UTC)
    dataset: Any = SimpleNamespace(path=Path(), revision="r", name="digits")
    known = facts(Experiment(config, Origin(preset)).on(dataset), "h", now, "cpu")
    return Row(**known, status="ok", finished_at=now)


def test_a_grid_has_its_cells_however_they_were_measured() -> None:
    """One cell, measured twice, and a run that is none."""
    (cell,) = plan(
        load_grid("heterogeneity"), methods=["simclr"], seeds=[0], set={"evaluation.every": 1}
    )[:1]
    config = cell.config
    plain = config.evaluation.model_copy(update={"every": 0})
    slow = config.client.model_copy(update={"lr": 0.123})
    rows = [
        row_of(config),
        row_of(config.model_copy(update={"evaluation": plain})),
        row_of(config.model_copy(update={"client": slow})),
    ]
    settings = rows[2].settings
    foreign = {**settings, "client": {**settings["client"], "gone": 1}}
    rows[2] = rows[2].model_copy(update={"settings": foreign})  # as of another version
    assert cells_of(rows, "heterogeneity") == {row.row_id for row in rows[:2]}


def test_a_grid_that_does_not_fit_the_preset_of_a_row_has_no_cell_there(tmp_path: Path) -> None:
    """Some of its cells have fewer rounds than the preset evaluates."""
    preset, grid = "cross-device-cpu", tmp_path / "short.yaml"
    axes = {"federation.num_rounds": [20, 60]}
    grid.write_text(
        yaml.safe_dump({"grid": "short", "description": "d", "methods": ["simclr"], "axes": axes})
    )
    with pytest.raises(ConfigError, match=r"evaluation.rounds"):
        plan(load_grid(str(grid)), preset=preset, environ={})
    row = row_of(resolve("simclr", preset=preset, environ={}).config, preset)
    assert cells_of([row], str(grid)) == frozenset()


def test_a_dry_run_counts_estimates_and_writes_nothing(tmp_path: Path) -> None:
    result = small(tmp_path / "s", dry_run=True, seeds=[0, 1], concurrency=2)
    assert (result.planned, result.to_run, result.skipped) == (8, 8, 0)
    assert {cell["status"] for cell in result.cells} == {"planned"}
    cost = result.estimate
    assert (cost.concurrency, cost.device) == (2, "cpu")
    assert min(cost.hours, cost.bytes_up, cost.bytes_down) > 0
    finish = cost.finish_hours
    assert sorted(finish) == [1, 2, 8, 64]
    assert finish[1] > finish[2] == cost.hours >= finish[8] >= finish[64]
    assert finish[1] > cost.device_hours > 0
    assert not (tmp_path / "s").exists()
    assert json.dumps(result.as_dict())


def steps(store: Path, batch_size: int, **settings: Any) -> SweepResult:
    """Sweep over 3 clients of 20 images, and 6 of 10."""
    grid = GRID.model_copy(update={"axes": {"data.num_clients": (3, 6)}, "methods": ("simclr",)})
    values = {key: value for key, value in SMALL.items() if key != "data.num_clients"}
    values |= {"data.partition": "iid", "client.keep_last_batch": False, "client.local_epochs": 2}
    values |= {"client.batch_size": batch_size, **settings.pop("set", {})}
    return sweep(grid, store=store, set=values, **settings)


@pytest.mark.usefixtures("unpriced")
def test_a_plan_has_the_steps_of_every_cell(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cells = steps(tmp_path, 8, dry_run=True).cells
    assert "never train" not in caplog.text
    uneven = {"data.partition": "dirichlet", "data.alpha": 0.3}
    steps(tmp_path, 16, set=uneven, dry_run=True)
    assert "1 of 2 cells have clients that never train; most of them simclr num" in caplog.text
    # 2 epochs of 20 // 8 = 2 batches; 2 epochs of 10 // 8 = 1 batch.
    assert [(line["setting"], line["least"], line["most"]) for line in local_steps(cells)] == [
        ("data.num_clients=3", 4, 4),
        ("data.num_clients=6", 2, 2),
    ]


def test_cells_in_which_nobody_trains_are_refused(tmp_path: Path, in_one_process: Use) -> None:
    process = in_one_process()
    for dry_run in (True, False):
        with pytest.raises(ConfigError, match=r"1 of 2 cells.*num_clients=6.*client.batch_size"):
            steps(tmp_path, 16, dry_run=dry_run)
    assert process.ran == []
    result = steps(tmp_path, 16, set={"client.local_epochs": 0})  # not meant to train
    assert (result.planned, result.done) == (2, 2)


@pytest.mark.parametrize(
    ("spec", "given", "error", "match"),
    [
        ("rotpred", {"data.name": "npz:oblong.npz"}, ConfigError, "must be square"),
        ("simclr", {"client.precision": "tf32"}, ResourceError, "needs a GPU"),
        ("simclr", {"privacy.clip": 1.0}, ConfigError, "privacy.clip"),
        (
            "simclr",
            {"devices.profile": "phones", "federation.deadline": 1e-6},
            ConfigError,
            "the fastest takes",
        ),
        (
            "simclr",
            {"data.held_out": 0.05, "evaluation.unseen_clients": 50},
            ConfigError,
            "unseen_clients=50",
        ),
        (
            "simclr",
            {"client.batch_size": 512, "client.keep_last_batch": False},
            ConfigError,
            "no client would ever",
        ),
    ],
)
def test_what_run_refuses_before_it_starts_no_sweep_or_search_begins(
    spec: str,
    given: dict[str, Any],
    error: type[FedbenchError],
    match: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    in_one_process: Use,
) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = np.zeros((40, 20, 12), np.uint8), np.arange(40) % 2
    np.savez("oblong.npz", x_train=x, x_test=x, y_train=y, y_test=y)
    small = {**conftest.SMALL, "data.train_subset": 40, **given}
    executor, where = in_one_process(), {"set": small, "store": tmp_path / "s", "device": "cpu"}
    with pytest.raises(error, match=match):
        run(spec, workers=1, **where)
    for dry_run in (False, True):
        with pytest.raises(error, match=match):
            sweep(GRID, methods=[spec], dry_run=dry_run, **where)
        with pytest.raises(error, match=match):
            tune(spec, trials=1, dry_run=dry_run, **where)
    assert not executor.ran
    assert not Store(tmp_path / "s").rows()


@pytest.mark.parametrize("command", ["run", "sweep"])
def test_a_set_that_the_encoder_cannot_take_is_refused_with_the_plan(
    command: str, tmp_path: Path, in_one_process: Use
) -> None:
    """Without a label nothing is transferred, so that no search has such a set."""
    x, y = np.zeros((40, 8, 8, 3), np.uint8), np.arange(40) % 2
    np.savez(tmp_path / "o.npz", x_train=x, x_test=x, y_train=y, y_test=y)
    executor, name = in_one_process(), f"npz:{tmp_path / 'o.npz'}"
    given: dict[str, Any] = {
        "store": tmp_path / "s",
        "set": {**SMALL, "evaluation.transfer": [name]},
    }
    call = partial(sweep, GRID) if command == "sweep" else partial(run, "simclr", device="cpu")
    with pytest.raises(ConfigError, match="have 3 channels"):
        call(**given)
    assert not executor.ran
    assert not Store(tmp_path / "s").rows()
