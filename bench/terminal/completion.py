"""Names that a shell offers while a command is typed; those of methods load torch."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import typer

from fedbench.bench.system.errors import ConfigError


def _matching(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


def specs(incomplete: str) -> list[str]:
    """Methods; after a plus, the add-on is completed."""
    done, plus, last = incomplete.rpartition("+")
    from fedbench.bench.method import registry

    names = [n for n, entry in registry.entries().items() if entry.is_addon == bool(plus)]
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


def keys(context: typer.Context, incomplete: str) -> list[str]:
    """Keys of a configuration: those of the method on the line, or of every method."""
    from fedbench.bench.runs.fields import known_keys
    from fedbench.bench.tuning.explain import fields_by_key

    # An option without its value, which is what is typed, leaves the arguments unread.
    for spec in (context.params.get("spec"), context.params.get("method"), *context.args):
        with suppress(ConfigError):  # another argument
            return _matching(known_keys(spec or ""), incomplete)
    return _matching(fields_by_key(), incomplete)


def settings(context: typer.Context, incomplete: str) -> list[str]:
    """Keys of a configuration with an equals sign."""
    return [f"{key}=" for key in keys(context, incomplete)]


def datasets(incomplete: str) -> list[str]:
    """Names of data sets, and the beginnings of those with a path."""
    from fedbench.bench.data.datasets import known_names

    return _matching((name.removesuffix("PATH") for name in known_names()), incomplete)


def samplers(incomplete: str) -> list[str]:
    """Search algorithms of `tune`."""
    from fedbench.bench.tuning.samplers import SAMPLERS

    return _matching(SAMPLERS, incomplete)


def fidelities(incomplete: str) -> list[str]:
    """Ways of `tune` to compare trials early."""
    from fedbench.bench.tuning.rungs import FIDELITIES

    return _matching(FIDELITIES, incomplete)


def objectives(incomplete: str) -> list[str]:
    """Scores that `tune` maximises."""
    from fedbench.bench.evaluation.objectives.names import SHIPPED
    from fedbench.bench.evaluation.objectives.of_clients import OF_CLIENTS

    return _matching([*OF_CLIENTS, *SHIPPED], incomplete)


def statuses(incomplete: str) -> list[str]:
    """Ways in which a run ends."""
    return _matching(("ok", "error", "diverged"), incomplete)


def studies(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of the studies in the store that `--store` names on the line, or in the default one."""
    from fedbench.bench.results.store.store import open_store

    return _matching(open_store(context.params.get("store")).studies(), incomplete)


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
