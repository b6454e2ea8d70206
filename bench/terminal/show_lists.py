"""Lists of what exists, configurations, partitions and small records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedbench.bench.system.errors import UnknownNameError
from fedbench.bench.terminal.console import emit
from fedbench.bench.terminal.tables import show_record, show_records
from fedbench.bench.terminal.units import text

if TYPE_CHECKING:
    from fedbench.bench.data.datasets import PreparedDataset
    from fedbench.bench.data.partition import PartitionSummary
    from fedbench.bench.runs.export import Exported
    from fedbench.bench.runs.resolve import Resolved
    from fedbench.bench.tuning.doctor.checkup import Checkup

R = TypeVar("R")
_COLUMNS = {
    "methods": ("name", "kind", "aliases", "summary", "goes_with"),
    "presets": ("name", "description"),
    "grids": ("name", "axes", "settings", "seeds", "methods", "presets", "description"),
    "spaces": ("name", "dimensions"),
    "objectives": ("name", "better", "over", "bytes", "sees_contraction", "formula"),
    "datasets": ("name", "num_train", "num_test", "num_classes", "image_shape", "cached", "get"),
}
"""For each list, the values of a record that its table shows; `--json` has all."""
_SPEC = ("aliases", "goes_with", "extras", "not_summed")


def records(kind: str, data_dir: Path | None = None) -> list[dict[str, Any]]:
    """Return one record for each entry of a list.

    Args:
        kind: `methods`, `presets`, `grids`, `spaces`, `objectives` or `datasets`.
        data_dir: cache of data sets, for `datasets`.
    """
    if kind == "methods":
        return method_records()
    if kind == "presets":
        from fedbench.bench.runs.presets import preset_records

        return preset_records()
    if kind == "grids":
        from fedbench.bench.tuning.grid import grid_records

        return [{"name": record["grid"], **record} for record in grid_records()]
    if kind == "spaces":
        from fedbench.bench.tuning.space import space_records

        return [{"name": record["spec"], **record} for record in space_records()]
    if kind == "objectives":
        from fedbench.bench.tuning.scoring import objective_records

        return objective_records()
    from fedbench.bench.data.datasets import dataset_records

    return dataset_records(data_dir)


def method_records() -> list[dict[str, Any]]:
    """Return a record for each registered method and add-on, with its fields."""
    from fedbench.bench.config.kinds import kind_text
    from fedbench.bench.method import registry
    from fedbench.bench.runs.guarantees import declared

    known = registry.entries()
    methods = [name for name, entry in known.items() if not entry.is_addon]
    return [
        {
            "name": entry.name,
            "kind": "add-on" if entry.is_addon else "method",
            "summary": entry.summary,
            "goes_with": None if entry.bases is None else entry.fits(methods),
            "aliases": [a for a, s in registry.ALIASES.items() if s.split("+")[-1] == entry.name],
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


def spec_records(spec: str) -> list[dict[str, Any]]:
    """Return the records of a spec's parts.

    Args:
        spec: method spec, or an add-on alone.

    Raises:
        UnknownNameError, ConfigError: for a bad spec.
    """
    from fedbench.bench.method import registry

    entry = registry.entries().get(spec)
    parts = (entry,) if entry is not None else registry.parse_spec(spec)
    records = {record["name"]: record for record in method_records()}
    return [{**records[part.name], "description": part.description} for part in parts]


def show_list(kind: str, records: Sequence[Mapping[str, Any]]) -> None:
    """Print the records of a list as a table; of what is long, the names or their number."""
    shown: list[Mapping[str, Any]] = list(records)
    if kind == "grids":
        sizes = [
            {"settings": len(r["points"]) or None, "methods": len(r["methods"])} for r in records
        ]
        shown = [
            {**record, **size, "presets": list(record["presets"])}
            for record, size in zip(records, sizes, strict=True)
        ]
    elif kind == "spaces":
        shown = [{**record, "dimensions": list(record["dimensions"])} for record in records]
    show_records(shown, _COLUMNS[kind])


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
        show_record("", {**part, "extras": [*part.get("extras", ())]}, _SPEC)


def show_explanations(found: Mapping[str, Any]) -> None:
    """Print everything that is known of one key, method by method where they differ."""
    for index, record in enumerate(found["explanations"]):
        if index:
            emit("\n")
        key, default = record["key"], _value(record["default"])
        show_record(
            f"{key}: {record['meaning']}",
            {
                "methods": ", ".join(record["methods"]),
                "range": record["kind"],
                "default": default,
                "set it": [f"--set {key}={default}", f"{record['variable']}={default}"],
            },
        )
        values = [
            {
                **value,
                "value": _value(value["value"]),
                "when": "; ".join(f"{n} {text('', wanted)}" for n, wanted in value["when"].items()),
            }
            for value in record["presets"]
        ]
        emit("\n")
        show_records(values, ("preset", "value", "origin", "when", "note"))
        if record["searched"]:
            emit("\n")
            searched = [{"method": name, **part} for name, part in record["searched"].items()]
            names = ("method", "type", "low", "high", "log", "step", "values")
            show_records(searched, names, title="search spaces")


def _value(value: Any) -> str:
    from fedbench.bench.runs.fields import show

    return show(value)


def named(kind: str, name: str, known: Mapping[str, R]) -> R:
    """Return what has a name.

    Raises:
        UnknownNameError: if nothing of this kind has it.
    """
    if name not in known:
        raise UnknownNameError(kind, name, known)
    return known[name]


def show_objective(record: Mapping[str, Any]) -> None:
    """Print everything that is known of an objective, and how to search by it."""
    show_record("", {**record, "search": f"fedbench tune SPEC --objective {record['name']}"})


def config_yaml(resolved: Resolved) -> str:
    """Return a configuration as YAML that `--config` accepts, in ASCII."""
    from fedbench.bench.config.yaml_files import dump_yaml

    values = resolved.config.model_dump(mode="json")
    head = {"spec": values.pop("spec"), "preset": resolved.preset}
    if resolved.study:
        head["study"] = resolved.study
    return dump_yaml({**head, **values}, sort=False)


def show_config(resolved: Resolved) -> None:
    """Print every value of a configuration with its source."""
    from fedbench.bench.runs.fields import flat_config

    values = [
        {"key": key, "value": _value(value), "source": resolved.sources.get(key)}
        for key, value in flat_config(resolved.config).items()
    ]
    title = f"{resolved.config.spec} · preset {resolved.preset}"
    show_records(values, ("key", "value", "source"), title=title)


def show_partition(partition: PartitionSummary) -> None:
    """Print the number and classes of each client's images, one line per client."""
    record = partition.as_dict()
    names = ("labels", "partitioner", "alpha", "num_examples", "num_clients", "num_unused")
    show_record(partition.dataset, record, (*names, "num_unlabelled", "classes_per_client"))
    bins = record.get("rotation_bins") or [None] * record["num_clients"]
    clients = [
        {
            "client": str(client),
            "images": record["sizes"][client],
            "classes": sum(number > 0 for number in counts),
            "rotation_bins": bins[client],
            "largest classes": _largest_classes(counts),
        }
        for client, counts in enumerate(record["class_counts"])
    ]
    emit("\n")
    show_records(clients, ("client", "images", "classes", "rotation_bins", "largest classes"))


def _largest_classes(counts: Sequence[int]) -> str:
    """Return the four largest classes of a client: `class 3: 120, class 0: 5, …`."""
    largest = sorted((-count, index) for index, count in enumerate(counts) if count)
    text = ", ".join(f"class {index}: {-count}" for count, index in largest[:4])
    return f"{text}, …" if len(largest) > 4 else text


def plain(result: PreparedDataset | Exported) -> dict[str, Any]:
    """Return the fields of a small record for JSON."""
    return {k: str(v) if isinstance(v, Path) else v for k, v in asdict(result).items()}


def show_values(values: Mapping[str, Any]) -> None:
    """Print the values of a small record."""
    show_record("", values)


def show_checks(checkup: Checkup) -> None:
    """Print the checks of `fedbench doctor`, one per line, with what to do about a problem."""
    show_records(checkup.as_dict()["checks"], ("status", "name", "detail", "remedy"))
