"""Settings of a stored run, by use: its comparability class, its evaluation, hyperparameters.

A row that is older than a field has the field's default.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from fedbench.bench.config.dotted import flatten
from fedbench.bench.config.identity import (
    differing_settings,
    pinned_method_defaults,
    section_defaults,
    training_settings,
)
from fedbench.bench.evaluation.catalogue import needed
from fedbench.bench.results.store.row import Row

COLUMN_OF = {
    "data.partition": "partition",
    "data.alpha": "alpha",
    "data.num_clients": "num_clients",
    "federation.participation": "participation",
    "federation.num_rounds": "num_rounds",
    "client.local_epochs": "local_epochs",
    "model.backbone": "backbone",
    "model.norm": "norm",
}
"""Fields of a configuration -> their columns in rows and in published numbers."""

KEYS = ("dataset", "dataset_revision", *COLUMN_OF.values(), "benchmark_version")
"""Columns of the comparability class; settings of data, model and metric are added to them."""
ARITHMETIC = ("client.precision", "client.compile")
"""Settings of training that decide how numbers are rounded."""
CLIENTS = "evaluation.num_clients"
"""Sets classes apart where clients' encoders differ, and for whatever is ranked with these."""
_SECTIONS = ("data.", "model.", "devices.")


def settings_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a row by dotted name, with the defaults of younger fields."""
    return {**section_defaults(), **flatten(settings)}


def training_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's training settings by dotted name, with the defaults of younger fields."""
    body = {name: dict(of) if isinstance(of, dict) else of for name, of in settings.items()}
    for name, value in section_defaults().items():
        section, _, field = name.partition(".")
        body.setdefault(section, {}).setdefault(field, value)
    return flatten(training_settings(body))


def completed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a row by dotted name, with defaults for younger fields."""
    given = flatten(settings)
    return {**section_defaults(), **method_defaults(settings["spec"], given), **given}


def method_defaults(spec: str, names: Iterable[str]) -> Mapping[str, Any]:
    """Return the defaults of a method's fields, so far as they are known, by dotted name.

    Where they are pinned for all of some names, the code of methods, and with it torch, is not
    loaded.
    """
    defaults = pinned_method_defaults(spec)
    if all(name in defaults for name in names if name.startswith("method.")):
        return defaults
    from fedbench.bench.method.ids import method_defaults as of_code

    return of_code(spec)


def kept_apart(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return by dotted name the settings by which a comparability class goes, but for the data."""
    training = training_of(settings)
    sections = [key for key in sorted(training) if key.startswith(_SECTIONS)]
    return {key: training[key] for key in [*COLUMN_OF, *sections, *ARITHMETIC] if key in training}


def task_of(row: Row) -> dict[str, Any]:
    """Return a row's settings that its comparability class has, except those of the evaluation."""
    further = {k: v for k, v in kept_apart(row.settings).items() if k not in COLUMN_OF}
    if further["client.compile"] and "compiled " in str(row.environment.get("switched_off")):
        further["client.compile"] = "in part"  # what did not compile was computed plainly
    return {key: getattr(row, key) for key in KEYS if key != "dataset"} | further


def evaluation_of(row: Row) -> dict[str, Any]:
    """Return the settings of a row's evaluation by dotted name, sorted.

    The number of evaluated clients is left out where all clients have one encoder, since all of
    them count then.
    """
    settings = {
        name: value
        for name, value in sorted(settings_of(row.settings).items())
        if name.startswith("evaluation.")
    }
    if transfer := settings.get("evaluation.transfer"):  # by content, as the run's own data
        settings["evaluation.transfer"] = [name.rpartition("@")[2] for name in transfer]
    if CLIENTS in settings:
        if "objective_std" in row.further:  # a mean over encoders
            settings[CLIENTS] = min(settings[CLIENTS], row.num_clients)
        else:
            del settings[CLIENTS]
    return settings


def measured_by(evaluation: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """Return the settings of an evaluation that change what a metric measures.

    Fields of older versions that are not known any more count for every metric.
    """
    read = {f"evaluation.{field}" for field in needed(metric).reads}
    return {k: v for k, v in evaluation.items() if k in read or k not in section_defaults()}


def hyperparameters(
    settings: Mapping[str, Any], scaled: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the settings of a row in which runs of a class may differ, before a grid scaled any.

    Those at their defaults are left out (`method/ids.py`).
    """
    training = {**training_of(settings), **(scaled or {})}
    defaults = method_defaults(settings["spec"], training)
    found = differing_settings(training, defaults)
    return {key: value for key, value in found.items() if not _sets_apart(key)}


def unlike(
    settings: Mapping[str, Any], scaled: Mapping[str, Any], preset: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the hyperparameters of a row, before a grid scaled any, that a preset has not."""
    training = {**training_of(settings), **scaled}
    expected = {**method_defaults(settings["spec"], training), **preset}
    return {
        key: value
        for key, value in training.items()
        if key in expected and value != expected[key] and not _sets_apart(key)
    }


def _sets_apart(key: str) -> bool:
    """Return True for a setting by which classes go, not lines."""
    return key in COLUMN_OF or key in ARITHMETIC or key.startswith(_SECTIONS)
