"""What there is: methods, presets, grids, spaces, data sets, configurations and partitions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from fedbench.bench.terminal.console import Status, emit, emit_json, show_table
from fedbench.bench.terminal.units import parameters

if TYPE_CHECKING:
    from fedbench.bench.data.datasets import PreparedDataset
    from fedbench.bench.data.partition.deal import Deal
    from fedbench.bench.runs.export import Exported
    from fedbench.bench.runs.resolve import Resolved


Table = tuple[list[str], list[list[str]]]


def records(kind: str, data_dir: Path | None = None) -> list[dict[str, Any]]:
    """Everything of a kind, one record each.

    Args:
        kind: `methods`, `presets`, `grids`, `spaces` or `datasets`.
        data_dir: cache of data sets, where it matters.
    """
    if kind == "datasets":
        from fedbench.bench.data.datasets import dataset_records

        return dataset_records(data_dir)
    if kind == "methods":
        return method_records()
    if kind == "presets":
        from fedbench.bench.runs.presets import preset_records

        return preset_records()
    if kind == "grids":
        from fedbench.bench.tuning.grid import grid_records

        return [{"name": record["grid"], **record} for record in grid_records()]
    from fedbench.bench.tuning.space import space_records

    return [{"name": record["spec"], **record} for record in space_records()]


def table(kind: str, found: Sequence[Mapping[str, Any]]) -> Table:
    """The records of a kind as a table: names, and one line about each."""
    header, rows = _TABLES[kind]
    return header, [line for record in found for line in rows(record)]


def _method(record: Mapping[str, Any]) -> list[str]:
    from fedbench.bench.method.registry import ALIASES

    summary = record["summary"]
    if record["kind"] == "add-on":
        bases = record["goes_with"]
        summary += f" (add-on for {', '.join(bases) if bases else 'every method'})"
    if record["aliases"]:
        summary += f" ({', '.join(f'{name} = {ALIASES[name]}' for name in record['aliases'])})"
    return [record["name"], summary]


def _grid(record: Mapping[str, Any]) -> Iterator[list[str]]:
    """One line per preset that has lists of its own, and one for all others."""
    own = record["presets"]
    rest = ", ".join(record["under"]) or ("all others" if own else "all")
    variants = [(name, {**record, **lists}) for name, lists in own.items()] + [(rest, record)]
    for index, (preset, lists) in enumerate(variants):
        first = index == 0
        points = len(lists["points"])
        text = describe_cells(lists["axes"], lists["seeds"], lists["methods"], points)
        yield [
            record["name"] if first else "",
            preset,
            text,
            record["description"] if first else "",
        ]


def describe_cells(
    axes: Mapping[str, Sequence[Any]], seeds: Sequence[int], methods: Sequence[str], settings: int
) -> str:
    """What a grid varies, in one line; settings are points that are no product.

    >>> describe_cells({"data.alpha": [0.1, 100.0]}, [0, 1], ["simclr", "byol"], 1)
    'alpha 0.1, 100 × seeds 0, 1 × 2 methods'
    >>> describe_cells({}, [0], ["orchestra"], 7)
    '7 settings × seed 0 × orchestra'
    """
    lists = {key.rpartition(".")[2]: values for key, values in axes.items()}
    lists["seeds" if len(seeds) > 1 else "seed"] = seeds
    parts = [f"{name} {', '.join(map(_plain, values))}" for name, values in lists.items()]
    chosen = f"{len(methods)} methods" if len(methods) > 1 else methods[0]
    points = [f"{settings} settings"] if settings > 1 else []
    return " × ".join([*points, *parts, chosen])


def describe_varied(cells: Sequence[Mapping[str, Any]]) -> tuple[str, list[str]]:
    """What the cells of a sweep differ in: one line, and the settings that are no product.

    >>> given = [{"a.kind": "x"}, {"a.kind": "y", "a.size": 2}]
    >>> describe_varied([{"axes": axes, "seed": 0, "method": "m"} for axes in given])
    ('2 settings × seed 0 × m', ['a.kind=x', 'a.kind=y a.size=2'])
    """

    def values(items: Iterable[Any]) -> list[Any]:
        return list(dict.fromkeys(items))

    def points(keys: Sequence[str]) -> list[tuple[tuple[str, Any], ...]]:
        return values(tuple((key, each[key]) for key in keys if key in each) for each in given)

    if not cells:
        return "none", []
    given = [cell["axes"] for cell in cells]  # not all have the same names
    keys = values(key for each in given for key in each)
    axes = {key: values(each[key] for each in given if key in each) for key in keys}
    free = {  # an axis goes with every point of the others
        key: axes[key]
        for key in keys
        if all(key in each for each in given)
        and len(axes[key]) * len(points([k for k in keys if k != key])) == len(points(keys))
    }
    settings = points([key for key in keys if key not in free])
    seeds, methods = (values(cell[key] for cell in cells) for key in ("seed", "method"))
    names = f": {', '.join(methods)}" if len(methods) > 1 else ""
    line = describe_cells(free, seeds, methods, len(settings)) + names
    lengths = (*map(len, free.values()), len(settings), len(seeds), len(methods))
    if len(cells) < (combinations := math.prod(lengths)):  # with exclusions, or a method's own
        line = f"{len(cells)} of the {combinations:,} combinations of {line}"
    return line, [parameters(dict(each)) for each in settings if each]


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _space(record: Mapping[str, Any]) -> list[str]:
    return [record["name"], ", ".join(record["dimensions"])]


def _dataset(record: Mapping[str, Any]) -> list[str]:
    def text(value: Any) -> str:
        return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)

    shape = "×".join(map(str, record["image_shape"] or ()))
    state = "ready" if record["cached"] or record["name"] == "digits" else record["get"]
    counts = (record["num_train"], record["num_test"], record["num_classes"])
    return [record["name"], *map(text, counts), shape, state]


_TABLES: dict[str, tuple[list[str], Callable[[Mapping[str, Any]], Iterable[list[str]]]]] = {
    "methods": (["name", "summary"], lambda record: [_method(record)]),
    "presets": (["name", "summary"], lambda record: [[record["name"], record["description"]]]),
    "grids": (["name", "preset", "cells", "summary"], _grid),
    "spaces": (["name", "summary"], lambda record: [_space(record)]),
    "datasets": (
        ["name", "train", "test", "classes", "shape", "how to get it"],
        lambda record: [_dataset(record)],
    ),
}


def config_record(resolved: Resolved) -> dict[str, Any]:
    """The configuration as JSON, with `preset`, `study` and `sources` beside its sections."""
    return {
        **resolved.config.model_dump(mode="json"),
        "preset": resolved.preset,
        "study": resolved.study,
        "sources": dict(resolved.sources),
    }


def config_yaml(resolved: Resolved) -> str:
    """The configuration as a file that `--config` takes."""
    from fedbench.bench.config.yaml_files import dump_yaml

    values = resolved.config.model_dump(mode="json")
    head = {"spec": values.pop("spec"), "preset": resolved.preset}
    if resolved.study:
        head["study"] = resolved.study
    return dump_yaml({**head, **values}, sort_keys=False, allow_unicode=True)


def show_config(resolved: Resolved) -> None:
    """Print every value with where it comes from."""
    from fedbench.bench.runs.fields import flat_config, show

    values = flat_config(resolved.config)
    rows = [[key, show(value), resolved.sources.get(key, "")] for key, value in values.items()]
    show_table(
        ["key", "value", "source"], rows, title=f"{resolved.config.spec} · preset {resolved.preset}"
    )


def show_deal(deal: Deal) -> None:
    """Print who gets how much of what: one line per client."""
    record = deal.record
    spread = record["classes_per_client"]
    emit(
        f"{deal.dataset} · {record['partitioner']} · alpha {record['alpha']:g} ·"
        f" {record['num_examples']:,} images to {record['num_clients']} clients"
        f" ({record['num_unused']:,} unused)"
    )
    emit(
        f"classes per client: {spread['ge_1_mean']:.2f} with at least one image,"
        f" {spread['ge_1pct_mean']:.2f} with at least 1 %"
    )
    bins = record.get("rotation_bins")
    header = ["client", "images", "classes", *(["rotation bin"] if bins else []), "largest classes"]
    rows = [
        [
            str(client),
            str(size),
            str(sum(count > 0 for count in counts)),
            *([str(bins[client])] if bins else []),
            _largest(counts),
        ]
        for client, (size, counts) in enumerate(
            zip(record["sizes"], record["class_counts"], strict=True)
        )
    ]
    show_table(header, rows)


def _largest(counts: Sequence[int]) -> str:
    """The largest classes of a client: `class 3: 120, class 0: 5, …`."""
    held = sorted((-count, index) for index, count in enumerate(counts) if count)
    text = ", ".join(f"class {index}: {-count}" for count, index in held[:4])
    return f"{text}, …" if len(held) > 4 else text


def show_record(result: PreparedDataset | Exported, as_json: bool) -> None:
    """Print a small result: as JSON, or one `name value` a line."""
    values = {
        key: str(value) if isinstance(value, Path) else value
        for key, value in asdict(result).items()
    }
    if as_json:
        emit_json(values)
    else:
        width = max(map(len, values)) + 2
        emit("\n".join(f"{key:<{width}}{value}" for key, value in values.items()))


class DecodingProgress:
    """Images decoded so far, on a terminal."""

    def __init__(self, name: str, *, quiet: bool = False) -> None:
        self._name = name
        self._status = Status(quiet=quiet)

    def __enter__(self) -> Self:
        self._status.__enter__()
        self._status.update(f"{self._name} · reading")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._status.__exit__(kind, error, trace)

    def __call__(self, done: int, total: int) -> None:
        """After every block of images."""
        self._status.update(f"{self._name} · {done:,} of {total:,} images")


def method_records() -> list[dict[str, Any]]:
    """Every registered method and add-on with its fields, for listing."""
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
            "aliases": [
                alias
                for alias, spec in registry.ALIASES.items()
                if spec.split("+")[-1] == entry.name
            ],
            "fields": {
                name: {
                    "default": info.get_default(call_default_factory=True),
                    "description": info.description or "",
                }
                for name, info in entry.cls.model_fields.items()
                if name != "base"
            },
            **declared(entry, methods),
        }
        for entry in known.values()
    ]
