"""Has an encoder collapsed? Judged on a fixed set of training images, without labels."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from fedbench.bench.evaluation.detectors import collapse_report
from fedbench.bench.evaluation.features import encode_batch, extract
from fedbench.bench.layout import Binding
from fedbench.bench.seeding import numpy_generator
from fedbench.bench.setup import Setup

_NUM_IMAGES = 256


class Collapse(NamedTuple):
    """Spread of features and projections; see `detectors.collapse_report`.

    Attributes:
        std_ratio: of the features; 1 = even, 0 = constant.
        effective_rank: of the features.
        projection_std_ratio: of the projections, which collapse first where a loss allows it.
        collapsed: whether either of the two has collapsed.
    """

    std_ratio: float
    effective_rank: float
    projection_std_ratio: float
    collapsed: bool


def probe_images(setup: Setup) -> Tensor:
    """The training images that the detector looks at, uint8 (n, C, H, W), drawn once per run."""
    rng = numpy_generator(setup.config.seed, "probe")
    count = min(_NUM_IMAGES, len(setup.images))
    chosen = rng.choice(len(setup.images), count, replace=False)
    chosen.sort()
    return torch.from_numpy(setup.images[chosen])


def judge(setup: Setup, binding: Binding, probe: Tensor, device: torch.device) -> Collapse | None:
    """Look at the net as it is, in eval mode; None if its features are not finite."""
    net, method = binding.net.eval(), setup.method
    dim = 0

    def both(images: Tensor) -> Tensor:
        nonlocal dim
        looks = (method.encode, method.embed)
        seen = [encode_batch(partial(look, net), images, device) for look in looks]
        dim = seen[0].shape[1]
        return torch.cat(seen, dim=1)

    with net.reusing("encoder"):
        seen = extract(both, probe, device=device)
    features = collapse_report(seen[:, :dim].contiguous())
    projections = collapse_report(seen[:, dim:].contiguous())
    spread, rank = features["std_ratio"], features["effective_rank"]
    if spread is None or rank is None or projections["std_ratio"] is None:
        return None
    collapsed = bool(features["collapsed"] or projections["collapsed"])
    return Collapse(spread, rank, projections["std_ratio"], collapsed)
