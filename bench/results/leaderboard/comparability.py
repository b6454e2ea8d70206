"""Comparability classes of rows, their titles, and the settings that tell rows apart."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from pathlib import PurePath
from typing import Any

from fedbench.bench.config.dotted import flatten
from fedbench.bench.results.store.row import Row
from fedbench.bench.system.identity import content_id

SETTING = (
    "partition",
    "alpha",
    "num_clients",
    "participation",
    "num_rounds",
    "local_epochs",
    "backbone",
    "norm",
)
"""Columns that rows and published numbers have in common."""

KEYS = ("dataset", "dataset_revision", *SETTING, "benchmark_version")
"""Columns of the comparability class; settings of data, model and probe are added to them."""

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
_CLASS_SETTINGS = (
    "client.local_epochs",
    "client.precision",
    "federation.num_rounds",
    "federation.participation",
)

_ALWAYS = frozenset({"dataset", "alpha", "data.train_subset"})
_WORDS: Mapping[str, Callable[[Any], str]] = {
    "dataset_revision": lambda value: f"revision {value[:8]}",
    "partition": lambda value: f"{value} partition",
    "num_clients": lambda value: f"{value:,} clients",
    "participation": lambda value: f"{value * 100:g} % participation",
    "num_rounds": lambda value: f"{value:,} rounds",
    "local_epochs": lambda value: f"{value} local epoch{'s' * (value != 1)}",
    "backbone": str,
    "norm": lambda value: f"{value} norm",
    "benchmark_version": lambda value: f"benchmark version {value}",
    "client.precision": str,
    "data.test_subset": lambda value: f"{value:,} test images",
}


@lru_cache(maxsize=1 << 14)
def settings_of(config_json: str) -> Mapping[str, Any]:
    """Return the configuration of a row by dotted name; shared, so not to be changed."""
    return flatten(json.loads(config_json))


def class_keys(row: Row) -> dict[str, Any]:
    """Return everything that two rows must share to be ranked together, by name."""
    config = settings_of(row.config_json)
    further = {
        key: config[key]
        for key in sorted(config)
        if key.startswith(_SECTIONS) and key not in _IN_COLUMNS | _NO_CLASS
    }
    further["client.precision"] = config.get("client.precision", "fp32")
    return {key: getattr(row, key) for key in KEYS} | further


def settings_id(row: Row) -> str:
    """Return an identity of the hyperparameters, the same for every class and seed.

    Class and identity together tell any two configurations apart: settings that are in no class
    count here.
    """
    config = settings_of(row.config_json)
    return content_id(
        {
            key: value
            for key, value in config.items()
            if key in _NO_CLASS
            or (key != "seed" and key not in _CLASS_SETTINGS and not key.startswith(_SECTIONS))
        }
    )


def order(keys: Mapping[str, Any]) -> list[tuple[bool, str, Any]]:
    """Return a key that sorts classes by their values in turn, numbers as numbers, nulls last."""

    def part(value: Any) -> tuple[bool, str, Any]:
        if isinstance(value, int | float):
            return False, "number", value
        return value is None, "text", value if isinstance(value, str) else json.dumps(value)

    return [part(value) for value in keys.values()]


def titles(
    classes: Mapping[str, Mapping[str, Any]], presets: Mapping[str, Collection[str]]
) -> dict[str, str]:
    """Return titles of classes: data, presets, alpha, and the settings in which classes differ.

    A setting that some configurations (of older versions) do not have is named if the others differ
    in it, or if titles would be equal without it.

    Args:
        classes: the keys of each class, by its id.
        presets: the presets that the runs of each class started from.

    >>> titles({"a": {"dataset": "hub:cifar10", "alpha": 0.1, "num_clients": 8}}, {"a": ["demo"]})
    {'a': 'cifar10 (hub) · preset demo · alpha 0.1'}
    """
    names = dict.fromkeys(n for keys in classes.values() for n in keys if n not in _ALWAYS)
    alike = {name: _alike(name, classes) for name in names}
    differing = [name for name in names if _differs(name, alike[name])]
    known = [
        name
        for name in differing
        if _differs(name, {i: keys for i, keys in alike[name].items() if name in keys})
    ]
    subsets = _differs("data.train_subset", classes)

    def title(class_id: str, settings: Collection[str]) -> str:
        keys = classes[class_id]
        alpha = keys.get("alpha")
        parts = [
            *_data_parts(keys, everything=subsets),
            f"preset {', '.join(sorted(presets[class_id]))}",
            f"{keys.get('partition')} partition" if alpha is None else f"alpha {_text(alpha)}",
            *(_in_words(name, keys[name]) for name in settings if name in keys),
        ]
        return " · ".join(dict.fromkeys(parts))

    short = {class_id: title(class_id, known) for class_id in classes}
    if len({*short.values()}) == len(short):
        return short
    return {class_id: title(class_id, differing) for class_id in classes}


def _alike(name: str, classes: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """Return the classes in which a difference of a key is worth naming.

    Revisions differ between data sets and between parts of one anyway; a title names them only if
    data of the same name and sizes have several.
    """
    if name != "dataset_revision":
        return classes
    by_data: dict[str, list[str]] = {}
    for class_id, keys in classes.items():
        data = [keys.get(key) for key in ("dataset", "data.train_subset", "data.test_subset")]
        by_data.setdefault(json.dumps(data), []).append(class_id)
    for ids in by_data.values():
        if _differs(name, chosen := {class_id: classes[class_id] for class_id in ids}):
            return chosen
    return {}


def _data_parts(keys: Mapping[str, Any], *, everything: bool) -> list[str]:
    """Return the data set, as `cifar10 (hub)`, and the number of images if it is a subset."""
    kind, colon, name = str(keys.get("dataset", "")).partition(":")
    subset = keys.get("data.train_subset")
    parts = [f"{PurePath(name).name} ({kind})" if colon else kind]
    if subset is not None:
        parts.append(f"{subset:,} images")
    elif everything:
        parts.append("all images")
    return parts


def _in_words(name: str, value: Any) -> str:
    """Return a key of a class for a title: `100 clients`, `group norm`, `legacy true`."""
    if name in _WORDS and value is not None:
        return _WORDS[name](value)
    section, _, field = name.rpartition(".")
    words = field.replace("_", " ")
    if section == "evaluation" and not field.startswith(("knn", "linear", "objective")):
        words = f"evaluation {words}"
    if value is None:
        return (
            f"all {words.removesuffix(' subset')} images" if "subset" in words else f"own {words}"
        )
    return f"{words} {str(value).lower() if isinstance(value, bool) else _text(value)}"


def variants(rows: Mapping[str, Row]) -> dict[str, str]:
    """Return, by configuration, the hyperparameters that tell it from others of its method.

    Args:
        rows: one row of each configuration of one class, by configuration id.
    """
    by_method: dict[str, dict[str, dict[str, Any]]] = {}
    for config_id, row in rows.items():
        config = {**settings_of(row.config_json)}
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
    first, *others = [value.get(name) for value in values.values()] or [None]
    return any(type(other) is not type(first) or other != first for other in others)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
