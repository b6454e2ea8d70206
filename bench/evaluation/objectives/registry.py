"""Objectives by name: those of fedbench, and those of other packages' entry points."""

from collections.abc import Sequence
from functools import cache
from importlib.metadata import EntryPoint

from fedbench.bench.evaluation.metrics import register
from fedbench.bench.evaluation.objectives import scores
from fedbench.bench.evaluation.objectives.base import Objective
from fedbench.bench.evaluation.objectives.names import GROUP, OF_CLIENTS, SHIPPED
from fedbench.bench.system.errors import PluginError, UnknownNameError
from fedbench.bench.system.plugins import load, load_all

DEFAULT = ("participation-ratio",)
"""Objectives of every run; `evaluation.objectives` names further ones."""


@cache
def objectives() -> dict[str, Objective]:
    """Return every objective that is computed from sums, by name.

    A plugin that cannot be loaded, or whose name or metric is taken, is left out with a warning.
    """
    kinds = {
        kind.name: kind for kind in Objective.__subclasses__() if kind.__module__ == scores.__name__
    }
    found: dict[str, Objective] = {name: kinds[name]() for name in SHIPPED}
    for objective in found.values():
        register(objective.metric)

    def accept(point: EntryPoint) -> None:
        plugin = load(point)()
        if not isinstance(plugin, Objective):
            raise PluginError("it is no class of Objective")
        if plugin.name in {**OF_CLIENTS, **found}:
            raise PluginError(f"{plugin.name!r} is taken")
        register(plugin.metric)
        found[plugin.name] = plugin

    load_all(GROUP, accept)
    return found


def scored(names: Sequence[str], *, noise: bool = False) -> list[Objective]:
    """Return the objectives that a run computes, by `evaluation.objectives`, in order.

    The scale of noise depends on how many sums share it. So that it does not depend on `names`,
    with noise all objectives of fedbench that have an epsilon are computed.
    """
    known = objectives()
    for name in names:
        if name not in known:
            more = "; every run has align, unif, rho, sep and the loss"
            raise UnknownNameError("objective of evaluation.objectives", name, known, more)
    asked = {*DEFAULT, *names, *(SHIPPED if noise else ())}
    return [objective for name, objective in known.items() if name in asked]
