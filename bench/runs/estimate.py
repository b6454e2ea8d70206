"""Estimated time, traffic and disk space of a run, from measured parts of it.

Measured once per distinct model: a client with a few local steps, the server's part of a round, one
evaluation, the start of a process. Every client is assumed to train on all of its images in every
round, so that methods which leave out unlabelled images, in some rounds or in all, cost less than
estimated. Left out are the decoding of a data set that is not in the cache yet, and other load on
the machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from fedbench.bench.config import RunConfig
from fedbench.bench.config.dotted import flatten
from fedbench.bench.data.batches import Batch, ClientData
from fedbench.bench.evaluation.collapse import CollapseMonitor
from fedbench.bench.evaluation.suite import evaluate
from fedbench.bench.method import ACTIVATIONS, Client, RoundPlan
from fedbench.bench.runs.execute import open_dataset
from fedbench.bench.system.compute import choose_devices
from fedbench.bench.system.errors import (
    FedbenchError,
    PluginWarning,
    ResourceError,
    described,
    rebuild,
)
from fedbench.bench.system.regime import check_precision, reproducible
from fedbench.bench.system.scratch import temporary_folder
from fedbench.bench.system.seeding import single_thread
from fedbench.bench.training.aggregate import optimized_size
from fedbench.bench.training.checkpoint import Checkpoint, save_checkpoint
from fedbench.bench.training.client import ClientRunner, Task
from fedbench.bench.training.layout import Binding, Layout
from fedbench.bench.training.ledger import BYTES_PER_NUMBER, Ledger
from fedbench.bench.training.setup import Setup
from fedbench.bench.training.steps import partition_of
from fedbench.bench.training.trainer import default_seconds

_WARM_UP, _MEASURED = 2, 6
"""Local steps; of slow ones two are enough, of which the first warms up, or one that is long."""
_ENOUGH_SECONDS, _LONG_STEP_SECONDS = 4.0, 10.0
_LONG = 5.0
"""Seconds of an evaluation beside which its imports and allocations hardly count."""
_ALIKE = 3
"""Configurations that are measured of those which differ in a method's real numbers alone."""
_EVALUATED = (2000, 1000)
"""Training and test images of the evaluation that is measured; more take time in proportion."""


@dataclass(frozen=True)
class Estimate:
    """Cost of one run.

    Attributes:
        seconds: whole run with the given workers, the sum of the next three.
        train_seconds: all rounds.
        evaluation_seconds: all evaluations.
        start_seconds: start of the processes.
        bytes_up, bytes_down: clients to server and back, whole run.
        disk_bytes: checkpoints and clients' personal tensors while it runs.
        num_steps: local steps of the whole run.
        workers: processes that train clients.
        step_seconds: one local step on one of them.
    """

    seconds: float
    train_seconds: float
    evaluation_seconds: float
    start_seconds: float
    bytes_up: int
    bytes_down: int
    disk_bytes: int
    num_steps: int
    workers: int
    step_seconds: float


@dataclass
class _Costs:
    """Measured costs of the parts of a run.

    Attributes:
        step: seconds of a local step.
        client: seconds of a client's part of a round beside its steps.
        round: seconds of the server's part of a round beside the checkpoint.
        checkpoint: seconds of a checkpoint.
        evaluation: seconds of an evaluation.
        up: bytes per image that cross to server-only parts in training.
        down: bytes per image that come back from them.
        latents: bytes per image of activations that go up after the last local epoch.
        extras: the other extras of a client in a round.
        client_bytes: size of a client's file of personal tensors; 0 if it keeps none.
    """

    step: float
    client: float
    round: float
    checkpoint: float
    evaluation: float
    up: float
    down: float
    latents: float
    extras: Ledger
    client_bytes: int


