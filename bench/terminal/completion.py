"""Names that a shell offers while a command is typed; those of methods load torch."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import typer

from fedbench.bench.system.errors import ConfigError

if TYPE_CHECKING:
    from fedbench.bench.results.store.store import Store


def matching(names: Iterable[str], incomplete: str) -> list[str]:
    """Those of some names that begin so, sorted."""
    return sorted(name for name in names if name.startswith(incomplete))


def specs(incomplete: str) -> list[str]:
    """Methods; after a plus, the add-on is completed."""
    done, plus, last = incomplete.rpartition("+")
    from fedbench.bench.method import registry

    names = [n for n, entry in registry.entries().items() if entry.is_addon == bool(plus)]
    return [f"{done}{plus}{name}" for name in matching(names, last)]


def spec_list(incomplete: str) -> list[str]:
    """Methods in a list with commas."""
    done, comma, last = incomplete.rpartition(",")
    return [f"{done}{comma}{name}" for name in specs(last)]


def presets(incomplete: str) -> list[str]:
    """Names of presets."""
    from fedbench.bench.config.yaml_files import installed

    return matching(installed("presets"), incomplete)


def grids(incomplete: str) -> list[str]:
    """Names of grids."""
    from fedbench.bench.config.yaml_files import installed

    return matching(installed("grids"), incomplete)


def keys(context: typer.Context, incomplete: str) -> list[str]:
    """Keys of a configuration: those of the method on the line, or of every method."""
    from fedbench.bench.runs.fields import known_keys
    from fedbench.bench.tuning.explain import fields_by_key

    # An option without its value, which is what is typed, leaves the arguments unread.
    for spec in (context.params.get("spec"), context.params.get("method"), *context.args):
        with suppress(ConfigError):  # another argument
            return matching(known_keys(spec or ""), incomplete)
    return matching(fields_by_key(), incomplete)


def settings(context: typer.Context, incomplete: str) -> list[str]:
    """Keys of a configuration with an equals sign."""
    return [f"{key}=" for key in keys(context, incomplete)]


def datasets(incomplete: str) -> list[str]:
    """Names of data sets, and the beginnings of those with a path."""
    from fedbench.bench.data.datasets import known_names

    return matching((name.removesuffix("PATH") for name in known_names()), incomplete)


def studies(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of the studies in the store."""
    return matching(_store(context).studies(), incomplete)


def run_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of the runs in the store."""
    rows = (_store(context).root / "rows").glob("*.parquet")
    return matching((path.stem for path in rows), incomplete)


def _store(context: typer.Context) -> Store:
    """Return the store that `--store` names on the line, or the default one."""
    from fedbench.bench.results.store.store import open_store

    return open_store(context.params.get("store"))
