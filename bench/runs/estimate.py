"""What a run will cost, from measured parts of it: time, bytes, disk.

Measured once per distinct model: a few local steps, what a client's visit and a round cost beside
them, one evaluation, the start of a process. Left out are the decoding of a data set that is not
in the cache yet, and whatever else the machine does.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch

from fedbench.bench.config import RunConfig
from fedbench.bench.data.partition.deal import deal
from fedbench.bench.evaluation.collapse import judge, probe_images
from fedbench.bench.evaluation.suite import evaluate
from fedbench.bench.method import ACTIVATIONS, AddOn, Client, Method, RoundPlan
from fedbench.bench.runs.execute import open_dataset
from fedbench.bench.system.compute import choose_devices
from fedbench.bench.system.seeding import generator, scope, single_thread
from fedbench.bench.training.aggregate import optimized_size
from fedbench.bench.training.checkpoint import Checkpoint, save_checkpoint
from fedbench.bench.training.client import make_optimizer
from fedbench.bench.training.layout import Binding, Layout
from fedbench.bench.training.ledger import BYTES_PER_NUMBER, Ledger
from fedbench.bench.training.setup import Setup

_LOOKS = 20
"""Rounds that are looked at, at most; those between two of them are as the earlier one."""


def kept_shares(setup: Setup, num_rounds: int, device: torch.device) -> list[float]:
    """The share of its images that the biggest client trains on, for every round.

    That is 1 unless some labels are hidden and others not. So it is for a method that gives labels
    of its own, too: which ones depends on how well it has learned, and all is the most it can be.

    Args:
        setup: the run.
        num_rounds: its rounds, preparatory ones included.
        device: where clients' images go.

    Returns:
        One share in [0, 1] per round.
    """
    labels, method = setup.labels, setup.method
    if _innermost(method).relabels or not num_rounds or (labels < 0).all() or (labels >= 0).all():
        return [1.0] * num_rounds
    biggest = int(setup.partition.sizes.argmax())
    net = setup.make_net().to(device)
    setup.layout(net)
    data = setup.client_data(biggest, device)
    step = -(-num_rounds // _LOOKS)
    shares: list[float] = []
    for index in range(0, num_rounds, step):
        client = Client(biggest, index, generator(0, "kept"))
        with scope(0, "kept-global"), torch.no_grad():
            kept = method.before_local(net, data, client)
        shares += [len(kept) / max(1, len(data))] * step
    return shares[:num_rounds]


def _innermost(method: Method) -> Method:
    while isinstance(method, AddOn):
        method = method.base
    return method


_WARM_UP, _MEASURED = 2, 6
_LONG = 5.0
_ENOUGH_SECONDS = 4.0
"""Where steps are slow, two are enough: the first of them warms up."""
_EVALUATED = (2000, 1000)
"""Training and test images of the evaluation that is measured; more take time in proportion."""


@dataclass(frozen=True)
class Estimate:
    """Cost of one run.

    Attributes:
        seconds: with the workers given, all that follows together.
        train_seconds, evaluation_seconds: of that the rounds, and all evaluations.
        start_seconds: of that the start of the processes.
        bytes_up, bytes_down: clients to server and back, whole run.
        disk_bytes: checkpoints and clients' own tensors while it runs.
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
class _Measured:
    """Seconds per local step, visit of a client, round and evaluation; bytes beside the weights.

    `wire` is of as many `images`, and so are `latents`: bytes that go up after the last epoch, for
    it alone. `state_bytes` are of the optimizer where clients keep it.
    """

    step: float = 0.0
    visit: float = 0.0
    round: float = 0.0
    evaluation: float = 0.0
    images: int = 0
    latents: int = 0
    state_bytes: int = 0
    wire: Ledger = field(default_factory=Ledger)
    extras: Ledger = field(default_factory=Ledger)


