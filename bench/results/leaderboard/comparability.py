"""Comparability classes of rows, their titles, and the settings that tell rows apart."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from fedbench.bench.config.identity import section_defaults
from fedbench.bench.config.presets import read_preset
from fedbench.bench.results.store.frame import FURTHER
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.schema import COLUMNS, CONFIG, PLATFORM
from fedbench.bench.results.store.settings import (
    CLIENTS,
    COLUMN_OF,
    evaluation_of,
    measured_by,
    settings_of,
    task_of,
    unlike,
)
from fedbench.bench.system.errors import UnknownNameError
from fedbench.bench.system.identity import canonical_json, content_id

if TYPE_CHECKING:
    import pandas as pd

START, TRAINABLE = "model.weights_sha256", "model.trainable"
"""In a title where encoders start from given weights, or are frozen in part."""
_ALWAYS = frozenset({"dataset", "alpha", "data.train_subset"})
_WORDS: Mapping[str, Callable[[Any], str]] = {
    "dataset_revision": lambda value: f"revision {value[:8]}",
    "partition": lambda value: f"{value} partition",
    "num_clients": lambda value: f"{value:,} clients",
    "participation": lambda value: f"{value * 100:g} % participation",
    "num_rounds": lambda value: f"{value:,} round{'' if value == 1 else 's'}",
    "local_epochs": lambda value: f"{value} local epoch{'s' * (value != 1)}",
    "backbone": str,
    "norm": lambda value: f"{value} norm",
    "benchmark_version": lambda value: f"benchmark version {value}",
    "client.precision": str,
    "client.compile": lambda value: {True: "compiled", False: "not compiled"}.get(
        value, "compiled in part or not at all"
    ),
    START: lambda value: f"start {value[:8]}",
    TRAINABLE: lambda value: f"{value} trained",
    "data.test_subset": lambda value: f"{value:,} test images",
    "data.label_fraction": lambda value: f"{value * 100:g} % labelled",
    CLIENTS: lambda value: f"{value:,} clients evaluated",
    "devices.profile": str,
    "devices.profile_sha256": lambda value: f"devices {value[:8]}",
    "devices.failure": lambda value: f"{value * 100:g} % drop out",
}


def metric_values(frame: pd.DataFrame, metric: str) -> pd.Series[float]:
    """Return a metric of rows; NaN where it was not measured."""
    return frame.reindex(columns=[metric])[metric].astype("float64")


def measured_metrics(rows: pd.DataFrame) -> list[str]:
    """Return the metrics without a field in `Row` that some of the rows have."""
    known = {*Row.model_fields, *COLUMNS.values(), *FURTHER.names}
    parts = (CONFIG, PLATFORM)
    names = [n for n in rows.columns if n not in known and not n.startswith(parts)]
    return [*rows[names].columns[rows[names].notna().any()]]


def class_of(row: Row, metric: str) -> str:
    """Return the identity of a row's comparability class, before classes are joined."""
    return class_id({**task_of(row), **measured_by(evaluation_of(row), metric)})


def class_id(keys: Mapping[str, Any]) -> str:
    """Return the identity of a comparability class: its keys but for `dataset`, a mere label.

    A setting at its default does not count, so that a younger field leaves the classes as they are.
    """
    defaults = {"dataset": keys.get("dataset"), **section_defaults()}
    return content_id({k: v for k, v in keys.items() if k not in defaults or v != defaults[k]})


