"""Server optimizers, a file for each; `server.optimizer` names them."""

from collections.abc import Mapping

import torch

from fedbench.bench.config import ServerConfig
from fedbench.bench.training.server_optimizers.adagrad import Adagrad
from fedbench.bench.training.server_optimizers.adam import Adam
from fedbench.bench.training.server_optimizers.adam_flower import AdamFlower
from fedbench.bench.training.server_optimizers.adam_reddi import AdamReddi
from fedbench.bench.training.server_optimizers.average import Average
from fedbench.bench.training.server_optimizers.base import ServerOptimizer
from fedbench.bench.training.server_optimizers.momentum import Momentum
from fedbench.bench.training.server_optimizers.yogi import Yogi

__all__ = ["OPTIMIZERS", "ServerOptimizer", "server_optimizer"]

OPTIMIZERS: Mapping[str, type[ServerOptimizer]] = {
    "average": Average,
    "momentum": Momentum,
    "adam": Adam,
    "adam-reddi": AdamReddi,
    "adam-flower": AdamFlower,
    "yogi": Yogi,
    "adagrad": Adagrad,
}


def server_optimizer(
    config: ServerConfig, size: int, device: torch.device | str
) -> ServerOptimizer:
    """Make the optimizer of a configuration for `size` weights."""
    return OPTIMIZERS[config.optimizer](config, size, device)
