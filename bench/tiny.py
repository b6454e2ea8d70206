"""Runs small enough for tests: a handful of handwritten digits, a tiny network, one thread."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbench.bench.client import ClientRunner
from fedbench.bench.config import RunConfig
from fedbench.bench.data.datasets import Dataset, load_dataset
from fedbench.bench.data.partition import Partition, deal
from fedbench.bench.fields import build_config, field_infos
from fedbench.bench.method import Upload
from fedbench.bench.personal import PersonalStore
from fedbench.bench.seeding import single_thread
from fedbench.bench.setup import Setup
from fedbench.bench.trainer import Trainer
from fedbench.bench.worker import InProcess

_CPU = torch.device("cpu")
_RUN = "0" * 20
_TINY: Mapping[str, Any] = {
    "data.train_subset": 80,
    "data.test_subset": 40,
    "data.num_clients": 4,
    "data.partition": "iid",
    "model.width": 4,
    "client.lr": 0.05,
    "federation.num_rounds": 2,
}
_TINY_DIM = 16


def tiny_config(spec: str, /, **values: Any) -> RunConfig:
    """A configuration that trains in a fraction of a second: 80 digits, 4 clients, 2 rounds.

    Fields of the method that end in `_dim` become 16.

    Args:
        spec: the method spec.
        **values: dotted names with `__` for the dot, as in `client__lr=0.1`.

    Raises:
        ConfigError: for a name or a value that does not fit.
    """
    narrow = {
        name: _TINY_DIM
        for name, info in field_infos(spec).items()
        if name.startswith("method.") and name.endswith("_dim") and info.annotation is int
    }
    given = {name.replace("__", "."): value for name, value in values.items()}
    return build_config(spec, {**_TINY, **narrow, **given})


def hand_partition(shares: Sequence[Sequence[int]], dataset: Dataset) -> Partition:
    """A partition by hand: for each client the positions of its training images."""
    indices = np.array(list(itertools.chain.from_iterable(map(sorted, shares))), dtype=np.int64)
    offsets = np.cumsum([0, *map(len, shares)])
    size, classes = len(dataset.train_labels), dataset.num_classes
    return Partition("iid", 1.0, 0, size, classes, indices, offsets)


def tiny_setup(
    config: RunConfig,
    *,
    shares: Sequence[Sequence[int]] | None = None,
    train_labels: np.ndarray | None = None,
    data_dir: Path | None = None,
) -> Setup:
    """A run before its first round.

    Args:
        config: what to run.
        shares: deals the images by hand; None = as the configuration says.
        train_labels: takes the place of the data set's, (N,); the deal stays the same.
        data_dir: cache of data sets; None = the default one.
    """
    data = config.data
    dataset = load_dataset(
        data.name, data_dir, train_subset=data.train_subset, test_subset=data.test_subset
    )
    if shares is not None:
        partition = hand_partition(shares, dataset)
    else:
        partition = deal(dataset.train_labels, dataset.num_classes, data, config.seed)
    if train_labels is not None:
        dataset = dataclasses.replace(dataset, train_labels=train_labels)
    return Setup.of(config, dataset, partition)


def train(setup: Setup, folder: Path, *, rounds: int | None = None) -> Trainer:
    """Train in this process, from the folder's last checkpoint if it has one.

    Args:
        setup: the run.
        folder: for checkpoints.
        rounds: stop after this many; None = the configured ones.
    """
    with single_thread():
        trainer = Trainer(setup, folder, _RUN, _CPU)
        executor = InProcess(ClientRunner(setup, _CPU, folder / "clients"))
        for _ in itertools.islice(trainer.rounds(executor), rounds):
            pass
    return trainer


def all_tensors(trainer: Trainer) -> Tensor:
    """The server's vector, then every client's own tensors, as one vector."""
    store = PersonalStore(trainer.folder / "clients")
    own = [store.load(k, r) for k, r in sorted(trainer.personal_rounds.items())]
    return torch.cat([trainer.vector, *own])


def assert_same_run(a: Trainer, b: Trainer) -> None:
    """Fail unless two runs have equal bits: weights, own tensors, bytes and histories."""
    assert a.personal_rounds == b.personal_rounds
    assert torch.equal(all_tensors(a), all_tensors(b))
    assert a.ledger == b.ledger
    assert [_untimed(record) for record in a.history] == [_untimed(r) for r in b.history]


def _untimed(record: Any) -> Any:
    return dataclasses.replace(record, seconds=0.0)


def pooled(uploads: Sequence[Upload]) -> list[Upload]:
    """The sums over clients in the first upload, zeros in the others."""
    names = list(uploads[0].extras)
    sums = {name: torch.stack([u.extras[name] for u in uploads]).sum(dim=0) for name in names}
    first = Upload(uploads[0].client_id, sum(u.num_examples for u in uploads), sums)
    zeros = {name: torch.zeros_like(value) for name, value in sums.items()}
    return [first, *(Upload(u.client_id, 0, zeros) for u in uploads[1:])]


def out_of_range(metadata: Sequence[Any]) -> Iterator[float]:
    """Values that the constraints of a field forbid."""
    shifts = {"gt": 0, "lt": 0, "ge": -1, "le": 1}
    for rule in metadata:
        for name, shift in shifts.items():
            bound = getattr(rule, name, None)
            if isinstance(bound, int | float):
                yield bound + shift
