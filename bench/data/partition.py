"""Partitions: disjoint shares of a data set, one per client; made, hashed and kept in a file."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from fedbench.bench.config import DataConfig
from fedbench.bench.config.partitioners import PARTITIONERS
from fedbench.bench.config.partitioners.dirichlet import largest_remainder
from fedbench.bench.config.partitioners.registry import Examples, fields_of
from fedbench.bench.config.partitioners.rotations import draw_angles
from fedbench.bench.data.labels import HIDDEN, WITHOUT_LABELS, held_out
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.files import atomic_write_bytes
from fedbench.bench.system.seeding import numpy_generator

IntArray = npt.NDArray[np.int64]
IndexArray = npt.NDArray[np.int32] | npt.NDArray[np.int64]

_FORMAT = 1
_RECIPE = ("partitioner", "alpha", "seed", "num_examples", "num_classes")


@dataclass(frozen=True, eq=False)
class Partition:
    """Disjoint shares of a data set, one per client, in read-only arrays."""

    partitioner: str
    alpha: float  # `data.alpha` as configured; iid and pathological do not use it
    seed: int
    num_examples: int  # N, of the data set, unused ones included
    num_classes: int  # C
    indices: IndexArray  # (num_used,) examples of client 0, then of client 1, …, ascending in each
    offsets: IntArray  # (K + 1,) where each client's share begins in `indices`, and the end
    angles: npt.NDArray[np.float32] | None = None  # (N,) degrees in [0, 360), NaN where unused
    # for each client the bins that its angles fall in
    rotation_bins: list[list[int]] | None = None

    @property
    def num_clients(self) -> int:
        """Count of clients, K."""
        return len(self.offsets) - 1

    @property
    def num_unused(self) -> int:
        """Count of examples that no client holds."""
        return self.num_examples - len(self.indices)

    @property
    def sizes(self) -> IntArray:
        """Count of each client's examples, (K,)."""
        return np.diff(self.offsets)

    @cached_property
    def hash(self) -> str:
        """Identity of the shares, without the recipe: 20 hexadecimal digits from all arrays."""
        from fedbench.bench.system import tensor_files

        meta = {"num_examples": self.num_examples, "num_classes": self.num_classes}
        return tensor_files.digest(meta, self._arrays())[:20]

    def pooled(self) -> Self:
        """Return a partition that gives all clients' examples to one client."""
        bins = self.rotation_bins
        indices: IndexArray = np.sort(self.indices)  # type: ignore[assignment]
        return replace(
            self,
            indices=indices,
            offsets=np.array([0, len(self.indices)], np.int64),
            rotation_bins=None if bins is None else [sorted(set().union(*bins))],
        )

    def client(self, client_id: int) -> IndexArray:
        """Return the examples of one client, ascending, as a view."""
        return self.indices[self.offsets[client_id] : self.offsets[client_id + 1]]

    def class_counts(self, labels: npt.NDArray[Any]) -> IntArray:
        """Count the labelled examples of each class at each client, (K, C), from labels (N,)."""
        cells = np.repeat(np.arange(self.num_clients), self.sizes) * self.num_classes
        held = labels[self.indices]
        cells = (cells + held)[held != HIDDEN]
        counts = np.bincount(cells, minlength=self.num_clients * self.num_classes)
        return counts.reshape(self.num_clients, self.num_classes)

    def save(self, path: Path) -> None:
        """Write a checksummed tensor file in one step; a `StoreError` leaves the old one."""
        import torch

        from fedbench.bench.system import tensor_files

        meta = {"format": _FORMAT} | {name: getattr(self, name) for name in _RECIPE}
        tensors = {name: torch.tensor(array) for name, array in self._arrays().items()}
        atomic_write_bytes(path, tensor_files.encode(meta, tensors))

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        arrays: dict[str, npt.NDArray[Any]] = {"indices": self.indices, "offsets": self.offsets}
        if self.angles is not None:
            arrays["angles"] = self.angles
        if self.rotation_bins is not None:
            lengths = [len(bins) for bins in self.rotation_bins]
            flat = [b for bins in self.rotation_bins for b in bins]
            arrays["bins"] = np.array(flat, np.int32)
            arrays["bin_offsets"] = np.cumsum([0, *lengths], dtype=np.int64)
        return arrays


def flatten(owners: npt.NDArray[np.int32], num_clients: int) -> tuple[IndexArray, IntArray]:
    """Turn owners (N,) into indices sorted by client, then example, and offsets (K + 1,)."""
    unused = int((owners < 0).sum())
    order = np.argsort(owners, kind="stable")[unused:]
    sizes = np.bincount(owners[order], minlength=num_clients)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
    narrow = len(owners) <= np.iinfo(np.int32).max  # half the memory; the type is in the hash
    indices: IndexArray = order.astype(np.int32) if narrow else order.astype(np.int64)
    for array in (indices, offsets):
        array.flags.writeable = False
    return indices, offsets


