"""Comparability classes of rows, their titles, and the settings that tell rows apart."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePath
from typing import Any

from fedbench.bench.config import EvaluationConfig, identity, training_settings
from fedbench.bench.config.dotted import flatten
from fedbench.bench.evaluation.catalogue import needed
from fedbench.bench.results.store.row import Row
from fedbench.bench.system.identity import canonical_json, content_id

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
"""Columns of the comparability class; settings of data, model and metric are added to them."""

COLUMN_OF = {
    "data.partition": "partition",
    "data.alpha": "alpha",
    "data.num_clients": "num_clients",
    "model.backbone": "backbone",
    "model.norm": "norm",
    "client.local_epochs": "local_epochs",
    "federation.num_rounds": "num_rounds",
    "federation.participation": "participation",
}
"""Fields whose values are columns of the class."""
_PRECISION = "client.precision"
_FIELDS = frozenset(EvaluationConfig.model_fields)
_ALL = _FIELDS - {"protocols", "probe_fractions", "objectives", "every", "rounds", "untrained"}
"""Fields of the evaluation but for those that say only which metrics are measured, and when."""
_LATER = {"evaluation.objective_clients", "evaluation.objective_noise"}
"""Fields that older rows lack; null means what those did."""
_SECTIONS = ("data.", "model.")
CLIENTS = "evaluation.num_clients"
"""In the class where encoders differ between clients, and for whoever is ranked with them."""

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
    "data.test_subset": lambda value: f"{value:,} test images",
}


@lru_cache(maxsize=1 << 14)
def settings_of(config_json: str) -> Mapping[str, Any]:
    """Return the configuration of a row by dotted name; shared, so not to be changed."""
    return flatten(json.loads(config_json))


@lru_cache(maxsize=1 << 14)
def training_of(config_json: str) -> Mapping[str, Any]:
    """Return a row's training settings by dotted name; shared, so not to be changed."""
    return flatten(training_settings(json.loads(config_json)))


@lru_cache(maxsize=1 << 14)
def _contender(config_json: str, benchmark: str, data_revision: str) -> str:
    return identity(training_settings(json.loads(config_json)), data_revision, benchmark)


def contender(row: Row) -> str:
    """Return the identity of a row's training configuration, without its seed.

    It is `config_id` as this version makes it, so that rows of older ones are told apart by their
    training, too.
    """
    return _contender(row.config_json, row.benchmark_version, row.dataset_revision)


def metric_value(row: Row, metric: str) -> float | None:
    """A metric of a row by column name or by key of `metrics_json`; None if not measured."""
    if metric in Row.model_fields:
        value = getattr(row, metric)
    else:
        value = json.loads(row.metrics_json or "{}").get(metric)
    return float(value) if isinstance(value, int | float) else None


def measured_by(row: Row, metric: str | None = None) -> dict[str, Any]:
    """Return the settings that give a metric of a row its meaning, by dotted name; None = any.

    The number of evaluated clients is left out where all clients have one encoder, since all of
    them count then. Fields of older versions that are not known any more count for every metric.
    """
    read = _ALL if metric is None else needed(metric).reads
    settings = {}
    for name, value in settings_of(row.config_json).items():
        section, _, field = name.partition(".")
        if name in _LATER and value is None:
            continue
        if section == "evaluation" and (field in read or field not in _FIELDS):
            settings[name] = value
    if CLIENTS in settings:
        if '"objective_std"' in (row.metrics_json or ""):  # a mean over encoders
            settings[CLIENTS] = min(settings[CLIENTS], row.num_clients)
        else:
            del settings[CLIENTS]
    return settings


def class_keys(row: Row, metric: str) -> dict[str, Any]:
    """Return everything that two rows must share to be ranked together by a metric, by name.

    `dataset` is the exception: it is a label, and the revision says which images they are.
    """
    training = training_of(row.config_json)
    further = {
        key: training[key]
        for key in sorted(training)
        if key.startswith(_SECTIONS) and key not in COLUMN_OF
    }
    further[_PRECISION] = training.get(_PRECISION, "fp32")
    measured = measured_by(row, metric)
    return {key: getattr(row, key) for key in KEYS} | further | dict(sorted(measured.items()))


def class_id(keys: Mapping[str, Any]) -> str:
    """Return the identity of a comparability class."""
    return content_id({key: value for key, value in keys.items() if key != "dataset"})


