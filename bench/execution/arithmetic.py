"""Hashes of what one run computes on fixed images: its own part of the numeric platform.

`system.numerics` names a platform by operations that all runs have in common. A processor may
compute another operation differently, for example a square root of MKL, which two processors of one
name round apart; only the runs that use it then have other bits. So each run computes one round on
fixed images with its own method, net, optimizers, aggregator and scores.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedbench.bench.config.schema import DevicesConfig, FederationConfig
from fedbench.bench.data.partition import Partition
from fedbench.bench.evaluation.collapse import CollapseMonitor
from fedbench.bench.evaluation.features import NonFiniteFeaturesError, extract
from fedbench.bench.evaluation.suite import evaluate
from fedbench.bench.method import Labels
from fedbench.bench.system.scratch import temporary_folder
from fedbench.bench.system.seeding import numpy_generator, single_thread
from fedbench.bench.training.client import ClientRunner, Task, Trained
from fedbench.bench.training.setup import Setup, least_batch
from fedbench.bench.training.trainer import Diverged, Trainer


def arithmetic(setup: Setup, device: torch.device) -> dict[str, str]:
    """Return hashes, 16 hexadecimal digits, of what a run computes on fixed images, by part.

    `training`: one local step on a full batch, what the cohort makes of it, and the server's step.
    `scores`: features and label-free scores of that net. A run whose first step is not finite has
    no scores. Passes are not compiled, which would take a minute. Call it under `reproducible`.
    """
    small = _on_fixed_images(setup)
    parts = {}
    with temporary_folder() as folder, single_thread(), suppress(Diverged, NonFiniteFeaturesError):
        monitor = CollapseMonitor(small, device)
        trainer = Trainer(small, folder, "arithmetic", device, monitor, float("inf"))
        first = trainer.first_personal
        executor = _OneForAll(ClientRunner(small, device, folder / "clients"))
        rounds = trainer.rounds(executor)
        for _ in range(setup.needs.preparatory_rounds + 1):
            next(rounds)

        binding, personal = trainer.binding, trainer.personal

        def select(_: int) -> None:
            held = personal.latest(executor.client_id, trainer.personal_rounds, first)
            binding.personal.data.copy_(held)

        select(0)
        parts["training"] = _digest([*executor.losses, trainer.vector, binding.personal.data])
        scores = evaluate(small, binding, select, (), device)
        encode = partial(small.method.encode, binding.net)
        features = extract(encode, torch.from_numpy(small.images), device=device)
        values = torch.tensor([scores[name] for name in sorted(scores)], dtype=torch.float64)
        parts["scores"] = _digest([features, values])
    return parts


class _OneForAll:
    """Trains the first client of a cohort; the others send what it sent, a little enlarged.

    So the server has the uploads of a whole cohort, for the time of one client.
    """

    def __init__(self, runner: ClientRunner) -> None:
        self._runner = runner
        self.client_id = 0  # whose training was real in the last round
        self.losses: list[Tensor] = []

    def train(self, tasks: Sequence[Task], server: Tensor) -> Iterator[tuple[Trained, Tensor]]:
        """As `Executor.train`."""
        upload = torch.empty(self._runner.layout.upload_size)
        for number, task in enumerate(tasks):
            if number == 0:
                self.client_id = task.client_id
                trained = self._runner.run(task, server, upload)
                self.losses.append(torch.tensor(trained.loss, dtype=torch.float64))
            yield replace(trained, client_id=task.client_id), upload * (1 + number / 64)


def _on_fixed_images(setup: Setup) -> Setup:
    """Return a run of two rounds in which every client holds the same batch of random images."""
    config, needs, spec = setup.config, setup.needs, setup.spec
    count = max(config.client.batch_size, least_batch(config, needs))
    rng = numpy_generator(0, "arithmetic")
    images = rng.integers(0, 256, (count, *spec.image_shape), dtype=np.uint8)
    classes = np.arange(count, dtype=np.int64) % max(1, spec.num_classes)
    labels = classes if spec.labelled else np.full_like(classes, -1)
    if needs.labels is Labels.SOME:
        labels[count // 2 :] = -1
    dataset = replace(
        setup.dataset,
        train_images=images,
        train_labels=classes,
        test_images=images,
        test_labels=classes,
    )
    share = config.federation.participation
    update = {
        "client": config.client.model_copy(update={"local_epochs": 1, "compile": False}),
        "federation": FederationConfig(num_rounds=2, participation=share),
        "devices": DevicesConfig(),
    }
    return replace(
        setup,
        config=config.model_copy(update=update),
        dataset=dataset,
        client_partition=_alike(count, 1, spec.num_classes),
        partition=_alike(count, setup.partition.num_clients, spec.num_classes),
        images=images,
        known_labels=classes,
        labels=labels,
        transfer=(),
    )


def _alike(count: int, num_clients: int, num_classes: int) -> Partition:
    """Return a partition that gives all images to each client."""
    indices = np.tile(np.arange(count, dtype=np.int64), num_clients)
    offsets = np.arange(num_clients + 1, dtype=np.int64) * count
    return Partition("iid", 1.0, 0, count, num_classes, indices, offsets)


def _digest(tensors: Sequence[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
