"""Context of all works: sizes, folders, images; and contenders that several works have."""

import json
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from perf.data import dataset_folder
from perf.turn import Contender

RIVAL_ENV = {"RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0"}


@dataclass(frozen=True)
class Context:
    """Settings of the measurement.

    Attributes:
        repeats: repeats of every unit.
        smoke: tiny sizes, to see that everything runs; the numbers then mean nothing.
        data: name of a data set of 32x32 colour images; None = random pixels.
        cache: folder of decoded images and rivals' environments.
        rivals: whether rivals are measured.
    """

    repeats: int
    smoke: bool
    data: str | None
    cache: Path
    rivals: bool

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


@cache
def scratch(cache: Path) -> tempfile.TemporaryDirectory[str]:
    """One temporary folder per process, deleted when the process ends."""
    cache.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(dir=cache, prefix="scratch-")


def fresh_folder(cache: Path) -> Path:
    """Create an empty folder inside it."""
    return Path(tempfile.mkdtemp(dir=scratch(cache).name))
