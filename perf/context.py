"""Context of all works: sizes, folders, images; and contenders that several works have."""

import json
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.bench.data.cache import CacheWriter, ensure
from fedbench.bench.data.datasets import load_dataset
from perf.turn import Contender

RIVAL_ENV = {"RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0"}


@dataclass(frozen=True)
class Context:
    """Settings of the measurement."""

    repeats: int  # of every unit
    smoke: bool  # tiny sizes, to see that everything runs; the numbers then mean nothing
    data: str | None  # name of a data set of 32x32 colour images; None = random pixels
    cache: Path  # folder of decoded images and rivals' environments

    def images(self, train: int, test: int = 1000) -> Path:
        """Cache folder of a data set of so many images."""
        return dataset_folder(self.data, self.cache / "data", train, test)

    def bare(self, name: str, *options: object, processes: int = 1, threads: int = 1) -> Contender:
        """The bare loop, with the options of `perf.bare`."""
        command = ["-m", "perf.bare", "--processes", processes, *options]
        return Contender(name, list(map(str, command)), threads=threads)

    def ours(
        self, name: str, dataset: Path, *options: object, changes: dict[str, Any] | None = None
    ) -> Contender:
        """fedbench, with the options of `perf.ours`."""
        where = ["--dataset", dataset, "--folder", fresh_folder(self.cache)]
        command = ["-m", "perf.ours", *where, "--set", json.dumps(changes or {}), *options]
        return Contender(name, list(map(str, command)))

    def rival(self, name: str, dataset: Path, *options: object, label: str = "") -> Contender:
        """A rival, with the options of `perf.rivals.NAME`."""
        from perf.rivals import environment

        python = environment(name, self.cache / "rivals")
        command = ["-m", f"perf.rivals.{name}", "--dataset", dataset, *options]
        return Contender(label or name, list(map(str, command)), python=python, env=RIVAL_ENV)


def dataset_folder(
    data: str | None, cache: Path, train: int, test: int, side: int = 32, channels: int = 3
) -> Path:
    """Return the cache folder of so many images of a data set of ten classes.

    `data` is its name, such as `hub:DIR`; without one, pixels of that shape are random.
    """
    if data is not None:
        return load_dataset(data, cache, train_subset=train, test_subset=test).path

    def write(writer: CacheWriter) -> tuple[str, ...]:
        rng = np.random.default_rng(0)
        for split, size in (("train", train), ("test", test)):
            pixels = rng.integers(0, 256, (size, channels, side, side), np.uint8)
            writer.put(f"{split}_images", pixels)
            writer.put(f"{split}_labels", np.arange(size) % 10)
        return tuple(map(str, range(10)))

    name = f"random-{train}-{test}-{channels}x{side}x{side}"
    return ensure(cache / name, name, name, write).path


@cache
def scratch(cache: Path) -> tempfile.TemporaryDirectory[str]:
    """One temporary folder per process, deleted when the process ends."""
    cache.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(dir=cache, prefix="scratch-")


def fresh_folder(cache: Path) -> Path:
    """Create an empty folder inside it."""
    return Path(tempfile.mkdtemp(dir=scratch(cache).name))
