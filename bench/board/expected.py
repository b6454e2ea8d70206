"""Consequences of a configuration that need no image: parameters, messages, rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from fedbench.bench.board.data_facts import DataFacts
from fedbench.bench.config import RunConfig
from fedbench.bench.data.datasets import Dataset
from fedbench.bench.data.partition import Partition
from fedbench.bench.method import Extra, RoundPlan
from fedbench.bench.runs.guarantees import needed_one_by_one
from fedbench.bench.system.errors import ConfigError, PluginError
from fedbench.bench.training.ledger import Ledger
from fedbench.bench.training.setup import Setup


@dataclass(frozen=True)
class Expected:
    """Facts that every honest run of a configuration has.

    Attributes:
        num_parameters: of the net.
        dim: numbers of a feature vector or a projection, the larger of the two.
        down: messages that one client receives in a round.
        up: messages that one client sends in a round in which it makes a step.
        extras: further messages that the method declares, by name.
        activations: True if activations cross between clients and server.
        surveyed: True if clients answer a survey in each round.
        secure_sum: True if the server needs sums over clients only.
        on_clients: True if metrics are means over the encoders of several clients.
        pooled: True if one client holds all images.
        budgets: True if some extra has a privacy budget.
        num_rounds: rounds of a whole run, preparatory ones included.
        plan: plan of a round, by its index.
    """

    num_parameters: int
    dim: int
    down: Ledger
    up: Ledger
    extras: Mapping[str, Extra]
    activations: bool
    surveyed: bool
    secure_sum: bool
    on_clients: bool
    pooled: bool
    budgets: bool
    num_rounds: int
    plan: Callable[[int], RoundPlan]


def expected(config: RunConfig, facts: DataFacts) -> Expected:
    """Derive what follows from a configuration on data of these shapes.

    Raises:
        FedbenchError: for a method that is not installed here, or settings it cannot be built with.
    """
    if config.data.num_clients > facts.num_train:
        raise ConfigError(f"more clients than the {facts.num_train:,} training images")
    plain = config.model_copy(update={"seed": 0}).model_dump_json(exclude={"evaluation", "privacy"})
    return _expected(plain, facts.image_shape, facts.num_classes)


@lru_cache(maxsize=64)
def _expected(plain: str, image_shape: tuple[int, int, int], num_classes: int) -> Expected:
    config = RunConfig.model_validate_json(plain)
    setup = _setup(config, image_shape, num_classes)
    try:
        with torch.device("meta"):  # shapes without weights: a stranger may ask for any width
            net = setup.make_net().eval()
            images = torch.empty(2, *image_shape)
            outputs = (setup.method.embed(net, images), setup.method.encode(net, images))
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as err:
        raise PluginError(f"method {config.spec!r} cannot be built without weights: {err}") from err
    layout, needs = setup.layout(net), setup.method.needs()
    client = Ledger.of_client(layout, needs.extras)
    down = client.one_way("down")
    down.merge(Ledger.resent(layout, needs.survey))
    default = RoundPlan(config.client.local_epochs)
    return Expected(
        num_parameters=sum(p.numel() for p in net.parameters()),
        dim=max(output.shape[1] for output in outputs),
        down=down,
        up=client.one_way("up"),
        extras=needs.extras,
        activations=bool(net.remote),
        surveyed=bool(needs.survey),
        secure_sum=not needed_one_by_one(setup.method),
        on_clients=setup.evaluate_on_clients,
        pooled=needs.pooled,
        budgets=any(extra.budget is not None for extra in needs.extras.values()),
        num_rounds=config.federation.num_rounds + needs.preparatory_rounds,
        plan=lambda index: setup.method.plan_round(index, default),
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
