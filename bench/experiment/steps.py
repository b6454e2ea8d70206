"""Local steps of every client, from the labels of the training images alone."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbench.bench.config import RunConfig
from fedbench.bench.config.partitioners import PARTITIONERS
from fedbench.bench.data.labels import HIDDEN, num_visible
from fedbench.bench.evaluation import probes
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.method import Labels, RoundPlan
from fedbench.bench.method.aggregator import trimmed
from fedbench.bench.system.errors import ConfigError, expect
from fedbench.bench.training.setup import least_batch, num_batches


@dataclass(frozen=True)
class LocalSteps:
    """Local steps of a client in a round, over all clients.

    Upper bounds for methods that leave out more images than those without a label, as pseudo-labels
    that are rejected; and for methods with rounds of fewer local epochs.
    """

    least: int
    median: float
    most: int
    num_clients: int
    idle_clients: int  # those that never make a step
    reason: str = field(default="", repr=False)  # why they do not, and a remedy

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers without the reason."""
        return {name: value for name, value in asdict(self).items() if name != "reason"}

    @property
    def idle(self) -> str:
        """One line about clients that never make a step; empty if there are none."""
        if not self.idle_clients:
            return ""
        return f"{self.idle_clients:,} of {self.num_clients:,} clients never train: {self.reason}"

    def check(self) -> None:
        """Refuse a run in which nobody trains although it has rounds and local epochs.

        Raises:
            ConfigError: gives the reason and a remedy.
        """
        if self.idle_clients == self.num_clients:
            raise ConfigError(f"no client would ever make a local step: {self.reason}")


def local_steps(experiment: Experiment) -> LocalSteps:
    """Count the local steps of a run.

    One without rounds or local epochs has no idle clients, since it is not meant to train.
    """
    images, epochs = _images(experiment), _epochs(experiment)  # images: (K,)
    if not epochs:
        return LocalSteps(0, 0.0, 0, len(images), 0)
    steps = num_batches(images, experiment.config, experiment.needs)
    idle = int((steps == 0).sum())
    steps = steps * epochs
    return LocalSteps(
        least=int(steps.min()),
        median=float(np.median(steps)),
        most=int(steps.max()),
        num_clients=len(steps),
        idle_clients=idle,
        reason=_reason(experiment, int(images[steps == 0].max())) if idle else "",
    )


def cautions(experiment: Experiment) -> Iterator[str]:
    """Yield a line for what speaks against a run's data, clients that never train, and settings.

    Raises:
        ConfigError: as `LocalSteps.check`.
    """
    steps = local_steps(experiment)
    steps.check()
    yield from (*of_data(experiment), *filter(None, [steps.idle]))
    yield from without_effect(experiment)


def of_data(experiment: Experiment) -> list[str]:
    """Return a line for what speaks against a run's data, and the metrics that it can have."""
    dataset = experiment.dataset
    return [*dataset.cautions, *probes.cautions(experiment.config, dataset)]


def without_effect(experiment: Experiment) -> tuple[str, ...]:
    """Return a line for each setting that changes nothing in a run, or leaves nothing to train."""
    config = experiment.config
    rounds, batch = config.federation.num_rounds, config.client.batch_size
    if not _epochs(experiment):
        name = "client.local_epochs" if rounds else "federation.num_rounds"
        return (f"{name}=0: nothing is trained, and every metric is of the encoder at its start",)
    lines = [experiment.method.without_effect(config)]
    if config.model.trainable == "heads":
        lines.append("model.trainable=heads: probes measure the encoder, which stays at its start")
    lines.append(_of_aggregator(config))
    largest = int(_images(experiment).max())
    if batch > largest and config.client.keep_last_batch:
        lines.append(
            f"client.batch_size={batch}: no client has more than {largest} images; each trains on"
            " one batch of them all"
        )
    by_label = PARTITIONERS[config.data.partition].source == "labels"
    alpha = config.data.alpha_read if by_label else None
    labels = experiment.dataset.train_labels
    # A Dirichlet share of n images then deviates from an even one by less than an image.
    if alpha is not None and alpha > int(np.bincount(labels).max()) ** 2:
        lines.append(f"data.alpha={alpha:g}: clients' classes are as even as with any larger value")
    return tuple(filter(None, lines))


def _of_aggregator(config: RunConfig) -> str:
    """Return what of the server's aggregation changes nothing."""
    server, cohort = config.server, config.cohort_size
    if cohort == 1 < config.data.num_clients:
        share = f"federation.participation={config.federation.participation:g}"
        return f"{share}: one client trains in each round, so that nothing is averaged; raise it"
    if server.aggregator == "trimmed-mean" and not trimmed(server.trim_fraction, cohort):
        share = f"server.trim_fraction={server.trim_fraction:g}"
        return f"{share}: of {cohort} clients nobody is left out, and the result is the mean"
    if server.aggregator == "krum" and server.weighting == "examples":
        return "server.weighting=examples: krum takes one client's model, whatever it weighs"
    return ""


def steps_per_epoch(experiment: Experiment) -> npt.NDArray[np.int64]:
    """Return the local steps of each client in an epoch over its images, (K,); see `LocalSteps`."""
    return num_batches(_images(experiment), experiment.config, experiment.needs)


def _epochs(experiment: Experiment) -> int:
    """Return the most local epochs of a round that a run has."""
    config, method = experiment.config, experiment.method
    default = RoundPlan(config.client.local_epochs)
    total = config.federation.num_rounds + experiment.needs.preparatory_rounds
    given = (method.plan_round(index, default) for index in range(total))
    plans = (expect(plan, RoundPlan, "plan_round()") for plan in given)
    return max((plan.local_epochs for plan in plans), default=0)


def _images(experiment: Experiment) -> npt.NDArray[np.int64]:
    """Return the number of images that each client trains on, (K,)."""
    needs, fraction = experiment.needs, experiment.config.data.label_fraction
    partition, labels = experiment.partition, experiment.dataset.train_labels
    sizes = partition.sizes.astype(np.int64)
    if needs.labels is Labels.ONLY:
        held = [labels[partition.client(k)] != HIDDEN for k in range(partition.num_clients)]
        sizes = np.array([num_visible(int(each.sum()), fraction or 1.0) for each in held])
    return sizes.sum(keepdims=True) if needs.pooled else sizes


def _reason(experiment: Experiment, largest: int) -> str:
    """Say why a client with so many images, the largest of those that do not train, does not."""
    batch = experiment.config.client.batch_size
    least = least_batch(experiment.config, experiment.needs)
    kind = "labelled image" if experiment.needs.labels is Labels.ONLY else "image"
    held = f"they hold at most {largest} {kind}{'' if largest == 1 else 's'}"
    if batch < least:
        return f"client.batch_size={batch} is below the {least} that method and norm need; raise it"
    if largest == 0:
        return f"they hold no {kind}; lower data.num_clients"
    if largest < least:
        return f"{held}, and method and norm need {least} in a batch; lower data.num_clients"
    return (
        f"{held}, fewer than client.batch_size={batch}, and incomplete batches are dropped; lower"
        " client.batch_size or set client.keep_last_batch=true"
    )
