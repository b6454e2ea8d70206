"""Bare training loop: steps on views that are ready in memory, the limit of speed.

`python -m perf.bare --clients 50 --images 96 --processes 2`, started by `perf.turn`.
Weights and optimizer stay where they are; with several processes each takes the next client.
"""

import argparse
import os
from collections.abc import Callable
from multiprocessing import get_context

import torch

from perf.plain import BATCH, Style, make_net, make_optimizer, step
from perf.turn import Turn

_train: Callable[[], None] = lambda: None  # noqa: E731 (set in each process)


def _begin(style: Style, images: int) -> None:
    """Make net, optimizer and views of one process."""
    global _train  # a pool's process has no other place
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    net = make_net(style)
    optimizer = make_optimizer(net)
    rng = torch.Generator().manual_seed(0)
    views = [torch.rand(images, 3, 32, 32, generator=rng).mul_(2).sub_(1) for _ in range(2)]

    def one_epoch() -> None:
        for first, second in zip(*(view.split(BATCH) for view in views), strict=True):
            step(net, optimizer, first, second, style)

    _train = one_epoch


def _client(_: int) -> None:
    _train()


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
