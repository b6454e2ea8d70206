"""Names of the label-free objectives, known without torch."""

from __future__ import annotations

from importlib.metadata import entry_points

from fedbench.bench.evaluation.objectives.of_clients import OF_CLIENTS
from fedbench.bench.system.errors import UnknownNameError

GROUP = "fedbench.objectives"
GATE = "+gate"
"""Ending of an objective that refuses trials that did not learn."""

SHIPPED = {
    "global-align": "spread.GlobalAlign",
    "global-rho": "spread.GlobalRho",
    "global-sep": "spread.GlobalSep",
    "global-unif": "spread.GlobalUniformity",
    "rankme": "spectrum.RankMe",
    "rankme-centred": "spectrum.RankMeCentred",
    "stable-rank": "spectrum.StableRank",
    "nesum": "spectrum.NESum",
    "participation-ratio": "spectrum.ParticipationRatio",
    "alpha-req": "spectrum.AlphaReq",
    "self-clustering": "spectrum.SelfClustering",
    "lidar": "spectrum.LiDAR",
    "sigreg": "sigreg.SigReg",
    "clusterability": "clusters.Clusterability",
}
"""Name -> module of this package and class, for those that are computed from sums."""


def check_name(name: str | None) -> str | None:
    """Return a name, with `GATE` or without; only loading plugins tells those of their objectives.

    Raises:
        UnknownNameError: for a name that no objective has.
    """
    known = [*OF_CLIENTS, *SHIPPED]
    if name is not None and name.removesuffix(GATE) not in known and not entry_points(group=GROUP):
        raise UnknownNameError("objective", name, known, f"; each may end in {GATE}")
    return name
