"""SwAV beside loops over the formulas of Caron et al. 2020, written apart."""

import math

import pytest
import torch
import torch.nn.functional as F

from fedbench.bench.testing import example
from fedbench.methods.swav import assignments


def slow_assignments(scores: torch.Tensor, epsilon: float, iterations: int) -> torch.Tensor:
    """diag(u) exp(C'Z / epsilon) diag(v), rows of mass 1 / B and columns of 1 / K, by loops."""
    b, k = scores.shape
    q = [[math.exp(float(scores[i, j]) / epsilon) for j in range(k)] for i in range(b)]
    for _ in range(iterations):
        for j in range(k):
            mass = sum(q[i][j] for i in range(b))
            for i in range(b):
                q[i][j] /= mass * k
        for i in range(b):
            mass = sum(q[i])
            for j in range(k):
                q[i][j] /= mass * b
    return torch.tensor(q) * b


def test_assignments_are_those_of_the_loop_and_end_at_equal_masses() -> None:
    scores = torch.rand(12, 4, generator=torch.Generator().manual_seed(3)) * 2 - 1
    found = assignments(scores, 0.05, 3)
    torch.testing.assert_close(found, slow_assignments(scores, 0.05, 3))
    torch.testing.assert_close(found.sum(dim=1), torch.ones(12))
    # In the limit each of the four clusters has a quarter of the images.
    torch.testing.assert_close(assignments(scores, 0.5, 200).sum(dim=0), torch.full((4,), 3.0))


def test_loss_is_the_swapped_cross_entropy() -> None:
    of = example("swav", method__num_prototypes=5)
    with torch.no_grad():
        out = of.method.loss(of.net.eval(), of.batch, of.client)
    prototypes = of.net["prototypes"].get_parameter("weight").detach()
    z = [F.normalize(each.detach(), dim=1) for each in out.projections]
    expected = 0.0
    for here, there in ((0, 1), (1, 0)):  # the code of one view, the prediction of the other
        codes = slow_assignments(z[here] @ prototypes.T, 0.05, 3)
        for image in range(len(codes)):
            logits = [float(z[there][image] @ prototypes[k]) / 0.1 for k in range(5)]
            total = math.log(sum(math.exp(value) for value in logits))
            terms = zip(codes[image].tolist(), logits, strict=True)
            expected -= sum(code * (value - total) for code, value in terms)
    assert float(out.total) == pytest.approx(expected / 2 / len(z[0]), rel=1e-4)


def test_prototypes_stay_at_unit_length_and_learn() -> None:
    of = example("swav")
    weight = of.net["prototypes"].get_parameter("weight")
    out = of.method.loss(of.net, of.batch, of.client)
    out.total.backward()
    assert weight.grad is not None
    assert float(weight.grad.abs().sum()) > 0
    with torch.no_grad():
        weight.mul_(3.0)
    of.method.after_step(of.net, out, of.client)
    torch.testing.assert_close(weight.norm(dim=1), torch.ones(len(weight)))


def test_equal_scores_cost_the_entropy_of_the_clusters() -> None:
    of = example("swav", method__num_prototypes=7)
    assert of.method.chance(of.setup.config) == {"loss": math.log(7)}
    codes = assignments(torch.zeros(6, 7), 0.05, 3)
    assert float(F.cross_entropy(torch.zeros(6, 7), codes)) == pytest.approx(math.log(7))
