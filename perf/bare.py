"""Bare training loop: steps on views that are ready in memory, the limit of speed.

`python -m perf.bare --clients 50 --images 96 --processes 2`, started by `perf.turn`.
Weights and optimizer stay where they are; with several processes each takes the next client.
"""

import argparse
import os
from multiprocessing import get_context

import torch
from torch import Tensor, nn

from perf.plain import BATCH, Style, make_net, make_optimizer, step
from perf.turn import Turn


class Loop:
    """Net, optimizer and views of one process."""

    def __init__(self, style: Style, images: int) -> None:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        self._style = style
        self._net: nn.ModuleDict = make_net(style)
        self._optimizer = make_optimizer(self._net)
        rng = torch.Generator().manual_seed(0)
        self._views: list[Tensor] = [
            torch.rand(images, 3, 32, 32, generator=rng).mul_(2).sub_(1) for _ in range(2)
        ]

    def client(self) -> None:
        """Train one epoch on one client's images."""
        for first, second in zip(*(view.split(BATCH) for view in self._views), strict=True):
            step(self._net, self._optimizer, first, second, self._style)


_loop: Loop | None = None


def _begin(style: Style, images: int) -> None:
    global _loop  # a pool's process has no other place
    _loop = Loop(style, images)


def _client(_: int) -> None:
    if _loop is not None:
        _loop.client()


def main() -> None:
    """Take turns until the measuring side stops asking."""
    parser = argparse.ArgumentParser()
    Style.add_options(parser)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--images", type=int, default=96, help="per client, without the remainder")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    turn, style = Turn(), Style.of(options)
    if options.processes == 1:
        _begin(style, options.images)
        while True:
            for client in range(options.clients):
                _client(client)
            turn.over()
    with get_context("spawn").Pool(options.processes, _begin, (style, options.images)) as pool:
        while True:
            for _ in pool.imap_unordered(_client, range(options.clients)):
                pass
            turn.over()


if __name__ == "__main__":
    main()
