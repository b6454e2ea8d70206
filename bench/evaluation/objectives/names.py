"""Label-free objectives by name, known without torch.

Some are a value or two of each client; the others are computed from sums. The last loss and the
sums with SEP were proposed by leaderboards/studies/selection, and refuted on four other methods by
leaderboards/studies/confirmation: there the default orders configurations better.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points

from fedbench.bench.system.errors import UnknownNameError

DEFAULT = "align-unif"
LOSS = "loss"


@dataclass(frozen=True)
class ClientObjective:
    """An unweighted mean over clients, or a sum of two; more is better."""

    metrics: tuple[str, ...]  # names in rows of what is added; `final_loss` with a minus
    formula: str
    source: str
    sees_contraction: bool  # whether a net that only shrinks changes it
    ranked: bool = False  # add the ranks among the trials of a study instead of the values
    # leaderboards/studies/confirmation: it orders runs worse than the default
    refuted: bool = False

    @property
    def trained(self) -> bool:
        """True if an encoder before training has none, since it takes the loss of training."""
        return "final_loss" in self.metrics

    def terms(self, figures: Mapping[str, float | None]) -> list[float] | None:
        """Return what is added, more is better; None if one of them is undefined.

        In sums SEP is clipped to [-1, 1], below which it only says that rho is near 0.
        """
        found = []
        for name in self.metrics:
            value = figures.get(name)
            if value is None:
                return None
            if name == "sep" and len(self.metrics) > 1:
                value = min(max(value, -1.0), 1.0)
            found.append(-value if name == "final_loss" else value)
        return found


_PAPER = "Lubana et al. 2022"
OF_CLIENTS = {
    DEFAULT: ClientObjective(
        ("objective",),
        "align (views of an image alike) + 0.2 unif (images apart)",
        f"{_PAPER}, equation 5",
        True,
    ),
    "align": ClientObjective(("align",), "mean cosine of an image and its view", _PAPER, True),
    "unif": ClientObjective(
        ("unif",), "-mean_x log mean_y exp(s(x, y) / 0.2), y of the same client", _PAPER, True
    ),
    "rho": ClientObjective(
        ("rho",), "mean cosine distance of two images of a client", "ours", True
    ),
    "sep": ClientObjective(("sep",), "1 - (1 - align) / rho", "ours", False),
    LOSS: ClientObjective(
        ("final_loss",), "-mean local loss of the last round", "ours", True, refuted=True
    ),
    "loss+sep": ClientObjective(
        ("final_loss", "sep"),
        "rank of -loss + rank of sep, among the trials of the study",
        "ours",
        True,
        ranked=True,
        refuted=True,
    ),
    "objective+sep": ClientObjective(
        ("objective", "sep"), "align + 0.2 unif + sep", "ours", True, refuted=True
    ),
}

GROUP = "fedbench.objectives"
GATE = "+gate"
"""Ending of an objective that refuses trials that did not learn."""

SHIPPED = (
    "global-align", "global-rho", "global-sep", "global-unif", "rankme", "rankme-centred",
    "stable-rank", "nesum", "participation-ratio", "alpha-req", "self-clustering", "lidar",
    "sigreg", "clusterability", "rotation-probe",
)  # fmt: skip
"""Those that are computed from sums, in the order in which noise is drawn for them."""


def check_name(name: str | None) -> str | None:
    """Return a name, with `GATE` or without; only loading plugins tells their objectives' names."""
    known, plain = [*OF_CLIENTS, *SHIPPED], name and name.removesuffix(GATE)
    if plain is not None and plain not in known and not entry_points(group=GROUP):
        raise UnknownNameError("objective", plain, known, f"; each may end in {GATE}")
    return name
