"""Engines: where clients are changes no result, and is no part of a run's identity."""

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbench.bench.execution import engines
from fedbench.bench.execution.engines import ENGINES, Simulation, Where, engine
from fedbench.bench.execution.execute import execute
from fedbench.bench.execution.run import run
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.system.errors import ConfigError, PluginError
from fedbench.bench.system.seeding import single_thread
from fedbench.bench.testing import tiny_config, train
from fedbench.bench.training.trainer import Trainer
from tests.specs import TIMES, setup_of

CPU = torch.device("cpu")
COUNTED: list[str] = []


class Counting(Simulation):
    """Stands for the engine of another package."""

    def start(self, layout: Any) -> None:
        COUNTED.append("start")
        super().start(layout)


@pytest.mark.parametrize("spec", ["fedsc", "pfedae", "byol"])
def test_all_engines_give_one_row(spec: str, tmp_path: Path) -> None:
    experiment = Experiment(tiny_config(spec, federation__num_rounds=1))
    rows = []
    for name in ENGINES:
        row = execute(experiment, Where(tmp_path / name, lanes=2, engine=name))
        assert row.environment["engine"] == name
        rows.append(row.model_dump(exclude={*TIMES, "environment"}))
    assert rows[0] == rows[1] == rows[2]


def test_an_engine_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"counting": "Counting", "broken": "Nothing"}
    points = [
        EntryPoint(name, f"{__name__}:{each}", engines.PLUGINS) for name, each in names.items()
    ]
    monkeypatch.setattr(engines, "entry_points", lambda group: EntryPoints(points))
    monkeypatch.setattr(engines, "load", lambda point: globals()[point.attr])
    config = tiny_config("simclr", federation__num_rounds=1)
    row = execute(Experiment(config), Where(tmp_path, engine="counting"))
    assert COUNTED == ["start"]
    assert row.environment["engine"] == "counting"
    with pytest.raises(PluginError, match=r"plugin 'broken' of package .* cannot be loaded"):
        engine("broken")
    with pytest.raises(ConfigError, match=r"unknown engine 'countin'; did you mean 'counting'"):
        run(config, store=tmp_path / "store", engine="countin")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("spec", ["simclr", "pfedae", "simclr+scaffold", "fedsc"])
def test_the_server_reads_neither_images_nor_private_folders(spec: str, tmp_path: Path) -> None:
    setup = setup_of(spec)
    server = setup.with_other(images=None)
    folder, elsewhere = tmp_path / "server", tmp_path / "clients"
    clients = Simulation(Experiment(setup.config), setup, Where(elsewhere), lambda *_: None)
    trainer = Trainer(server, folder, "", CPU, clients.statistics, private=clients.private)
    clients.start(trainer.layout)
    with single_thread():
        assert [*trainer.rounds(clients)]
    assert not (folder / "clients").exists()
    expected = train(setup, tmp_path / "one")
    assert torch.equal(trainer.vector, expected.vector)
    assert trainer.personal_rounds == expected.personal_rounds
