"""Lists of what exists, configurations, partitions and small records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.bench.system.text import visible
from fedbench.bench.terminal.console import emit, emit_json, show_table, takes_unicode

if TYPE_CHECKING:
    from fedbench.bench.data.datasets import PreparedDataset
    from fedbench.bench.data.partition import PartitionSummary
    from fedbench.bench.runs.export import Exported
    from fedbench.bench.runs.resolve import Resolved
    from fedbench.bench.tuning.doctor import Checkup
    from fedbench.bench.tuning.explain import Explanation, Explanations


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
    from fedbench.bench.config.aliases import aliases_of
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
            "aliases": aliases_of(entry.name),
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


def spec_record(spec: str) -> dict[str, Any]:
    """Return the records of a spec's parts, with their docstrings, and what else fits.

    Args:
        spec: method spec, or an add-on alone.

    Raises:
        UnknownNameError, ConfigError: for a bad spec.
    """
    from fedbench.bench.method import registry
    from fedbench.bench.runs.guarantees import needed_one_by_one

    known = registry.entries()
    alone = spec in known and known[spec].is_addon
    parts = (known[spec],) if alone else registry.parse_spec(spec)
    records = {record["name"]: record for record in method_records()}
    result = {
        "spec": spec if alone else registry.canonical_spec(spec),
        "parts": [{**records[part.name], "description": part.description} for part in parts],
    }
    if alone:
        return result
    method, first = registry.create(spec, {}), parts[0].name
    addons = [entry for entry in known.values() if entry.is_addon and entry not in parts]
    return result | {
        "labels": method.needs().labels.value,
        "extras": sorted(method.needs().extras),
        "not_summed": [name for name in needed_one_by_one(method).split(", ") if name],
        "add_ons": [entry.name for entry in addons if entry.fits([first])],
    }


def show_spec(record: Mapping[str, Any]) -> None:
    """Print the parts of a method spec: what they do, and their hyperparameters."""
    for part in record["parts"]:
        prefix = f"method.{part['name']}" if part["kind"] == "add-on" else "method"
        emit(f"{part['name']} · {part['kind']}\n\n{part['description']}\n\n")
        rows = [
            [f"{prefix}.{name}", _value(field["default"]), field["kind"], field["description"]]
            for name, field in part["fields"].items()
        ]
        if rows:
            show_table(["key", "default", "range", "meaning"], rows)
        else:
            emit("no hyperparameters\n")
        emit("\n")
    if "labels" not in record:  # an add-on alone
        bases = record["parts"][0]["goes_with"]
        emit(f"goes with {', '.join(bases) if bases else 'every method'}")
        return
    emit(
        f"labels: {record['labels']}\n"
        f"sent beside averaged weights: {', '.join(record['extras']) or 'nothing'}\n"
        f"no secure sum of: {', '.join(record['not_summed']) or 'nothing'}\n"
        f"add-ons that fit: {', '.join(record['add_ons']) or 'none'}\n"
        f"values under a preset: fedbench config {record['spec']} --preset NAME"
    )


def show_explanations(explanations: Explanations) -> None:
    """Print everything that is known of one key, method by method where they differ."""
    for index, entry in enumerate(explanations.entries):
        if index:
            emit("\n")
        _show_explanation(entry)
    emit("\norigin: paper, code released with it, or ours; fedbench presets --json has the sources")


def _show_explanation(entry: Explanation) -> None:
    owners = f" of {', '.join(entry.methods)}" if entry.methods else ""
    measured = f", in {entry.unit}" if entry.unit else ""
    default = _value(entry.default)
    emit(
        f"{entry.key}{owners}: {entry.meaning}\n"
        f"{entry.kind}{measured} · default {default}\n"
        f"set it: --set {entry.key}={default} · {entry.variable}={default}\n\n"
    )
    rows = [
        [
            value.preset,
            _value(value.value),
            value.origin,
            "; ".join(f"{name} {_listed(wanted)}" for name, wanted in value.when.items()),
            value.note,
        ]
        for value in entry.presets
    ]
    show_table(["preset", "value", "origin", "when", "note"], rows)
    by_range: dict[str, list[str]] = {}
    for name, part in entry.searched.items():
        by_range.setdefault(_searched(part), []).append(name)
    if by_range:
        emit("\n")
        ranges = [[text, ", ".join(names)] for text, names in by_range.items()]
        show_table(["range", "method"], ranges, title="search spaces")


def _searched(part: Mapping[str, Any]) -> str:
    if part["type"] == "choice":
        return ", ".join(map(_value, part["values"]))
    log = ", log scale" if part.get("log") else ""
    step = f", in steps of {part['step']}" if part.get("step", 1) != 1 else ""
    return f"{_value(part['low'])} to {_value(part['high'])}{log}{step}"


def _listed(value: Any) -> str:
    return ", ".join(map(_value, value)) if isinstance(value, list) else _value(value)


def _value(value: Any) -> str:
    from fedbench.bench.runs.fields import show

    return show(value)


def show_list(kind: str, entries: Sequence[Mapping[str, Any]]) -> None:
    """Print the records of a list as a table."""
    header, rows = _TABLES[kind]
    show_table(header, [row for record in entries for row in rows(record)])


def objective_named(records: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """Return the record of an objective.

    Raises:
        UnknownNameError: if there is none.
    """
    from fedbench.bench.system.errors import UnknownNameError

    known = {record["name"]: record for record in records}
    if name not in known:
        raise UnknownNameError("objective", name, known)
    return known[name]


def show_objective(record: Mapping[str, Any]) -> None:
    """Print everything that is known of an objective."""
    head = [record["name"], record.get("summary", "")]
    noise = "unbounded" if record["sensitivity"] is None else f"{record['sensitivity']:.4g}"
    times = record["exchanges"]
    seen = "changes" if record["sees_contraction"] else "does not change"
    emit(
        f"{': '.join(filter(None, head))}\n"
        f"  formula  {record['formula']}\n"
        f"  source   {record['source']}\n"
        f"  better   {record['better']}; {seen} when projections shrink\n"
        f"  in rows  {record['metric']}, untrained_{record['metric']}\n"
        f"  sends    {'; '.join(record['sends'])}"
        f"{f' in {times} exchanges' if times > 1 else ''}, {record['bytes']:,} bytes of each client"
        f" at 128 dimensions\n"
        f"  noise    largest change by one more image: {noise}\n"
        f"tune by it: fedbench tune SPEC --objective {record['name']}"
    )


def _method_row(record: Mapping[str, Any]) -> list[str]:
    from fedbench.bench.config.aliases import ALIASES

    summary = record["summary"]
    if record["kind"] == "add-on":
        bases = record["goes_with"]
        summary += f" (add-on for {', '.join(bases) if bases else 'every method'})"
    if record["aliases"]:
        summary += f" ({', '.join(f'{name} = {ALIASES[name]}' for name in record['aliases'])})"
    return [record["name"], summary]


def _grid_rows(record: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield a row for each preset that changes the grid's lists, and one for all others."""
    presets = record["presets"]
    others = ", ".join(record["under"]) or ("all others" if presets else "all")
    variants = [(name, {**record, **lists}) for name, lists in presets.items()]
    name, summary = record["name"], record["description"]
    for preset, lists in [*variants, (others, record)]:
        points = len(lists["points"])
        text = describe_cells(lists["axes"], lists["seeds"], lists["methods"], points)
        yield [name, preset, text, summary]
        name = summary = ""  # only in the first row


