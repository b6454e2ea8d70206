"""Registry of partitioners: the rules by name, and the fields of `data` that each reads."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedbench.bench.system.seeding import numpy_generator

IntArray = npt.NDArray[np.int64]
Owners = npt.NDArray[np.int32]
"""(N,) client of each example, -1 for an example that no client gets: shares are disjoint."""
Angles = tuple[npt.NDArray[np.float32], list[list[int]]]
"""(N,) degrees, NaN for unused examples, and for each client its bins, ascending."""

_ALWAYS = ("num_clients", "min_client_size")
"""Fields of every partition."""


@dataclass(frozen=True)
class Examples:
    """What a partitioner looks at."""

    labels: IntArray  # (N,) classes in 0..C-1, `HIDDEN` where there is none
    num_classes: int  # C
    num_clients: int  # K
    seed: int  # the run's
    clients: IntArray | None = None  # (N,) clients 0..G-1 that images come with, as writers
    num_groups: int = 0  # G

    @cached_property
    def rng(self) -> np.random.Generator:
        """Source of all draws of a partition but its angles."""
        return numpy_generator(self.seed, "partition")


@dataclass(frozen=True)
class Partitioner:
    """A rule that gives every training example a client.

    The parameters by keyword of `assign` are the fields of `data` that it reads.
    """

    assign: Callable[..., Owners]  # `assign(examples, *, …) -> Owners`
    source: Literal["labels", "clients", "nothing"] = "labels"  # what `assign` looks at
    angles_by: str | None = None  # field with the concentration of angles; None: images are upright
    may_leave_clients_empty: bool = False  # whether there may be more clients than examples

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Fields of `data` that decide the partition."""
        turned = (self.angles_by, "rotation_bins", "multiply_prior") if self.angles_by else ()
        return tuple(dict.fromkeys((*fields_of(self.assign), *turned)))


PARTITIONERS: dict[str, Partitioner] = {}
"""Partitioners by their names in `data.partition`; modules of this package add theirs."""


def fields_of(function: Callable[..., Any]) -> list[str]:
    """Return the parameters by keyword of a function."""
    parameters = inspect.signature(function).parameters
    return [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY]


def fields_not_read(name: str) -> set[str]:
    """Return the fields of `data` that other partitioners read and this one does not."""
    fields = {field for each in PARTITIONERS.values() for field in each.reads} - set(_ALWAYS)
    return fields - set(PARTITIONERS[name].reads if name in PARTITIONERS else ())
