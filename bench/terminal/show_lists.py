"""Lists of what exists, configurations and partitions as text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from shlex import quote
from typing import TYPE_CHECKING, Any

from fedbench.bench.system.method_names import ALIASES
from fedbench.bench.system.records import Records
from fedbench.bench.terminal.console import emit
from fedbench.bench.terminal.tables import show_record, show_records
from fedbench.bench.terminal.units import text

if TYPE_CHECKING:
    from fedbench.bench.data.datasets import PreparedDataset
    from fedbench.bench.data.partition import PartitionSummary
    from fedbench.bench.experiment.experiment import Experiment

_SOURCES = {
    "methods": "terminal.show_lists:method_records",
    "presets": "experiment.preset_loading:preset_records",
    "grids": "tuning.grid:grid_records",
    "spaces": "tuning.spaces.space:space_records",
    "objectives": "tuning.scoring:objective_records",
    "datasets": "data.datasets:dataset_records",
}
"""For each list, the function that returns its records."""
_COLUMNS = {
    "methods": ("name", "year", "paper", "stateless", "summary", "goes_with", "aliases"),
    "presets": ("name", "data", "clients", "rounds", "encoder", "minutes", "description"),
    "grids": ("name", "axes", "seeds", "methods", "presets", "description"),
    "spaces": ("name", "dimensions"),
    "objectives": ("name", "better", "over", "bytes", "sees_contraction", "formula"),
    "datasets": ("name", "num_train", "num_test", "num_classes", "image_shape", "cached", "get"),
}
"""For each list, the values of a record that its table shows; `--json` has all."""
_RANGE = ("type", "low", "high", "log", "step", "values")
"""Columns of a dimension that is searched."""
_MOST_CLASSES = 60
"""Classes of a data set that its table shows."""
_NAME = 20
"""Most characters of a class's name beside others."""


def records(kind: str, data_dir: Path | None = None) -> list[dict[str, Any]]:
    """Return one record for each entry of a list; `datasets` looks into the cache `data_dir`."""
    found = resolve_name(f"fedbench.bench.{_SOURCES[kind]}")
    listed: list[dict[str, Any]] = found(data_dir) if kind == "datasets" else found()
    return listed


def list_methods() -> Records:
    """List methods and add-ons: what each does, its paper, its fields, what it sends.

    >>> [method["year"] for method in list_methods() if method["name"] == "orchestra"]
    [2022]
    """
    return Records(records("methods"))


def list_presets() -> Records:
    """List presets: data, clients, rounds, encoder, minutes of a run, and where values come from.

    >>> [preset["encoder"] for preset in list_presets() if preset["name"] == "laptop"]
    ['resnet8']
    """
    return Records(records("presets"))


def method_records() -> list[dict[str, Any]]:
    """Return a record for each registered method and add-on, with its fields."""
    from fedbench.bench.config.kinds import kind_text
    from fedbench.bench.execution.guarantees import declared
    from fedbench.bench.method import registry

    known = registry.entries()
    methods = [name for name, entry in known.items() if not entry.is_addon]
    return [
        {
            "name": entry.name,
            "kind": "add-on" if entry.is_addon else "method",
            "summary": entry.summary,
            **_paper(entry.description),
            "goes_with": None if entry.bases is None else entry.fits(methods),
            "aliases": [a for a, s in ALIASES.items() if s.split("+")[-1] == entry.name],
            "fields": {
                name: {
                    "default": info.get_default(call_default_factory=True),
                    "description": info.description or "",
                    "kind": kind_text(info),
                }
                for name, info in entry.cls.model_fields.items()
                if name != "base"
            },
            **declared(entry, methods),
        }
        for entry in known.values()
    ]


def _paper(description: str) -> dict[str, Any]:
    """Return authors and year of the first source that a description names."""
    found = re.search(r"Sources?:\s+(.{3,40}?)\s+((?:19|20)\d\d)\b", description, re.DOTALL)
    return {"paper": found[1] if found else "", "year": found and int(found[2])}


