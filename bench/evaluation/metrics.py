"""Metrics by name: heading, unit, direction, and the settings that give a value its meaning.

A metric is declared once, where it is computed: in `Probe.metrics` or `Objective.metric`, of
fedbench and of plugins alike. Those that have a column in rows are declared here, so that lists
need no torch. `catalogue.needed` finds all.

>>> get("knn_acc").heading, Metric("nmi", "NMI", reads=PROBES, needs_labels=True).heading
('k-NN %', 'NMI')
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from fedbench.bench.system.errors import PluginError

ENCODERS = ("num_clients",)
"""Read where encoders differ between clients: a metric is then a mean over some of them."""
PROBES = ("labels_from", *ENCODERS)
"""Read by everything that learns from labels."""
SCORES = ("objective_on", "objective_max_examples", "objective_clients", *ENCODERS)
"""Read by every score of projections."""


@dataclass(frozen=True)
class Metric:
    """A metric of an encoder or of a run."""

    name: str  # in rows: `knn_acc` of the column `metric.knn_acc`; an accuracy's ends in `_acc`
    title: str = ""  # heading of tables; empty = the name
    # Fractions are shown in percent.
    unit: Literal["fraction", "score", "count", "bytes", "hours"] = "score"
    better: Literal["higher", "lower", "near 1"] = "higher"  # which values are better
    reads: tuple[str, ...] = ENCODERS  # fields of `evaluation` that change what a value means
    needs_labels: bool = False  # whether labels are read to compute it

    @property
    def heading(self) -> str:
        """Heading of a column, with the unit that people read."""
        return self.title or (f"{self.name} %" if self.percent else self.name)

    @property
    def percent(self) -> bool:
        """True for fractions, which people read in percent."""
        return self.unit == "fraction"

    def score(self, value: float) -> float:
        """Return a number of which more is better: the sign turned, or minus the distance to 1."""
        if self.better == "near 1":
            return -abs(value - 1)
        return -value if self.better == "lower" else value


_KNOWN: dict[str, Metric] = {}


def register(metric: Metric) -> Metric:
    """Make a metric known by its name, and return it."""
    if _KNOWN.setdefault(metric.name, metric) != metric:
        raise PluginError(f"the name of metric {metric.name!r} is taken")
    return metric


def accuracy(name: str, title: str = "", reads: Iterable[str] = ()) -> Metric:
    """Return an accuracy on test images, which also declares its variants.

    `linear_acc` declares `linear_10pct_acc` (a share of the labels), `linear_local_acc` (clients'
    own test images), `linear_train_acc`, and `target_linear_acc` (a further encoder).
    """
    return Metric(name, title, "fraction", "higher", (*reads, *PROBES), True)


def get(name: str) -> Metric | None:
    """Return a metric that is registered so far; None for another.

    Metrics before training (`untrained_…`), standard deviations over clients (`…_std`) and variants
    of accuracies have the properties of the metric itself.

    >>> get("untrained_knn_acc_std").reads
    ('knn_neighbours', 'knn_temperature', 'labels_from', 'num_clients')
    >>> get("linear_train_local_acc").better
    'higher'
    >>> get("linear_local_acc").heading
    'linear, local %'
    """
    if name in _KNOWN:
        return _KNOWN[name]
    plain = name.removeprefix("untrained_").removesuffix("_std")
    base = _KNOWN.get(plain) or _base_of(plain)
    if base is None:
        return None
    unit = "score" if base.percent and not name.endswith("_acc") else base.unit
    if plain.startswith("transfer_"):  # on other data, whose revisions are in this field
        base = replace(base, reads=(*base.reads, "transfer"))
    elif "unseen_" in plain:  # of clients that are drawn by these fields
        base = replace(base, reads=(*base.reads, "unseen_clients", "unseen_alpha"))
    local = name == base.name.replace("_acc", "_local_acc") and base.title
    title = base.title.replace(" %", ", local %") if local else ""
    return replace(base, name=name, title=title, unit=unit)


def _base_of(name: str) -> Metric | None:
    """Return the metric of which a name is a variant: an accuracy's, or on other data."""
    for metric in _KNOWN.values():
        probe = re.escape(metric.name.removesuffix("_acc"))
        if metric.percent and re.fullmatch(
            rf"(\w+_)?{probe}(_[\w.+-]+pct)?(_train)?(_local)?_acc", name
        ):
            return metric
        if name.startswith("transfer_") and name.endswith(f"_{metric.name}"):
            return metric
    return None


def is_accuracy(name: str) -> bool:
    """Return True for the name of an accuracy, also of a probe that is not installed here."""
    return name.endswith("_acc")


def heading(name: str) -> str:
    """Return the heading of a metric, also of one that is not registered."""
    unit: Literal["fraction", "score"] = "fraction" if is_accuracy(name) else "score"
    return (get(name) or Metric(name, unit=unit)).heading


def main_metrics(names: Iterable[str]) -> list[str]:
    """Return, of some metrics, those that lists show: the objective, and those with a title.

    >>> main_metrics(["linear_acc", "rho", "objective", "knn_acc", "untrained_knn_acc"])
    ['objective', 'knn_acc', 'linear_acc']
    """
    order = {name: place for place, name in enumerate(_KNOWN)}
    found = [metric for name in dict.fromkeys(names) if (metric := get(name)) is not None]
    shown = [m.name for m in found if m == OBJECTIVE or m.title]
    return sorted(shown, key=lambda name: (order.get(name, len(order)), name))


OBJECTIVE = register(
    Metric(
        "objective", reads=(*SCORES, "objective_view", "objective_temperature", "objective_weight")
    )
)
ALIGN = register(Metric("align", reads=(*SCORES, "objective_view")))
UNIF = register(Metric("unif", reads=(*SCORES, "objective_temperature")))
KNN = register(accuracy("knn_acc", "k-NN %", ("knn_neighbours", "knn_temperature")))
LINEAR = register(accuracy("linear_acc", "linear %", ("linear_l2",)))
# Mean over classes of the share that is right, where one class has far more test images.
BALANCED_KNN = register(replace(KNN, name="balanced_knn_acc", title="balanced k-NN %"))
BALANCED_LINEAR = register(replace(LINEAR, name="balanced_linear_acc", title="balanced linear %"))
MAJORITY = register(
    Metric("majority_acc", unit="fraction", reads=())
)  # of a constant answer, there
LINEAR_PAPER = register(accuracy("linear_paper_acc", "linear (paper) %"))
STD_RATIO = register(Metric("std_ratio"))
COLLAPSED = register(Metric("collapsed", better="lower"))
EFFECTIVE_RANK = register(Metric("effective_rank"))
FINAL_LOSS = register(Metric("final_loss", better="lower", reads=()))
IDLE_CLIENTS = register(Metric("idle_clients", unit="count", better="lower", reads=()))
SIMULATED_HOURS = register(Metric("simulated_hours", unit="hours", better="lower", reads=()))