def make_partition(
    labels: npt.NDArray[Any],
    num_classes: int,
    config: DataConfig,
    seed: int,
    clients: npt.NDArray[np.int64] | None = None,
) -> Partition:
    """Give training examples to clients as `data.partition` says.

    Fields that the partitioner does not read are ignored. The share `data.held_out` is taken away
    first; of the rest only `pathological` and `legacy` leave examples unused. Labels are (N,) in
    [0, num_classes), some classes perhaps without examples, or `HIDDEN`; clients (N,) are those
    that the data set was read with, for `natural` and `file`. Raises `ConfigError` if these labels
    cannot meet the settings.
    """
    name, num_clients = config.partition, config.num_clients
    partitioner = PARTITIONERS[name]
    hidden = int((labels == HIDDEN).sum())
    if hidden and partitioner.source == "labels":
        too = f"; set {WITHOUT_LABELS}" if hidden == len(labels) else ""
        raise ConfigError(
            f"data.partition={name} looks at labels, but {hidden:,} of {len(labels):,} training"
            f" images have none; use one of {_listed('nothing', 'clients')}{too}"
        )
    if clients is None and partitioner.source == "clients":
        others = _listed("nothing", "labels")
        raise ConfigError(f"data.partition={name} needs images with clients; use one of {others}")
    given = np.ones(len(labels), dtype=np.bool_)
    given[held_out(labels, config.held_out, seed)] = False
    count = int(given.sum())
    if num_clients > count and not partitioner.may_leave_clients_empty:
        raise ConfigError(
            f"data.num_clients={num_clients} is more than the {count} training images, and "
            f"{name!r} leaves no client empty; lower it, or use data.partition=iid or dirichlet"
        )

    examples = Examples(labels[given], num_classes, num_clients, seed)
    if clients is not None:
        examples = replace(examples, clients=clients[given], num_groups=int(clients.max()) + 1)
    owners = np.full(len(labels), -1, np.int32)
    fields = {field: getattr(config, field) for field in fields_of(partitioner.assign)}
    owners[given] = partitioner.assign(examples, **fields)
    indices, offsets = flatten(owners, num_clients)
    partition = Partition(name, config.alpha, seed, len(labels), num_classes, indices, offsets)
    if partitioner.angles_by is not None:
        alpha, num_bins = getattr(config, partitioner.angles_by), config.rotation_bins
        angles, bins = draw_angles(owners, examples, alpha, num_bins, config.multiply_prior)
        partition = replace(partition, angles=angles, rotation_bins=bins)
    smallest = int(partition.sizes.min())
    if smallest < config.min_client_size:
        raise ConfigError(
            f"data.min_client_size={config.min_client_size}, but {name!r} gives the smallest client"
            f" {smallest} images; lower it or data.num_clients"
        )
    return partition


def _listed(*sources: str) -> str:
    return ", ".join(name for name, each in PARTITIONERS.items() if each.source in sources)


def make_test_partition(
    test_labels: npt.NDArray[Any], partition: Partition, train_labels: npt.NDArray[Any], seed: int
) -> Partition:
    """Give each client its own share of the test set, with the class proportions it trains on.

    Each class of the test labels (M,) is split over its holders in proportion to their training
    images of it, by the labels (N,) that the partition was made from, and largest remainders. Test
    images stay upright. Clients with few images can get none; images of a class that no client
    trains on stay unused.
    """
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

    `classes_per_client` has means over all clients, empty ones included: `ge_1_mean` of the classes
    that a client holds at least one image of, `ge_1pct_mean` of those that make up at least 1 % of
    its images. `labels` are the (N,) that the partition was made from.
    """
    counts = partition.class_counts(labels)  # (K, C)
    held = counts > 0
    substantial = held & (counts * 100 >= partition.sizes[:, None])
    names = ("partitioner", "alpha", "num_clients", "num_classes", "num_examples", "num_unused")
    record: dict[str, Any] = {
        **{name: getattr(partition, name) for name in names},
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


@dataclass(frozen=True)
class PartitionSummary:
    """Result of `fedbench partition`."""

    dataset: str
    labels: str | None
    """`balanced:N:C` if that replaced the labels of the data set."""
    partition: Partition = field(repr=False)
    record: Mapping[str, Any] = field(repr=False)
    """Sizes and class counts, as `fedbench partition --json` prints them."""
    class_names: tuple[str, ...] | None = field(default=None, repr=False)
    """By label; None for `labels`, which have none."""

    def as_dict(self) -> dict[str, Any]:
        """Return the values that `fedbench partition --json` prints."""
        extra = {"labels": self.labels, "class_names": self.class_names}
        extra = {name: value for name, value in extra.items() if value is not None}
        return {"dataset": self.dataset, **self.record, **extra, "hash": self.partition.hash}


def balanced_labels(text: str) -> tuple[npt.NDArray[np.int64], int]:
    """Return labels (N,) of C equal classes, and C, for `--labels balanced:N:C`.

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
        raise ConfigError(f"labels {text!r}: N must be a positive multiple of C")
    return np.arange(num_examples, dtype=np.int64) % num_classes, num_classes
