"""LeJEPA against its paper's formula, and the pooled form against the local one.

Source: Balestriero & LeCun 2025, https://arxiv.org/abs/2511.08544. SIGReg of B embeddings along M
unit directions, over 17 knots from 0 to 3, phi(t) = exp(-t^2 / 2):

    B mean_m sum_j w_j phi_j ((mean_i cos t_j a_im - phi_j)^2 + (mean_i sin t_j a_im)^2),

of each view, averaged over views; w_j = 2 * 3/16, half of it at both ends. In the pooled form the
means are over the union of a batch and the other clients' n images, and the whole counts
(n + B) / B times as much, so that an image has the same pull as in the local form: the batch is
B / (n + B) of the union, and so is the derivative of the union's means with respect to it.
"""

import math
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from fedbench.bench.data.batches import Batch
from fedbench.bench.method import Client, Server
from fedbench.bench.system.seeding import generator
from fedbench.bench.testing import tiny_config, tiny_setup
from fedbench.bench.training.setup import Setup

SHARE = 0.05  # of SIGReg in the loss
DIM, SLICES, KNOTS = 16, 32, 17
BATCH_SIZE = 16

Sums = tuple[Tensor, Tensor, int]
"""Cosines and sines summed over images, (M, 17) each, and the number of images."""


def phi(j: int) -> float:
    return math.exp(-((3 * j / 16) ** 2) / 2)


def test_the_statistic_by_hand() -> None:
    """All embeddings at 0: sum_j w_j phi_j (1 - phi_j)^2 = 0.40205, times B."""
    value = sigreg(torch.zeros(5, 2).double(), torch.eye(2).double(), None)
    assert float(value) == pytest.approx(5 * 0.40205, rel=1e-4)


def sigreg(rows: Tensor, directions: Tensor, others: Sums | None) -> Tensor:
    """Return the statistic of one view, (B, d) float64 and (d, M) -> (), knot by knot."""
    size, total = len(rows), torch.zeros((), dtype=torch.float64)
    for m in range(directions.shape[1]):
        values = rows @ directions[:, m]
        for j in range(KNOTS):
            cosine, sine = (3 * j / 16 * values).cos().sum(), (3 * j / 16 * values).sin().sum()
            count = size
            if others is not None:
                cosine, sine = cosine + others[0][m, j], sine + others[1][m, j]
                count += others[2]
            weight = 2 * 3 / 16 * (0.5 if j in (0, KNOTS - 1) else 1.0)
            distance = (cosine / count - phi(j)) ** 2 + (sine / count) ** 2
            total = total + weight * phi(j) * distance
    scale = size if others is None else size + others[2]
    return scale * total / directions.shape[1]


def pull(views: tuple[Tensor, ...]) -> Tensor:
    """Return the mean square of views minus their mean."""
    middle = sum(views) / len(views)
    return torch.stack([(view - middle) ** 2 for view in views]).mean()


def setup_of(statistics: str) -> Setup:
    config = tiny_config(
        "lejepa",
        method__statistics=statistics,
        method__weight=SHARE,
        method__slices=SLICES,
        model__norm="group",  # no image sees another, in training as before it
    )
    return tiny_setup(config)


