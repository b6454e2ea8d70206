"""Has an encoder collapsed? Judged on a fixed set of training images, without labels."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple, TypedDict

import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.bench.evaluation.features import EvaluationError, encode_batch, extract
from fedbench.bench.system.compute import all_finite
from fedbench.bench.system.seeding import numpy_generator
from fedbench.bench.training.layout import Binding
from fedbench.bench.training.setup import Setup

COLLAPSED_STD_RATIO = 0.05
"""Directions this close together are collapsed; a convention, far below a healthy encoder's."""

COLLAPSED_RANK = 1.5
"""Below this effective rank all features lie on about one line; a convention."""


class CollapseReport(TypedDict):
    """What `collapse_report` found; numbers and verdict are None unless `finite`."""

    finite: bool
    std_ratio: float | None
    min_std_ratio: float | None
    effective_rank: float | None
    collapsed: bool | None


def collapse_report(features: Tensor) -> CollapseReport:
    """How far features are from being the same for all images.

    * `std_ratio`: standard deviation of the unit-length features, averaged over dimensions, times
      sqrt(D): 0 for constant features, about 1 for directions spread evenly over the sphere.
    * `min_std_ratio`: the same for the dimension that varies least; 0 if a dimension is dead.
    * `effective_rank`: exp of the entropy of the normalised singular values of the centred
      features, in [1, min(N - 1, D)]: the number of directions that are used.
    * `collapsed`: std_ratio < 0.05, or effective_rank < 1.5 where a higher one was possible.

    Source: Chen & He 2021, https://arxiv.org/abs/2011.10566, section 4.1 (standard deviation);
    Roy & Vetterli 2007, EUSIPCO, "The effective rank" (effective rank).

    Args:
        features: (N, D) with N >= 2 and D >= 1; some thousand rows are enough, copies of them are
            held in double precision.

    Raises:
        EvaluationError: for another shape.
    """
    if features.ndim != 2 or len(features) < 2 or features.shape[1] < 1:
        raise EvaluationError(
            f"features of shape {tuple(features.shape)}; collapse is judged on (N, D) with "
            "N >= 2 and D >= 1"
        )
    if not all_finite(features):
        return CollapseReport(
            finite=False, std_ratio=None, min_std_ratio=None, effective_rank=None, collapsed=None
        )
    values = features.double()
    std = F.normalize(values, dim=1).std(dim=0, correction=0) * math.sqrt(values.shape[1])  # (D,)
    rank = effective_rank(values)
    # Two images or one dimension span a line at best, which is no sign of collapse.
    on_a_line = rank < COLLAPSED_RANK and min(len(values) - 1, values.shape[1]) > 1
    return CollapseReport(
        finite=True,
        std_ratio=std.mean().item(),
        min_std_ratio=std.min().item(),
        effective_rank=rank,
        collapsed=bool(std.mean() < COLLAPSED_STD_RATIO) or on_a_line,
    )


def effective_rank(features: Tensor) -> float:
    """Exp of the entropy of the normalised singular values of the centred features (N, D).

    1 for constant features; at most min(N - 1, D).
    """
    values = features.double()
    centred = values - values.mean(dim=0)
    # Features that differ by float32 rounding alone are constant; the rest would be noise's rank.
    rounding = torch.finfo(torch.float32).eps * values.norm()
    if centred.norm() <= rounding:
        return 1.0
    # The smaller Gram matrix has the same non-zero spectrum and costs far less than an SVD.
    gram = centred.T @ centred if values.shape[1] <= len(values) else centred @ centred.T
    singular = torch.linalg.eigvalsh(gram / gram.diagonal().sum()).clamp_min(0).sqrt()
    # sqrt lifts the rounding of the spectrum from 1e-16 to 1e-8 of the total: cut it off.
    singular = singular[singular > 1e-6]
    share = singular / singular.sum()
    return float(torch.exp(-(share * share.log()).sum()))


def relative_movement(before: Tensor, after: Tensor) -> float:
    """Distance that flat weights moved, as a share of their length: |after - before| / |before|.

    Exactly 0 if and only if no weight changed, the sign of a run that never trained; infinite for
    movement away from all zeros; NaN or infinite if the weights are.

    Args:
        before: (P,) weights at the start.
        after: (P,) weights at the end.

    Raises:
        EvaluationError: if the shapes differ.
    """
    if before.shape != after.shape:
        raise EvaluationError(
            f"weights of shape {tuple(before.shape)} and {tuple(after.shape)}; "
            "movement is measured between two states of one model"
        )
    moved = float(torch.linalg.vector_norm(after - before, dtype=torch.float64))
    length = float(torch.linalg.vector_norm(before, dtype=torch.float64))
    if length == 0.0 and moved > 0.0:
        return math.inf
    return moved / length if length else moved


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


class CollapseMonitor:
    """Look at the same training images after every round of a run.

    Args:
        setup: the run.
        device: where the encoder runs.
    """

    def __init__(self, setup: Setup, device: torch.device) -> None:
        self._setup, self._device, self._probe = setup, device, probe_images(setup)

    def __call__(self, binding: Binding) -> Collapse | None:
        """The verdict on the net as it is now; None if its features are not finite."""
        return judge(self._setup, binding, self._probe, self._device)


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
