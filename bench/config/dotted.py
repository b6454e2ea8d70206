"""Conversion between nested mappings and flat ones with dotted names."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from fedbench.bench.system.errors import ConfigError


def flatten(mapping: Mapping[str, Any], keep: Collection[str] = ()) -> dict[str, Any]:
    """Flatten nested mappings to dotted names; mappings under names in `keep` stay values.

    >>> flatten({"client": {"lr": 0.1}, "data.alpha": 1.0})
    {'client.lr': 0.1, 'data.alpha': 1.0}
    """
    flat: dict[str, Any] = {}

    def walk(value: Any, name: str) -> None:
        if isinstance(value, Mapping) and name not in keep:
            for key, item in value.items():
                walk(item, f"{name}.{key}" if name else str(key))
        elif name in flat:
            raise ConfigError(f"{name!r} is given twice, nested and dotted")
        else:
            flat[name] = value

    if not isinstance(mapping, Mapping):
        example = "{'client.lr': 0.1}"
        raise ConfigError(f"set: must map names to values, as {example} does (got {mapping!r:.80})")
    walk(mapping, "")
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Nest a flat mapping of fields; the inverse of `flatten`.

    >>> unflatten({"client.lr": 0.1, "seed": 3})
    {'client': {'lr': 0.1}, 'seed': 3}
    """
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *groups, last = name.split(".")
        target = nested
        for group in groups:
            target = target.setdefault(group, {})
        target[last] = value
    return nested


def last_names(names: Iterable[str]) -> dict[str, str]:
    """Return the last part of each dotted name, or the whole where two of them share it.

    The hash of a plugin's code is called `code`, since the plugin's name says nothing there.
    """
    last = {n: "code" if n.startswith("code.") else n.rpartition(".")[2] for n in names}
    parts = [*last.values()]
    return {name: part if parts.count(part) == 1 else name for name, part in last.items()}
