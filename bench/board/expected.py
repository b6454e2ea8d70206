"""What follows from a configuration on data of some shape, without an image.

Parameters, messages and rounds follow from shapes, which a net without weights has too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from fedbench.bench.config import RunConfig
from fedbench.bench.data.datasets import Dataset, cached_dataset
from fedbench.bench.data.known import REVISIONS, SUBSETS
from fedbench.bench.data.partition import Partition
from fedbench.bench.data.sources.base import SOURCES
from fedbench.bench.method import Needs
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.training.ledger import Ledger
from fedbench.bench.training.setup import Setup


def data_of(revision: str, data_dir: Path | None) -> Dataset | None:
    """Return the data set of a revision; None if it is neither in a table nor in a cache.

    Of a known revision that no cache here holds, it is `blank`.
    """
    if (found := cached_dataset(revision, data_dir)) is not None:
        return found
    name, part = SUBSETS.get(revision, (REVISIONS.get(revision, ""), None))
    size = SOURCES[name].size if name in SOURCES else None
    if size is None:
        return None
    num_classes, image_shape, *numbers = size
    return blank(name, image_shape, num_classes, *(part or numbers))


def blank(
    name: str, image_shape: tuple[int, int, int], num_classes: int, num_train: int, num_test: int
) -> Dataset:
    """Return a data set of black images, which take no memory; it has no path."""
    train, test = (
        np.broadcast_to(np.zeros(1, np.uint8), (count, *image_shape))
        for count in (num_train, num_test)
    )
    labels, test_labels = (
        np.arange(count, dtype=np.int64) % num_classes for count in (num_train, num_test)
    )
    names = tuple(map(str, range(num_classes)))
    return Dataset(name, "", "", train, labels, test, test_labels, names, Path())


@dataclass(frozen=True)
class Expected:
    """Facts that every honest run of a configuration has.

    Attributes:
        setup: the run on one blank image a client.
        needs: of its method.
        num_parameters: of its net.
        activations: True if activations cross between clients and server.
        flows: messages of one client in a round in which it makes a step.
    """

    setup: Setup
    needs: Needs
    num_parameters: int
    activations: bool
    flows: Ledger


def expected(config: RunConfig, dataset: Dataset) -> Expected:
    """Derive what follows from a configuration on data of these shapes.

    Raises:
        FedbenchError: for more clients than images, a method that is not installed here, or
            settings it cannot be built with.
    """
    if config.data.num_clients > (count := len(dataset.train_labels)):
        raise ConfigError(f"data.num_clients is above the {count:,} training images")
    plain = config.model_copy(update={"seed": 0}).model_dump_json(exclude={"evaluation", "privacy"})
    return _expected(plain, dataset.image_shape, dataset.num_classes)


@lru_cache(maxsize=64)
def _expected(plain: str, image_shape: tuple[int, int, int], num_classes: int) -> Expected:
    config = RunConfig.model_validate_json(plain)
    count = config.data.num_clients
    offsets = np.arange(count + 1, dtype=np.int64)
    setup = Setup.of(
        config,
        blank("blank", image_shape, num_classes, count, count),
        Partition("iid", 1.0, 0, count, num_classes, offsets[:-1], offsets),
    )
    with torch.device("meta"):  # shapes without weights: a stranger may ask for any width
        net = setup.make_net()
    layout, needs = setup.layout(net), setup.method.needs()
    flows = Ledger.of_client(layout, needs.extras)
    flows.merge(Ledger.resent(layout, needs.pre_round))
    parameters = sum(p.numel() for p in net.parameters())
    return Expected(setup, needs, parameters, bool(net.remote), flows)
