"""Write the data sets of the study `start`: two halves of CIFAR-10, and Fashion-MNIST in its form.

Usage: `python leaderboards/studies/start/start_data.py FOLDER [--cifar10 NAME]`;
README.md says what they are for.
"""

import argparse
from pathlib import Path

import numpy as np

from fedbench.bench.data.datasets import load_dataset

SIZE = 32


def like_cifar(images: np.ndarray) -> np.ndarray:
    """Return grey images as (N, 3, 32, 32): a border of black, the channel three times."""
    border = (SIZE - images.shape[-1]) // 2
    padded = np.pad(images, [(0, 0), (0, 0), (border, border), (border, border)])
    return np.repeat(padded, 3, axis=1)


def write(path: Path, train: tuple[np.ndarray, ...], test: tuple[np.ndarray, ...]) -> None:
    """Write images, uint8 (N, C, H, W), and labels as the `.npz` that `file:` reads."""
    arrays = {}
    for split, (images, labels) in (("train", train), ("test", test)):
        arrays[f"{split}_images"] = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
        arrays[f"{split}_labels"] = np.asarray(labels)
    np.savez(path, **arrays)
    print(f"{path}: {len(train[1])} training and {len(test[1])} test images")


def main() -> None:
    """Write the three files."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cifar10", default="cifar10", help="its name for fedbench")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    cifar, fashion = load_dataset(arguments.cifar10), load_dataset("fashion-mnist")
    test = np.asarray(cifar.test_images), np.asarray(cifar.test_labels)
    for name, first in (("pretraining", 0), ("federated", 1)):
        half = slice(first, None, 2)
        images, labels = cifar.train_images[half], cifar.train_labels[half]
        write(arguments.folder / f"cifar10-{name}.npz", (images, labels), test)
    write(
        arguments.folder / "fashion-pretraining.npz",
        (like_cifar(fashion.train_images[::2][:25_000]), fashion.train_labels[::2][:25_000]),
        (like_cifar(fashion.test_images), fashion.test_labels),
    )


if __name__ == "__main__":
    main()
