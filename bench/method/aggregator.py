"""From the uploads of a round to one vector: the step before `server.optimizer`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedbench.bench.config import ServerConfig
from fedbench.bench.nn.robust import coordinate_median, krum, trimmed_mean
from fedbench.bench.system.errors import ConfigError


class Aggregator(ABC):
    """Makes one vector of the averaged tensors that the clients of a round send.

    Each round has a new one. The server folds the uploads in, by ascending client id, and hands the
    result to its optimizer, which steps from the present weights towards it; averaged buffers
    become the result itself. Clients that made no step are left out. If nobody made one, nothing is
    asked.

    >>> mean = Mean()
    >>> mean.fold(0, 1.0, torch.tensor([1.0, 2.0]))
    >>> mean.fold(3, 3.0, torch.tensor([5.0, 2.0]))
    >>> mean.result().tolist()
    [4.0, 2.0]
    """

    single_uploads: ClassVar[bool] = True
    """True if it looks at single clients' uploads: sums, as secure aggregation gives, will not do.
    The ledger and the guarantees of a run say so."""

    memory: ClassVar[Literal["model", "cohort"]] = "cohort"
    """What it holds until the round ends: a few models, or an upload of every client."""

    @abstractmethod
    def fold(self, client_id: int, weight: float, upload: Tensor) -> None:
        """Take a client's upload, float32 (n,), which is overwritten afterwards: copy what is kept.

        `weight`, above 0, is 1 or the client's number of images, as `server.weighting` says.
        """

    @abstractmethod
    def result(self) -> Tensor:
        """Return the vector for the server's optimizer, float64 (n,)."""


Weigh = Callable[[Tensor], Iterable[tuple[slice, float]]]
"""Returns, for an upload, parts of it and the factor that each has in the mean."""


class Mean(Aggregator):
    """The weighted mean, as a sum in float64 that uploads are added to as they come.

    Args:
        unweighted: parts of an upload in whose mean every client counts the same.
        weigh: factors of parts of each upload; the sum of the weights stays as it is.
    """

    single_uploads = False
    memory = "model"

    def __init__(self, unweighted: Sequence[slice] = (), weigh: Weigh | None = None) -> None:
        self._unweighted, self._weigh = unweighted, weigh
        self._sum = torch.empty(0)
        self._total, self._count = 0.0, 0

    def fold(self, client_id: int, weight: float, upload: Tensor) -> None:
        """Add a client's upload."""
        if not self._count:
            self._sum = torch.zeros(len(upload), dtype=torch.float64, device=upload.device)
        self._sum.add_(upload, alpha=weight)
        for part in self._unweighted:
            self._sum[part].add_(upload[part], alpha=1.0 - weight)
        # What the factors change is added, so that a factor of 1 keeps the bits of a plain mean.
        for part, factor in self._weigh(upload) if self._weigh is not None else ():
            self._sum[part].add_(upload[part], alpha=weight * (factor - 1.0))
        self._total += weight
        self._count += 1

    def result(self) -> Tensor:
        """Return the sum over the sum of weights."""
        mean = self._sum / self._total
        for part in self._unweighted:
            mean[part] = self._sum[part] / self._count
        return mean


class _OfAll(Aggregator):
    """Keeps every upload, so that its memory grows with the cohort."""

    def __init__(self) -> None:
        self._uploads: list[Tensor] = []
        self._weights: list[float] = []

    def fold(self, client_id: int, weight: float, upload: Tensor) -> None:
        """Keep a client's upload."""
        self._uploads.append(upload.clone())
        self._weights.append(weight)


class TrimmedMean(_OfAll):
    """Mean of each number without its smallest and its largest values.

    Source: Yin et al. 2018, https://arxiv.org/abs/1803.01498, algorithm 1 with option II, there of
    gradients. Here of models after local steps, which is the same as of their changes. The source
    knows no weights; with `server.weighting=examples` the values that are left count by them.

    Args:
        fraction: share of the uploads to leave out at either end, in [0, 0.5): the beta of the
            source, and of n uploads floor(beta n), where the source takes beta n to be whole.

    >>> trimmed = TrimmedMean(0.25)
    >>> for client_id, value in enumerate((1.0, 2.0, 6.0, 900.0)):
    ...     trimmed.fold(client_id, 1.0, torch.tensor([value]))
    >>> trimmed.result().tolist()
    [4.0]
    """

    def __init__(self, fraction: float) -> None:
        super().__init__()
        self._fraction = fraction

    def result(self) -> Tensor:
        """Return the trimmed mean of the uploads."""
        return trimmed_mean(
            self._uploads, trimmed(self._fraction, len(self._uploads)), self._weights
        )


class Median(_OfAll):
    """Median of each number.

    Source: Yin et al. 2018, https://arxiv.org/abs/1803.01498, algorithm 1 with option I. What
    `TrimmedMean` says of models and of weights holds here too, with one consequence: a client that
    claims more images than all others together decides alone.
    """

    def result(self) -> Tensor:
        """Return the coordinate-wise median of the uploads."""
        return coordinate_median(self._uploads, self._weights)


class Krum(_OfAll):
    """The one upload that is closest to most of the others.

    Source: Blanchard et al. 2017, https://arxiv.org/abs/1703.02757, section 4, there of gradients.
    Here of models after local steps, whose distances are those of their changes; distances are over
    all averaged numbers, batch norm's statistics included. As in the source, clients count alike:
    weights have no effect.

    Args:
        num_byzantine: the f of the source: uploads that may be anything.
    """

    def __init__(self, num_byzantine: int) -> None:
        super().__init__()
        self._num_byzantine = num_byzantine

    def result(self) -> Tensor:
        """Return the chosen upload.

        Raises:
            ConfigError: for fewer than 2 f + 3 uploads, of which Krum promises nothing.
        """
        if (count := len(self._uploads)) < (least := least_cohort(self._num_byzantine)):
            raise ConfigError(
                f"server.num_byzantine={self._num_byzantine}: Krum needs {least} uploads, and only"
                f" {count} clients of a round made a step; lower it, or sample more clients"
            )
        return self._uploads[krum(self._uploads, self._num_byzantine)].double()


def configured(server: ServerConfig) -> Aggregator:
    """Return the aggregator that `server.aggregator` names; the mean without factors of a method.

    >>> type(configured(ServerConfig(aggregator="trimmed-mean"))).__name__
    'TrimmedMean'
    """
    match server.aggregator:
        case "trimmed-mean":
            return TrimmedMean(server.trim_fraction)
        case "median":
            return Median()
        case "krum":
            return Krum(server.num_byzantine)
        case _:
            return Mean()


def trimmed(fraction: float, count: int) -> int:
    """Return how many of `count` uploads `TrimmedMean` leaves out at either end.

    >>> trimmed(0.2, 8), trimmed(0.29, 100)
    (1, 29)
    """
    return int(fraction * count + 1e-9)  # 0.29 * 100 is 28.99…


def least_cohort(num_byzantine: int) -> int:
    """Return how many uploads `Krum` needs: more than 2 f + 2."""
    return 2 * num_byzantine + 3
