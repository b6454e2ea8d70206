"""Dealing of training and test examples to clients, and the record of a deal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbench.bench.config import DataConfig
from fedbench.bench.data.labels import HIDDEN, held_out
from fedbench.bench.data.partition.dirichlet import largest_remainder
from fedbench.bench.data.partition.partition import Partition, checked_labels, flatten
from fedbench.bench.data.partition.partitioners import (
    PARTITIONERS,
    dirichlet_balanced_legacy,
    given,
)
from fedbench.bench.data.partition.rotations import draw_angles
from fedbench.bench.system.errors import ConfigError, DataError, UnknownNameError
from fedbench.bench.system.seeding import numpy_generator

_MAY_HAVE_EMPTY_CLIENTS = ("iid", "rotation", "dirichlet")
_GIVEN = ("natural", "file")
_WITHOUT_LABELS = ("iid", "rotation", *_GIVEN)


@dataclass(frozen=True)
class Deal:
    """Result of `fedbench partition`.

    Attributes:
        dataset: name of the data set.
        labels: `balanced:N:C` if that replaced its labels, else None.
        partition: examples of each client.
        record: sizes and class counts, as `fedbench partition --json` prints them.
    """

    dataset: str
    labels: str | None
    partition: Partition = field(repr=False)
    record: Mapping[str, Any] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the values that `fedbench partition --json` prints."""
        extra = {} if self.labels is None else {"labels": self.labels}
        return {"dataset": self.dataset, **self.record, **extra, "hash": self.partition.hash}


def deal(
    labels: npt.NDArray[Any],
    num_classes: int,
    config: DataConfig,
    seed: int,
    clients: npt.NDArray[np.int64] | None = None,
) -> Partition:
    """Deal training examples to clients as `data.partition` says.

    Fields that the partitioner does not use are ignored. `rotation` is an iid deal whose clients'
    angle bins have concentration `data.alpha` (so a grid over alpha sweeps the shift); `joint` is
    an hsu deal by `data.alpha` with bins by `data.rotation_alpha`, drawn independently.
    The share `data.held_out` is taken away first; besides it only `pathological` and `legacy` leave
    examples unused. Only `iid`, `rotation` and `dirichlet` take more clients than examples and then
    leave some empty, as `dirichlet` may at any size. `natural` and `file` deal by clients that the
    data set was read with; with `iid` and `rotation` they are those that need no labels.

    Args:
        labels: (N,) classes in [0, num_classes), `HIDDEN` for examples without a label.
        num_classes: C; classes without examples are allowed.
        config: Partitioner and its settings.
        seed: The run's.
        clients: (N,) for `natural` and `file`.

    Raises:
        ConfigError: The settings cannot be met by these labels.
        DataError: Labels are missing or out of range.
    """
    all_labels = checked_labels(labels, num_classes)
    hidden = int((all_labels == HIDDEN).sum())
    if hidden and config.partition not in _WITHOUT_LABELS:
        raise ConfigError(
            f"data.partition={config.partition} deals by labels, but {hidden:,} of"
            f" {len(all_labels):,} training images have none; use one of"
            f" {', '.join(_WITHOUT_LABELS)}"
        )
    dealt = np.ones(len(all_labels), dtype=np.bool_)
    dealt[held_out(all_labels, config.held_out, seed)] = False
    labels = all_labels[dealt]
    name, num_clients = config.partition, config.num_clients
    if name not in PARTITIONERS and name not in _GIVEN:
        raise UnknownNameError("partitioner", name, [*PARTITIONERS, *_GIVEN])
    if num_clients > len(labels) and name not in _MAY_HAVE_EMPTY_CLIENTS:
        raise ConfigError(
            f"data.num_clients={num_clients} is more than the {len(labels)} training images, and "
            f"{name!r} leaves no client empty; lower it, or use data.partition=iid or dirichlet"
        )
    if config.min_client_size * num_clients > len(labels):
        raise ConfigError(
            f"data.min_client_size={config.min_client_size} for {num_clients} clients needs "
            f"{config.min_client_size * num_clients} images, there are {len(labels)}; lower one"
        )
    owners = np.full(len(all_labels), -1, np.int32)
    rng = numpy_generator(seed, "partition")
    legacy = config.legacy and name == "dirichlet-balanced"
    if legacy:
        seed = 0
        owners[dealt] = dirichlet_balanced_legacy(labels, num_classes, config)
    elif name in _GIVEN:
        if clients is None:
            raise ConfigError(
                f"data.partition={name} needs images that come with clients, not labels alone; use"
                f" one of {', '.join(PARTITIONERS)}"
            )
        owners[dealt] = given(clients, config, rng)[dealt]
    else:
        owners[dealt] = PARTITIONERS[name](labels, num_classes, config, rng)
    angles, bins = None, None
    if name in ("rotation", "joint"):
        concentration = config.alpha if name == "rotation" else config.rotation_alpha
        if config.multiply_prior:
            concentration /= config.rotation_bins
        angles, bins = draw_angles(owners, num_clients, config.rotation_bins, concentration, seed)
    indices, offsets = flatten(owners, num_clients)
    partition = Partition(
        name, config.alpha, seed, len(all_labels), num_classes, indices, offsets, angles, bins
    )
    may_leave = legacy or name == "pathological" or config.held_out > 0
    _check_deal(partition, config, may_leave=may_leave)
    return partition


