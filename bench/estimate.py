"""What a run will cost, from one measured step: time, bytes, disk."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from fedbench.bench.aggregate import optimized_size
from fedbench.bench.client import make_optimizer
from fedbench.bench.config import RunConfig
from fedbench.bench.data.partition import deal
from fedbench.bench.devices import choose_devices
from fedbench.bench.execute import open_dataset
from fedbench.bench.layout import Layout
from fedbench.bench.ledger import BYTES_PER_NUMBER, Ledger
from fedbench.bench.method import Client
from fedbench.bench.seeding import generator, single_thread
from fedbench.bench.setup import Setup

_WARM_UP, _MEASURED = 2, 6


@dataclass(frozen=True)
class Estimate:
    """Cost of one run.

    Attributes:
        seconds: on one worker of the device at hand; without data loading and start-up.
        bytes_up: clients to server, whole run.
        bytes_down: server to clients, whole run.
        disk_bytes: checkpoints while it runs.
        num_steps: local steps of the whole run.
    """

    seconds: float
    bytes_up: int
    bytes_down: int
    disk_bytes: int
    num_steps: int


class Estimator:
    """Measures one step per distinct (method, model, batch size, image shape) and reuses it."""

    def __init__(self, data_dir: Path | None = None, device: str = "auto") -> None:
        self._data_dir = data_dir
        self._device = torch.device(choose_devices(device, 1)[0])
        self._seconds: dict[str, tuple[float, float]] = {}

    def __call__(self, config: RunConfig) -> Estimate:
        """The cost of one configuration.

        Raises:
            FedbenchError: for a configuration or a data set that cannot be used.
        """
        dataset = open_dataset(config, self._data_dir)
        partition = deal(dataset.train_labels, dataset.num_classes, config.data, config.seed)
        setup = Setup.of(config, dataset, partition)
        layout = setup.layout(setup.make_net())
        sizes = partition.sizes[partition.sizes > 0]
        batch = config.client.batch_size
        whole = config.client.keep_last_batch
        per_client = [math.ceil(n / batch) if whole else n // batch for n in sizes.tolist()]
        cohort = min(config.cohort_size, len(sizes))
        trained = cohort * config.federation.num_rounds
        steps = round(sum(per_client) / max(1, len(sizes)) * trained * config.client.local_epochs)
        visits = trained + cohort * setup.method.needs().preparatory_rounds
        key = f"{config.spec}/{config.method}/{config.model}/{batch}/{setup.spec}"
        if key not in self._seconds:
            self._seconds[key] = self._measure(setup)
        per_step, per_image = self._seconds[key]
        images = len(dataset.test_images) + len(partition.indices)
        passes = (2 if config.evaluation.untrained else 1) * 2  # objective and probes
        traffic = Ledger.of_client(layout)
        return Estimate(
            seconds=steps * per_step + passes * images * per_image,
            bytes_up=traffic.bytes_up * visits,
            bytes_down=traffic.bytes_down * visits,
            disk_bytes=_disk_bytes(config, layout),
            num_steps=steps,
        )

    def _measure(self, setup: Setup) -> tuple[float, float]:
        """Seconds per local step, and per image of a forward pass."""
        net, needs, config = setup.make_net(), setup.method.needs(), setup.config
        binding = setup.layout(net).bind(net, self._device)
        biggest = int(setup.partition.sizes.argmax())
        client = Client(biggest, 0, generator(0, "estimate"))
        data = setup.method.before_local(net, setup.client_data(biggest, self._device), client)
        optimizer = make_optimizer(config.client, binding.trained(biggest))
        times = []
        with single_thread():
            before = time.perf_counter()
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
                loss.total.detach().item()  # waits for a GPU
                now = time.perf_counter()
                times.append(now - before)
                before = now
                if len(times) >= _WARM_UP + _MEASURED:
                    break
            images = data.images[:64].float() / 255
            with torch.no_grad():
                setup.method.encode(net, images)
                before = time.perf_counter()
                setup.method.encode(net, images)
            forward = (time.perf_counter() - before) / max(1, len(images))
        steps = times[_WARM_UP:] or times or [0.0]
        return sum(steps) / len(steps), forward


def _disk_bytes(config: RunConfig, layout: Layout) -> int:
    """Two checkpoints with the server optimizer's moments, two generations of personal tensors."""
    moments = {"average": 0, "momentum": 1, "adagrad": 1}.get(config.server.optimizer, 2)
    server = layout.server_size + moments * optimized_size(layout)
    return 2 * BYTES_PER_NUMBER * (server + config.data.num_clients * layout.personal_size)
