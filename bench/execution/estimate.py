"""Cost of a run before it is run: steps and bytes by counting, time from a few real steps of it.

Nearly all time of a run goes into its encoder, and an encoder takes the same time for each image.
So a few steps and a few passes are made and timed. Everything else happens once in small, in a
round of some clients and an evaluation of some images, with stand-ins for the encoders that only
count: what these take apart from their encoders, plus the counted images times the time of one.
Which clients take part in which round is drawn as in the run, so that steps and bytes are exact
unless the method leaves out images by what it has learned. Left out are the decoding of a data set
that is not in the cache yet, and other load on the machine: of a CPU its own time is taken, and
the time on the clock says only when to stop measuring.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbench.bench.config.dotted import flatten
from fedbench.bench.config.schema import RunConfig
from fedbench.bench.data.batches import Batch, ClientData
from fedbench.bench.evaluation.collapse import CollapseMonitor
from fedbench.bench.evaluation.probes import few_shot_images
from fedbench.bench.evaluation.sgd import FRACTIONS, finetuned_images
from fedbench.bench.evaluation.suite import evaluate, evaluated_clients
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.experiment.steps import steps_per_epoch
from fedbench.bench.method import ACTIVATIONS, Client, Loss, Net
from fedbench.bench.nn.optimizers import Optimizer
from fedbench.bench.system.regime import check_precision, reproducible
from fedbench.bench.system.scratch import temporary_folder
from fedbench.bench.system.seeding import single_thread
from fedbench.bench.training.checkpoint import Checkpoint, save_checkpoint
from fedbench.bench.training.client import ClientRunner, Task, Trained
from fedbench.bench.training.clients import Executor
from fedbench.bench.training.layout import VectorLayout
from fedbench.bench.training.ledger import Ledger
from fedbench.bench.training.personal import PersonalStore
from fedbench.bench.training.setup import Setup
from fedbench.bench.training.timeline import Timeline
from fedbench.bench.training.trainer import Diverged, Trainer, default_seconds

_CLIENTS = 4  # clients that are run of a cohort
_WARM_UP, _STEPS = 2, 6
"""Local steps of the first client that are not counted, and of each client that are."""
_STEP_SECONDS, _ALL_STEPS_SECONDS = 3.0, 4.5
"""Time after which no further step is made, unless none was: of one method, and of all in a plan.

