"""Batch-norm statistics of an encoder that has not been trained.

The statistics that a net starts with (mean 0, variance 1) describe no images: features then lie
in a narrow cone, and training raises every score by filling them alone, without learning anything.
So gains are measured from the same weights with filled statistics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedbench.bench.data.views.views import MEAN, STD, make_view
from fedbench.bench.evaluation.features import take_images
from fedbench.bench.method.net import Net
from fedbench.bench.system import seeding
from fedbench.bench.training.setup import Setup

_MAX_IMAGES = 2048
_BATCH_SIZE = 256


def fill_statistics(setup: Setup, net: Net, device: torch.device) -> None:
    """Set the statistics of all batch norms that features and projections pass, in place.

    They become the mean over batches of the statistics of one view (`evaluation.objective_view`) of
    each image, in one pass over at most 2,048 training images. Images and views follow from the
    seed, so that methods with the same encoder start from the same one. Weights stay as they are;
    without a batch norm, and with fewer than two images, nothing changes.

    Args:
        setup: the run; no label is read.
        net: the net, on `device`; left in the mode that it was in.
        device: where views are made.

    Raises:
        UnknownNameError, DataError: as `make_view`.
    """
    norms = [m for m in net.modules() if isinstance(m, _BatchNorm)]
    seed, count = setup.config.seed, min(_MAX_IMAGES, len(setup.images))
    if not norms or count < 2:
        return
    rng = seeding.numpy_generator(seed, "statistics")
    chosen = np.sort(rng.choice(len(setup.images), count, replace=False))
    draws = seeding.generator(seed, "statistics-views")
    unit = setup.method.needs().pixels == "unit"
    with seeding.single_thread(), _restored(net, norms), torch.no_grad():
        net.train()
        for done, batch in enumerate(np.array_split(chosen, ceil(count / _BATCH_SIZE))):
            for norm in norms:
                norm.momentum = 1 / (done + 1)  # the mean over batches so far
            raw = take_images(setup.images, batch).to(device)
            views = make_view(setup.config.evaluation.objective_view, raw, draws)
            setup.method.embed(net, views)
            for part in setup.method.needs().encoders.values():
                net(views * STD + MEAN if unit else views, part)


@contextmanager
def _restored(net: nn.Module, norms: Sequence[_BatchNorm]) -> Iterator[None]:
    """Give modules their modes and norms their momenta back after the block."""
    modes = {module: module.training for module in net.modules()}
    momenta = [norm.momentum for norm in norms]
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