def describe_cells(
    axes: Mapping[str, Sequence[Any]], seeds: Sequence[int], methods: Sequence[str], settings: int
) -> str:
    """Describe on one line what a grid varies.

    Args:
        axes: dotted names to values.
        seeds: seeds of the cells.
        methods: method specs.
        settings: number of points, each of which sets several names at once.

    >>> describe_cells({"data.alpha": [0.1, 100.0]}, [0, 1], ["simclr", "byol"], 1)
    'alpha 0.1, 100 × seeds 0, 1 × 2 methods'
    >>> describe_cells({}, [0], ["orchestra"], 7)
    '7 settings × seed 0 × orchestra'
    """
    lists = {key.rpartition(".")[2]: values for key, values in axes.items()}
    lists["seeds" if len(seeds) > 1 else "seed"] = seeds
    parts = [f"{name} {', '.join(map(_plain, values))}" for name, values in lists.items()]
    points = [f"{settings} settings"] if settings > 1 else []
    return " × ".join([*points, *parts, f"{len(methods)} methods" if methods[1:] else methods[0]])


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _dataset_row(record: Mapping[str, Any]) -> list[str]:
    counts = [record[name] for name in ("num_train", "num_test", "num_classes")]
    shape = "×".join(map(str, record["image_shape"] or ()))
    ready = record["cached"] or record["name"] == "digits"
    return [
        record["name"],
        *("" if number is None else f"{number:,}" for number in counts),
        shape,
        "ready" if ready else record["get"],
    ]


def _objective_row(record: Mapping[str, Any]) -> list[str]:
    seen = "seen" if record["sees_contraction"] else "not seen"
    number = f"{record['bytes']:,}"
    return [record["name"], record["better"], record["over"], number, seen, record["formula"]]


