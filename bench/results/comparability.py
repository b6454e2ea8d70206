"""Which rows may be compared, and what tells them apart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedbench.bench.dotted import flatten
from fedbench.bench.results.row import Row

KEYS = (
    "dataset",
    "dataset_revision",
    "partition",
    "alpha",
    "num_clients",
    "participation",
    "num_rounds",
    "local_epochs",
    "backbone",
    "norm",
    "benchmark_version",
)
"""Columns that make up the comparability class; settings of data, model and probe come on top."""

_IN_COLUMNS = frozenset(
    {
        "data.name",
        "data.partition",
        "data.alpha",
        "data.num_clients",
        "model.backbone",
        "model.norm",
    }
)
_SECTIONS = ("data.", "model.", "evaluation.")
_NO_CLASS = frozenset({"evaluation.protocols", "evaluation.every", "evaluation.untrained"})


def class_keys(row: Row) -> dict[str, Any]:
    """Everything that two rows must share to be ranked together, by name."""
    config = flatten(json.loads(row.config_json))
    further = {
        key: config[key]
        for key in sorted(config)
        if key.startswith(_SECTIONS) and key not in _IN_COLUMNS | _NO_CLASS
    }
    return {key: getattr(row, key) for key in KEYS} | further


def order(keys: Mapping[str, Any]) -> list[tuple[bool, str, Any]]:
    """A key that sorts classes by their values in turn, numbers as numbers, nulls last."""
    return [_order_part(value) for value in keys.values()]


def _order_part(value: Any) -> tuple[bool, str, Any]:
    if isinstance(value, int | float):
        return False, "number", value
    return value is None, "text", value if isinstance(value, str) else json.dumps(value)


def titles(classes: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """For each class the keys in which the classes differ, and alpha always."""
    names = dict.fromkeys(name for keys in classes.values() for name in keys)
    shown = [name for name in names if name == "alpha" or _differs(name, classes)]
    return {
        class_id: " · ".join(_title_part(name, keys[name]) for name in shown if name in keys)
        for class_id, keys in classes.items()
    }


def variants(rows: Mapping[str, Row]) -> dict[str, str]:
    """For each configuration the hyperparameters that tell it from others of its method.

    Args:
        rows: one row of each configuration of one class, by configuration id.
    """
    by_method: dict[str, dict[str, dict[str, Any]]] = {}
    for config_id, row in rows.items():
        config = flatten(json.loads(row.config_json))
        config.pop("seed", None)
        by_method.setdefault(row.method, {})[config_id] = config
    texts = {}
    for configs in by_method.values():
        names = sorted({name for config in configs.values() for name in config})
        shown = [name for name in names if _differs(name, configs)]
        for config_id, config in configs.items():
            texts[config_id] = ", ".join(f"{name}={_text(config.get(name))}" for name in shown)
    return texts


def _differs(name: str, values: Mapping[str, Mapping[str, Any]]) -> bool:
    return len({json.dumps(value.get(name)) for value in values.values()}) > 1


def _title_part(name: str, value: Any) -> str:
    if value is None:
        return f"no {name}"
    return f"{name} {_text(value[:8] if name == 'dataset_revision' else value)}"


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
