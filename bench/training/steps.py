"""Local steps of every client, from the labels of the training images alone."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbench.bench.config import RunConfig
from fedbench.bench.config.partitioners import PARTITIONERS
from fedbench.bench.data.datasets import Dataset
from fedbench.bench.data.labels import HIDDEN, num_visible
from fedbench.bench.data.partition import Partition, make_partition
from fedbench.bench.method import Labels, Method, RoundPlan, registry
from fedbench.bench.method.aggregator import trimmed
from fedbench.bench.system.errors import ConfigError, expect

_partitions: dict[str, Partition] = {}
"""Those that were made last; runs of a sweep that share one follow each other."""


def partition_of(dataset: Dataset, config: RunConfig) -> Partition:
    """Return the partition of a run.

    Raises:
        ConfigError: the settings cannot be met by these labels.
    """
    fields = config.data.model_dump_json(exclude={"name", "label_fraction"})
    key = f"{dataset.revision} {len(dataset.train_labels)} {config.seed} {fields}"
    if key not in _partitions:
        labels, classes = dataset.train_labels, dataset.num_classes
        made = make_partition(labels, classes, config.data, config.seed, dataset.train_clients)
        _partitions[key] = made
        if len(_partitions) > 8:
            del _partitions[next(iter(_partitions))]
    return _partitions[key]


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


def local_steps(config: RunConfig, dataset: Dataset) -> LocalSteps:
    """Count the local steps of a configuration on a data set.

    A run without rounds or local epochs has no idle clients, since it is not meant to train.
    """
    method = registry.create(config.spec, config.method)
    images = _images(config, method, dataset)  # (K,)
    epochs = _epochs(config, method)
    if not epochs:
        return LocalSteps(0, 0.0, 0, len(images), 0)
    steps = _steps(config, method, images)
    idle = int((steps == 0).sum())
    steps = steps * epochs
    return LocalSteps(
        least=int(steps.min()),
        median=float(np.median(steps)),
        most=int(steps.max()),
        num_clients=len(steps),
        idle_clients=idle,
        reason=_reason(config, method, int(images[steps == 0].max())) if idle else "",
    )


def without_effect(config: RunConfig, dataset: Dataset) -> tuple[str, ...]:
    """Return a line for each setting that changes nothing in a run, or leaves nothing to train."""
    method = registry.create(config.spec, config.method)
    rounds, batch = config.federation.num_rounds, config.client.batch_size
    if not _epochs(config, method):
        name = "client.local_epochs" if rounds else "federation.num_rounds"
        return (f"{name}=0: nothing is trained, and every metric is of the encoder at its start",)
    lines = [method.without_effect(config)]
    if config.model.trainable == "heads":
        lines.append("model.trainable=heads: probes measure the encoder, which stays at its start")
    lines.append(_of_aggregator(config))
    largest = int(_images(config, method, dataset).max())
    if batch > largest and config.client.keep_last_batch:
        lines.append(
            f"client.batch_size={batch}: no client has more than {largest} images; each trains on"
            " one batch of them all"
        )
    by_label = PARTITIONERS[config.data.partition].source == "labels"
    alpha = config.data.alpha_read if by_label else None
    if alpha is not None and alpha > int(np.bincount(dataset.train_labels).max()) ** 2:
        lines.append(f"data.alpha={alpha:g}: clients' classes are as even as with any larger value")
    return tuple(filter(None, lines))


def _of_aggregator(config: RunConfig) -> str:
    """Return what of the server's aggregation changes nothing."""
    server, cohort = config.server, config.cohort_size
    if server.aggregator == "trimmed-mean" and not trimmed(server.trim_fraction, cohort):
        share = f"server.trim_fraction={server.trim_fraction:g}"
        return f"{share}: of {cohort} clients nobody is left out, and the result is the mean"
    if server.aggregator == "krum" and server.weighting == "examples":
        return "server.weighting=examples: krum takes one client's model, whatever it weighs"
    return ""


def steps_per_epoch(config: RunConfig, dataset: Dataset) -> npt.NDArray[np.int64]:
    """Return the local steps of each client in an epoch over its images, (K,); see `LocalSteps`."""
    method = registry.create(config.spec, config.method)
    return _steps(config, method, _images(config, method, dataset))


def _steps(
    config: RunConfig, method: Method, images: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    batch, least = config.client.batch_size, least_batch(config, method)
    if batch < least:
        return np.zeros_like(images)
    # Must count as `ClientData.batches` yields; a test compares the two.
    incomplete = images % batch >= least
    return images // batch + (incomplete if config.client.keep_last_batch else 0)


def least_batch(config: RunConfig, method: Method) -> int:
    """Return the smallest batch to train on; a batch norm needs two examples with every method."""
    return max(method.needs().min_batch, 2 if config.model.mixes_examples else 1)


def _epochs(config: RunConfig, method: Method) -> int:
    """Return the most local epochs of a round that a run has."""
    default = RoundPlan(config.client.local_epochs)
    total = config.federation.num_rounds + method.needs().preparatory_rounds
    given = (method.plan_round(index, default) for index in range(total))
    plans = (expect(plan, RoundPlan, "plan_round()") for plan in given)
    return max((plan.local_epochs for plan in plans), default=0)


def _images(config: RunConfig, method: Method, dataset: Dataset) -> npt.NDArray[np.int64]:
    """Return the number of images that each client trains on, (K,)."""
    needs, fraction = method.needs(), config.data.label_fraction
    partition, labels = partition_of(dataset, config), dataset.train_labels
    sizes = partition.sizes.astype(np.int64)
    if needs.labels is Labels.ONLY:
        held = [labels[partition.client(k)] != HIDDEN for k in range(partition.num_clients)]
        sizes = np.array([num_visible(int(each.sum()), fraction or 1.0) for each in held])
    return sizes.sum(keepdims=True) if needs.pooled else sizes


def _reason(config: RunConfig, method: Method, largest: int) -> str:
    """Say why a client with so many images, the largest of those that do not train, does not."""
    batch, least = config.client.batch_size, least_batch(config, method)
    kind = "labelled image" if method.needs().labels is Labels.ONLY else "image"
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
