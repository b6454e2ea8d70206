"""Local steps of every client, counted from labels before anything runs."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedbench.bench.config.yaml_files import installed
from fedbench.bench.experiment import experiment as module
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.experiment.preset_loading import preset_names
from fedbench.bench.experiment.resolve import resolve
from fedbench.bench.experiment.steps import LocalSteps, local_steps, without_effect
from fedbench.bench.method import Client, RoundPlan
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.seeding import generator
from fedbench.bench.testing import tiny_config, tiny_setup
from fedbench.bench.training.client import ClientRunner, Task
from fedbench.bench.training.setup import least_batch
from fedbench.bench.tuning.grid import Cell, load_grid, plan
from tests.specs import extended, labelled, setup_of


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    module._partitions.clear()
    yield
    module._partitions.clear()


def planned(spec: str, preset: str, **given: Any) -> LocalSteps:
    values = {key.replace("__", "."): value for key, value in given.items()}
    run = resolve(spec, preset=preset, set={"data.name": "cifar10", **values}, environ={})
    return local_steps(run.on(labelled("cifar10", None)))


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        # 50,000 / 10 = 5,000 images: 19 whole batches of 256 in each of 10 epochs.
        ({}, (190, 190, 0)),
        ({"data__num_clients": 100}, (10, 10, 0)),  # 500 images, one whole batch
        ({"data__num_clients": 100, "client__keep_last_batch": True}, (20, 20, 0)),
        ({"data__num_clients": 200, "client__keep_last_batch": True}, (10, 10, 0)),
        ({"data__num_clients": 200}, (0, 0, 200)),  # 250 images each
        ({"data__num_clients": 400}, (0, 0, 400)),  # 125 images each
        ({"data__num_clients": 400, "client__batch_size": 16}, (70, 70, 0)),  # 7 whole ones
        ({"data__num_clients": 400, "client__local_epochs": 0}, (0, 0, 0)),  # not meant to train
        ({"data__num_clients": 400, "federation__num_rounds": 0}, (0, 0, 0)),
        # One image is too few for a batch norm: 5,000 = 2 x 2,499 + 2, and 2 * 2,500.
        ({"client__batch_size": 4999, "client__keep_last_batch": True}, (10, 10, 0)),
    ],
)
def test_steps_of_equal_clients(given: dict[str, Any], steps: tuple[int, int, int]) -> None:
    counted = planned("simclr", "cross-silo", **{"data__partition": "iid", **given})
    assert (counted.least, counted.most, counted.idle_clients) == steps
    assert counted.median == counted.least
    assert bool(counted.idle) == bool(counted.idle_clients)


def test_methods_on_labels_count_labelled_images() -> None:
    # 500 images, a tenth of them labelled: 50 make 3 whole batches of 16; 10 epochs.
    given: dict[str, Any] = {"data__partition": "iid", "data__label_fraction": 0.1}
    assert planned("supervised", "cross-device", **given).most == 30
    assert planned("simclr", "cross-device", **given).most == 310
    assert planned("supervised", "cross-device", data__partition="iid").most == 310
    few = planned("supervised", "cross-device", **given | {"data__label_fraction": 0.01})
    assert few.idle_clients == 100
    assert "they hold at most 5 labelled images, fewer than client.batch_size=16" in few.idle


@pytest.mark.parametrize(
    ("spec", "given"),
    [
        ("simclr", {}),
        ("simclr", {"client__keep_last_batch": False, "client__batch_size": 7}),
        ("supervised", {"data__label_fraction": 0.3, "client__batch_size": 4}),
        ("simsiam", {"model__norm": "batch", "client__batch_size": 19}),
        ("simclr", {"data__partition": "dirichlet", "data__alpha": 0.1, "client__batch_size": 8}),
    ],
)
def test_clients_make_the_counted_steps(spec: str, given: dict[str, Any], tmp_path: Any) -> None:
    setup = setup_of(spec, client__local_epochs=2, **given)
    counted = local_steps(Experiment(setup.config))
    runner = ClientRunner(setup, torch.device("cpu"), tmp_path)
    made = []
    for k in range(setup.partition.num_clients):
        data = setup.client_data(k, "cpu")
        client = Client(k, 0, generator(0, "client"))
        made.append(sum(1 for _ in runner._batches(data, Task(k, 0, RoundPlan(2)), client)))
    assert (counted.least, counted.most) == (min(made), max(made))
    assert counted.median == np.median(made)
    assert counted.idle_clients == made.count(0)


@pytest.mark.parametrize(("spec", "most"), [("supervised", 2), ("simclr", 4)])
def test_images_without_a_label_are_counted_out(spec: str, most: int) -> None:
    config = tiny_config(spec, data__partition="iid", data__num_clients=4, client__batch_size=10)
    dataset = labelled("digits", 160)
    experiment = Experiment(config).on(dataset)
    for k in range(4):  # half of each client's 40
        dataset.train_labels[experiment.partition.client(k)[::2]] = -1
    assert local_steps(experiment).most == most * config.client.local_epochs


def test_a_run_in_which_nobody_trains_is_refused() -> None:
    steps = planned("simclr", "cross-silo", data__num_clients=400)
    with pytest.raises(ConfigError, match=r"125 images.*client\.batch_size=256.*keep_last_batch"):
        steps.check()
    replace(steps, idle_clients=399).check()
    single = planned("simclr", "cross-device", client__batch_size=1)
    assert "client.batch_size=1 is below the 2" in single.idle
    planned("simclr", "cross-silo", data__num_clients=400, client__local_epochs=0).check()


@pytest.mark.parametrize(
    ("spec", "given", "named"),
    [
        ("simclr+l-dawa", {"federation__num_rounds": 4}, []),
        ("simclr+l-dawa", {"federation__num_rounds": 3}, ["l-dawa"]),
        ("simclr+fedu2+l-dawa+uv", {}, ["l-dawa"]),  # whose factors the former does not see
        ("simclr+fedu2", {"server__lr": 0.5}, ["server.lr"]),
        ("simclr", {"federation__num_rounds": 0}, ["federation.num_rounds"]),
        ("simclr", {"client__local_epochs": 0}, ["client.local_epochs"]),
        # 200 digits, 4 clients: 50 each
        ("simclr", {"client__batch_size": 50, "client__keep_last_batch": True}, []),
        (
            "simclr",
            {"client__batch_size": 51, "client__keep_last_batch": True},
            ["client.batch_size"],
        ),
        # 20 images of a class: beyond 400 times that no share moves by an image
        ("simclr", {"data__partition": "dirichlet", "data__alpha": 100.0}, []),
        ("simclr", {"data__partition": "dirichlet", "data__alpha": 1e9}, ["data.alpha"]),
        ("simclr", {"data__alpha": 1e9}, []),  # iid does not read it
        ("simclr", {"data__partition": "rotation", "data__alpha": 1e9}, []),  # of bins
        ("central-ae", {"federation__num_rounds": 0}, []),  # it trains beforehand
    ],
)
def test_settings_that_do_nothing_are_named(
    spec: str, given: dict[str, Any], named: list[str]
) -> None:
    small = {"data__partition": "iid", "client__batch_size": 10, "federation__num_rounds": 4}
    config = tiny_config(spec, **{"data__num_clients": 4, **small, **given})
    lines = without_effect(Experiment(config).on(labelled("digits", 200)))
    assert [line.partition(":")[0].partition("=")[0] for line in lines] == named


def trains_nobody(cells: list[Cell]) -> list[str]:
    empty = []
    for cell in cells:
        config = cell.config
        dataset = labelled(config.data.name, config.data.train_subset)
        steps = local_steps(Experiment(config).on(dataset))
        if steps.idle_clients == steps.num_clients:
            empty.append(
                f"{cell.experiment.origin.preset} {config.spec} {dict(cell.axes)}: {steps.idle}"
            )
    return empty


FEW = {"heterogeneity", "scaling"}


@pytest.mark.parametrize("name", extended(installed("grids"), lambda name: name not in FEW))
def test_no_cell_of_a_shipped_grid_trains_nobody(name: str) -> None:
    """Of one seed, under every preset, with the sizes of the data sets and equal classes."""
    grid = load_grid(name)
    for preset in preset_names():
        seeds = grid.under_preset(preset).seeds[:1]
        assert trains_nobody(plan(grid, preset=preset, seeds=seeds, environ={})) == []


@pytest.mark.parametrize(
    ("norm", "head_norm", "least"),
    [
        ("group", "encoder", 1),
        ("group", "batch", 2),
        ("batch", "group", 2),
        ("batch-local", "encoder", 2),
    ],
)
def test_a_batch_norm_anywhere_needs_two_examples(norm: str, head_norm: str, least: int) -> None:
    config = tiny_config("byol", model__norm=norm, model__head_norm=head_norm)
    assert least_batch(config, tiny_setup(config).needs) == least
