"""Detection of runs that went wrong: collapsed encoders, and weights that never moved."""

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.bench.evaluation.features import clean, encode_batch
from fedbench.bench.evaluation.metrics import Metric, register
from fedbench.bench.evaluation.objectives.scores import entropy_rank
from fedbench.bench.system.compute import all_finite
from fedbench.bench.system.seeding import numpy_generator
from fedbench.bench.training.history import Spread
from fedbench.bench.training.layout import Binding
from fedbench.bench.training.personal import PersonalStore, relative_movement
from fedbench.bench.training.setup import Setup
from fedbench.bench.training.trainer import Trainer

PROJECTION_STD_RATIO = register(Metric("projection_std_ratio"))
RELATIVE_MOVEMENT = register(Metric("relative_movement", reads=()))
COLLAPSED_STD_RATIO = 0.05
"""Directions this close together are collapsed; a convention, far below a healthy encoder's."""

COLLAPSED_RANK = 1.5
"""Below this effective rank all features lie on about one line; a convention."""

_NUM_IMAGES = 256


class CollapseMonitor:
    """Measures the spread of features and projections on the same training images each time."""

    def __init__(
        self, setup: Setup, device: torch.device, personal: PersonalStore | None = None
    ) -> None:
        rng = numpy_generator(setup.config.seed, "probe")
        count = min(_NUM_IMAGES, len(setup.images))
        chosen = rng.choice(len(setup.images), count, replace=False)
        chosen.sort()
        self._images = torch.from_numpy(setup.images[chosen])  # uint8 (n, C, H, W)
        self._method, self._device, self._personal = setup.method, device, personal

    def __call__(self, binding: Binding, personal: tuple[int, int] | None = None) -> Spread | None:
        """As `Statistics`, with the files of the store, which `personal` needs."""
        if personal is not None:
            assert self._personal is not None
            binding.personal.data.copy_(self._personal.load(*personal))
        net, device = binding.net.eval(), self._device
        images = clean(self._images.to(device))
        with net.reusing("encoder"):
            features, projections = (
                feature_spread(encode_batch(partial(run, net), images, device))
                for run in (self._method.encode, self._method.embed)
            )
        if features is None or projections is None:
            return None
        collapsed = features.collapsed or projections.collapsed
        return Spread(features.std_ratio, features.effective_rank, projections.std_ratio, collapsed)


class FeatureSpread(NamedTuple):
    """Distance of features from being the same for all images."""

    # mean standard deviation of unit features times sqrt(D): 0 for constant ones, about 1 for
    # directions spread evenly over the sphere
    std_ratio: float
    effective_rank: float  # see the function `effective_rank`
    collapsed: bool  # std_ratio < 0.05, or effective_rank < 1.5 where a higher one was possible


def feature_spread(features: Tensor) -> FeatureSpread | None:
    """Measure the spread of features (N, D), N >= 2; None if one of them is NaN or infinite.

    Source: Chen & He 2021, https://arxiv.org/abs/2011.10566, section 4.1 (standard deviation).
    """
    if not all_finite(features):
        return None
    values = features.double()
    std = F.normalize(values, dim=1).std(dim=0, correction=0) * math.sqrt(values.shape[1])  # (D,)
    rank = effective_rank(values)
    # Two images or one dimension span a line at best, which is no sign of collapse.
    on_a_line = rank < COLLAPSED_RANK and min(len(values) - 1, values.shape[1]) > 1
    collapsed = bool(std.mean() < COLLAPSED_STD_RATIO) or on_a_line
    return FeatureSpread(std.mean().item(), rank, collapsed)


def effective_rank(features: Tensor) -> float:
    """Exp of the entropy of the normalised singular values of the centred features (N, D).

    The number of directions that are used, in [1, min(N - 1, D)]; 1 for constant features.

    Source: Roy & Vetterli 2007, EUSIPCO, "The effective rank".
    """
    values = features.double()
    centred = values - values.mean(dim=0)
    # Features that differ by float32 rounding alone are constant; they have noise's rank.
    rounding = torch.finfo(torch.float32).eps * values.norm()
    if centred.norm() <= rounding:
        return 1.0
    # The smaller Gram matrix has the same non-zero spectrum and costs far less than an SVD.
    gram = centred.T @ centred if values.shape[1] <= len(values) else centred @ centred.T
    return entropy_rank(torch.linalg.eigvalsh(gram / gram.diagonal().sum()).clamp_min(0).sqrt())


def movement(trainer: Trainer) -> float:
    """Relative movement of the tensors that clients share and a run has trained.

    Where they share none: of the first client whose tensors moved, else of all on the server.
    """
    if shared := trainer.layout.num_trained:
        return relative_movement(trainer.initial[:shared], trainer.vector[:shared])
    for client_id, round_index in sorted(trainer.personal_rounds.items()):
        if moved := trainer.private.moved(client_id, round_index, trainer.first_personal):
            return moved
    return relative_movement(trainer.initial, trainer.vector)