class Estimator:
    """Estimates costs; measures once per distinct (method, model, batch size, data, evaluation).

    Of configurations that differ in a method's real numbers alone, as those of a search do, three
    are measured; the slowest of these stands for all further ones.

    Args:
        data_dir: cache of data sets; None = the default one.
        device: `auto`, `cpu` or `cuda`.
        workers: processes that train clients of one run; None = as `run` would choose.
    """

    def __init__(
        self, data_dir: Path | None = None, device: str = "auto", workers: int | None = 1
    ) -> None:
        self._data_dir = data_dir
        devices = choose_devices(device, workers)
        self._device, self._workers = torch.device(devices[0]), len(devices)
        self._known: dict[str, dict[str, _Costs]] = {}

    def __call__(self, config: RunConfig) -> Estimate:
        """Estimate the cost of one configuration.

        Time, steps and bytes are upper bounds for methods that train on some of the images only:
        each client counts with all of them.

        Raises:
            FedbenchError: for a configuration or a data set that cannot be used.
        """
        check_precision(config.client.precision, self._device)
        with reproducible(self._device):
            return self._estimate(config)

    def _estimate(self, config: RunConfig) -> Estimate:
        setup = self._setup(config)
        layout = setup.layout(setup.make_net())
        all_sizes = setup.partition.sizes
        sizes = all_sizes[all_sizes > 0]
        batch, whole = config.client.batch_size, config.client.keep_last_batch
        steps = np.ceil(sizes / batch) if whole else sizes // batch  # (K,) per local epoch
        images = sizes if whole else steps * batch  # (K,)
        cohort = max(1, min(config.cohort_size, len(sizes)))
        rounds = config.federation.num_rounds + setup.method.needs().preparatory_rounds
        default = RoundPlan(config.client.local_epochs)
        epochs = [setup.method.plan_round(r, default).local_epochs for r in range(rounds)]
        trained = cohort * sum(map(bool, epochs))  # clients' parts of rounds that train
        visits, passes = cohort * rounds, cohort * sum(epochs)
        num_steps = float(steps.mean()) * passes
        num_images = float(images.mean()) * passes
        costs = self._costs(setup)
        traffic, per_client = Ledger(), Ledger.of_client(layout)
        traffic.merge(per_client.one_way("down"), visits)
        traffic.merge(per_client.one_way("up"), round(float((steps > 0).mean()) * trained))
        traffic.merge(costs.extras, visits)
        up = costs.up * num_images + costs.latents * float(images.mean()) * trained
        evaluations = 1 + config.evaluation.untrained
        evaluations += sum(config.evaluates_after(done, rounds) for done in range(1, rounds))
        busy = min(self._workers, cohort)
        further = cohort * min(2, rounds - 1)  # files of clients beside their newest one
        share = -(-cohort // busy) / cohort  # of a round's clients, at the busiest worker
        training = (num_steps * costs.step + visits * costs.client) * share + rounds * costs.round
        between = default_seconds(rounds)
        written = min(rounds, 1 + training / between) if between else rounds
        training += written * costs.checkpoint
        evaluating = evaluations * costs.evaluation
        starting = start_seconds() * (1 if busy == 1 else 2)  # the workers', after this one's
        return Estimate(
            seconds=training + evaluating + starting,
            train_seconds=training,
            evaluation_seconds=evaluating,
            start_seconds=starting,
            bytes_up=traffic.bytes_up + round(up),
            bytes_down=traffic.bytes_down + round(costs.down * num_images),
            # A client has one file, and another for each of the last two rounds that it took part
            # in after its first; each worker writes one.
            disk_bytes=2 * _checkpoint_bytes(config, layout)
            + (len(all_sizes) + further + busy) * costs.client_bytes,
            num_steps=round(num_steps),
            workers=busy,
            step_seconds=costs.step,
        )

    def _setup(self, config: RunConfig) -> Setup:
        dataset = open_dataset(config, self._data_dir)
        return Setup.of(config, dataset, partition_of(dataset, config))

    def _costs(self, setup: Setup) -> _Costs:
        config = setup.config
        protocols = config.evaluation.model_dump_json()
        clients = setup.partition.num_clients if setup.evaluate_on_clients else 0
        images = (len(setup.images), len(setup.dataset.test_images))
        client = config.client
        # Without the number of clients: a step and an evaluation cost the same for all of them, but
        # for clients that never fill a batch, whose steps are then overestimated.
        rest = (
            f"{config.spec}/{config.model}/{client.batch_size}/{client.optimizer}"
            f"/{client.precision}/{replace(setup.spec, num_clients=1)}/{config.data.label_fraction}"
            f"/{protocols}/{clients}/{images}"
        )
        values = flatten(config.method).items()
        shape = {k: v != 0 if isinstance(v, float) else v for k, v in values}  # 0 may drop a term
        alike = self._known.setdefault(f"{shape}/{rest}", {})
        key = str(config.method)
        if key not in alike:
            if len(alike) >= _ALIKE:
                return max(alike.values(), key=lambda costs: costs.step)
            alike[key] = self._measure(setup)
        return alike[key]

    def _measure(self, setup: Setup) -> _Costs:
        """Train the biggest client for a few steps of the last round, and evaluate."""
        config, needs = setup.config, setup.method.needs()
        biggest = int(setup.partition.sizes.argmax())
        last_round = max(0, config.federation.num_rounds + needs.preparatory_rounds - 1)
        # An incomplete batch is measured too: it may be the only one that the client has.
        client = config.client.model_copy(update={"keep_last_batch": True})
        timed = replace(setup, config=config.model_copy(update={"client": client}))
        with temporary_folder() as folder, single_thread():
            runner = _TimedRunner(timed, self._device, folder)
            server = runner.binding.server.data.clone()
            upload = torch.empty(runner.layout.upload_size, device=self._device)
            began = time.perf_counter()
            task = Task(biggest, last_round, 1, None)
            extras = Ledger()
            if needs.survey:
                asked = runner.run(replace(task, survey=True), server, upload)
                extras.merge(asked.wire)
                extras.merge(Ledger.resent(runner.layout, needs.survey))
            surveyed = extras.bytes_up
            trained = runner.run(task, server, upload)
            seconds = time.perf_counter() - began
            client_bytes = sum(path.stat().st_size for path in folder.iterdir())
        extras.add_extras({n: value for n, value in trained.extras.items() if n != ACTIVATIONS})
        wire, activations = runner.binding.net.wire, trained.extras.get(ACTIVATIONS)
        latents = trained.wire.bytes_up - wire.up - (extras.bytes_up - surveyed)
        images, steps = max(1, runner.num_images), runner.seconds
        return _Costs(
            step=median(steps[_WARM_UP:] or steps[1:] or steps or [0.0]),
            client=seconds - sum(steps),
            **self._round_seconds(setup, runner.binding),
            evaluation=self._evaluation_seconds(setup),
            up=wire.up / images,
            down=wire.down / images,
            latents=0.0 if activations is None else latents / len(activations),
            extras=extras,
            client_bytes=client_bytes,
        )

    def _round_seconds(self, setup: Setup, binding: Binding) -> dict[str, float]:
        """Seconds of the collapse detector, as `round`, and of a checkpoint."""
        with temporary_folder() as folder, single_thread():
            for index in range(2):  # the first one is slower
                began = time.perf_counter()
                CollapseMonitor(setup, self._device)(binding)
                measured = time.perf_counter()
                tensors = {"server": binding.server.data.cpu()}
                save_checkpoint(folder, Checkpoint(index, tensors, {}))
                ended = time.perf_counter()
        return {"round": measured - began, "checkpoint": ended - measured}

    def _evaluation_seconds(self, setup: Setup) -> float:
        """Seconds of an evaluation of a new encoder; of many images, some are measured.

        Of a large encoder an eighth of these is enough: the images take nearly all of the time.
        """
        seconds = self._timed_evaluation(setup, 8)
        return seconds if seconds > 8 * _LONG else self._timed_evaluation(setup, 1)

    def _timed_evaluation(self, setup: Setup, divisor: int) -> float:
        given = (len(setup.images), len(setup.dataset.test_images))
        train, test = (-(-min(each) // divisor) for each in zip(given, _EVALUATED, strict=True))
        if (train, test) != given:
            # How clients share images costs nothing here, and fewer might not fill every client.
            even = {"partition": "iid", "legacy": False, "min_client_size": 0}
            data = setup.config.data.model_copy(
                update={"train_subset": train, "test_subset": test, **even}
            )
            setup = self._setup(setup.config.model_copy(update={"data": data}))
        net = setup.make_net()
        binding = setup.layout(net).bind(net, self._device)
        protocols = setup.config.evaluation.protocols
        for _ in range(2):
            began = time.perf_counter()
            evaluate(setup, binding, lambda client_id: None, protocols, self._device)
            seconds = time.perf_counter() - began
            if seconds > _LONG:
                break
        return seconds * sum(given) / (train + test)


def estimates(
    configs: Sequence[RunConfig], data_dir: Path | None, device: str, workers: int
) -> list[Estimate]:
    """Estimate the cost of configurations without starting CUDA in this process.

    On a GPU another process measures and then ends, since a process that has started CUDA holds
    some hundred megabytes of the GPU until its own end.

    Args:
        configs: the configurations.
        data_dir: cache of data sets; None = the default one.
        device: `cpu` or `cuda`.
        workers: processes that train clients of one run.

    Raises:
        FedbenchError: as `Estimator`; ResourceError if that process dies.
    """
    if device == "cpu":
        measure = Estimator(data_dir, device, workers)
        return [measure(config) for config in configs]
    order = {
        "configs": [config.model_dump(mode="json") for config in configs],
        "data_dir": None if data_dir is None else str(data_dir),
        "device": device,
        "workers": workers,
    }
    command = [sys.executable, "-P", "-m", __name__]
    done = subprocess.run(command, input=json.dumps(order), stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise ResourceError(
            f"the process that measures on the GPU died (exit code {done.returncode}; its message"
            " is above); `fedbench doctor` checks the GPU"
        )
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise rebuild(*answer["error"])
    return [Estimate(**fields) for fields in answer["estimates"]]


def _answer(order: Mapping[str, Any]) -> dict[str, Any]:
    """Measure what `estimates` asks another process for."""
    data_dir = order["data_dir"]
    try:
        measure = Estimator(data_dir and Path(data_dir), order["device"], order["workers"])
        configs = map(RunConfig.model_validate, order["configs"])
        return {"estimates": [asdict(measure(config)) for config in configs]}
    except FedbenchError as err:
        return {"error": described(err)}


class _TimedRunner(ClientRunner):
    """Trains a client for a few local steps and measures each of them.

    Attributes:
        seconds: duration of each step and of making its batch.
        num_images: images in these steps.
    """

    def __init__(self, setup: Setup, device: torch.device, personal_dir: Path) -> None:
        super().__init__(setup, device, personal_dir)
        self.seconds: list[float] = []
        self.num_images = 0

    def _batches(self, data: ClientData, task: Task, client: Client) -> Iterator[Batch]:
        wanted = (_WARM_UP + _MEASURED) * self.setup.config.client.batch_size
        epochs = 1 + wanted // max(1, len(data))
        began = time.perf_counter()
        for batch in super()._batches(data, replace(task, local_epochs=epochs), client):
            yield batch
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            now = time.perf_counter()
            self.seconds.append(now - began)
            self.num_images += len(batch.labels)
            began = now
            enough = _ENOUGH_SECONDS if len(self.seconds) > 1 else _LONG_STEP_SECONDS
            if sum(self.seconds) > enough or len(self.seconds) >= _WARM_UP + _MEASURED:
                return


@cache
def start_seconds() -> float:
    """Seconds from the start of a process to its first client; measured once."""
    command = [sys.executable, "-P", "-c", "import fedbench.bench.training.workers"]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    return time.perf_counter() - began


def _checkpoint_bytes(config: RunConfig, layout: Layout) -> int:
    """Size of a checkpoint: the server's tensors and its optimizer's moments."""
    moments = {"average": 0, "momentum": 1, "adagrad": 1}.get(config.server.optimizer, 2)
    return BYTES_PER_NUMBER * (layout.server_size + moments * optimized_size(layout))


if __name__ == "__main__":
    warnings.simplefilter("ignore", PluginWarning)  # the other process has shown it
    with redirect_stdout(sys.stderr):
        answer = _answer(json.load(sys.stdin))
    json.dump(answer, sys.stdout)