def classes(frame: pd.DataFrame, metric: str) -> tuple[pd.Series[str], dict[str, dict[str, Any]]]:
    """Return the comparability class of each row, and the keys of each class, by its id.

    Methods with one encoder are compared with those that are evaluated on some clients' encoders;
    if these were evaluated on different numbers of clients, with the larger class. Runs of which
    none measured the metric stand in the largest class where others did: how they would have
    measured it sets nothing apart. Rows have one name for each revision of data.
    """
    texts = frame.task + "\n" + _texts(frame.evaluation, lambda each: measured_by(each, metric))
    keys: dict[str, dict[str, Any]] = {}
    of_text: dict[str, str] = {}
    once = ~texts.duplicated()
    for text, dataset in zip(texts[once], frame.dataset[once], strict=True):
        task, settings = map(json.loads, text.split("\n"))
        of_class = {"dataset": dataset, **task, **settings}
        of_text[text] = class_id(of_class)
        keys[of_text[text]] = of_class
    ids = texts.map(of_text)
    sizes = ids.value_counts().to_dict()

    def join(staying: Collection[str], left_out: Callable[[str], bool]) -> None:
        """Move rows of all other classes to the largest one with equal keys but for those."""
        nonlocal ids

        def rest(identity: str) -> str:
            return class_id({k: v for k, v in keys[identity].items() if not left_out(k)})

        largest = {rest(each): each for each in sorted(staying, key=lambda i: (sizes[i], i))}
        moved = {}
        for identity in sorted({*keys} - {*staying}):
            if (target := largest.get(rest(identity))) is not None:
                moved[identity] = target
                sizes[target] += sizes.pop(identity)
                del keys[identity]
        ids = ids.replace(moved) if moved else ids

    join({*ids[metric_values(frame, metric).notna()]}, lambda key: key.startswith("evaluation."))
    join({i for i in keys if CLIENTS in keys[i]}, lambda key: key == CLIENTS)
    return ids, keys


def measured_alike(frame: pd.DataFrame, metric: str) -> pd.Series[bool]:
    """Return True for rows, with `class_id`, that measured as most of their class did."""
    read = _texts(frame.evaluation, lambda settings: measured_by(settings, metric))
    by = frame[["class_id", "config_id"]].assign(
        clients=_texts(read, lambda settings: settings.get(CLIENTS)),
        settings=_texts(read, lambda settings: {**settings, CLIENTS: None}),
    )
    having = by[(frame.status == "ok") & metric_values(frame, metric).notna()]
    settings = by.class_id.map(_most(having, "settings"))
    clients_of = by.class_id.map(_most(having[having.clients != "null"], "clients"))
    return (by.settings == settings) & ((by.clients == "null") | (by.clients == clients_of))


def _most(rows: pd.DataFrame, column: str) -> pd.Series[str]:
    """Return by class the text that most entries have; of several the first, numbers by value."""
    counts = rows.groupby(["class_id", column]).config_id.nunique().reset_index()
    counts["length"] = counts[column].str.len() if column == "clients" else 0
    counts = counts.sort_values(["config_id", "length", column], ascending=[False, True, True])
    first: pd.Series[str] = counts.drop_duplicates("class_id").set_index("class_id")[column]
    return first


def _texts(column: pd.Series[str], of: Callable[[dict[str, Any]], Any]) -> pd.Series[str]:
    """Return canonical JSON of what a function makes of each JSON object of a column."""
    made = {text: canonical_json(of(json.loads(text))) for text in column.unique()}
    return column.map(made)


