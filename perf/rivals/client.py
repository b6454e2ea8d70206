"""Client of the rivals: views by torchvision, training by `perf.plain`."""

import argparse
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T

from perf.plain import BATCH, Style, make_net, make_optimizer, step

STYLE = Style()


@cache
def all_images(path: str) -> np.ndarray:
    """Return the training images (N, H, W, 3), read once per process."""
    return np.ascontiguousarray(np.load(Path(path) / "train_images.npy").transpose(0, 2, 3, 1))


@cache
def net() -> nn.ModuleDict:
    """One net per process."""
    return make_net(STYLE)


def augmentation() -> Any:
    """Return the views of the works, which are those of Orchestra's release."""
    return T.Compose(
        [
            T.RandomResizedCrop(32, scale=(0.5, 1.0), interpolation=T.InterpolationMode.BICUBIC),
            T.RandomHorizontalFlip(),
            T.RandomApply([T.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
            T.RandomGrayscale(p=0.2),
            T.RandomApply([T.GaussianBlur(3, (0.1, 2.0))], p=0.5),
            T.ToTensor(),
            T.Normalize(0.5, 0.5),
        ]
    )


class Views(Dataset[tuple[Tensor, Tensor]]):
    """Two views of each image of one client, which holds a block of `size` images."""

    def __init__(self, path: str, client: int, size: int) -> None:
        self._images = all_images(path)[client * size : (client + 1) * size]
        self._augment = augmentation()

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = Image.fromarray(self._images[index])
        return self._augment(image), self._augment(image)


def train(path: str, client: int, size: int) -> float:
    """Train one epoch of one client on the process's net and return the last loss."""
    own = net()
    own.train()
    optimizer, loss = make_optimizer(own), 0.0
    batches = DataLoader(Views(path, client, size), BATCH, shuffle=True, drop_last=True)
    for first, second in batches:
        loss = step(own, optimizer, first, second, STYLE)
    return loss


def options() -> argparse.Namespace:
    """Parse a rival's command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--fraction", type=float, default=0.5)
    parser.add_argument("--images", type=int, default=100, help="per client; 0 = do nothing")
    return parser.parse_args()
