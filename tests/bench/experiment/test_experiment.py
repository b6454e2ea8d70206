"""An experiment makes each part of a run once, and travels as its configuration alone."""

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbench.bench.execution import run as run_module
from fedbench.bench.experiment import experiment
from fedbench.bench.experiment.data import prepare_data
from fedbench.bench.experiment.experiment import Experiment, Origin
from fedbench.bench.experiment.resolve import experiment_of, resolve
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.testing import tiny_config
from fedbench.bench.training.setup import Setup
from fedbench.methods.simclr import SimCLR

TINY = {"data.train_subset": 80, "data.test_subset": 40, "federation.num_rounds": 1}


def test_another_process_gets_configuration_and_place_of_the_data() -> None:
    """The pickle of a run with everything made is small, and gives the same again."""
    made = Experiment(tiny_config("orchestra"), Origin("mine"))
    net = made.setup.make_net()
    text = pickle.dumps(made)
    assert len(text) < 10_000
    there = pickle.loads(text)
    assert there == made
    assert {*vars(there)} == {"config", "origin", "sources", "data_dir", "data", "ids"}
    assert there.ids == made.ids
    assert there.partition.hash == made.partition.hash
    again = there.setup.make_net().state_dict()
    assert all(torch.equal(value, again[name]) for name, value in net.state_dict().items())


def test_a_run_makes_each_of_its_parts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Counter[str]()

    def count(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def counted(*args: Any, **given: Any) -> Any:
            calls[name] += 1
            return real(*args, **given)

        monkeypatch.setattr(owner, name, counted)

    experiment._partitions.clear()
    count(experiment, "make_partition")
    count(experiment, "load_dataset")
    count(experiment, "foreign_modules")
    count(run_module, "choose_devices")
    count(Setup, "of")
    count(SimCLR, "build")
    run_module.run("simclr", set=TINY, store=tmp_path, device="cpu", workers=1)
    assert {*calls.values()} == {1}
    assert calls.total() == 6


def test_an_origin_changes_no_part_and_a_data_set_is_the_given_one() -> None:
    one = Experiment(tiny_config("simclr"))
    other = one.on(one.dataset).under(Origin("mine", grid="g"))
    assert (other.ids, other.partition) == (one.ids, one.partition)
    assert other.dataset is one.dataset
    assert (one.origin.grid, other.origin.grid) == (None, "g")
    assert other.under(Origin()).partition is other.partition


def test_a_configuration_made_by_hand_has_the_ids_of_a_resolved_one(tmp_path: Path) -> None:
    """They depend on the content of transfer sets and of files, which a name does not tell."""
    devices = tmp_path / "devices.csv"
    devices.write_text("flop_per_s,down_mb_per_s,up_mb_per_s\n1e9,1,1\n", "utf-8")
    files = {"devices.profile": str(devices), "devices.draw": True}
    values = {**files, "evaluation.transfer": ["digits"]}
    resolved = resolve("simclr", set={**TINY, **values}, environ={})
    config = resolved.config
    update = {
        "evaluation": config.evaluation.model_copy(update={"transfer": ("digits",)}),
        "devices": config.devices.model_copy(update={"profile_sha256": None}),
    }
    by_hand = experiment_of(config.model_copy(update=update), Origin())
    assert by_hand.ids == resolved.ids


def test_an_experiment_of_resolve_is_run_as_it_is(tmp_path: Path) -> None:
    resolved = resolve("simclr", set=TINY, environ={}, data_dir=tmp_path)
    result = run_module.run(resolved, store=tmp_path / "store", workers=1, device="cpu")
    assert (result.run_id, result.preset) == (resolved.ids.row, "demo")
    for given in ({"seed": 1}, {"preset": "demo"}, {"data_dir": tmp_path}):
        with pytest.raises(ConfigError, match=f"Experiment.*{next(iter(given))}"):
            run_module.run(resolved, store=tmp_path / "store", **given)


def test_what_does_not_change_a_data_set_is_refused_where_one_is_prepared() -> None:
    with pytest.raises(ConfigError, match=r"^client\.lr .*data\.image_size"):
        prepare_data("digits", set={"client": {"lr": 0.1}})
