"""Names of metrics: columns of a row, short names on the command line, headings, direction."""

from __future__ import annotations

import re
from collections.abc import Mapping

METRICS = (
    "objective",
    "align",
    "unif",
    "knn_acc",
    "linear_acc",
    "linear_paper_acc",
    "untrained_objective",
    "untrained_knn_acc",
    "untrained_linear_acc",
    "std_ratio",
    "collapsed",
    "effective_rank",
    "final_loss",
)
"""Columns of a row, in their order; methods and further probes add keys of `metrics_json`."""

UNTRAINED_METRICS = tuple(name for name in METRICS if name.startswith("untrained_"))
"""Columns measured before the first round."""

FINAL_METRICS = tuple(name for name in METRICS if name not in UNTRAINED_METRICS)
"""Columns measured after the last round: null unless the run's status is `ok`."""

LOWER_IS_BETTER = frozenset(
    {
        "final_loss",
        "collapsed",
        "idle_clients",
        "delta_views",
        "self_clustering",
        "sigreg",
        "objective_bytes",
        "objective_epsilon",
    }
)

_TARGETS = {"alpha_req": 1.0}
"""Values that are best of metrics of which neither more nor less is better."""

_HEADINGS = {
    "knn": "k-NN %",
    "linear": "linear %",
    "linear-paper": "linear (paper) %",
    "linear-local": "linear, local %",
    "mlp": "MLP %",
    "mlp-local": "MLP, local %",
    "finetune-1pct": "fine-tuned 1 %",
    "finetune-10pct": "fine-tuned 10 %",
}
"""Headings of accuracies, by short name."""

FULL_NAMES = {short: f"{short.replace('-', '_')}_acc" for short in _HEADINGS}
"""Columns, or keys of `metrics_json`, by the short name that may stand for them."""

_TITLES = {FULL_NAMES[short]: heading for short, heading in _HEADINGS.items()}


def metric_title(metric: str) -> str:
    """Heading of a metric's column, with its unit."""
    return _TITLES.get(metric, f"{metric} %" if is_accuracy(metric) else metric)


def is_accuracy(metric: str) -> bool:
    """Return True for fractions, which people read in percent."""
    return metric.endswith("_acc")


def score(metric: str, value: float) -> float:
    """Return a number of which more is better: the sign turned, or minus the distance to best."""
    if metric in _TARGETS:
        return -abs(value - _TARGETS[metric])
    return -value if metric in LOWER_IS_BETTER else value


SPREAD_OF_PROJECTIONS, RANK_OF_FEATURES = "projection_std_ratio", "effective_rank"
_CONTRACTED = {SPREAD_OF_PROJECTIONS: 0.5, RANK_OF_FEATURES: 0.25}
"""Shares of the values before training below which an encoder has contracted; conventions. A rank
does not see that all distances shrink, and the spread does not see that only one direction is left.
"""


def contraction(after: Mapping[str, float | None], before: Mapping[str, float | None]) -> str:
    """Describe how an encoder has contracted, so that its objective says little; empty if not.

    Args:
        after: figures by name, of which `projection_std_ratio` and `effective_rank` are read.
        before: the same of encoders without training.
    """
    texts = {SPREAD_OF_PROJECTIONS: "spread of projections", RANK_OF_FEATURES: "rank of features"}
    fallen = [
        f"{texts[name]} {value:.3g}, {start:.3g} before training"
        for name, share in _CONTRACTED.items()
        if (value := after.get(name)) is not None
        and (start := before.get(name)) is not None
        and value < share * start
    ]
    if not fallen:
        return ""
    return (
        f"{'; '.join(fallen)}: they contracted, or the run is too short to fill the statistics of"
        " batch norm, and the objective says little"
    )


_ENCODERS = ("num_clients",)
"""Read where encoders differ between clients: a metric is then a mean over some of them."""
_PROBES = ("labels_from", *_ENCODERS)
_SCORED = ("objective_on", "objective_max_examples", "objective_clients", *_ENCODERS)
_SHARE = r"(_[\w.+-]+pct)?(_local|_train)?"
_READS = {
    r"final_loss|relative_movement|idle_clients": (),
    r"(projection_)?std_ratio|effective_rank|collapsed|angle\w*": _ENCODERS,
    r"objective_(bytes|epsilon)": ("objective_clients", "objective_noise", *_ENCODERS),
    r"rho": _SCORED,
    r"global_rho|global_unif|rankme\w*|stable_rank|nesum|participation_ratio|alpha_req"
    r"|self_clustering|sigreg|clusterability": (*_SCORED, "objective_noise"),
    r"align|delta_views|sep": (*_SCORED, "objective_view"),
    r"global_align|global_sep|lidar": (*_SCORED, "objective_view", "objective_noise"),
    r"unif\w*": (*_SCORED, "objective_temperature"),
    r"objective": (*_SCORED, "objective_view", "objective_temperature", "objective_weight"),
    r"(\w+_)?knn_acc": ("knn_neighbours", "knn_temperature", *_PROBES),
    rf"(\w+_)?linear{_SHARE}_acc": ("linear_l2", *_PROBES),
    rf"(\w+_)?mlp{_SHARE}_acc": ("mlp_hidden_dim", "mlp_epochs", "mlp_lr", *_PROBES),
    r"linear_paper_acc|finetune_\w+_acc": _PROBES,
}
"""Fields of the evaluation that change what a metric means, by a pattern of the metric's name."""

NEVER_READ = frozenset({"protocols", "probe_fractions", "every", "rounds", "untrained"})
"""Fields of the evaluation that say only which metrics are measured, and when."""

ALL_READ = frozenset(field for fields in _READS.values() for field in fields)
"""Fields of the evaluation that change what some metric means."""


def evaluation_fields(metric: str) -> frozenset[str]:
    """Return the fields of `evaluation` that change what a metric means; all for unknown ones.

    >>> sorted(evaluation_fields("untrained_knn_acc_std"))
    ['knn_neighbours', 'knn_temperature', 'labels_from', 'num_clients']
    """
    name = metric.removeprefix("untrained_").removesuffix("_std")
    for pattern, fields in _READS.items():
        if re.fullmatch(pattern, name):
            return frozenset(fields)
    return ALL_READ
