"""FedU2 against its paper and release: who takes part in the server's step, and how strong it is.

Source: Liao et al. 2024, https://arxiv.org/abs/2403.16398. The expected numbers are computed here
by solvers and loops of their own in float64.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.optimize import Bounds, LinearConstraint, minimize
from torch import Tensor

from fedbench.bench.data.batches import Batch
from fedbench.bench.experiment.fields import Fields
from fedbench.bench.method import AddOn, Client, Net, Server, Upload, registry
from fedbench.bench.system.seeding import generator
from fedbench.bench.testing import loss_of, tiny_config, tiny_setup, train
from fedbench.bench.training.setup import Setup
from tests.specs import extended

Vector = npt.NDArray[np.float64]

BATCH_SIZE = 8


def min_norm(changes: Vector) -> Vector:
    """Return the shortest vector of the convex hull of the rows, (K, P) -> (P,).

    SLSQP over the simplex from its centre, on numbers of order 1.
    """
    size = float(np.sqrt((changes**2).sum(axis=1).mean()))
    gram = (changes @ changes.T) / size**2
    count = len(changes)

    def square(shares: Vector) -> float:
        return float(shares @ gram @ shares)

    found = minimize(
        square,
        np.full(count, 1 / count, dtype=np.float64),
        bounds=Bounds(0.0, 1.0),
        constraints=LinearConstraint(np.ones((1, count)), 1.0, 1.0),
        method="SLSQP",
        tol=1e-14,
    )
    assert found.success
    shortest: Vector = found.x @ changes
    return shortest


def flat(net: Net, tensors: Any) -> Vector:
    """Return what is trained of some tensors by name as one vector."""
    names = [name for name, _ in net.named_parameters()]
    return torch.cat([tensors[name].detach().flatten().double() for name in names]).numpy()


class Spied(registry.create("simclr+fedu2", {}).__class__):  # type: ignore[misc]
    """The add-on, which notes what each server step was given and what it made of it."""

    def server_step(self, net: Net, uploads: Sequence[Upload], server: Server) -> None:
        super().server_step(net, uploads, server)
        SEEN.append((net, list(uploads), dict(server.before), flat(net, dict(net.state_dict()))))


SEEN: list[tuple[Net, list[Upload], dict[str, Tensor], Vector]] = []


def setup_of(shares: Sequence[Sequence[int]], **values: Any) -> Setup:
    setup = tiny_setup(
        tiny_config(
            "simclr+fedu2",
            data__num_clients=len(shares),
            client__batch_size=BATCH_SIZE,
            federation__participation=1.0,
            **values,
        ),
        shares=shares,
    )
    SEEN.clear()
    return dataclasses.replace(setup, method=Spied(**dict(setup.method)))


STEPPING = [range(24), range(24, 40), range(40, 56)]
IDLE: dict[str, tuple[list[Sequence[int]], dict[str, Any]]] = {
    "one image makes no pair": ([[56], [57]], {"client__keep_last_batch": True}),
    "fewer images than a batch": ([range(56, 61), [61]], {"client__keep_last_batch": False}),
}


@pytest.mark.parametrize("idle", [*IDLE, None])
@pytest.mark.parametrize("normalised", [False, True])
def test_the_server_steps_along_the_min_norm_direction_of_those_who_made_a_step(
    tmp_path: Path, normalised: bool, idle: str | None
) -> None:
    """The direction is the shortest convex combination of the changes of clients with a step.

    With `normalised` each change is stretched to length 2, as released: 2 (w_k - w) / |w_k - w|.
    An idle client has no change: as a vector of zeros it would be the shortest of all.
    """
    shares, values = IDLE[idle] if idle else ([], {})
    lr = 0.5
    fields = {"method__fedu2__normalised": normalised, "method__fedu2__server_lr": lr}
    train(setup_of([*STEPPING, *shares], **values, **fields), tmp_path)
    assert len(SEEN) == 2  # rounds
    for net, uploads, before, after in SEEN:
        start = flat(net, before)
        changes = np.stack([flat(net, uploads[k].weights) - start for k in range(3)])
        lengths = np.linalg.norm(changes, axis=1, keepdims=True)
        assert lengths.min() > 0
        step = lr * min_norm(2 * changes / lengths if normalised else changes)
        assert np.linalg.norm(after - start) > 0, "the idle client holds the server back"
        # float32 weights of size 1 round at 6e-8 each.
        np.testing.assert_allclose(after - start, step, atol=1e-3 * np.abs(step).max() + 2e-7)


@pytest.mark.parametrize("norm", ["group", "batch"])
@pytest.mark.parametrize("idle", IDLE)
def test_a_run_with_idle_clients_is_the_run_without_them(
    tmp_path: Path, idle: str, norm: str
) -> None:
    """A client without images is not asked; one that makes no step leaves the same weights."""
    shares, values = IDLE[idle]
    with_idle = train(setup_of([*STEPPING, *shares], model__norm=norm, **values), tmp_path / "a")
    assert [record.idle_clients for record in with_idle.history] == [2, 2]
    without = train(setup_of([*STEPPING, [], []], model__norm=norm, **values), tmp_path / "b")
    assert [record.idle_clients for record in without.history] == [0, 0]
    torch.testing.assert_close(with_idle.vector, without.vector, rtol=0, atol=1e-6)
    assert not torch.equal(without.vector, without.initial)


def test_a_cohort_of_idle_clients_leaves_the_weights_as_they_are(tmp_path: Path) -> None:
    trainer = train(setup_of([[0], [1], [2]]), tmp_path)
    assert torch.equal(trainer.vector, trainer.initial)


def test_an_upload_says_how_many_steps_it_stands_for(tmp_path: Path) -> None:
    """2 epochs of ceil(n / 8) batches, without a batch of one image, which makes no pair."""
    shares = [range(24), range(24, 44), range(44, 53), [53]]
    train(setup_of(shares, client__local_epochs=2, client__keep_last_batch=True), tmp_path)
    for _, uploads, _, _ in SEEN:
        assert [upload.num_steps for upload in uploads] == [2 * 3, 2 * 3, 2 * 1, 0]


def sphere_log(point: Vector, rows: Vector) -> Vector:
    """Map unit rows to the tangent space of a unit point, (B, d): t / sin t (z - cos t u)."""
    out = np.empty_like(rows)
    for i, row in enumerate(rows):
        cosine = min(1.0, max(-1.0, float(row @ point)))
        angle = math.acos(cosine)
        out[i] = angle / math.sin(angle) * (row - cosine * point)
    return out


def units(rng: np.random.Generator, count: int, dim: int) -> Vector:
    rows: Vector = rng.standard_normal((count, dim))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def transport(rows: Vector, point: Vector, samples: Vector, direction: Vector) -> float:
    """Squared 2-Wasserstein distance of two sets along one direction of a tangent space."""
    sets = (sorted(sphere_log(point, values) @ direction) for values in (rows, samples))
    return float(sum((a - b) ** 2 for a, b in zip(*sets, strict=True)) / len(rows))


def expected_transport(rows: Vector, draws: int) -> float:
    """Mean of `transport` over random tangent points, samples of the sphere and directions."""
    rng, (size, dim) = np.random.default_rng(0), rows.shape
    total = 0.0
    for _ in range(draws):
        point, samples = units(rng, 1, dim)[0], units(rng, size, dim)
        total += transport(rows, point, samples, rng.standard_normal((dim,)))
    return total / draws


def test_the_default_weight_is_that_of_the_release() -> None:
    """The release adds 0.01 times a sum over B = 128 tangent points by 6, of each of two views.

    On the mean over tangent points and over views: 0.01 * 128 / 6 * 2 = 0.4267.
    """
    default = Fields.of("simclr+fedu2").infos["method.fedu2.weight"].default
    assert default == pytest.approx(0.01 * 128 / 6 * 2, abs=0.005)


@pytest.mark.parametrize("spec", ["simclr+fedu2", *extended(["byol+fedu2", "simsiam+fedu2"], bool)])
def test_the_term_adds_what_the_release_adds(spec: str) -> None:
    """At a batch of 128: 0.01 / 6 times 128 times the mean cost of a tangent point, on both views.

    Both sides are means over random tangent points, samples and directions. A single draw scatters
    by its mean, so the loop's standard error is 1 / sqrt(2000) = 2.2 %, and a batch's 36 draws by
    18 %, which 150 batches make 1.5 %.
    """
    dim, size = 16, 32
    setup = tiny_setup(tiny_config(spec))
    net, method = setup.make_net().train(), setup.method
    assert isinstance(method, AddOn)
    rng = generator(0, "images")
    shape = (size, *setup.spec.image_shape)
    views = (torch.randn(shape, generator=rng), torch.randn(shape, generator=rng))
    batch = Batch(views, torch.full((size,), -1))
    with torch.no_grad():
        base = method.base.loss(net, batch, Client(0, 0, generator(0, "base")))
        totals = [
            float(loss_of(method, net, batch, Client(0, 0, generator(k, "client"))).total)
            for k in range(150)
        ]
    added = np.mean(totals) - float(base.total)
    costs = []
    for projections in base.projections:
        rows = projections.double().numpy()
        assert rows.shape == (size, dim)
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        costs.append(expected_transport(unit, draws=2000))
    assert added == pytest.approx(0.01 / 6 * 128 * sum(costs), rel=0.1)
