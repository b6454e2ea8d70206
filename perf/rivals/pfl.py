"""W3 in pfl-research: one process with two threads."""

from functools import partial
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchDataDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from perf.plain import BATCH, make_net, simclr_loss
from perf.rivals import client
from perf.turn import Turn


class Net(nn.Module):
    """Net with the two functions that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = make_net(client.STYLE)

    def loss(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the loss of one batch of two views, each (B, 3, H, W)."""
        self.train()
        return simclr_loss(self.parts, first, second, client.STYLE)

    def metrics(self, *_: Tensor) -> dict[str, Any]:
        """Return no metrics, since nothing is evaluated."""
        return {}


class EndOfRound:
    """Called by pfl after each round."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    def on_train_begin(self, *, model: Any) -> Any:
        """Set up before the first round."""
        return Metrics()

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Any]:
        """End a round."""
        self._turn.over()
        return False, Metrics()

    def on_train_end(self, *, model: Any) -> None:
        """Never reached."""


def main() -> None:
    """Take turns until the measuring side stops asking; a unit is a round."""
    options = client.options()
    torch.set_num_threads(2)

    def dataset(user: int) -> Any:
        views = client.Views(options.dataset, int(user), options.images)
        return PyTorchDataDataset(views, user_id=str(user), shuffle=True, drop_last=True)

    net = Net()
    model = PyTorchModel(
        net,
        partial(torch.optim.SGD, momentum=0.9, weight_decay=1e-4),
        torch.optim.SGD(net.parameters(), 1.0),
    )
    users = MinimizeReuseUserSampler(np.arange(options.clients))
    backend = SimulatedBackend(FederatedDataset(dataset, users), None)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=1_000_000,
            evaluation_frequency=1_000_000,
            train_cohort_size=int(options.fraction * options.clients),
            val_cohort_size=None,
        ),
        backend,
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.03, local_batch_size=BATCH),
        callbacks=[EndOfRound(Turn())],
    )


if __name__ == "__main__":
    main()
