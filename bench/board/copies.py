"""Comparison of rows with each other: numbers of one run that another run also has."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedbench.bench.board.bundle import Entry
from fedbench.bench.config import training_settings
from fedbench.bench.partitioners import PARTITIONERS
from fedbench.bench.results.metrics import METRICS, UNTRAINED_METRICS, is_accuracy
from fedbench.bench.results.store.replicas import differences, known_apart
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import StoreError

_DIGITS = 12
"""Characters of a number that two runs do not share by chance."""
_SHOWN = 3
_BY_CHANCE = 2
"""Numbers that runs of two seeds may share, such as scores of collapsed encoders."""
_NOT_DRAWN = ("epsilon", "objective_epsilon", "objective_bytes")
"""Numbers that follow from the configuration, whatever the seed."""
_TRAINING = ("lr", "local_epochs", "optimizer", "momentum", "weight_decay")
_UNTRAINED = "untrained_"
_APART = 0.01
"""Share of the test images by which encoders before training may differ between platforms."""


def known_entries(store: Store, rows: Iterable[Row]) -> list[Entry]:
    """Return rows of a store with their curves; a curve that cannot be read counts as none."""
    entries = []
    for row in rows:
        try:
            points = store.curve(store.key(row))
        except StoreError:  # `fedbench verify --store` reports it
            points = []
        entries.append(Entry(row, tuple(points)))
    return entries


class Copies:
    """Numbers and partitions of rows that are there, to compare further ones with.

    Args:
        entries: of the board that a bundle is to join.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._rows: dict[str, list[Row]] = {}
        self._numbers: dict[float, list[Row]] = {}
        self._partitions: dict[str, Row] = {}
        self._hashes: dict[str, Row] = {}
        self._before: dict[str, list[Row]] = {}
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        """Add a row to those that are there."""
        row = entry.row
        self._rows.setdefault(row.row_id, []).append(row)
        for value in numbers(entry).values():
            self._numbers.setdefault(value, []).append(row)
        self._partitions.setdefault(_partition_settings(row), row)
        self._hashes.setdefault(row.partition_hash, row)
        self._before.setdefault(_before_training(row), []).append(row)

    def problems(self, entry: Entry) -> Iterator[str]:
        """Yield why a row is a copy of another, or contradicts it."""
        row = entry.row
        yield from self._other_bits(row)
        shared: dict[str, tuple[Row, list[str]]] = {}
        for name, value in numbers(entry).items():
            for other in self._numbers.get(value, ()):
                if other.seed != row.seed and other.row_id != row.row_id:
                    shared.setdefault(other.row_id, (other, []))[1].append(name)
        shared = {key: pair for key, pair in shared.items() if len(pair[1]) > _BY_CHANCE}
        if shared:
            other, names = max(shared.values(), key=lambda pair: len(pair[1]))
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            yield (
                f"seed {row.seed} has the numbers of run {other.row_id} of seed {other.seed}:"
                f" {', '.join(names[:_SHOWN])}{more}"
            )
        yield from self._partition_problems(row)
        yield from self._before_problems(row)

    def notes(self, entry: Entry) -> Iterator[str]:
        """Yield which other training of the same seed gave the same numbers to the last bit."""
        mine = numbers(entry)
        if "final_loss" not in mine:
            return
        for other in self._numbers.get(mine["final_loss"], ()):
            if other.seed == entry.row.seed and other.training_id != entry.row.training_id:
                yield (
                    f"run {entry.row.row_id} has the final_loss of run {other.row_id} to the last"
                    " bit: true only where the settings in which they differ have no effect"
                )
                return

    def _other_bits(self, row: Row) -> Iterator[str]:
        for other in self._rows.get(row.row_id, ()):
            found = differences(other, row)
            if found and not known_apart(other, row):
                yield f"the board has this run of the same platform with other bits: {found[0]}"
                return

    def _before_problems(self, row: Row) -> Iterator[str]:
        """Yield a metric before training that another run of the same weights contradicts."""
        mine = _untrained(row)
        for other in self._before.get(_before_training(row), ()):
            apart = known_apart(other, row)
            for name, value in _untrained(other).items():
                if name not in mine or (apart and not is_accuracy(name)):
                    continue
                if abs(mine[name] - value) > (_APART if apart else 0):
                    yield (
                        f"{name} is {mine[name]}, but run {other.row_id} of the same weights before"
                        f" training has {value}"
                    )
                    return

    def _partition_problems(self, row: Row) -> Iterator[str]:
        other = self._partitions.get(_partition_settings(row))
        if other is not None and other.partition_hash != row.partition_hash:
            yield (
                f"partition_hash is {row.partition_hash}, but run {other.row_id} of the same data,"
                f" settings and seed has {other.partition_hash}"
            )
        other = self._hashes.get(row.partition_hash)
        data = json.loads(row.config_json)["data"]
        partitioner = PARTITIONERS.get(row.partition)
        drawn = partitioner is not None and partitioner.source != "clients"
        drawn = drawn and not data.get("legacy") and row.num_clients > 1
        if other is not None and drawn and other.seed != row.seed:
            yield (
                f"partition_hash of seed {row.seed} is that of run {other.row_id} of seed"
                f" {other.seed}"
            )


def numbers(entry: Entry) -> dict[str, float]:
    """Return the numbers of a run by name that no other seed gives: long ones, no accuracies."""
    row = entry.row
    further: Mapping[str, Any] = json.loads(row.metrics_json or "{}")
    values = {name: getattr(row, name) for name in METRICS} | dict(further)
    for point in entry.points:
        values[f"loss of round {point.get('round_index')}"] = point.get("loss")
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, float) and not is_accuracy(name) and len(repr(value)) > _DIGITS
        if name not in _NOT_DRAWN
    }


def _untrained(row: Row) -> dict[str, float]:
    """Return the metrics of the encoder before training, by name."""
    values = {name: getattr(row, name) for name in UNTRAINED_METRICS}
    values |= json.loads(row.metrics_json or "{}")
    return {n: v for n, v in values.items() if n.startswith(_UNTRAINED) and v is not None}


def _before_training(row: Row) -> str:
    """Return what decides the encoder before training and its metrics, as text."""
    config = json.loads(row.config_json)
    data = training_settings(config)["data"]
    client = {name: v for name, v in config["client"].items() if name not in _TRAINING}
    kept = {name: config[name] for name in ("seed", "model", "method", "evaluation", "spec")}
    return json.dumps([row.dataset_revision, data, client, kept], sort_keys=True)


def _partition_settings(row: Row) -> str:
    """Return what decides a partition, as text."""
    data = dict(training_settings(json.loads(row.config_json))["data"])
    data.pop("label_fraction", None)
    return json.dumps([row.dataset_revision, row.seed, data], sort_keys=True)
