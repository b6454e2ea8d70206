"""Which settings a run is known by: those that differ from the defaults of the benchmark's version.

`defaults.json` pins the defaults. A field that it lacks is younger than the version, and counts
only where its value is not the default. So a new field changes no identity:

    old  {"client": {"lr": 0.1}}                     -> {"client.lr": 0.1}
    new  {"client": {"lr": 0.1, "nesterov": False}}  -> {"client.lr": 0.1}
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from fedbench.bench.config.dotted import flatten
from fedbench.bench.config.partitioners import fields_not_read
from fedbench.bench.config.schema import RunConfig

READ_BY_SOURCE = ("label_column", "test_rows", "image_size", "natural_column", "partition_file")
"""Fields of the data that decide what is read, which the data revision is a hash of."""


@cache
def pinned() -> Mapping[str, Mapping[str, Any]]:
    """Return the defaults of this version: by dotted name in "config", else by method or add-on."""
    file = resources.files("fedbench.bench.config").joinpath("defaults.json")
    defaults: dict[str, dict[str, Any]] = json.loads(file.read_text("utf-8"))
    return defaults


@cache
def section_defaults() -> Mapping[str, Any]:
    """Return the default of every field outside the method by dotted name, of younger ones too."""
    values = flatten(RunConfig().model_dump(mode="json", exclude={"spec", "seed"}))
    return {**values, **pinned()["config"]}


def pinned_method_defaults(spec: str) -> dict[str, Any]:
    """Return the pinned defaults of the fields of a method and its add-ons, by dotted name.

    >>> pinned_method_defaults("simclr+fedprox")["method.fedprox.mu"]
    0.001
    """
    return {
        f"method.{name}.{field}" if at else f"method.{field}": value
        for at, name in enumerate(spec.split("+"))
        for field, value in pinned()["methods"].get(name, {}).items()
    }


def training_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a configuration that training depends on, but for its seed.

    Left out are the evaluation; the name of the data set and how it is read, since its revision
    says which images, labels and given clients they are; the paths of an encoder's first weights
    and of a CSV of devices, whose hashes stay; fields that the partitioner does not read; and
    privacy where it is off.
    """
    body = {
        key: value for key, value in config.items() if key not in ("seed", "evaluation", "code")
    }
    trains = {*config["spec"].split("+"), f"backbones:{config['model']['backbone']}"}
    if code := {name: v for name, v in config.get("code", {}).items() if name in trains}:
        body["code"] = code
    unread = {"name", *READ_BY_SOURCE, *fields_not_read(body["data"]["partition"])}
    body["data"] = {k: v for k, v in body["data"].items() if k not in unread}
    body["model"] = {k: v for k, v in body["model"].items() if k != "weights"}
    if body["devices"]["profile_sha256"] is not None:
        body["devices"] = {k: v for k, v in body["devices"].items() if k != "profile"}
    if body["privacy"]["clip"] is None:
        del body["privacy"]
    return body


def differing_settings(settings: Mapping[str, Any], method: Mapping[str, Any]) -> dict[str, Any]:
    """Return by dotted name the settings that differ from the defaults.

    Args:
        settings: a configuration, or a part of it, as nested mappings.
        method: defaults of its method's fields by dotted name.
    """
    defaults = {**section_defaults(), **method}
    given = flatten(settings, keep=defaults)
    return {k: v for k, v in given.items() if k not in defaults or v != defaults[k]}
