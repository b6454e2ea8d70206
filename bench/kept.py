"""How many of its images a client trains on, round by round: hidden labels make some of no use."""

from __future__ import annotations

import torch

from fedbench.bench.method import AddOn, Client, Method
from fedbench.bench.seeding import generator, scope
from fedbench.bench.setup import Setup

_LOOKS = 20
"""Rounds that are looked at, at most; those between two of them are as the earlier one."""


def kept_shares(setup: Setup, num_rounds: int, device: torch.device) -> list[float]:
    """The share of its images that the biggest client trains on, for every round.

    That is 1 unless some labels are hidden and others not. So it is for a method that gives labels
    of its own, too: which ones depends on how well it has learned, and all is the most it can be.

    Args:
        setup: the run.
        num_rounds: its rounds, preparatory ones included.
        device: where clients' images go.

    Returns:
        One share in [0, 1] per round.
    """
    labels, method = setup.labels, setup.method
    if _innermost(method).relabels or not num_rounds or (labels < 0).all() or (labels >= 0).all():
        return [1.0] * num_rounds
    biggest = int(setup.partition.sizes.argmax())
    net = setup.make_net().to(device)
    setup.layout(net)
    data = setup.client_data(biggest, device)
    step = -(-num_rounds // _LOOKS)
    shares: list[float] = []
    for index in range(0, num_rounds, step):
        client = Client(biggest, index, generator(0, "kept"))
        with scope(0, "kept-global"), torch.no_grad():
            kept = method.before_local(net, data, client)
        shares += [len(kept) / max(1, len(data))] * step
    return shares[:num_rounds]


def _innermost(method: Method) -> Method:
    while isinstance(method, AddOn):
        method = method.base
    return method
