"""Comparison of a row with others: numbers that runs must not share, and those that they must."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from fedbench.bench.board.bundle import Entry
from fedbench.bench.config import training_settings
from fedbench.bench.evaluation.metrics import is_accuracy
from fedbench.bench.results.leaderboard.statistics import rounded
from fedbench.bench.results.store.replicas import differences, known_apart
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import StoreError

_DIGITS, _BY_CHANCE = 12, 2
"""Characters of a number that two seeds do not share by chance, and how many they share at most."""
_NOT_DRAWN = frozenset({"epsilon", "objective_epsilon", "objective_bytes"})
_TRAINING = frozenset({"lr", "local_epochs", "optimizer", "momentum", "weight_decay"})
_APART = 0.01
"""Accuracy by which encoders before training may differ between platforms."""


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
    """Rows that are there, to compare further ones with."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._rows: dict[str, list[Row]] = {}  # by keys and numbers that rows may have in common
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        """Add a row to those that are there."""
        for key in (*_keys(entry.row), *_numbers(entry)):
            self._rows.setdefault(key, []).append(entry.row)

    def problems(self, entry: Entry) -> Iterator[str]:
        """Yield why a row is a copy of another, or contradicts it."""
        row, numbers = entry.row, _numbers(entry)
        shared: dict[str, list[str]] = {}
        for number, name in numbers.items():
            for other in self._rows.get(number, ()):
                if other.seed != row.seed:
                    shared.setdefault(other.row_id, []).append(name)
        row_id, names = max(shared.items(), key=lambda pair: len(pair[1]), default=("", []))
        if len(names) > _BY_CHANCE:
            yield f"seed {row.seed} has {len(names)} numbers of run {row_id} of another: {names[0]}"
        same, start = (self._rows.get(key, []) for key in _keys(row))
        for other in same:
            if (found := differences(other, row)) and not known_apart(other, row):
                yield f"the board has other bits of this run and platform: {found[0]}"
        mine = _untrained(row)
        for other in start:
            apart = known_apart(other, row)
            for name, value in _untrained(other).items():
                comparable = name in mine and (is_accuracy(name) or not apart)
                if comparable and rounded(abs(mine[name] - value)) > (
                    rounded(_APART) if apart else 0
                ):
                    yield f"{name} is {mine[name]}, but {value} in run {other.row_id}"
                    return


def _keys(row: Row) -> tuple[str, str]:
    """Return texts that are equal for one run, and for one encoder before training."""
    config = json.loads(row.config_json)
    data = training_settings(config)["data"]
    client = {name: v for name, v in config["client"].items() if name not in _TRAINING}
    method = config["method"]
    if not config.get("code"):
        # Weights, temperatures and rates act on training alone; sizes and names on the start too.
        method = {name: v for name, v in method.items() if not isinstance(v, float)}
    kept = [config[name] for name in ("model", "evaluation", "spec")]
    start = [row.dataset_revision, row.seed, data, client, method, kept]
    return row.row_id, json.dumps(start, sort_keys=True)


def _numbers(entry: Entry) -> dict[str, str]:
    """Return the names of numbers that no other seed gives (long ones, no accuracies), by text."""
    values: dict[str, float | None] = dict(entry.row.metrics)
    values |= {f"loss of round {p.get('round_index')}": p.get("loss") for p in entry.points}
    return {
        repr(value): name
        for name, value in values.items()
        if isinstance(value, float) and len(repr(value)) > _DIGITS
        if not is_accuracy(name) and name not in _NOT_DRAWN
    }


def _untrained(row: Row) -> dict[str, float]:
    """Return the metrics of the encoder before training, by name."""
    return {name: v for name, v in row.metrics.items() if name.startswith("untrained_")}
