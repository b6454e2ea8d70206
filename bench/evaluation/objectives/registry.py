"""Objectives by name: those of fedbench, and those of other packages' entry points."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from fedbench.bench.evaluation.objectives.base import Objective
from fedbench.bench.evaluation.objectives.clusters import Clusterability
from fedbench.bench.evaluation.objectives.sigreg import SigReg
from fedbench.bench.evaluation.objectives.spectrum import (
    AlphaReq,
    LiDAR,
    NESum,
    ParticipationRatio,
    RankMe,
    RankMeCentred,
    SelfClustering,
    StableRank,
)
from fedbench.bench.evaluation.objectives.spread import (
    GlobalAlign,
    GlobalRho,
    GlobalSep,
    GlobalUniformity,
)
from fedbench.bench.system.errors import PluginError
from fedbench.bench.system.plugins import leave_out, load_error, origin

GROUP = "fedbench.objectives"

SHIPPED: tuple[type[Objective], ...] = (
    GlobalAlign,
    GlobalRho,
    GlobalSep,
    GlobalUniformity,
    RankMe,
    RankMeCentred,
    StableRank,
    NESum,
    ParticipationRatio,
    AlphaReq,
    SelfClustering,
    LiDAR,
    SigReg,
    Clusterability,
)


@cache
def objectives() -> dict[str, Objective]:
    """Return every objective that is computed from sums, by name.

    A plugin that cannot be loaded, or takes a name or metric that is taken, is left out with a
    warning.
    """
    found = {kind.name: kind() for kind in SHIPPED}
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
