"""Consequences of a configuration that need no image: parameters, messages, rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from fedbench.bench.board.data_facts import DataFacts
from fedbench.bench.config import RunConfig
from fedbench.bench.data.datasets import Dataset
from fedbench.bench.data.partition.partition import Partition
from fedbench.bench.method import Extra, RoundPlan
from fedbench.bench.runs.guarantees import needed_one_by_one
from fedbench.bench.training.ledger import Ledger
from fedbench.bench.training.setup import Setup


@dataclass(frozen=True)
class Expected:
    """Facts that every honest run of a configuration has.

    Attributes:
        num_parameters: of the net.
        down: messages that one client receives in a round.
        up: messages that one client sends in a round in which it makes a step.
        extras: further messages that the method declares, by name.
        activations: True if activations cross between clients and server.
        surveyed: True if clients answer a survey in each round.
        secure_sum: True if the server needs sums over clients only.
        on_clients: True if metrics are means over the encoders of several clients.
        pooled: True if one client holds all images.
        budgets: True if some extra has a privacy budget.
        plans: of each round, preparatory ones included.
    """

    num_parameters: int
    down: Ledger
    up: Ledger
    extras: Mapping[str, Extra]
    activations: bool
    surveyed: bool
    secure_sum: bool
    on_clients: bool
    pooled: bool
    budgets: bool
    plans: tuple[RoundPlan, ...]


def expected(config: RunConfig, facts: DataFacts) -> Expected:
    """Derive what follows from a configuration on data of these shapes.

    Raises:
        FedbenchError: for a method that is not installed here, or settings it cannot be built with.
    """
    plain = config.model_copy(update={"seed": 0}).model_dump_json(exclude={"evaluation", "privacy"})
    return _expected(plain, facts.image_shape, facts.num_classes)


@lru_cache(maxsize=64)
def _expected(plain: str, image_shape: tuple[int, int, int], num_classes: int) -> Expected:
    config = RunConfig.model_validate_json(plain)
    setup = _setup(config, image_shape, num_classes)
    net = setup.make_net()
    layout, needs = setup.layout(net), setup.method.needs()
    client = Ledger.of_client(layout, needs.extras)
    down = client.one_way("down")
    down.merge(Ledger.resent(layout, needs.survey))
    rounds = config.federation.num_rounds + needs.preparatory_rounds
    default = RoundPlan(config.client.local_epochs)
    return Expected(
        num_parameters=sum(p.numel() for p in net.parameters()),
        down=down,
        up=client.one_way("up"),
        extras=needs.extras,
        activations=bool(net.remote),
        surveyed=bool(needs.survey),
        secure_sum=not needed_one_by_one(setup.method),
        on_clients=setup.evaluate_on_clients,
        pooled=needs.pooled,
        budgets=any(extra.budget is not None for extra in needs.extras.values()),
        plans=tuple(setup.method.plan_round(index, default) for index in range(rounds)),
    )


def _setup(config: RunConfig, image_shape: tuple[int, int, int], num_classes: int) -> Setup:
    """Return a run whose clients hold one blank image each."""
    count = config.data.num_clients
    images = np.broadcast_to(np.zeros(1, np.uint8), (count, *image_shape))
    labels = np.arange(count, dtype=np.int64) % num_classes
    names = tuple(map(str, range(num_classes)))
    dataset = Dataset("blank", "", "", images, labels, images, labels, names, Path())
    offsets = np.arange(count + 1, dtype=np.int64)
    shares = Partition("iid", 1.0, 0, count, num_classes, offsets[:-1], offsets)
    return Setup.of(config, dataset, shares)
