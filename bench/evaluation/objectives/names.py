"""Names of the label-free objectives, known without torch."""

from __future__ import annotations

from importlib.metadata import entry_points

from fedbench.bench.evaluation.objectives.of_clients import OF_CLIENTS

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


def may_exist(name: str) -> bool:
    """Return False for a name that no objective has; only loading plugins tells theirs."""
    known = {*OF_CLIENTS, *SHIPPED}
    return name.removesuffix(GATE) in known or bool(entry_points(group=GROUP))
