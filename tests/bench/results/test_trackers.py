"""Trackers: TensorBoard event files read back, and the calls that W&B gets."""

import struct
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbench
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.results.trackers import Begun, Tracking
from fedbench.bench.system.errors import ResourceError

CHEAP = {"federation.num_rounds": 2, "data.train_subset": 160, "model.width": 4}


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Row]:
    store = Store(tmp_path_factory.mktemp("träck ed"))
    cheap = {**CHEAP, "evaluation.protocols": ["knn"]}
    result = fedbench.run("simclr", set=cheap, store=store, workers=1, track=["tensorboard"])
    return store, result.row


def gigabytes(row: Row) -> Any:
    return pytest.approx(((row.bytes_up or 0) + (row.bytes_down or 0)) / 1e9)


def events(folder: Path) -> Iterator[Any]:
    """Parse TFRecords: length, its checksum, the event, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    (file,) = folder.rglob("events.out.tfevents.*")
    data = file.read_bytes()
    place = 0
    while place < len(data):
        (length,) = struct.unpack_from("<Q", data, place)
        yield Event.FromString(data[place + 12 : place + 12 + length])
        place += length + 16


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    values: dict[str, dict[int, float]] = {}
    for event in events(folder):
        for value in event.summary.value:
            if value.HasField("simple_value"):
                values.setdefault(value.tag, {})[event.step] = value.simple_value
    return values


def test_event_files_hold_the_rows_numbers(tracked: tuple[Store, Row]) -> None:
    store, row = tracked
    losses = [np.float32(point["loss"]) for point in store.curve(row.row_id)]
    logged = scalars(store.root / "tensorboard")
    assert logged["round/loss"] == dict(enumerate(losses, 1))
    assert logged["final/knn_acc"] == {2: np.float32(row.knn_acc)}
    assert logged["round/gigabytes"][2] == gigabytes(row)


def test_rounds_that_a_resumed_run_repeats_are_passed_once(tracked: tuple[Store, Row]) -> None:
    store, row = tracked
    points = store.curve(row.row_id)
    tracking = Tracking(["tensorboard"], store)
    tracking.begin(Begun.of(row), points)
    tracking.round(points[1])
    tracking.end(row, points)
    assert scalars(store.root / "tensorboard")["round/gigabytes"][2] == gigabytes(row)


def test_hyperparameters_and_results_are_a_line_of_one_table(tracked: tuple[Store, Row]) -> None:
    """In place of a chart with one point for each of 30 results."""
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    store, row = tracked
    parts = [
        HParamsPluginData.FromString(value.metadata.plugin_data.content)
        for event in events(store.root / "tensorboard")
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == "hparams"
    ]
    (begun,) = [part.session_start_info for part in parts if part.HasField("session_start_info")]
    assert begun.hparams["client.lr"].number_value == row.config.client.lr
    assert begun.hparams["spec"].string_value == "simclr"
    (table,) = [part.experiment for part in parts if part.HasField("experiment")]
    columns = {metric.name.tag for metric in table.metric_infos}
    single = {tag for tag in scalars(store.root / "tensorboard") if tag.startswith("final/")}
    assert columns == single == {"final/objective", "final/knn_acc", "final/final_loss"}


class FakeRun:
    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.summary: dict[str, Any] = {}
        self.exit_code: int | None = None
        self.step = 0

    def log(self, values: dict[str, float], step: int) -> None:
        assert step >= self.step, "W&B drops it"
        self.logged.append((step, values))
        self.step = step

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code


def fake_wandb(
    monkeypatch: pytest.MonkeyPatch, run: FakeRun, active: FakeRun | None = None
) -> list[dict[str, Any]]:
    """Put in place of W&B what gives `run`, or in its default mode the one that is `active`."""
    calls: list[dict[str, Any]] = []
    module = types.ModuleType("wandb")
    module.__spec__ = types.SimpleNamespace()  # type: ignore[assignment]

    def init(**given: Any) -> FakeRun:
        calls.append(given)
        return active if active is not None and given.get("reinit") != "create_new" else run

    module.init = init  # type: ignore[attr-defined]
    module.Settings = dict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    return calls


def test_a_run_is_shown_while_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, of_caller = FakeRun(), FakeRun()
    calls = fake_wandb(monkeypatch, run, of_caller)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    seen: list[tuple[int, set[int]]] = []

    def on_round(record: Any, total: int) -> None:
        files = scalars(tmp_path / "tensorboard")
        seen.append((len(run.logged), set(files["round/loss"])))

    cheap = {**CHEAP, "evaluation.protocols": []}
    settings: dict[str, Any] = {"set": cheap, "store": tmp_path, "workers": 1}
    names = ["tensorboard", "wandb"]
    result = fedbench.run("simclr", track=names, on_round=on_round, **settings)
    assert seen == [(1, {1}), (2, {1, 2})]
    (call,) = calls  # the same run takes the row
    assert (call["id"], call["group"]) == (result.run_id, result.row.config_id)
    assert (call["project"], call["dir"]) == ("mine", str(tmp_path))
    assert run.summary["objective"] == result.row.objective
    assert call["tags"] == ["simclr", "digits", "demo"]
    assert [step for step, _ in run.logged] == [1, 2]
    assert (run.summary["status"], run.exit_code) == ("ok", 0)
    assert (of_caller.logged, of_caller.exit_code) == ([], None)
    (folder,) = (tmp_path / "tensorboard").iterdir()
    assert result.run_id[:8] in folder.name
    plain = fedbench.run("simclr", **{**settings, "store": tmp_path / "other"})
    assert plain.row.objective == result.row.objective


def test_a_service_that_fails_while_a_run_goes_on_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_wandb(monkeypatch, FakeRun())
    monkeypatch.setattr(FakeRun, "log", lambda *_, **__: 1 / 0)
    cheap = {**CHEAP, "evaluation.protocols": []}
    with pytest.warns(UserWarning, match="wandb") as caught:
        result = fedbench.run("simclr", set=cheap, store=tmp_path, workers=1, track=["wandb"])
    assert result.status == "ok"
    assert len(caught) == 1


def test_what_cannot_track_says_so_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ResourceError, match=r"pip install 'fedbench-ssl\[wandb\]'"):
        fedbench.run("simclr", store=tmp_path, track=["wandb"])
    with pytest.raises(ResourceError, match="wandb"):
        fedbench.plan_run("simclr", store=tmp_path, track=["wandb"])
    assert list(tmp_path.iterdir()) == []
