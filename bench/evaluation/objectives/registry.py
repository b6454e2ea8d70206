"""Objectives by name: those of fedbench, and those of other packages' entry points."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from fedbench.bench.evaluation.objectives.base import Objective
from fedbench.bench.evaluation.objectives.names import GROUP, SHIPPED
from fedbench.bench.system.errors import PluginError
from fedbench.bench.system.plugins import leave_out, load_error, origin


@cache
def objectives() -> dict[str, Objective]:
    """Return every objective that is computed from sums, by name.

    A plugin that cannot be loaded, or takes a name or metric that is taken, is left out with a
    warning.
    """
    found = {name: _load(place)() for name, place in SHIPPED.items()}
    for point in sorted(entry_points(group=GROUP)):
        try:
            plugin = point.load()()
        except Exception as err:
            leave_out(load_error(point, err))
            continue
        taken = {(objective.name, objective.metric) for objective in found.values()}
        if not isinstance(plugin, Objective):
            leave_out(PluginError(f"plugin {origin(point)} is no class of Objective"))
        elif any(plugin.name == name or plugin.metric == metric for name, metric in taken):
            leave_out(PluginError(f"plugin {origin(point)}: {plugin.name!r} is taken"))
        else:
            found[plugin.name] = plugin
    return found


def _load(place: str) -> type[Objective]:
    module, name = place.split(".")
    kind: type[Objective] = getattr(import_module(f"{__package__}.{module}"), name)
    return kind