def deal_test(
    test_labels: npt.NDArray[Any],
    partition: Partition,
    train_labels: npt.NDArray[Any],
    seed: int,
) -> Partition:
    """Give each client its own share of the test set, with the class proportions it trains on.

    Each class of the test set is split over its holders in proportion to their training images
    of it, by largest remainders. Test images stay upright. Clients with few images can get none;
    test images of a class that no client trains on stay unused.

    Args:
        test_labels: (M,) in [0, C).
        partition: Of the training set.
        train_labels: (N,) that it was dealt from.
        seed: The run's.
    """
    test_labels = checked_labels(test_labels, partition.num_classes)
    held = partition.class_counts(train_labels)  # (K, C)
    rng = numpy_generator(seed, "partition/test")
    owners = np.full(len(test_labels), -1, np.int32)
    clients = np.arange(partition.num_clients, dtype=np.int32)
    for c in np.flatnonzero(held.sum(axis=0)):
        images = rng.permutation(np.flatnonzero(test_labels == c))
        shares = largest_remainder(rng, held[:, c].astype(np.float64), len(images))
        owners[images] = np.repeat(clients, shares)
    indices, offsets = flatten(owners, partition.num_clients)
    return replace(
        partition,
        seed=seed,
        num_examples=len(test_labels),
        indices=indices,
        offsets=offsets,
        angles=None,
        rotation_bins=None,
    )


def summary(partition: Partition, labels: npt.NDArray[Any]) -> dict[str, Any]:
    """Return the record of `fedbench partition --json` without the name of the data set.

    `classes_per_client` has means over all clients, empty ones included: `ge_1_mean` of the
    classes that a client holds at least one image of, `ge_1pct_mean` of those that make up at
    least 1 % of its images.

    Args:
        partition: The deal.
        labels: (N,) that it was dealt from.

    Returns:
        JSON values; `rotation_bins` only for rotation shifts, `num_unlabelled` only if there are
        such examples.
    """
    counts = partition.class_counts(labels)  # (K, C)
    held = counts > 0
    substantial = held & (counts * 100 >= partition.sizes[:, None])
    record: dict[str, Any] = {
        "partitioner": partition.partitioner,
        "alpha": partition.alpha,
        "num_clients": partition.num_clients,
        "num_classes": partition.num_classes,
        "num_examples": partition.num_examples,
        "num_unused": partition.num_unused,
        "sizes": partition.sizes.tolist(),
        "class_counts": counts.tolist(),
        "classes_per_client": {
            "ge_1_mean": float(held.sum(axis=1).mean()),
            "ge_1pct_mean": float(substantial.sum(axis=1).mean()),
        },
    }
    if partition.rotation_bins is not None:
        record["rotation_bins"] = partition.rotation_bins
    if hidden := int((labels[partition.indices] == HIDDEN).sum()):
        record["num_unlabelled"] = hidden
    return record


def balanced_labels(text: str) -> tuple[npt.NDArray[np.int64], int]:
    """Return labels for `--labels balanced:N:C`: N examples in C equal classes.

    Returns:
        (N,) labels, and C.

    Raises:
        ConfigError: Another form, or N is not a positive multiple of C.

    >>> balanced_labels("balanced:6:3")
    (array([0, 1, 2, 0, 1, 2]), 3)
    """
    match = re.fullmatch(r"balanced:(\d{1,12}):(\d{1,6})", text)
    if match is None:
        raise ConfigError(
            f"labels {text!r} are not of the form balanced:N:C, for example balanced:50000:10"
        )
    num_examples, num_classes = int(match[1]), int(match[2])
    if num_classes == 0 or num_examples == 0 or num_examples % num_classes:
        raise ConfigError(
            f"labels {text!r}: {num_examples} examples do not make {num_classes} equal classes; "
            "N must be a positive multiple of C"
        )
    return np.arange(num_examples, dtype=np.int64) % num_classes, num_classes


def _check_deal(partition: Partition, config: DataConfig, *, may_leave: bool) -> None:
    smallest = int(partition.sizes.min())
    if smallest < config.min_client_size:
        raise ConfigError(
            f"data.min_client_size={config.min_client_size}, but {partition.partitioner!r} gives "
            f"the smallest client {smallest} images; lower it or data.num_clients"
        )
    if partition.num_unused and not may_leave:
        raise DataError(f"{partition.partitioner!r} left {partition.num_unused} images undealt")
