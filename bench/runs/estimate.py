"""Cost of a run before it is run: steps and bytes by counting, time from one real round of it.

The round is the run's last but one, of a few of its clients, whose training is cut short after some
seconds; all else in it happens as in the run. Which clients take part in which round is drawn as in
the run, so that steps and bytes are exact unless the method leaves out images by what it has
learned. Left out are the decoding of a data set that is not in the cache yet, and other load on the
machine.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

from fedbench.bench.config import RunConfig
from fedbench.bench.config.dotted import flatten
from fedbench.bench.data.batches import Batch, ClientData
from fedbench.bench.evaluation.collapse import CollapseMonitor
from fedbench.bench.evaluation.suite import evaluate
from fedbench.bench.method import ACTIVATIONS, Client
from fedbench.bench.runs.execute import open_dataset
from fedbench.bench.system.compute import choose_devices
from fedbench.bench.system.regime import check_precision, reproducible
from fedbench.bench.system.scratch import temporary_folder
from fedbench.bench.system.seeding import single_thread
from fedbench.bench.training.checkpoint import Checkpoint, save_checkpoint
from fedbench.bench.training.client import ClientRunner, Task, Trained
from fedbench.bench.training.cohort import cohort_of, plan_of
from fedbench.bench.training.ledger import Ledger
from fedbench.bench.training.setup import Setup
from fedbench.bench.training.steps import partition_of, steps_per_epoch
from fedbench.bench.training.trainer import Diverged, Trainer, default_seconds
from fedbench.bench.training.workers import InProcess

_CLIENTS = 4  # clients that are run of a cohort
_WARM_UP, _STEPS = 2, 6
"""Local steps of the first client that are not counted, and of each client that are."""
_STEP_SECONDS = 4.0  # time after which no further step is made, unless none was
_EVALUATED = (2000, 1000)
"""Training and test images of the evaluation that is measured; more take time in proportion."""
_LONG = 5.0  # seconds of an evaluation of an eighth of these which is enough to go by


@dataclass(frozen=True)
class Estimate:
    """Cost of one run."""

    seconds: float  # with the given workers: the sum of the next three
    train_seconds: float
    evaluation_seconds: float
    start_seconds: float  # of the processes
    bytes_up: int  # from clients to server, whole run
    bytes_down: int
    num_steps: int  # local steps of the whole run
    workers: int
    step_seconds: float  # of one step on one worker


@dataclass
class _Parts:
    """Measured parts of a run: seconds, and bytes that no declaration tells."""

    evaluation: float  # one of them
    step: float = 0.0
    client: float = 0.0  # a client's part of a round, without its steps
    server: float = 0.0  # the server's part of a round, without the checkpoint
    checkpoint: float = 0.0
    wire: tuple[float, float] = (0.0, 0.0)  # bytes per image to server-only parts, up and down
    latents: float = 0.0  # bytes per image of activations that go up after the last local epoch
    extras: float = 0.0  # bytes of a client's other extras in a round, and before it


class Estimator:
    """Estimates costs; measures once for all configurations whose parts take equally long."""

    def __init__(
        self, data_dir: Path | None = None, device: str = "auto", workers: int | None = 1
    ) -> None:
        self._data_dir = data_dir
        devices = choose_devices(device, workers)
        self._device, self._workers = torch.device(devices[0]), len(devices)
        self._known: dict[str, _Parts] = {}

    def __call__(self, config: RunConfig, *, trains: bool = True) -> Estimate:
        """Estimate the cost of a configuration, or of evaluating stored weights of one."""
        check_precision(config.client.precision, self._device)
        with reproducible(self._device), temporary_folder() as folder:
            setup = self._setup(config)
            monitor = CollapseMonitor(setup, self._device)
            trainer = Trainer(setup, folder, "", self._device, monitor, float("inf"))
            if (key := self._key(setup)) not in self._known:
                self._known[key] = self._measure(setup, trainer)
            rounds = trainer.total_rounds if trains else 0
            return self._extrapolate(setup, trainer, self._known[key], rounds)

    def _extrapolate(self, setup: Setup, trainer: Trainer, parts: _Parts, rounds: int) -> Estimate:
        config = setup.config
        steps = steps_per_epoch(config, setup.dataset)  # (K,)
        images = np.minimum(setup.partition.sizes, steps * config.client.batch_size)  # (K,)
        visits = trained = num_steps = num_images = num_latents = 0
        for index in range(rounds):
            epochs, cohort = plan_of(setup, index).local_epochs, cohort_of(setup, index)
            visits += len(cohort)
            num_steps += epochs * int(steps[cohort].sum())
            num_images += epochs * int(images[cohort].sum())
            num_latents += int(images[cohort].sum()) if epochs else 0
            trained += int((steps[cohort] > 0).sum()) if epochs else 0
        weights = Ledger.of_client(trainer.layout)
        again = Ledger.resent(trainer.layout, setup.method.needs().pre_round)
        bytes_up = trained * weights.bytes_up + visits * parts.extras
        bytes_up += num_images * parts.wire[0] + num_latents * parts.latents
        bytes_down = visits * (weights.bytes_down + again.bytes_down) + num_images * parts.wire[1]
        cohort_size = max(1, round(visits / max(1, rounds)))
        busy = min(self._workers, cohort_size)
        share = -(-cohort_size // busy) / cohort_size  # of a round's clients, at the busiest worker
        training = (num_steps * parts.step + visits * parts.client) * share + rounds * parts.server
        between = default_seconds(rounds)
        training += parts.checkpoint * (min(rounds, 1 + training / between) if between else rounds)
        evaluations = 1 + config.evaluation.untrained
        evaluations += sum(config.evaluates_after(done, rounds) for done in range(1, rounds))
        evaluating = evaluations * parts.evaluation
        starting = start_seconds() * (1 if busy == 1 else 2)  # the workers', after this one's
        return Estimate(
            seconds=training + evaluating + starting,
            train_seconds=training,
            evaluation_seconds=evaluating,
            start_seconds=starting,
            bytes_up=round(bytes_up),
            bytes_down=round(bytes_down),
            num_steps=num_steps,
            workers=busy,
            step_seconds=parts.step,
        )

    def _setup(self, config: RunConfig) -> Setup:
        dataset = open_dataset(config, self._data_dir)
        return Setup.of(config, dataset, partition_of(dataset, config))

    def _key(self, setup: Setup) -> str:
        """Return what the parts of a run take their time by; 0 may drop a term of a method."""
        config, client = setup.config, setup.config.client
        method = {
            k: v != 0 if isinstance(v, float) else v for k, v in flatten(config.method).items()
        }
        return (
            f"{config.spec} {method} {config.model} {client.batch_size} {client.optimizer}"
            f" {client.precision} {config.evaluation} {config.data.label_fraction}"
            f" {replace(setup.spec, num_clients=1)} {len(setup.images)}"
            f" {len(setup.dataset.test_images)} {config.federation.num_rounds > 0}"
            f" {setup.partition.num_clients if setup.evaluate_on_clients else 0}"
        )

    def _measure(self, setup: Setup, trainer: Trainer) -> _Parts:
        parts = _Parts(evaluation=self._evaluation_seconds(setup))
        if not trainer.total_rounds:
            return parts
        runner = _TimedRunner(setup, self._device, trainer.folder / "clients")
        executor = _CutShort(runner)
        trainer.rounds_done = max(0, trainer.total_rounds - 2)  # later ones may take longer
        began = time.perf_counter()
        with suppress(Diverged):
            next(trainer.rounds(executor))
        parts.server = max(0.0, time.perf_counter() - began - runner.seconds)
        began = time.perf_counter()
        with single_thread():
            save_checkpoint(trainer.folder, Checkpoint(0, {"server": trainer.vector.cpu()}, {}))
        parts.checkpoint = time.perf_counter() - began
        timed = runner.steps
        parts.step = median(timed[_WARM_UP:] or timed[1:] or timed or [0.0])
        parts.client = max(0.0, runner.seconds - sum(timed)) / max(1, runner.clients)
        images = max(1, runner.images)
        parts.wire = runner.wire[0] / images, runner.wire[1] / images
        parts.latents = runner.latents / max(1, runner.latent_images)
        parts.extras = runner.extras / max(1, runner.clients)
        return parts

    def _evaluation_seconds(self, setup: Setup) -> float:
        """Seconds of an evaluation of a new encoder; of many images, some are measured.

        Of a large encoder an eighth of these is enough: the images take nearly all of the time.
        """
        given = (len(setup.images), len(setup.dataset.test_images))
        # The partition costs nothing here, and fewer images might not fill every client.
        plain = {"partition": "iid", "legacy": False, "min_client_size": 0}
        seconds = share = 0.0
        for divisor in (8, 1):
            train, test = (-(-min(each) // divisor) for each in zip(given, _EVALUATED, strict=True))
            part, protocols = setup, setup.config.evaluation.protocols
            if (train, test) != given:
                subset = {"train_subset": train, "test_subset": test, **plain}
                data = setup.config.data.model_copy(update=subset)
                part = self._setup(setup.config.model_copy(update={"data": data}))
            net = part.make_net()
            binding = part.layout(net).bind(net, self._device)
            began = time.perf_counter()
            evaluate(part, binding, lambda client_id: None, protocols, self._device)
            seconds, share = time.perf_counter() - began, (train + test) / sum(given)
            if seconds >= _LONG:
                break
        return seconds / share


class _TimedRunner(ClientRunner):
    """Trains clients for a few local steps and measures each of them."""

    def __init__(self, setup: Setup, device: torch.device, personal_dir: Path) -> None:
        super().__init__(setup, device, personal_dir)
        self.clients = self.images = 0
        self.latents = self.latent_images = 0  # bytes that went up after the steps, of how many
        self.extras = 0  # bytes of all else that went up, without weights
        self.seconds = 0.0  # of all clients' parts of the round
        self.steps: list[float] = []  # seconds of each, with making its batch
        self.wire = (0, 0)  # bytes to server-only parts in these steps, up and down

    def run(self, task: Task, server: Tensor, out: Tensor) -> Trained:
        """Train one client, or ask for its pre-round statistics."""
        began = time.perf_counter()
        trained = super().run(task, server, out)
        self.seconds += time.perf_counter() - began
        wire = self.binding.net.wire
        crossed = (0, 0) if task.pre_round else (wire.up, wire.down)
        activations = trained.wire.up.get(ACTIVATIONS, 0)
        self.clients += not task.pre_round
        self.wire = self.wire[0] + crossed[0], self.wire[1] + crossed[1]
        self.latents += activations - crossed[0]
        self.latent_images += len(trained.extras.get(ACTIVATIONS, ()))
        self.extras += trained.wire.bytes_up - activations
        return trained

    def _batches(self, data: ClientData, task: Task, client: Client) -> Iterator[Batch]:
        most = _STEPS + (0 if self.steps else _WARM_UP)
        began = time.perf_counter()
        for count, batch in enumerate(super()._batches(data, task, client), start=1):
            yield batch
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            now = time.perf_counter()
            self.steps.append(now - began)
            self.images += len(batch.labels)
            began = now
            if count >= most or sum(self.steps) > _STEP_SECONDS:
                return


class _CutShort(InProcess):
    """Executor that runs a few clients of a cohort, if possible those that make steps."""

    def train(self, tasks: Sequence[Task], server: Tensor) -> Iterator[tuple[Trained, Tensor]]:
        """Yield their results."""
        setup = self._runner.setup
        steps = steps_per_epoch(setup.config, setup.dataset)
        some = sorted(tasks, key=lambda task: not steps[task.client_id])[:_CLIENTS]
        yield from super().train(some, server)


@cache
def start_seconds() -> float:
    """Seconds from the start of a process to its first client; measured once."""
    command = [sys.executable, "-P", "-c", "import fedbench.bench.training.workers"]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    return time.perf_counter() - began
