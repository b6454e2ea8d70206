"""Specs that tests run through; those that `make test` trains have every add-on on one method each.

`uv` is on one that relabels images too; `make test-extended` has all compositions.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedbench.bench.data.datasets import Dataset
from fedbench.bench.evaluation.suite import evaluate
from fedbench.bench.method import Batch, Client, Net, registry
from fedbench.bench.system.seeding import generator
from fedbench.bench.testing import tiny_config, tiny_setup
from fedbench.bench.training.setup import Setup

ON_ANY = ("byol+l-dawa", "simclr+feddecorr", "simclr+lora", "simclr+scaffold", "spectral+fedprox")


def extended(values: Iterable[Any], chosen: Callable[[Any], bool]) -> list[Any]:
    """Return parameters of a test; the chosen ones are for the extended run only."""
    return [
        pytest.param(*(v if isinstance(v, tuple) else (v,)), marks=pytest.mark.extended)
        if chosen(v)
        else v
        for v in values
    ]


def _names_its_bases(spec: str) -> bool:
    return all(entry.bases is not None for entry in registry.parse_spec(spec)[1:])


HOOKS = ("simclr", "byol", "orchestra", "pfedae", "cbafed", "fedsc", "simclr+uv")
"""Methods that between them train with most hooks; `make test` runs these on the fake GPU."""
LEFT_TO_EXTENDED = {"byol+fedu2", "simsiam+fedu2", "semifed+uv", "simsiam+uv", "spectral+uv"}
SPECS = sorted({*filter(_names_its_bases, registry.specs()), *ON_ANY})
TRAINED = sorted({*SPECS} - LEFT_TO_EXTENDED)
REFUSED = {
    f"{name}+{addon}"
    for name in ("central-ae", "pfedae", "single-ae")  # average nothing that clients train
    for addon in ("fedprox", "l-dawa", "scaffold")
}
OTHERS = sorted({*registry.specs()} - {*TRAINED} - REFUSED)

TIMES = {
    "started_at", "finished_at", "wall_seconds", "train_seconds", "peak_memory_bytes",
    "resumes", "argv",
}  # fmt: skip
"""Columns of a row that differ between runs with the same result."""


def batch_of(size: int = 5, views: Iterable[str] = "ab") -> Batch:
    """Return a batch without labels, of a noise image of 8x8 pixels for each name of a view."""
    drawn = (torch.randn(size, 1, 8, 8, generator=generator(0, name)) for name in views)
    return Batch(tuple(drawn), torch.full((size,), -1), torch.arange(size))


def gaussian(*shape: int, name: str = "z", dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=generator(0, name), dtype=dtype)


def unit(*shape: int, name: str = "z", dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return F.normalize(gaussian(*shape, name=name, dtype=dtype), dim=1)


def client(number: int = 0, round_index: int = 0) -> Client:
    return Client(number, round_index, generator(0, "client"))


def moved(net: Net, *parts: str, by: float = 0.1) -> None:
    """Add noise to the parameters of some parts, as training would."""
    with torch.no_grad():
        for part in parts:
            for value in net[part].parameters():
                value.add_(by * torch.randn(value.shape, generator=generator(0, part)))


def setup_of(spec: str, **values: Any) -> Setup:
    return tiny_setup(tiny_config(spec, **values))


def measured(setup: Setup, protocols: Sequence[str] = ()) -> dict[str, float]:
    """Metrics of a run's net before training."""
    return evaluate(setup, setup.bound(), lambda k: None, protocols, torch.device("cpu"))


def flip(path: Path, at: int = -1) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    rewrite(path, data)


def rewrite(path: Path, data: bytes | bytearray) -> None:
    """Write a file at a time that, by the clock of its file system, is another one."""
    before = path.stat().st_mtime_ns
    while path.write_bytes(data) and path.stat().st_mtime_ns == before:
        pass


_SIZES = {"digits": (1201, 10), "cifar10": (50_000, 10), "cifar100": (50_000, 100)}
_TINY = (100_000, 200)


def labelled(name: str, subset: int | None) -> Dataset:
    """Return the labels of a data set: its size in equal classes, and no images."""
    size, classes = _SIZES.get(name, _TINY)
    size = subset or size
    labels = np.arange(size, dtype=np.int64) % classes
    made = SimpleNamespace(
        revision=f"{name}{subset}", train_labels=labels, num_classes=classes, train_clients=None
    )
    return cast(Dataset, made)
