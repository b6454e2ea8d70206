"""Partitions: disjoint shares of a data set, one per client, hashed and kept in a file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbench.bench.data.labels import HIDDEN
from fedbench.bench.system.errors import DataError
from fedbench.bench.system.files import atomic_write_bytes

IntArray = npt.NDArray[np.int64]
IndexArray = npt.NDArray[np.int32] | npt.NDArray[np.int64]

_FORMAT = 1


@dataclass(frozen=True, eq=False)
class Partition:
    """Disjoint shares of a data set, one per client; read-only arrays, checked when made.

    Attributes:
        partitioner: Name of the algorithm.
        alpha: `data.alpha` as configured; iid and pathological do not use it.
        seed: Seed of the draw (0 for the legacy deal, which ignores the run's seed).
        num_examples: N, of the data set, unused ones included.
        num_classes: C.
        indices: (num_used,) examples of client 0, then of client 1, …, ascending in each.
        offsets: (K + 1,) where each client's share begins in `indices`, and the end.
        angles: (N,) degrees in [0, 360) by which each image is turned, NaN for unused examples;
            None without a rotation shift.
        rotation_bins: For each client the bins that its angles fall in; None without a shift.
    """

    partitioner: str
    alpha: float
    seed: int
    num_examples: int
    num_classes: int
    indices: IndexArray
    offsets: IntArray
    angles: npt.NDArray[np.float32] | None = None
    rotation_bins: list[list[int]] | None = None

    def __post_init__(self) -> None:
        """Check that the shares are disjoint and inside the data set; raise a DataError if not."""
        indices, offsets = self.indices, self.offsets
        if (
            len(offsets) < 2
            or offsets[0] != 0
            or offsets[-1] != len(indices)
            or (np.diff(offsets) < 0).any()
        ):
            raise DataError(
                f"partition: offsets must rise from 0 to the {len(indices)} dealt examples"
            )
        seen = np.zeros(self.num_examples, np.bool_)
        if len(indices) and not (indices.min() >= 0 and indices.max() < self.num_examples):
            raise DataError(f"partition: indices must lie in 0 … {self.num_examples - 1}")
        seen[indices] = True
        if int(seen.sum()) != len(indices):
            raise DataError("partition: an example is dealt twice")
        if self.angles is not None and self.angles.shape != (self.num_examples,):
            raise DataError(f"partition: angles must have shape ({self.num_examples},)")
        if self.rotation_bins is not None and len(self.rotation_bins) != self.num_clients:
            raise DataError(f"partition: rotation_bins must have {self.num_clients} entries")

    def __eq__(self, other: object) -> bool:
        """Compare the shares and the recipe that they were made by."""
        if not isinstance(other, Partition):
            return NotImplemented
        return self._recipe() == other._recipe() and self.hash == other.hash

    def __hash__(self) -> int:
        """Equal partitions have equal hashes."""
        return hash(self.hash)

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
        """Identity of the shares: 20 hexadecimal digits from images, clients and rotation angles.

        The recipe (partitioner, alpha, seed) is left out, so runs can be checked for shared data.
        """
        from fedbench.bench.system import tensor_files

        meta = {"num_examples": self.num_examples, "num_classes": self.num_classes}
        return tensor_files.digest(meta, self._arrays())[:20]

    def pooled(self) -> Partition:
        """Return a partition that gives all dealt examples to one client."""
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
        if not 0 <= client_id < self.num_clients:
            raise IndexError(f"client {client_id} is not in 0 … {self.num_clients - 1}")
        return self.indices[self.offsets[client_id] : self.offsets[client_id + 1]]

    def class_counts(self, labels: npt.NDArray[Any]) -> IntArray:
        """Count the examples of each class at each client, (K, C), from labels (N,).

        Examples without a label are not counted.
        """
        labels = checked_labels(labels, self.num_classes)
        if len(labels) != self.num_examples:
            raise DataError(
                f"{len(labels)} labels for a partition of {self.num_examples} examples; "
                "use the labels that the partition was dealt from"
            )
        cells = np.repeat(np.arange(self.num_clients), self.sizes) * self.num_classes
        dealt = labels[self.indices]
        cells = (cells + dealt)[dealt != HIDDEN]
        counts = np.bincount(cells, minlength=self.num_clients * self.num_classes)
        return counts.reshape(self.num_clients, self.num_classes)

    def save(self, path: Path) -> None:
        """Write a checksummed tensor file in one step.

        Raises:
            StoreError: The file cannot be written; an existing one stays as it was.
        """
        import torch

        from fedbench.bench.system import tensor_files

        meta = {"format": _FORMAT, **self._recipe()}
        tensors = {name: torch.tensor(array) for name, array in self._arrays().items()}
        atomic_write_bytes(path, tensor_files.encode(meta, tensors))

    @classmethod
    def load(cls, path: Path) -> Partition:
        """Map a saved partition, after checking its content.

        Raises:
            DataError: The file is missing, torn, altered, or of another format version.
        """
        from fedbench.bench.system import tensor_files

        if not path.is_file():
            raise DataError(f"no partition file {path}; deal the data again to write it")
        try:
            meta, tensors = tensor_files.read(path)
        except (OSError, ValueError) as err:
            raise DataError(
                f"partition file {path} is torn or altered: {err}; delete it and deal again"
            ) from err
        if meta.pop("format", None) != _FORMAT:
            raise DataError(f"{path} is not a partition of format {_FORMAT}; deal the data again")
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        for array in arrays.values():
            array.flags.writeable = False
        bins = None
        if "bins" in arrays:
            flat = arrays.pop("bins").tolist()
            bins = [flat[a:b] for a, b in pairwise(arrays.pop("bin_offsets").tolist())]
        return cls(
            indices=arrays["indices"],
            offsets=arrays["offsets"],
            angles=arrays.get("angles"),
            rotation_bins=bins,
            **meta,
        )

    def _recipe(self) -> dict[str, Any]:
        names = ("partitioner", "alpha", "seed", "num_examples", "num_classes")
        return {name: getattr(self, name) for name in names}

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
    narrow = len(owners) <= np.iinfo(np.int32).max
    indices: IndexArray = order.astype(np.int32) if narrow else order.astype(np.int64)
    for array in (indices, offsets):
        array.flags.writeable = False
    return indices, offsets


def checked_labels(labels: npt.ArrayLike, num_classes: int) -> IntArray:
    """Return labels as int64.

    Raises:
        DataError: There are no labels, or they are not integers in 0 … C - 1 or `HIDDEN`.
    """
    labels = np.asarray(labels)
    if labels.ndim != 1 or len(labels) == 0 or labels.dtype.kind not in "iu":
        raise DataError(
            f"labels must be a non-empty row of integers, got {labels.dtype} {labels.shape}"
        )
    low, high = int(labels.min()), int(labels.max())
    if low < HIDDEN or high >= num_classes:
        raise DataError(f"labels {low} … {high} are not all in 0 … {num_classes - 1}")
    return labels.astype(np.int64, copy=False)
