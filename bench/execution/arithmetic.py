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
from fedbench.bench.evaluation.collapse import CollapseMonitor
from fedbench.bench.evaluation.features import NonFiniteFeaturesError, extract
from fedbench.bench.evaluation.suite import evaluate
from fedbench.bench.execution.audit import alike, shown_labels
from fedbench.bench.method import Labels
from fedbench.bench.system import first_use
from fedbench.bench.system.scratch import temporary_folder
from fedbench.bench.system.seeding import numpy_generator, single_thread
from fedbench.bench.training.client import ClientRunner, Task, Trained
from fedbench.bench.training.clients import Executor
from fedbench.bench.training.personal import PersonalStore
from fedbench.bench.training.setup import Setup, least_batch
from fedbench.bench.training.trainer import Diverged, Trainer


def arithmetic(setup: Setup, device: torch.device) -> dict[str, str]:
    """Return hashes, 16 hexadecimal digits, of what a run computes on fixed images, by part.

    `scores`: features and label-free scores of its first weights. `training`: one local step on a
    full batch, what the cohort makes of it, and the server's step. Probes are left out: their
    accuracies on a batch hardly show other rounding, and their operations are in the platform's
    name. A part that is not finite has no hash. Passes are not compiled, which would take a
    minute. Call it under `reproducible`.
    """
    small, parts = _on_fixed_images(setup), dict[str, str]()
    with temporary_folder() as folder, single_thread():
        monitor = CollapseMonitor(small, device, PersonalStore(folder / "clients"))
        trainer = Trainer(small, folder, "arithmetic", device, monitor, float("inf"))
        with first_use.plain():  # the run compares its shortcuts, and says what it leaves out
            with suppress(NonFiniteFeaturesError):
                scores = evaluate(
                    small, trainer.binding, lambda _: None, (), device, one_encoder=True
                )
                encode = partial(small.method.encode, trainer.binding.net)
                features = extract(encode, torch.from_numpy(small.images), device=device)
                values = torch.tensor(
                    [scores[name] for name in sorted(scores)], dtype=torch.float64
                )
                parts["scores"] = _digest([features, values])
            executor = _OneForAll(ClientRunner(small, device, folder / "clients"))
            with suppress(Diverged):
                rounds = trainer.rounds(executor)
                for _ in range(setup.needs.preparatory_rounds + 1):
                    next(rounds)
                personal = executor.runner.binding.personal.data
                parts["training"] = _digest([*executor.losses, trainer.vector, personal])
    return parts


class _OneForAll(Executor):
    """Trains the first client of a cohort; the others send what it sent, a little enlarged.

    So the server has the uploads of a whole cohort, for the time of one client.
    """

    def __init__(self, runner: ClientRunner) -> None:
        self.runner = runner
        self.losses: list[Tensor] = []

    def train(self, tasks: Sequence[Task], server: Tensor) -> Iterator[tuple[Trained, Tensor]]:
        """As `Executor.train`."""
        if not tasks:  # client-level privacy may draw nobody
            return
        upload = torch.empty(self.runner.layout.upload_size)
        trained = self.runner.run(tasks[0], server, upload)
        self.losses.append(torch.tensor(trained.loss, dtype=torch.float64))
        for number, task in enumerate(tasks):
            yield replace(trained, client_id=task.client_id), upload * (1 + number / 64)


def _on_fixed_images(setup: Setup) -> Setup:
    """Return a run of two rounds in which every client holds the same batch of random images."""
    config, needs, spec = setup.config, setup.needs, setup.spec
    count = max(config.client.batch_size, least_batch(config, needs))
    rng = numpy_generator(0, "arithmetic")
    images = rng.integers(0, 256, (count, *spec.image_shape), dtype=np.uint8)
    visible = needs.labels if spec.labelled else Labels.NONE
    labels = shown_labels(visible, count, spec.num_classes)
    dataset = replace(
        setup.dataset,
        train_images=images,
        train_labels=labels,
        test_images=images,
        test_labels=labels,
    )
    share = config.federation.participation
    update = {
        "client": config.client.model_copy(update={"local_epochs": 1, "compile": False}),
        "federation": FederationConfig(num_rounds=2, participation=share),
        "devices": DevicesConfig(),
    }
    return setup.with_other(
        config=config.model_copy(update=update),
        dataset=dataset,
        client_partition=alike(count, 1, spec.num_classes),
        partition=alike(count, setup.partition.num_clients, spec.num_classes),
        images=images,
        known_labels=labels,
        labels=labels,
        transfer=(),
    )


def _digest(tensors: Sequence[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
