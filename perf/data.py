"""Images for the works: real ones, or random pixels where none are given."""

from pathlib import Path

import numpy as np

from fedbench.bench.data.cache import CacheWriter, ensure
from fedbench.bench.data.datasets import load_dataset


def dataset_folder(
    data: str | None, cache: Path, train: int, test: int, side: int = 32, channels: int = 3
) -> Path:
    """Return the cache folder of a data set of ten classes, which fedbench opens.

    Args:
        data: its name, such as `hub:DIR`; None = random pixels.
        cache: folder of the caches.
        train: number of training images.
        test: number of test images.
        side: height and width of random images.
        channels: channels of random images.
    """
    if data is not None:
        return load_dataset(data, cache, train_subset=train, test_subset=test).path
    shape = (channels, side, side)

    def write(writer: CacheWriter) -> tuple[str, ...]:
        rng = np.random.default_rng(0)
        for split, size in (("train", train), ("test", test)):
            pixels = rng.integers(0, 256, (size, *shape), np.uint8)
            writer.put(f"{split}_images", pixels)
            writer.put(f"{split}_labels", np.arange(size) % 10)
        return tuple(map(str, range(10)))

    name = f"random-{train}-{test}-{channels}x{side}x{side}"
    return ensure(cache / name, name, name, write).path
