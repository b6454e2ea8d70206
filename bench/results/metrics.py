"""Names of metrics: columns of a row, short names on the command line, headings, direction."""

from __future__ import annotations

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

LOWER_IS_BETTER = frozenset({"final_loss", "collapsed", "idle_clients"})

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
    """Return the value with its sign turned where lower is better."""
    return -value if metric in LOWER_IS_BETTER else value
