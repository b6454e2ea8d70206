"""What a round costs a client, in FLOP that follow from the shapes."""

from typing import Any

import pytest

from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.testing import tiny_config
from fedbench.leaderboards.papers.client_cost import client_cost

SMALL: dict[str, Any] = {
    "data__train_subset": 96, "data__num_clients": 2, "data__partition": "iid",
    "client__batch_size": 16,
}  # fmt: skip


def cost(spec: str, **fields: Any) -> float:
    found = client_cost(Experiment(tiny_config(spec, **SMALL, **fields)))
    assert 0 <= found.share < 1
    assert found.seconds > found.seconds_beside >= 0
    return found.flop - found.flop_beside


def test_steps_of_a_round_cost_in_proportion() -> None:
    """48 images in batches of 16: three steps an epoch, of which the first eight are measured.

    What differs are the products by which random crops are resized.
    """
    once = cost("simclr", client__local_epochs=1)
    assert cost("simclr", client__local_epochs=2) == pytest.approx(2 * once, rel=0.01)
    assert cost("simclr", client__local_epochs=6) == pytest.approx(6 * once, rel=0.01)


def test_a_compiled_run_costs_the_same_products() -> None:
    assert cost("simclr", client__compile=True) == cost("simclr")


def test_only_clustering_costs_products_beside_the_steps() -> None:
    """Five iterations of similarities (n, d) x (d, L): two FLOP for each product and sum."""
    fields = {"method__num_local_clusters": 4, "method__projection_dim": 8}
    config = tiny_config("orchestra", **SMALL, **fields, client__local_epochs=1)
    assert client_cost(Experiment(config)).flop_beside == 5 * 2 * 48 * 8 * 4
    assert client_cost(Experiment(tiny_config("simclr", **SMALL))).flop_beside == 0
