"""fedbench as a contender: whole rounds of a run, or single clients, run by its code.

`python -m perf.ours --dataset CACHE --folder DIR …`, started by `perf.turn`.
"""

import argparse
import json
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from fedbench.bench.config import RunConfig
from fedbench.bench.data.datasets import reopen
from fedbench.bench.execution.engines import Where
from fedbench.bench.execution.execute import execute
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.experiment.fields import Fields
from fedbench.bench.method import RoundPlan
from fedbench.bench.training.client import ClientRunner, Task
from fedbench.bench.training.history import RoundRecord
from perf.turn import Turn

W3: dict[str, Any] = {
    "data.num_clients": 100,
    "data.partition": "iid",
    "model.backbone": "resnet8",
    "model.width": 16,
    "model.norm": "group",
    "client.lr": 0.03,
    "client.batch_size": 16,
    "client.keep_last_batch": False,
    "federation.participation": 0.5,
    "federation.num_rounds": 1_000_000,
    "method.hidden_dim": 128,
    "method.projection_dim": 128,
    "evaluation.protocols": [],
    "evaluation.untrained": False,
}
"""The federated round of 50 out of 100 clients; the other works change some of it."""

W1: dict[str, Any] = {
    "model.backbone": "resnet18",
    "model.width": None,
    "model.norm": "batch",
    "method.hidden_dim": 512,
    "method.projection_dim": 512,
}
"""Changes of W1: ResNet-18 with batch norm and the release's projector."""

BF16: dict[str, Any] = {"client.precision": "bf16"}


def config_of(changes: dict[str, Any]) -> RunConfig:
    """Return the configuration of W3 with changes by dotted names."""
    return Fields.of("simclr").build({**W3, **changes})


def rounds(
    turn: Turn, config: RunConfig, dataset: Path, folder: Path, workers: int, per_unit: int = 1
) -> None:
    """Run a round per unit: state in and out, aggregation, ledger, history, checkpoint."""

    def over(record: RoundRecord, _: int) -> None:
        if record.round_index == 0 or record.round_index % per_unit == 0:
            turn.over(clients=record.cohort_size, steps=record.num_steps)

    experiment = Experiment(config).on(reopen(dataset))
    execute(experiment, Where(folder, ["cpu"] * workers), over)


def clients(turn: Turn, config: RunConfig, dataset: Path, folder: Path, threads: int) -> None:
    """Run one client per unit: state in, views, training, state out."""
    setup = Experiment(config).on(reopen(dataset)).setup
    runner = ClientRunner(setup, torch.device("cpu"), folder)
    torch.set_num_threads(threads)
    server = runner.binding.server.data.clone()
    upload = torch.empty(runner.layout.upload_size)
    for index in range(config.federation.num_rounds):
        task = Task(index % config.data.num_clients, index, RoundPlan(config.client.local_epochs))
        trained = runner.run(task, server, upload)
        turn.over(steps=trained.num_steps)


def main() -> None:
    """Take turns until the measuring side stops asking."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset", type=Path, required=True, help="cache folder of a data set")
    parser.add_argument("--folder", type=Path, required=True, help="for checkpoints")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, help="in this process; fedbench itself takes one")
    parser.add_argument("--clients", action="store_true", help="units are clients, not rounds")
    parser.add_argument("--per-unit", type=int, default=1, help="rounds of a unit, after the first")
    parser.add_argument("--set", default="{}", help="JSON: changes to W3")
    options = parser.parse_args()
    config = config_of(json.loads(options.set))
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.clients:
        clients(Turn(), config, options.dataset, options.folder, options.threads or 1)
    elif options.threads is None:
        turn, per_unit = Turn(), options.per_unit
        rounds(turn, config, options.dataset, options.folder, options.workers, per_unit)
    else:  # one process with several threads, a mode that fedbench does not offer
        torch.set_num_threads(options.threads)
        with mock.patch.object(torch, "set_num_threads"):
            rounds(Turn(), config, options.dataset, options.folder, 1)


if __name__ == "__main__":
    main()
