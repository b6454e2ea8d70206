"""Objectives that are unweighted means over clients; `evaluation.objective` computes them."""

from __future__ import annotations

DEFAULT = "align-unif"

OF_CLIENTS = {
    DEFAULT: ("objective", "align + 0.2 unif", "Lubana et al. 2022, equation 5", True),
    "align": ("align", "mean cosine of an image and its view", "Lubana et al. 2022", True),
    "unif": (
        "unif",
        "-mean_x log mean_y exp(s(x, y) / 0.2), y of the same client",
        "Lubana et al. 2022",
        True,
    ),
    "rho": ("rho", "mean cosine distance of two images of a client", "ours", True),
    "sep": ("sep", "1 - (1 - align) / rho", "ours", False),
}
"""Name -> metric in rows, formula, source, whether contraction changes it; more is better."""
