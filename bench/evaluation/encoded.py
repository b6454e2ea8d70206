"""A frozen encoder and the images that probes measure it on; features are extracted once."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbench.bench.evaluation.angles import both_angles
from fedbench.bench.evaluation.features import Encode, Images, check_finite, extract
from fedbench.bench.method import Net
from fedbench.bench.system.compute import resident
from fedbench.bench.training.setup import Setup


class Splits:
    """Images that probes learn from and are scored on; a GPU gets them once."""

    def __init__(self, setup: Setup, device: torch.device) -> None:
        self._setup, self._device = setup, device

    @cached_property
    def train(self) -> Images:
        """uint8 (N, C, H, W), the images of `Setup.probed`."""
        return resident(self._setup.images[self._setup.probed], self._device)

    @cached_property
    def test(self) -> Images:
        """uint8 (M, C, H, W), all test images."""
        return resident(self._setup.dataset.test_images, self._device)


class Encoded:
    """One encoder of a run, as probes see it.

    Attributes:
        setup: the run.
        net: the net that the encoder is part of, in eval mode.
        encode: normalised images (B, C, H, W) to features (B, D).
        splits: the images.
        device: where the net is.
        client_id: the client whose encoder it is; None for an encoder of all clients.
        view: how images become floats; see `features.clean`.
    """

    def __init__(
        self,
        setup: Setup,
        net: Net,
        encode: Encode,
        splits: Splits,
        device: torch.device,
        client_id: int | None = None,
        view: str = "plain",
    ) -> None:
        self.setup, self.net, self.encode, self.splits = setup, net, encode, splits
        self.device, self.client_id, self._view = device, client_id, view

    @cached_property
    def train(self) -> Tensor:
        """Features (N, D) of `splits.train`, on `device`.

        Raises:
            NonFiniteFeaturesError: if one is NaN or infinite, as for `test`.
        """
        return self._features("training images", self.splits.train)

    @cached_property
    def test(self) -> Tensor:
        """Features (M, D) of `splits.test`, on `device`."""
        return self._features("test images", self.splits.test)

    @property
    def train_labels(self) -> NDArray[np.int64]:
        """Classes (N,) of `splits.train`."""
        labels: NDArray[np.int64] = self.setup.dataset.train_labels[self.setup.probed]
        return labels

    @cached_property
    def angles(self) -> dict[str, Tensor]:
        """Angles between the classes of test images; see `both_angles`."""
        dataset = self.setup.dataset
        return both_angles(self.test, dataset.test_labels, dataset.num_classes)

    def _features(self, what: str, images: Images) -> Tensor:
        features = extract(self.encode, images, device=self.device, view=self._view)
        check_finite(what, features)
        return features