def unscaled_keys(rows: pd.DataFrame, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a class that the grid scaled with another setting, as they were before.

    Where its rows disagree, the most count.
    """
    most = next(iter(rows.scaled_json.mode()), "{}")
    fields = {COLUMN_OF.get(name, name): value for name, value in json.loads(most).items()}
    return {key: value for key, value in fields.items() if key in keys}


def order(keys: Mapping[str, Any]) -> list[tuple[bool, bool, Any]]:
    """Return a key that sorts classes by their values in turn, numbers first, nulls last."""
    return [
        (False, False, value)
        if isinstance(value, int | float)
        else (value is None, True, value if isinstance(value, str) else json.dumps(value))
        for value in keys.values()
    ]


def unlike_preset(rows: pd.DataFrame, keys: Mapping[str, Any]) -> set[str]:
    """Return the keys of a class whose values differ from those of its runs' presets."""
    fields = {column: name for name, column in COLUMN_OF.items()}
    changed: set[str] = set()
    once = rows.drop_duplicates("preset").assign(dataset=keys["dataset"])
    for row in once.itertuples():
        preset = _preset(row, json.loads(str(row.config_json)))
        changed |= {
            key
            for key, value in keys.items()
            if (field := fields.get(key, key)) in preset and preset[field] != value
        }
    return changed


def changed_by_hand(row: Any) -> tuple[str, ...]:
    """Return the hyperparameters of a row that its preset has not, as `client.lr=0.1`, sorted."""
    settings = json.loads(row.config_json)
    preset = _preset(row, settings)
    found = unlike(settings, json.loads(row.scaled_json or "{}"), preset) if preset else {}
    return tuple(f"{name}={as_text(value)}" for name, value in sorted(found.items()))


def _preset(row: Any, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of a row's preset by dotted name.

    Of one that is not installed, or that this version does not take, nothing is known.
    """
    with suppress(UnknownNameError, ValidationError):
        # Rules of a preset go by the content of the data, not by the folder that it lay in.
        given = settings_of(settings) | {"data.name": row.dataset}
        return read_preset(row.preset).settings(row.method, given)
    return {}


def titles(
    classes: Mapping[str, Mapping[str, Any]],
    presets: Mapping[str, Collection[str]],
    unlike: Mapping[str, Collection[str]],
) -> dict[str, str]:
    """Return titles of classes: data, presets, alpha, and the settings in which classes differ.

    Keys, presets and the keys that a title names in any case are by class id. A setting that some
    configurations (of older versions) lack is named if the others differ in it, or if titles would
    be equal without it.

    >>> titles({"a": {"dataset": "hub:cifar10", "alpha": 0.1}}, {"a": ["demo"]}, {})
    {'a': 'cifar10 (hub) · preset demo · alpha 0.1'}
    """
    names = dict.fromkeys(n for keys in classes.values() for n in keys if n not in _ALWAYS)
    alike = {name: _alike(name, classes) for name in names}
    differing = [name for name in names if _differs(name, alike[name])]
    known = [n for n in differing if _differs(n, [keys for keys in alike[n] if n in keys])]
    subsets, defaults = _differs("data.train_subset", classes.values()), section_defaults()

    def title(class_id: str, settings: Collection[str]) -> str:
        keys = classes[class_id]
        alpha, changed = keys.get("alpha"), unlike.get(class_id, ())
        started = {name for name in (START, TRAINABLE) if keys.get(name) != defaults[name]}
        named = {*settings, *changed, *started} - _ALWAYS
        parts = [
            *_data_parts(keys, everything=subsets or "data.train_subset" in changed),
            f"preset {', '.join(sorted(presets[class_id]))}",
            f"{keys.get('partition')} partition" if alpha is None else f"alpha {as_text(alpha)}",
            *(_in_words(name, keys[name]) for name in keys if name in named),
        ]
        return " · ".join(dict.fromkeys(parts))

    short = {class_id: title(class_id, known) for class_id in classes}
    if len({*short.values()}) == len(short):
        return short
    return {class_id: title(class_id, differing) for class_id in classes}


def _alike(name: str, classes: Mapping[str, Mapping[str, Any]]) -> Collection[Mapping[str, Any]]:
    """Return the keys of the classes that a title may tell apart by one key.

    Revisions differ between data sets and between parts of one anyway; a title names them only if
    data of the same name and sizes have several.
    """
    if name != "dataset_revision":
        return classes.values()
    by_data: dict[str, list[Mapping[str, Any]]] = {}
    for keys in classes.values():
        data = [keys.get(key) for key in ("dataset", "data.train_subset", "data.test_subset")]
        by_data.setdefault(json.dumps(data), []).append(keys)
    return next((chosen for chosen in by_data.values() if _differs(name, chosen)), [])


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
        images = f"all {words.removesuffix(' subset')} images"
        return images if "subset" in words else f"own {words}"
    return f"{words} {str(value).lower() if isinstance(value, bool) else as_text(value)}"


def differing(configs: Collection[Mapping[str, Any]]) -> list[str]:
    """Return the names of the values in which configurations differ, sorted."""
    names = sorted({name for config in configs for name in config})
    return [name for name in names if _differs(name, configs)]


def _differs(name: str, configs: Collection[Mapping[str, Any]]) -> bool:
    first, *others = [config.get(name) for config in configs] or [None]
    return any(type(other) is not type(first) or other != first for other in others)


def as_text(value: Any) -> str:
    """Return a value of a setting for people."""
    return f"{value:g}" if isinstance(value, float) else str(value)