def spec_records(spec: str) -> list[dict[str, Any]]:
    """Return the records of the parts of a method spec, or of an add-on alone."""
    from fedbench.bench.method import registry

    entry = registry.entries().get(spec)
    parts = (entry,) if entry is not None else registry.parse_spec(spec)
    records = {record["name"]: record for record in method_records()}
    return [{**records[part.name], "description": part.description} for part in parts]


def show_list(kind: str, records: Sequence[Mapping[str, Any]]) -> None:
    """Print the records of a list as a table; where a value has many parts, print their names."""
    named = {"presets", "dimensions"}
    shown = [
        {name: [*value] if name in named else value for name, value in record.items()}
        | ({"description": record["description"].partition(";")[0]} if kind == "presets" else {})
        for record in records
    ]
    addons = [record for record in shown if record.get("kind") == "add-on"]
    show_records([record for record in shown if record not in addons], _COLUMNS[kind])
    if addons:
        emit("\n")
        show_records(addons, _COLUMNS[kind], title="add-ons, as in simclr+fedprox")


def show_one(record: Mapping[str, Any]) -> None:
    """Print a record of a list: its values, and below a line for each part that has values.

    Of two values under one condition the later one holds, and is shown.
    """
    rules = [{"when": "", "values": record.get("values", record.get("dimensions", {}))}]
    parts = [
        {"when": rule["when"], "key": key, **part}
        for rule in (*rules, *record.get("rules", ()))
        for key, part in rule["values"].items()
    ]
    parts = [*{(part["key"], str(part["when"])): part for part in parts}.values()]
    for part in parts:
        if "value" in part:
            part["value"] = _value(part["value"])
    table = ("values", "dimensions", "rules")
    show_record("", {name: _lines(value) for name, value in record.items() if name not in table})
    show_records(parts, ("key", "value", "from", *_RANGE, "when", "note"))


def _lines(value: Any) -> Any:
    """Return a value of a record, with a line for each entry of a mapping or list of mappings."""
    if isinstance(value, Mapping):
        return [f"{name}: {text('', each)}" for name, each in value.items()]
    if isinstance(value, list | tuple) and all(isinstance(each, Mapping) for each in value):
        return [*filter(None, (text("", each) for each in value))]
    return value


def show_spec(parts: Sequence[Mapping[str, Any]]) -> None:
    """Print the parts of a method spec: what they do, their hyperparameters, what they send."""
    for index, part in enumerate(parts):
        prefix = f"method.{part['name']}" if part["kind"] == "add-on" else "method"
        gap = "\n\n" if index else ""
        emit(f"{gap}{part['name']} · {part['kind']}\n\n{part['description']}\n\n")
        fields = [
            {"key": f"{prefix}.{name}", **field, "default": _value(field["default"])}
            for name, field in part["fields"].items()
        ]
        show_records(fields, ("key", "default", "kind", "description"))
        names = "aliases goes_with stateless extras not_summed aggregator memory"
        show_record("", {**part, "extras": [*part.get("extras", ())]}, names.split())


def show_explanations(found: Mapping[str, Any]) -> None:
    """Print everything that is known of one key, method by method where they differ."""
    for record in found["explanations"]:
        key, default = record["key"], _value(record["default"])
        example = _other_than_default(record)
        ways = [f"--set {quote(f'{key}={example}')}", f"{record['variable']}={quote(example)}"]
        about = {"methods": record["methods"], "range": record["kind"], "default": default}
        show_record(f"{key}: {record['meaning']}", {**about, "set it": ways})
        given = [value for value in record["presets"] if value["origin"] != "default"]
        if len(given) < len(record["presets"]):  # one line for all that leave the default
            rest = {"preset": "otherwise" if given else "all", "value": record["default"]}
            given.append({**rest, "origin": "default"})
        values = [{**value, "value": _value(value["value"])} for value in given]
        show_records(values, ("preset", "value", "origin", "when", "note"), title="presets")
        searched = [{"method": name, **part} for name, part in record["searched"].items()]
        show_records(searched, ("method", *_RANGE), title="search spaces")


