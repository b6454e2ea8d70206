"""Runs whose loss ended where that of a net without information does: their task was not learnt.

A method states the value of each term (`Method.chance`); a run's curve has how it ended. What
follows for a row is derived when a store is read, and remembered in `at-chance.json` beside the
rows, which may be deleted: methods take a while to load.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fedbench.bench.config import RunConfig
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.checksums import json_with_checksum, parse_json
from fedbench.bench.system.errors import ConfigError, DataError, PluginWarning, StoreError
from fedbench.bench.system.files import atomic_write_text

LAST_ROUNDS, NEAR = 5, 0.1
"""Rounds at the end whose mean counts, and the share of the value that a term must be below it."""
MARKS_FILE = "at-chance.json"
_VERSION = 2
"""Of what methods state, raised when a value is withdrawn, as mim's was: a file of another version
is not read."""


@dataclass(frozen=True)
class Marks:
    """What a row's numbers do not test."""

    at_chance: tuple[str, ...] = ()  # terms of the loss, such as `clusters` or `loss - align`
    minimises_objective: bool = False  # the loss is the objective by which settings are chosen


NO_MARKS = Marks()


def terms_at_chance(config: RunConfig, curve: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the terms of a run's loss that ended at chance, of those for which there is a value.

    The total is left out where a part of it is named.

    Raises:
        ConfigError: for a method that is not registered, or no longer takes its fields.
    """
    from fedbench.bench.method import registry

    stated = registry.create(config.spec, config.method).chance(config)
    found = []
    for term, value in stated.items():
        total, *others = term.split(" - ")
        names = [total if total == "loss" else f"parts.{total}", *(f"parts.{n}" for n in others)]
        # Means over the last rounds that have the terms.
        ends = [[p[n] for p in curve[-LAST_ROUNDS:] if p.get(n) is not None] for n in names]
        if not isinstance(value, str) and all(ends):
            end, *taken_out = (sum(values) / len(values) for values in ends)
            if end - sum(taken_out) >= value - NEAR * abs(value):
                found.append(term)
    return tuple(term for term in found if term != "loss" or len(found) == 1)


def marks(store: Store, rows: Iterable[Any]) -> dict[str, Marks]:
    """Return the marks of finished rows by row id; the first replica counts.

    `rows` are of a store, or lines of its frame. Rows of methods that are not here have no marks.
    """
    path, found = store.root / MARKS_FILE, dict[str, Marks]()
    known: dict[str, list[Any]] = {}
    with suppress(OSError, ValueError):  # not there, or damaged: it is made again
        content = parse_json(path.read_bytes())
        known = content["rows"] if content["version"] == _VERSION else {}
    new = False
    for row in sorted(rows, key=lambda row: row.finished_at):
        if row.status != "ok" or row.row_id in found:
            continue
        finished = row.finished_at.isoformat()
        if known.get(row.row_id, [None])[0] != finished:  # new, or repeated by --again
            try:
                known[row.row_id], new = [finished, *_derive(store, store.find(row.row_id))], True
            except (ConfigError, DataError, StoreError):  # a plugin that is gone, or a torn curve
                continue
            except Exception as err:  # of a plugin's `chance`, which costs no other row its marks
                from fedbench.bench.method.blame import error_of_plugin

                warnings.warn(f"at_chance: {error_of_plugin(err) or err}", PluginWarning, 2)
                continue
        _, terms, minimises = known[row.row_id]
        found[row.row_id] = Marks(tuple(terms), minimises)
    if new:
        with suppress(StoreError):  # a store that may not be written to
            atomic_write_text(path, json_with_checksum({"version": _VERSION, "rows": known}) + "\n")
    return found


def _derive(store: Store, row: Row) -> tuple[list[str], bool]:
    from fedbench.bench.method import registry

    terms = terms_at_chance(row.config, store.curve(store.key(row)))
    method = registry.parse_spec(row.method)[0]
    return [*terms], method.cls.minimises_objective
