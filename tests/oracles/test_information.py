"""The theory's bounds on information beside the information that small joint tables hold."""

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedbench.bench.evaluation.theory import info_nce_bound, theory
from fedbench.bench.testing import tiny_config, tiny_setup
from tests.oracles.plain import SoftmaxRegression

Table = Sequence[Sequence[int]]
"""How often the first thing has value a and the second value b."""


def information(table: Table) -> float:
    """I(a; b) in nats: sum of p(a, b) ln (p(a, b) / (p(a) p(b)))."""
    total = sum(map(sum, table))
    rows = [Fraction(sum(row), total) for row in table]
    columns = [Fraction(sum(column), total) for column in zip(*table, strict=True)]
    return sum(
        count / total * math.log(Fraction(count, total) / (rows[a] * columns[b]))
        for a, row in enumerate(table)
        for b, count in enumerate(row)
        if count
    )


def entropy(counts: Sequence[int]) -> float:
    """H in nats: what a thing tells about itself."""
    return information(np.diag(counts).tolist())


def sampled(table: Table) -> list[tuple[int, int]]:
    return [(a, b) for a, row in enumerate(table) for b, n in enumerate(row) for _ in range(n)]


def test_info_nce_reaches_the_information_of_a_channel_at_its_own_temperature() -> None:
    """Of ten bits one arrives turned: with codes 1 and -1 and e^(2 / t) = 9 the critic is exact."""
    channel = ((9, 1), (1, 9))
    first, second = (
        torch.tensor([[1.0 - 2 * x] for x in xs]) for xs in zip(*sampled(channel), strict=True)
    )
    best = 2 / math.log(9)
    assert info_nce_bound(first, second, best) == pytest.approx(information(channel), rel=1e-6)
    for t in (best / 2, best * 2):
        assert info_nce_bound(first, second, t) < information(channel) - 0.01


def test_info_nce_is_the_sum_over_the_cells_of_an_uneven_table() -> None:
    """sum p(a, b) (f(a, b) - ln sum p(a') e^f(a', b)): a' is of the first view, b of the second."""
    table = ((5, 1, 0), (2, 0, 7))
    total, t = 15, 0.7
    a_codes = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    b_codes = torch.tensor([[0.8, 0.6], [0.0, -1.0], [-0.6, 0.8]])
    f = [[float(x @ y) / t for y in b_codes] for x in a_codes]
    expected = sum(
        n / total * (f[a][b] - math.log(sum(sum(r) / total * math.exp(f[i][b])
                                            for i, r in enumerate(table))))
        for a, row in enumerate(table) for b, n in enumerate(row)
    )  # fmt: skip
    pairs = sampled(table)
    first = a_codes[[a for a, _ in pairs]]
    second = b_codes[[b for _, b in pairs]]
    assert info_nce_bound(first, second, t) == pytest.approx(expected, rel=1e-6)
    assert expected < information(table)


SIZES, CODES, LABELS = (12, 20, 8, 24), (0, 0, 90, 200), (0, 1, 1, -1)
"""Of four clients: images, the shade that is their feature, the label of all their images."""


def test_all_bounds_of_an_encoder_are_those_of_the_tables_of_its_clients() -> None:
    """Features are a shade that two clients share, projections four pixels; both views are plain.

    Half of each client's images teach the critics, half judge them: both have the same table.
    """
    count, t = sum(SIZES), 0.5
    config = tiny_config(
        "simclr",
        data__num_clients=4,
        data__train_subset=count,
        evaluation__objective_view="plain",
        evaluation__objective_temperature=t,
    )
    ends = np.cumsum(SIZES).tolist()
    shares = [range(end - n, end) for end, n in zip(ends, SIZES, strict=True)]
    images = np.random.default_rng(2).integers(0, 256, (count, 1, 8, 8)).astype(np.uint8)
    images[:, 0, 0, 0] = np.repeat(CODES, SIZES)
    images[:, 0, 0, 1] = np.repeat(CODES, SIZES) // 2 + 3
    setup = tiny_setup(config, shares=shares)
    method: Any = SimpleNamespace(embed=lambda _, x: x[:, 0, 1, :4], centroids=lambda _: None)
    known = np.repeat(LABELS, SIZES)
    setup = replace(setup, images=images, known_labels=known, method=method)

    def encode(x: Tensor) -> Tensor:
        return x[:, 0, 0, :2]

    cpu = torch.device("cpu")
    encoded: Any = SimpleNamespace(setup=setup, net=None, encode=encode, device=cpu, client_id=None)
    found = theory(encoded, ["theory"])

    floats = images[:, 0] / 127.5 - 1  # [-1, 1]
    clients = np.repeat(range(4), SIZES)
    r = SoftmaxRegression(floats[:, 0, :2], clients, 4, 0.01).probabilities(floats[:, 0, :2])
    loss = -sum(math.log(r[i, k]) for i, k in enumerate(clients)) / count
    local = 0.0
    for share in shares:
        z = [row / math.hypot(*row) for row in floats[share, 1, :4]]
        for j in z:
            mean = sum(math.exp(float(i @ j) / t) for i in z) / len(z)
            local += (1 / t - math.log(mean)) / count
    seen = known >= 0
    x, y = floats[seen, 0, :2], known[seen]
    q = SoftmaxRegression(x, y, 2, 0.01).probabilities(x)
    label = entropy((12, 28)) + sum(math.log(q[i, k]) for i, k in enumerate(y)) / len(y)

    assert found["client_entropy"] == pytest.approx(entropy(SIZES))
    assert found["client_loss"] == pytest.approx(loss, abs=1e-5)
    assert found["client_identified"] == pytest.approx((20 + 8 + 24) / 64)  # of 12 + 20 the larger
    assert found["local_mi"] == pytest.approx(local, rel=1e-5)
    assert found["global_mi"] == pytest.approx(local + entropy(SIZES) - 2 * loss, abs=2e-5)
    assert found["label_mi"] == pytest.approx(label, abs=1e-5)
    # What the tables hold is more, by little: only the penalty keeps the critics from it.
    holds = {
        "client": (
            information([(12, 20, 0, 0), (0, 0, 8, 0), (0, 0, 0, 24)]),
            entropy(SIZES) - loss,
        ),
        "label": (information([(12, 20), (0, 8)]), label),
    }
    for whole, bound in holds.values():
        assert 0.6 * whole < bound < whole