_TABLES: dict[str, tuple[list[str], Callable[[Mapping[str, Any]], Iterable[list[str]]]]] = {
    "methods": (["name", "summary"], lambda record: [_method_row(record)]),
    "presets": (["name", "summary"], lambda record: [[record["name"], record["description"]]]),
    "grids": (["name", "preset", "cells", "summary"], _grid_rows),
    "spaces": (["name", "summary"], lambda rec: [[rec["name"], ", ".join(rec["dimensions"])]]),
    "objectives": (
        ["name", "better", "over", "bytes", "contraction", "formula"],
        lambda record: [_objective_row(record)],
    ),
    "datasets": (
        ["name", "train", "test", "classes", "shape", "how to get it"],
        lambda record: [_dataset_row(record)],
    ),
}
"""For each list: the headings of its table, and the rows of a record."""


def config_record(resolved: Resolved) -> dict[str, Any]:
    """Return a configuration for JSON: its sections, `preset`, `study` and `sources`."""
    return {
        **resolved.config.model_dump(mode="json"),
        "preset": resolved.preset,
        "study": resolved.study,
        "sources": dict(resolved.sources),
    }


def config_yaml(resolved: Resolved) -> str:
    """Return a configuration as YAML that `--config` accepts, whatever letters stdout takes."""
    from fedbench.bench.config.yaml_files import dump_yaml

    values = resolved.config.model_dump(mode="json")
    head = {"spec": values.pop("spec"), "preset": resolved.preset}
    if resolved.study:
        head["study"] = resolved.study
    text = dump_yaml({**head, **values}, sort_keys=False, allow_unicode=True)
    if text.isascii() or (takes_unicode() and text == visible(text)):
        return text
    return dump_yaml({**head, **values}, sort_keys=False, allow_unicode=False)  # "caf\xE9"


def show_config(resolved: Resolved) -> None:
    """Print every value of a configuration with its source."""
    from fedbench.bench.runs.fields import flat_config, show

    values = flat_config(resolved.config)
    rows = [[key, show(value), resolved.sources.get(key, "")] for key, value in values.items()]
    title = f"{resolved.config.spec} · preset {resolved.preset}"
    show_table(["key", "value", "source"], rows, title=title)
    if any(row[2].endswith((" (paper)", " (code)")) for row in rows):
        emit(
            "(paper): of the preset's publication; (code): of its released code; (ours): our choice"
        )


def show_partition(partition: PartitionSummary, *, labels: str | None = None) -> None:
    """Print the number and classes of each client's images, one line per client.

    Args:
        partition: what to print.
        labels: the `--labels` that stand in for the data set's.
    """
    record = partition.record
    spread = record["classes_per_client"]
    data = partition.dataset if labels is None else f"labels {labels}"
    hidden = record.get("num_unlabelled", 0)
    unlabelled = f", {hidden:,} without a label" if hidden else ""
    emit(
        f"{data} · {record['partitioner']} · alpha {record['alpha']:g} ·"
        f" {record['num_examples']:,} images to {record['num_clients']} clients"
        f" ({record['num_unused']:,} unused{unlabelled})\n"
        f"classes per client: {spread['ge_1_mean']:.2f} with at least one image,"
        f" {spread['ge_1pct_mean']:.2f} with at least 1 %"
    )
    bins = record.get("rotation_bins")
    header = ["client", "images", "classes", *(["rotation bin"] if bins else []), "largest classes"]
    clients = zip(record["sizes"], record["class_counts"], strict=True)
    rows = [
        [
            str(client),
            str(size),
            str(sum(count > 0 for count in counts)),
            *([str(bins[client])] if bins else []),
            _largest_classes(counts),
        ]
        for client, (size, counts) in enumerate(clients)
    ]
    show_table(header, rows)


def _largest_classes(counts: Sequence[int]) -> str:
    """Return the four largest classes of a client: `class 3: 120, class 0: 5, …`."""
    largest = sorted((-count, index) for index, count in enumerate(counts) if count)
    text = ", ".join(f"class {index}: {-count}" for count, index in largest[:4])
    return f"{text}, …" if len(largest) > 4 else text


def show_record(result: PreparedDataset | Exported, as_json: bool) -> None:
    """Print a small record: as JSON, or one `name value` per line."""
    values = {
        key: str(value) if isinstance(value, Path) else value
        for key, value in asdict(result).items()
    }
    if as_json:
        emit_json(values)
    else:
        width = max(map(len, values)) + 2
        emit("\n".join(f"{key:<{width}}{value}" for key, value in values.items()))


def show_checks(checkup: Checkup) -> None:
    """Print the checks of `fedbench doctor`, one per line, with what to do about a problem."""
    width = max(len(check.name) for check in checkup.checks)
    for check in checkup.checks:
        remedy = f" ({check.remedy})" if check.remedy else ""
        emit(f"{check.status:<8} {check.name:<{width}}  {check.detail}{remedy}")