def _other_than_default(record: Mapping[str, Any]) -> str:
    """Return a value to set as an example: the other of two, else one that a preset has."""
    default = record["default"]
    if isinstance(default, bool):
        return _value(not default)
    others = (each["value"] for each in record["presets"] if each["value"] != default)
    return next(map(_value, others), "VALUE")


def _value(value: Any) -> str:
    from fedbench.bench.experiment.fields import show

    return show(value)


def config_yaml(experiment: Experiment) -> str:
    """Return a configuration as YAML that `--config` accepts, in ASCII."""
    from fedbench.bench.config.yaml_files import dump_yaml

    values = experiment.config.model_dump(mode="json")
    head = {"spec": values.pop("spec"), "preset": experiment.origin.preset}
    values.pop("code", None)  # computed from what is installed
    if experiment.origin.study_id:
        head["study"] = experiment.origin.study_id
    return dump_yaml({**head, **values}, sort=False)


def show_config(experiment: Experiment) -> None:
    """Print every value of a configuration with its source."""
    from fedbench.bench.experiment.fields import flat_config

    values = [
        {"key": key, "value": _value(value), "source": experiment.sources.get(key)}
        for key, value in flat_config(experiment.config).items()
    ]
    title = f"{experiment.config.spec} · preset {experiment.origin.preset}"
    show_records(values, ("key", "value", "source"), title=title)


def show_prepared(prepared: PreparedDataset) -> None:
    """Print what a data set holds: images of each class and split, then all other counts."""
    record = prepared.as_dict()
    classes = [{"class": each["name"], **each} for each in record.pop("classes")]
    if any(record["unlabelled"].values()):
        classes.append({"class": "(no label)", **record["unlabelled"]})
    record["left_out"] = [
        f"{each['count']:,} ({each['why']}): "
        + ", ".join("/".join(Path(file).parts[-3:]) for file in each["first"])
        for each in record["left_out"] or ()
    ]
    show_records(classes[:_MOST_CLASSES], ("class", "train", "test"))
    if len(classes) > _MOST_CLASSES:
        emit(f"and {len(classes) - _MOST_CLASSES:,} more classes; --json has all")
    show_record("", record)


def show_partition(partition: PartitionSummary) -> None:
    """Print the number and classes of each client's images, one line per client."""
    from fedbench.bench.config.partitioners import PARTITIONERS

    record = partition.as_dict()
    if "alpha" not in PARTITIONERS[record["partitioner"]].reads:
        record["alpha"] = None  # not shown
    names = ("labels", "partitioner", "alpha", "num_examples", "num_clients", "num_unused")
    show_record(partition.dataset, record, (*names, "num_unlabelled", "classes_per_client"))
    labels = map(str, range(record["num_classes"]))
    classes = [_short(name) for name in record.get("class_names") or labels]
    bins = record.get("rotation_bins") or [None] * record["num_clients"]
    clients = [
        {
            "client": str(client),
            "images": record["sizes"][client],
            "classes": sum(number > 0 for number in counts),
            "rotation_bins": bins[client],
            "largest classes": _largest_classes(counts, classes),
        }
        for client, counts in enumerate(record["class_counts"])
    ]
    emit("\n")
    show_records(clients, ("client", "images", "classes", "rotation_bins", "largest classes"))


def _largest_classes(counts: Sequence[int], names: Sequence[str]) -> str:
    """Return the four largest classes of a client: `cat: 120, class 0: 5, …`."""
    largest = sorted((-count, index) for index, count in enumerate(counts) if count)
    text = ", ".join(f"{names[index]}: {-count}" for count, index in largest[:4])
    return f"{text}, …" if len(largest) > 4 else text


def _short(name: str) -> str:
    """Return the name of a class, a number as such, a long one without its middle."""
    if name.isdigit():
        return f"class {name}"
    return name if len(name) <= _NAME else f"{name[: _NAME // 2]}…{name[1 - _NAME // 2 :]}"