class Estimator:
    """Measures once per distinct (method, model, batch size, data, evaluation) and reuses it.

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
        self._known: dict[str, _Measured] = {}

    def __call__(self, config: RunConfig) -> Estimate:
        """The cost of one configuration.

        Raises:
            FedbenchError: for a configuration or a data set that cannot be used.
        """
        setup = self._setup(config)
        layout = setup.layout(setup.make_net())
        all_sizes = setup.partition.sizes
        sizes = all_sizes[all_sizes > 0]
        batch, whole = config.client.batch_size, config.client.keep_last_batch
        cohort = max(1, min(config.cohort_size, len(sizes)))
        rounds = config.federation.num_rounds + setup.method.needs().preparatory_rounds
        plain = RoundPlan(config.client.local_epochs)
        planned = [setup.method.plan_round(r, plain).local_epochs for r in range(rounds)]
        shares = kept_shares(setup, rounds, self._device)
        total = trained = last = sending = 0.0  # steps, images, of the last epochs, visits
        for share in sorted(set(shares)):
            own = np.maximum(np.floor(sizes * share + 0.5), share > 0)
            epochs = [n for n, each in zip(planned, shares, strict=True) if each == share]
            per_client = np.ceil(own / batch) if whole else own // batch
            total += float(per_client.mean()) * cohort * sum(epochs)
            used = own if whole else per_client * batch
            trained += float(used.mean()) * cohort * sum(epochs)
            last += float(used.mean()) * cohort * sum(map(bool, epochs))
            sending += float((per_client > 0).mean()) * cohort * sum(map(bool, epochs))
        visits = cohort * rounds
        typical = 0 if not rounds or shares[0] == shares[-1] else rounds - 1
        found = self._measured(setup, typical)
        traffic, each = Ledger(), Ledger.of_client(layout)
        traffic.merge(each.one_way("down"), visits)
        traffic.merge(each.one_way("up"), round(sending))
        traffic.merge(found.extras, visits)
        per_image = 1 / max(1, found.images)
        wire_up = found.wire.bytes_up * trained + found.latents * last
        wire_down = found.wire.bytes_down * trained
        evaluations = 1 + config.evaluation.untrained
        if config.evaluation.every:
            evaluations += max(0, rounds - 1) // config.evaluation.every
        busy = min(self._workers, cohort)
        shared = -(-cohort // busy) / cohort  # of a round's work, what the busiest does
        training = (total * found.step + visits * found.visit) * shared + rounds * found.round
        evaluating = evaluations * found.evaluation
        starting = start_seconds() * (1 if busy == 1 else 2)  # the workers', after this one's
        return Estimate(
            seconds=training + evaluating + starting,
            train_seconds=training,
            evaluation_seconds=evaluating,
            start_seconds=starting,
            bytes_up=traffic.bytes_up + round(wire_up * per_image),
            bytes_down=traffic.bytes_down + round(wire_down * per_image),
            disk_bytes=_disk_bytes(config, layout, len(all_sizes) + busy, found.state_bytes),
            num_steps=round(total),
            workers=busy,
            step_seconds=found.step,
        )

    def _setup(self, config: RunConfig) -> Setup:
        dataset = open_dataset(config, self._data_dir)
        partition = deal(dataset.train_labels, dataset.num_classes, config.data, config.seed)
        return Setup.of(config, dataset, partition)

    def _measured(self, setup: Setup, round_index: int) -> _Measured:
        config = setup.config
        protocols = config.evaluation.model_dump_json()
        clients = setup.partition.num_clients if setup.evaluate_on_clients else 0
        images = (len(setup.images), len(setup.dataset.test_images))
        client = config.client
        key = (
            f"{config.spec}/{config.method}/{config.model}/{client.batch_size}/{client.optimizer}"
            f"/{client.precision}/{setup.spec}/{config.data.label_fraction}/{round_index}"
            f"/{protocols}/{clients}/{images}"
        )
        if key not in self._known:
            self._known[key] = self._measure(setup, round_index)
        return self._known[key]

    def _measure(self, setup: Setup, round_index: int) -> _Measured:
        net, needs, config = setup.make_net(), setup.method.needs(), setup.config
        net.precision = config.client.precision
        found, binding = _Measured(), setup.layout(net).bind(net, self._device)
        biggest = int(setup.partition.sizes.argmax())
        client = Client(biggest, round_index, generator(0, "estimate"))
        times = []
        with single_thread():
            with _clock() as before:
                data = setup.client_data(biggest, self._device)
                data = setup.method.before_local(net, data, client)
                optimizer = make_optimizer(config.client, binding.trained(biggest))
            last = time.perf_counter()
            for batch in data.batches(
                needs.views,
                1 + (_WARM_UP + _MEASURED) * config.client.batch_size // max(1, len(data)),
                config.client.batch_size,
                keep_last=True,
                min_batch=setup.min_batch,
                order=generator(0, "estimate-order"),
                augment=generator(0, "estimate-views"),
            ):
                binding.zero_grad()
                loss = setup.method.loss(net, batch, client)
                loss.total.backward()
                optimizer.step()
                with torch.no_grad():
                    setup.method.after_step(net, loss, client)
                loss.total.detach().item()  # waits for a GPU
                found.images += len(batch.labels)
                now = time.perf_counter()
                times.append(now - last)
                last = now
                slow = len(times) > 1 and sum(times) > _ENOUGH_SECONDS
                if slow or len(times) >= _WARM_UP + _MEASURED:
                    break
            with _clock() as after, torch.no_grad():
                sent = dict(setup.method.after_local(net, data, client))
                found.latents = sent.pop(ACTIVATIONS).nbytes if ACTIVATIONS in sent else 0
                found.extras.add_extras(sent)
        found.visit = before[0] + after[0]
        found.wire = Ledger.of_wire(net.wire)
        if needs.keep_optimizer:
            states = optimizer.state_dict()["state"].values()
            found.state_bytes = sum(v.nbytes for each in states for v in each.values())
        found.step = median(times[_WARM_UP:] or times[1:] or times or [0.0])
        found.round = self._round_seconds(setup, binding)
        found.evaluation = self._evaluation_seconds(setup)
        return found

    def _round_seconds(self, setup: Setup, binding: Binding) -> float:
        """The collapse detector and the checkpoint."""
        with TemporaryDirectory() as folder, single_thread():
            for index in range(2):  # the first one is slower
                with _clock() as clock:
                    judge(setup, binding, probe_images(setup), self._device)
                    tensors = {"server": binding.server.data.cpu()}
                    save_checkpoint(Path(folder), Checkpoint(index, tensors, {}))
        return clock[0]

    def _evaluation_seconds(self, setup: Setup) -> float:
        """One evaluation of a new encoder; of many images, some are measured."""
        given = (len(setup.images), len(setup.dataset.test_images))
        part = tuple(map(min, given, _EVALUATED))
        if part != given:
            train, test = part
            # How images are dealt costs nothing here, and fewer might not fill every client.
            dealt = {"partition": "iid", "legacy": False, "min_client_size": 0}
            data = setup.config.data.model_copy(
                update={"train_subset": train, "test_subset": test, **dealt}
            )
            setup = self._setup(setup.config.model_copy(update={"data": data}))
        net = setup.make_net()
        binding = setup.layout(net).bind(net, self._device)
        protocols = setup.config.evaluation.protocols
        for _ in range(2):
            with _clock() as clock:
                evaluate(setup, binding, lambda client_id: None, protocols, self._device)
            if clock[0] > _LONG:
                break  # what the first one imports and allocates hardly counts
        return clock[0] * sum(given) / sum(part)


@cache
def start_seconds() -> float:
    """From the start of a process to its first client; measured once."""
    with _clock() as clock:
        command = [sys.executable, "-P", "-c", "import fedbench.bench.training.workers"]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    return clock[0]


@contextmanager
def _clock() -> Iterator[list[float]]:
    """The seconds that a block takes, as the only item of a list."""
    taken: list[float] = []
    began = time.perf_counter()
    yield taken
    taken.append(time.perf_counter() - began)


def _disk_bytes(config: RunConfig, layout: Layout, num_files: int, state_bytes: int) -> int:
    """Two checkpoints with the server optimizer's moments, and what clients keep for themselves.

    A client has one file, and a second one while it is being written.
    """
    moments = {"average": 0, "momentum": 1, "adagrad": 1}.get(config.server.optimizer, 2)
    server = BYTES_PER_NUMBER * (layout.server_size + moments * optimized_size(layout))
    own = BYTES_PER_NUMBER * layout.personal_size + state_bytes
    if own:  # what it sends up is kept with it
        own += BYTES_PER_NUMBER * layout.upload_size
    return 2 * server + num_files * own