def classes(rows: Sequence[Row], metric: str) -> list[tuple[dict[str, Any], list[Row]]]:
    """Divide rows into comparability classes: the keys of each, and its rows.

    Methods with one encoder are compared with those that are evaluated on some clients' encoders;
    if these were evaluated on different numbers of clients, with the larger class. Runs of which
    none measured the metric stand in the largest class where others did: how they would have
    measured it sets nothing apart.
    """
    keys: dict[str, dict[str, Any]] = {}
    members: dict[str, list[Row]] = {}
    for row in rows:
        row_keys = class_keys(row, metric)
        identity = class_id(row_keys)
        names = [keys[identity]["dataset"]] if identity in keys else []
        keys[identity] = row_keys | {"dataset": min([*names, row.dataset])}
        members.setdefault(identity, []).append(row)
    measured = {i for i in members if any(metric_value(r, metric) is not None for r in members[i])}

    def join(
        leaving: Iterable[str], staying: Iterable[str], left_out: Callable[[str], bool]
    ) -> None:
        """Move rows of classes to the largest one with equal keys but for those left out."""

        def rest(identity: str) -> str:
            return class_id({k: v for k, v in keys[identity].items() if not left_out(k)})

        ordered = sorted(staying, key=lambda i: (len(members[i]), i))
        largest = {rest(identity): identity for identity in ordered}
        for identity in leaving:
            if (target := largest.get(rest(identity))) is not None:
                label = min(keys[target]["dataset"], keys[identity]["dataset"])
                keys[target]["dataset"] = label
                members[target] += members.pop(identity)
                del keys[identity]

    join(sorted({*keys} - measured), measured, lambda key: key.startswith("evaluation."))
    on_clients = {i for i in keys if CLIENTS in keys[i]}
    join(sorted({*keys} - on_clients), on_clients, lambda key: key == CLIENTS)
    return [(keys[identity], members[identity]) for identity in keys]


class Meaning:
    """The settings of a metric that most lines of a table share.

    Args:
        lines: rows of each line of a table, those that measured the metric.
        metric: the metric.
    """

    def __init__(self, lines: Iterable[Sequence[Row]], metric: str) -> None:
        self._metric = metric
        settings, clients = Counter[str](), Counter[int]()
        for rows in lines:
            parts = [self._parts(row) for row in rows]
            settings.update({part[0] for part in parts})
            clients.update({part[1] for part in parts if part[1] is not None})
        self._settings = max(sorted(settings), key=settings.__getitem__, default="")
        self._clients = max(sorted(clients), key=clients.__getitem__, default=None)

    def __contains__(self, row: Row) -> bool:
        """Return True if a row measured the metric by these settings."""
        settings, clients = self._parts(row)
        return settings == self._settings and clients in (None, self._clients)

    def _parts(self, row: Row) -> tuple[str, int | None]:
        settings = measured_by(row, self._metric)
        clients = settings.pop(CLIENTS, None)
        return canonical_json(settings), clients


def unscaled_keys(rows: Iterable[Row], keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a class that a grid's rules scaled, with their values without that.

    Args:
        rows: of the class; where they disagree, the most count.
        keys: of the class.
    """
    records = Counter(row.scaled_json for row in rows if row.scaled_json is not None)
    most = max(sorted(records), key=records.__getitem__, default="{}")
    fields = {COLUMN_OF.get(name, name): value for name, value in json.loads(most).items()}
    return {key: value for key, value in fields.items() if key in keys}


def settings_id(row: Row) -> str:
    """Return an identity of the hyperparameters, the same for every class and seed.

    Class and identity together tell any two training configurations apart: settings that are in no
    class count here. A value that a grid's rule scaled counts as it was before.
    """
    return content_id(hyperparameters(row))


def hyperparameters(row: Row) -> dict[str, Any]:
    """Return what `settings_id` is of: hyperparameters by dotted name."""
    training = {**training_of(row.config_json), **json.loads(row.scaled_json or "{}")}
    return {
        key: value
        for key, value in training.items()
        if key not in COLUMN_OF and key != _PRECISION and not key.startswith(_SECTIONS)
    }


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
    differing = [name for name in names if _differs(name, alike[name].values())]
    known = [
        name
        for name in differing
        if _differs(name, [keys for keys in alike[name].values() if name in keys])
    ]
    subsets = _differs("data.train_subset", classes.values())

    def title(class_id: str, settings: Collection[str]) -> str:
        keys = classes[class_id]
        alpha = keys.get("alpha")
        parts = [
            *_data_parts(keys, everything=subsets),
            f"preset {', '.join(sorted(presets[class_id]))}",
            f"{keys.get('partition')} partition" if alpha is None else f"alpha {as_text(alpha)}",
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
        chosen = {class_id: classes[class_id] for class_id in ids}
        if _differs(name, chosen.values()):
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