A larger batch than half of it allows is cut, and its step counted in proportion.
"""
_PASS_SECONDS = 0.5  # of the passes by which an encoder's time for an image is measured
_MOST_IMAGES = 256  # in one of these
_BACKWARD = 3.0  # time of a pass forward and back, in passes forward
_EVALUATED = (2000, 1000)
"""Training and test images of the evaluation that is measured; more take time in proportion."""
_LONG, _TOO_LONG = 4.0, 6.0
"""Seconds of an evaluation of an eighth of these which are enough, and after which it is ended."""
_LITTLE = 0.1  # share of a run's time that evaluations may take to be told by an eighth of these


@dataclass(frozen=True)
class Estimate:
    """Cost of one run."""

    seconds: float  # with the given workers: the sum of the next three
    train_seconds: float
    evaluation_seconds: float
    start_seconds: float  # of the processes, and of compiling where `client.compile`
    bytes_up: int  # from clients to server, whole run
    bytes_down: int
    num_steps: int  # local steps of the whole run
    simulated_hours: float | None  # of the devices; None = none are simulated
    workers: int
    step_seconds: float  # of one step on one worker


@dataclass
class _Parts:
    """Measured parts of a run: seconds, and bytes that no declaration tells."""

    evaluation: float = 0.0  # one of them
    step: float = 0.0
    client: float = 0.0  # a client's part of a round, without its steps
    server: float = 0.0  # the server's part of a round, without the checkpoint
    checkpoint: float = 0.0
    wire: tuple[float, float] = (0.0, 0.0)  # bytes per image to server-only parts, up and down
    latents: float = 0.0  # bytes per image of activations that go up after the last local epoch
    extras: float = 0.0  # bytes of a client's other extras in a round, and before it
    compiling: float = 0.0  # which each process does once


class Estimator:
    """Estimates costs; measures once for all configurations whose parts take equally long."""

    def __init__(
        self,
        devices: Sequence[str],
        on_timing: Callable[[str], None] | None = None,
        *,
        methods: int = 1,  # among the runs; they share the time for measuring steps
    ) -> None:
        self._step_seconds = min(_STEP_SECONDS, _ALL_STEPS_SECONDS / max(1, methods))
        self._on_timing = on_timing  # called with the method of a run whose parts are timed
        self._device, self._workers = torch.device(devices[0]), len(devices)
        self._known: dict[str, _Parts] = {}
        self._layouts: dict[str, VectorLayout] = {}
        self._shared: dict[str, float] = {}  # seconds of what is the same for all methods
        self._clock = _clock(self._device)
        _starting()  # which works beside this process

    def __call__(self, experiment: Experiment, *, trains: bool = True) -> Estimate:
        """Estimate the cost of a run, or of evaluating stored weights of one."""
        check_precision(experiment.config.client.precision, self._device)
        experiment = experiment.on(experiment.dataset)  # whose net goes when this ends
        with reproducible(self._device), temporary_folder() as folder:
            setup = experiment.setup
            if (key := self._key(setup)) not in self._known:
                if self._on_timing is not None:
                    self._on_timing(experiment.config.spec)
                self._known[key] = self._measure(experiment, folder)
            # Tensors may have a row for each client.
            if (shapes := f"{key} {setup.spec.num_clients}") not in self._layouts:
                self._layouts[shapes] = setup.layout(setup.make_net())
            return self._extrapolate(experiment, self._known[key], self._layouts[shapes], trains)

    def step(self, experiment: Experiment) -> tuple[float, float]:
        """Return the seconds of a local step, and of compiling; both 0 for a run of no rounds."""
        experiment = experiment.on(experiment.dataset)
        with reproducible(self._device), temporary_folder() as folder:
            if not _rounds(experiment.setup):
                return 0.0, 0.0
            parts = self._training(experiment, folder, self._image(experiment.setup))
            return parts.step, parts.compiling

    def _extrapolate(
        self, experiment: Experiment, parts: _Parts, layout: VectorLayout, trains: bool
    ) -> Estimate:
        config, setup = experiment.config, experiment.setup
        rounds = _rounds(setup) if trains else 0
        timeline = Timeline(setup, setup.make_net, layout)
        steps = steps_per_epoch(experiment)  # (K,)
        images = np.minimum(setup.partition.sizes, steps * config.client.batch_size)  # (K,)
        visits = received = trained = num_steps = num_images = num_latents = 0
        simulated = 0.0
        for each in islice(timeline.rounds(), rounds):
            received += len(each.asked)
            visits += len(each.tasks)
            simulated += each.seconds or 0.0
            if not each.tasks:
                continue
            cohort = [task.client_id for task in each.tasks]
            epochs = np.array([task.plan.local_epochs for task in each.tasks])
            made = epochs * steps[cohort]
            most = [task.max_steps for task in each.tasks if task.max_steps is not None]
            made = np.minimum(made, most) if most else made
            passes = made / np.maximum(steps[cohort], 1)
            num_steps += int(made.sum())
            num_images += int((passes * images[cohort]).sum())
            num_latents += int(images[cohort][made > 0].sum())
            trained += int((made > 0).sum())
        weights = Ledger.of_client(layout)
        again = Ledger.resent(layout, setup.needs.pre_round)
        bytes_up = trained * weights.bytes_up + visits * parts.extras
        bytes_up += num_images * parts.wire[0] + num_latents * parts.latents
        bytes_down = received * (weights.bytes_down + again.bytes_down) + num_images * parts.wire[1]
        cohort_size = max(1, round(visits / max(1, rounds)))
        busy = min(self._workers, cohort_size)
        share = -(-cohort_size // busy) / cohort_size  # of a round's clients, at the busiest worker
        training = (num_steps * parts.step + visits * parts.client) * share + rounds * parts.server
        between = default_seconds(rounds)
        training += parts.checkpoint * (min(rounds, 1 + training / between) if between else rounds)
        evaluating = _evaluations(config, rounds) * parts.evaluation
        starting = start_seconds() * (1 if busy == 1 else 2)  # the workers', after this one's
        starting += parts.compiling if rounds else 0.0
        return Estimate(
            seconds=training + evaluating + starting,
            train_seconds=training,
            evaluation_seconds=evaluating,
            start_seconds=starting,
            bytes_up=round(bytes_up),
            bytes_down=round(bytes_down),
            num_steps=num_steps,
            simulated_hours=None if timeline.fleet is None else simulated / 3600,
            workers=busy,
            step_seconds=parts.step,
        )

    def _key(self, setup: Setup) -> str:
        """Return what the parts of a run take their time by; 0 may drop a term of a method."""
        config, client = setup.config, setup.config.client
        method = {
            k: v != 0 if isinstance(v, float) else v for k, v in flatten(config.method).items()
        }
        return (
            f"{config.spec} {method} {config.model} {client.batch_size} {client.optimizer}"
            f" {client.precision} {client.compile} {config.evaluation} {config.data.label_fraction}"
            f" {config.server.aggregator}"
            f" {replace(setup.spec, num_clients=1)} {len(setup.images)}"
            f" {len(setup.dataset.test_images)} {config.federation.num_rounds > 0}"
            f" {setup.partition.num_clients if setup.evaluate_on_clients else 0}"
        )

    def _measure(self, experiment: Experiment, folder: Path) -> _Parts:
        image, evaluation = self._encoder_seconds(experiment)
        if not _rounds(experiment.setup):
            return _Parts(evaluation=evaluation)
        return replace(self._training(experiment, folder, image), evaluation=evaluation)

    def _training(self, experiment: Experiment, folder: Path, image: float) -> _Parts:
        """Measure a round; `image`: seconds of one through the encoder."""
        setup = experiment.setup
        batch, needs, parts = setup.config.client.batch_size, setup.needs, _Parts()
        quick = int(self._step_seconds / 2 / (image * _BACKWARD * max(1, len(needs.views))))
        if (measured := max(2, needs.min_batch, quick)) < batch:
            experiment = experiment.varied("client", batch_size=measured)
            setup = experiment.setup
        monitor = CollapseMonitor(setup, self._device, PersonalStore(folder / "clients"))
        trainer = Trainer(setup, folder, "", self._device, monitor, float("inf"))
        runner = _TimedRunner(experiment, self._device, folder / "clients", self._step_seconds)
        stand_ins = runner.stand_ins
        # Later rounds may take longer, and the last would write a checkpoint, which is timed apart.
        trainer.rounds_done = max(0, trainer.total_rounds - 2)
        began = self._clock()
        with suppress(Diverged), stand_ins.of(trainer.binding.net), stand_ins.of(runner.net):
            next(trainer.rounds(runner))
        elapsed = self._clock() - began
        at_clients = runner.seconds + image * runner.passed
        parts.server = max(0.0, elapsed - runner.seconds) + image * (
            stand_ins.images - runner.passed
        )
        parts.checkpoint = self._checkpoint_seconds(trainer)
        timed = runner.steps
        step = median(timed[_WARM_UP:] or timed[1:] or timed or [0.0])
        parts.step = step * max(1.0, batch / measured)
        if setup.config.client.compile:
            parts.compiling = max(0.0, sum(timed[:_WARM_UP]) - _WARM_UP * step)
        parts.client = max(0.0, at_clients - runner.stepping) / max(1, runner.clients)
        images = max(1, runner.images)
        parts.wire = runner.wire[0] / images, runner.wire[1] / images
        parts.latents = runner.latents / max(1, runner.latent_images)
        parts.extras = runner.extras / max(1, runner.clients)
        return parts

    def _checkpoint_seconds(self, trainer: Trainer) -> float:
        """Return the seconds of writing a checkpoint, by its size after the first."""
        size, known = trainer.vector.numel(), self._shared
        if "number" not in known:
            began = time.perf_counter()
            with single_thread():
                save_checkpoint(trainer.folder, Checkpoint(0, {"server": trainer.vector.cpu()}, {}))
            known["number"] = (time.perf_counter() - began) / max(1, size)
        return size * known["number"]

    def _encoder_seconds(self, experiment: Experiment) -> tuple[float, float]:
        """Return the seconds of an image, and of an evaluation; both once for all methods."""
        setup, known = experiment.setup, self._shared
        config, needs, image = setup.config, setup.needs, self._image(setup)
        own = setup.evaluate_on_clients and setup.partition.num_clients
        of_all = (
            f"{_encoder(setup)} {config.evaluation} {config.data.label_fraction} {needs.encoders}"
        )
        of_all += f" {own} {len(setup.images)} {len(setup.dataset.test_images)} {needs.pooled}"
        if of_all not in known:
            known[of_all] = self._evaluation_seconds(experiment, image)
        return image, known[of_all]

    def _image(self, setup: Setup) -> float:
        """Return the seconds of one image through the encoder, once for all methods."""
        if (key := _encoder(setup)) not in self._shared:
            self._shared[key] = self._image_seconds(setup)
        return self._shared[key]

    def _image_seconds(self, setup: Setup) -> float:
        """Seconds in which the encoder takes one image forward."""
        net = setup.bound(self._device).net.eval()
        count, seconds = 2, 0.0
        with single_thread(), torch.no_grad():
            while True:
                images = torch.zeros(count, *setup.spec.image_shape, device=self._device)
                shown, began = time.perf_counter(), self._clock()
                net(images, "encoder").sum().item()  # which waits for a GPU
                seconds = self._clock() - began
                if 4 * (time.perf_counter() - shown) > _PASS_SECONDS or count >= _MOST_IMAGES:
                    return seconds / count
                count *= 4

    def _evaluation_seconds(self, experiment: Experiment, image: float) -> float:
        """Seconds of an evaluation of a new encoder that takes `image` seconds for one image.

        Of many images, some are measured, first an eighth of these, which is enough where the
        evaluations of a run are short beside its training. Fine-tuning, whose steps do not
        fall with the images and whose nets are its own, is counted; few-shot takes time by the
        images that its probes see, and what is cut off in it is in proportion.
        """
        setup = experiment.setup
        given = (len(setup.images), len(setup.dataset.test_images))
        asked, tuning = setup.config.evaluation.protocols, 0.0
        protocols = [name for name in asked if name != "finetune"]
        encoders = len(evaluated_clients(setup, ())) if setup.evaluate_on_clients else 1
        if protocols != [*asked]:
            passed = len(FRACTIONS) * given[1]
            tuning = encoders * image * (_BACKWARD * finetuned_images(setup) + passed)
        config, rounds = setup.config, setup.config.federation.num_rounds
        trained = rounds * config.federation.participation * config.client.local_epochs * given[0]
        training = trained * _BACKWARD * image  # at least
        # The partition costs nothing here, and fewer images might not fill every client.
        plain = {"partition": "iid", "legacy": False, "min_client_size": 0}
        seconds = share = 0.0
        for divisor in (8, 1):
            train, test = (-(-min(each) // divisor) for each in zip(given, _EVALUATED, strict=True))
            part = setup
            if (train, test) != given:
                subset: dict[str, Any] = {"train_subset": train, "test_subset": test, **plain}
                part = experiment.varied("data", **subset).setup
            binding = part.bound(self._device)
            shown, began = time.perf_counter(), self._clock()
            stand_ins = _StandIns(part, shown + _TOO_LONG)
            few_shot = _FewShot(self._clock, shown + _TOO_LONG)
            with suppress(_TooLong), stand_ins.of(binding.net):
                evaluate(part, binding, lambda _: None, protocols, self._device, on_step=few_shot)
            elapsed, share = self._clock() - began, (train + test) / sum(given)
            seconds = elapsed + image * (stand_ins.images + _BACKWARD * stand_ins.trained)
            seconds -= few_shot.seconds
            little = _LITTLE * training > seconds / share * _evaluations(config, rounds)
            if little or time.perf_counter() - shown >= _LONG:
                break
        labels, classes = setup.dataset.train_labels[setup.probed], setup.dataset.num_classes
        shots = encoders * few_shot_images(labels, classes) * few_shot.seconds_per_image
        return seconds / share + shots + tuning


@dataclass
class _FewShot:
    """Times the probes of few-shot, and ends them after a deadline."""

    clock: Callable[[], float]
    deadline: float  # of `time.perf_counter`
    seconds: float = 0.0
    images: int = 0  # that probes have seen
    _last: tuple[float, int] = (0.0, 0)  # time and images of the last step

    def __call__(self, protocol: str, done: int, total: int) -> None:
        if protocol != "few-shot":
            return
        now = self.clock()
        if done:
            self.seconds += now - self._last[0]
            self.images += done - self._last[1]
        self._last = now, done
        if done and time.perf_counter() > self.deadline:
            raise _TooLong

    @property
    def seconds_per_image(self) -> float:
        return self.seconds / max(1, self.images)


class _TooLong(Exception):  # noqa: N818
    """Ends an evaluation whose time is a lower bound then."""


@dataclass
class _StandIns:
    """Counts images that encoders would take; what comes out is cut from the images themselves."""

    setup: Setup
    deadline: float = float("inf")  # of `time.perf_counter`
    images: int = 0  # forward
    trained: int = 0  # forward and back
    active: bool = True
    _shapes: dict[tuple[int, ...], torch.Size] = field(default_factory=dict)

    @contextmanager
    def of(self, net: Net) -> Iterator[None]:
        """Put stand-ins in the place of a net's encoders for the length of the block."""
        parts = [net[name] for name in ("encoder", *self.setup.needs.encoders.values())]
        for part in parts:
            part.forward = partial(self._forward, part.forward)
        try:
            yield
        finally:
            for part in parts:
                del part.forward

    def _forward(self, encoder: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        if not self.active or len(inputs) != 1:
            return encoder(*inputs)
        if time.perf_counter() > self.deadline:
            raise _TooLong
        (images,) = inputs
        if (key := tuple(images.shape[1:])) not in self._shapes:
            with torch.no_grad():
                self._shapes[key] = encoder(images[:2]).shape[1:]
        shape = self._shapes[key]
        if torch.is_grad_enabled():
            self.trained += len(images)
        else:
            self.images += len(images)
        flat = images.flatten(1)
        return flat.repeat(1, -(-shape.numel() // flat.shape[1]))[:, : shape.numel()].reshape(
            len(images), *shape
        )


class _TimedRunner(ClientRunner, Executor):
    """Trains some clients for a few local steps and measures each of them."""

    def __init__(
        self, experiment: Experiment, device: torch.device, personal_dir: Path, seconds: float
    ) -> None:
        super().__init__(experiment.setup, device, personal_dir)
        self._per_epoch = steps_per_epoch(experiment)  # (K,)
        self.net, self._clock = self.binding.net, _clock(device)
        self.stand_ins = _StandIns(experiment.setup)
        self._seconds = seconds
        self._until = time.perf_counter() + seconds
        self.passed = 0  # images of stand-ins in the clients' parts
        self.clients = self.images = 0
        self.latents = self.latent_images = 0  # bytes that went up after the steps, of how many
        self.extras = 0  # bytes of all else that went up, without weights
        self.seconds = 0.0  # of all clients' parts of the round
        self.steps: list[float] = []  # seconds of each, with making its batch
        self.stepping = 0.0  # seconds of them all; of those that compile, this process's alone
        self.wire = (0, 0)  # bytes to server-only parts in these steps, up and down

    def train(self, tasks: Sequence[Task], server: Tensor) -> Iterator[tuple[Trained, Tensor]]:
        """As `Executor.train`, of a few clients, if possible of those that make steps.

        After some seconds there is no further one.
        """
        some = sorted(tasks, key=lambda task: not self._per_epoch[task.client_id])[:_CLIENTS]
        upload = torch.empty(self.layout.upload_size, device=self.device)
        for task in some:
            with single_thread():
                trained = self.run(task, server, upload)
            yield trained, upload
            if self.late:
                return

    def run(self, task: Task, server: Tensor, out: Tensor) -> Trained:
        """Train one client, or ask for its pre-round statistics."""
        began, before = self._clock(), self.stand_ins.images
        trained = super().run(task, server, out)
        self.seconds += self._clock() - began
        self.passed += self.stand_ins.images - before
        wire = self.binding.net.wire
        crossed = (0, 0) if task.pre_round else (wire.up, wire.down)
        activations = trained.wire.up.get(ACTIVATIONS, 0)
        self.clients += not task.pre_round
        self.wire = self.wire[0] + crossed[0], self.wire[1] + crossed[1]
        self.latents += activations - crossed[0]
        self.latent_images += len(trained.extras.get(ACTIVATIONS, ()))
        self.extras += trained.wire.bytes_up - activations
        return trained

    @property
    def late(self) -> bool:
        """True once there has been enough time for steps."""
        return time.perf_counter() > self._until

    def step(self, batch: Batch, client: Client, optimizer: Optimizer) -> Loss:
        """Make one local step, with the true encoders."""
        self.stand_ins.active = False
        try:
            return super().step(batch, client, optimizer)
        finally:
            self.stand_ins.active = True

    def _batches(self, data: ClientData, task: Task, client: Client) -> Iterator[Batch]:
        most, compiles = _STEPS + (0 if self.steps else _WARM_UP), self.setup.config.client.compile
        began, shown = self._clock(), time.perf_counter()
        for count, batch in enumerate(super()._batches(data, task, client), start=1):
            yield batch
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            # The compiler works in processes of its own, whose time this one's does not count.
            now, seen = self._clock(), time.perf_counter()
            compiling = compiles and len(self.steps) < _WARM_UP
            self.steps.append(seen - shown if compiling else now - began)
            self.stepping += now - began
            self.images += len(batch.labels)
            began, shown = now, seen
            if compiling:
                self._until = time.perf_counter() + self._seconds  # these were compiled
            if count >= most or self.late:
                return


def _encoder(setup: Setup) -> str:
    """Return what an image's way through the encoder takes its time by."""
    config = setup.config
    return f"{config.model} {setup.spec.image_shape} {config.client.precision}"


def _rounds(setup: Setup) -> int:
    """Return the rounds of a run, preparatory ones included."""
    return setup.config.federation.num_rounds + setup.needs.preparatory_rounds


def _evaluations(config: RunConfig, rounds: int) -> int:
    """Return how often a run evaluates."""
    between = sum(config.evaluates_after(done, rounds) for done in range(1, rounds))
    return 1 + config.evaluation.untrained + between


@cache
def _starting() -> subprocess.Popen[bytes]:
    """Start a process that ends when it could train its first client."""
    command = [sys.executable, "-P", "-c", "import fedbench.bench.execution.workers"]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


@cache
def start_seconds() -> float:
    """Seconds of processor from the start of a process to its first client; measured once."""
    process = _starting()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return used.ru_utime + used.ru_stime


def _clock(device: torch.device) -> Callable[[], float]:
    return time.process_time if device.type == "cpu" else time.perf_counter
