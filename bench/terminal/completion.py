"""Names that a shell offers while a command is typed, found without torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import resources
from importlib.metadata import entry_points

import typer

_PLUGINS = "fedbench.methods"
_ADDON = re.compile(r'@register\("([^"]+)".*\)\nclass \w+\(AddOn\)')


def _matching(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


def specs(incomplete: str) -> list[str]:
    """Methods; after a plus, the add-on is completed."""
    done, plus, last = incomplete.rpartition("+")
    names = _addons() if plus else _methods() - _addons()
    return [f"{done}{plus}{name}" for name in _matching(names, last)]


def spec_list(incomplete: str) -> list[str]:
    """Methods in a list with commas."""
    done, comma, last = incomplete.rpartition(",")
    return [f"{done}{comma}{name}" for name in specs(last)]


def presets(incomplete: str) -> list[str]:
    """Names of presets."""
    return _matching(_shipped("presets"), incomplete)


def grids(incomplete: str) -> list[str]:
    """Names of grids."""
    return _matching(_shipped("grids"), incomplete)


def keys(incomplete: str) -> list[str]:
    """Keys of a configuration; those of methods need the method and are not offered."""
    return _matching(_keys(), incomplete)


def settings(incomplete: str) -> list[str]:
    """Keys of a configuration with an equals sign."""
    return [f"{key}=" for key in keys(incomplete)]


def run_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of the runs in the store that `--store` names on the line, or in the default one."""
    from fedbench.bench.results.store.store import open_store

    folder = open_store(context.params.get("store")).root / "rows"
    if not folder.is_dir():
        return []
    return _matching((path.stem for path in folder.glob("*.parquet")), incomplete)


def _shipped(folder: str = "") -> Iterable[str]:
    from fedbench.bench.config.yaml_files import installed

    return installed(folder)


def _methods() -> set[str]:
    """Names of shipped methods, each of which has a search space, and of plugins."""
    plugins = {point.name for point in entry_points(group=_PLUGINS)} - {"fedbench"}
    return {*_shipped(), *plugins}


def _addons() -> set[str]:
    """Names of shipped add-ons, read from their files without importing them."""
    files = (resources.files("fedbench") / "methods").iterdir()
    texts = [file.read_text(encoding="utf-8") for file in files if file.name.endswith(".py")]
    names = [_ADDON.search(text) for text in texts]
    return {match[1] for match in names if match}


def _keys() -> Iterable[str]:
    from pydantic import BaseModel

    from fedbench.bench.config import RunConfig

    for name, info in RunConfig.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from (f"{name}.{field}" for field in kind.model_fields)
        elif name not in ("spec", "method"):
            yield name