class Pooled:
    """A client of the pooled form at its first batch, and the sums that it and others sent.

    The batch is 16 of the client's 20 images, each of its two views drawn with noise; `twins` draws
    them equal, so that views agree and only SIGReg has a gradient.
    """

    def __init__(self, *, twins: bool = False) -> None:
        self.setup = setup_of("global")
        self.net = self.setup.make_net()
        self.method = self.setup.method
        self.data = self.setup.client_data(1, "cpu")
        rng = generator(0, "noise")
        plain = self.data.images[:BATCH_SIZE].float() / 255
        first, second = (plain + 0.1 * torch.randn(plain.shape, generator=rng) for _ in range(2))
        self.views = (first, first if twins else second)
        self.answers = self._pre_round()

    def _pre_round(self) -> Mapping[str, Tensor]:
        client = Client(1, 0, generator(0, "survey"))
        with torch.no_grad():
            return self.method.pre_round(self.net.eval(), self.data, client)

    @property
    def directions(self) -> Tensor:
        return self.net.tensor("directions").detach()

    def embeddings(self) -> tuple[Tensor, ...]:
        """Return both views' projections, (B, d) float64, with their graphs."""
        return tuple(self.net(view, "encoder", "projector").double() for view in self.views)

    def receive(self, others: Sums) -> Client:
        """Run the server's side of the statistics and the client's start."""
        given = {"cosines": others[0], "sines": others[1], "count": torch.tensor(float(others[2]))}
        sums = {
            name: value.double() + given[name].reshape(value.shape)
            for name, value in self.answers.items()
        }
        with torch.no_grad():
            self.method.server_pre_round(self.net, sums, Server(0, generator(0, "server"), {}))
        client = Client(1, 0, generator(0, "client"), answers=self.answers)
        self.method.before_local(self.net.train(), self.data, client)
        return client

    def loss(self, others: Sums) -> tuple[float, Tensor]:
        """Return the method's loss of the batch and its gradient on all weights."""
        client = self.receive(others)
        draws = self.method.draws(BATCH_SIZE, client)
        batch = Batch(self.views, torch.full((BATCH_SIZE,), -1), draws=draws)
        return self._differentiated(self.method.loss(self.net, batch, client).total)

    def local_loss(self) -> tuple[float, Tensor]:
        """Return the loss of the local form with the same weights and directions."""
        method, client = setup_of("local").method, Client(1, 0, generator(0, "client"))
        draws = {"directions": self.directions}
        assert method.draws(BATCH_SIZE, client).keys() == draws.keys()
        batch = Batch(self.views, torch.full((BATCH_SIZE,), -1), draws=draws)
        return self._differentiated(method.loss(self.net, batch, client).total)

    def expected(self, others: Sums | None) -> tuple[float, Tensor]:
        """Return the paper's loss and gradient; with `others`, of the pooled form."""
        views = self.embeddings()
        directions = self.directions.double()
        term = sum(sigreg(view, directions, others) for view in views) / len(views)
        return self._differentiated(SHARE * term + (1 - SHARE) * pull(views))

    def _differentiated(self, loss: Tensor) -> tuple[float, Tensor]:
        trained = [value for value in self.net.parameters() if value.requires_grad]
        gradients = torch.autograd.grad(loss, trained)
        return float(loss.detach()), torch.cat([g.flatten() for g in gradients])


def nothing() -> Sums:
    return torch.zeros(SLICES, KNOTS).double(), torch.zeros(SLICES, KNOTS).double(), 0


def sums_of(rows: Tensor, directions: Tensor) -> Sums:
    """Sum cosines and sines of embeddings, (n, d) float64, over images."""
    angles = (rows @ directions)[..., None] * torch.arange(KNOTS).double() * 3 / 16
    return angles.cos().sum(dim=0), angles.sin().sum(dim=0), len(rows)


def times(sums: Sums, factor: int) -> Sums:
    return sums[0] * factor, sums[1] * factor, sums[2] * factor


def assert_same_direction_and_length(mine: Tensor, expected: Tensor) -> None:
    """Compare gradients by their relative distance; float32 sums lose about 1e-5."""
    assert float((mine - expected).norm() / expected.norm()) < 1e-3


def test_with_empty_other_clients_the_pooled_form_is_the_local_one() -> None:
    client = Pooled()
    value, gradient = client.loss(nothing())
    for expected, direction in (client.local_loss(), client.expected(None)):
        assert value == pytest.approx(expected, rel=1e-4)
        assert_same_direction_and_length(gradient, direction)


@pytest.mark.parametrize("clients", [2, 50])
def test_other_clients_with_the_same_embeddings_leave_the_local_gradient(clients: int) -> None:
    """The union's means are then the batch's own, and so is each image's pull, for any number.

    A gradient through the batch's share alone would be B / N of it, for 50 clients 2 %.
    """
    client = Pooled(twins=True)
    rows = client.embeddings()[0].detach()
    others = times(sums_of(rows, client.directions.double()), clients - 1)
    _, gradient = client.loss(others)
    assert_same_direction_and_length(gradient, client.expected(None)[1])


@pytest.mark.parametrize("clients", [2, 50])
def test_the_pooled_gradient_with_other_clients_is_that_of_the_formula(clients: int) -> None:
    """The others' embeddings are normal around (0.5, ..., 0.5), unlike the batch's."""
    client = Pooled()
    rng = generator(0, "others")
    rows = torch.randn((clients - 1) * len(client.data), DIM, generator=rng).double() + 0.5
    others = sums_of(rows, client.directions.double())
    _, gradient = client.loss(others)
    assert_same_direction_and_length(gradient, client.expected(others)[1])
