"""All metrics that fedbench or an installed plugin computes, by name."""

from importlib.metadata import entry_points

from fedbench.bench.config.schema import PROBES
from fedbench.bench.evaluation.metrics import Metric, get
from fedbench.bench.evaluation.objectives.names import GROUP
from fedbench.bench.system.errors import ConfigError


def needed(name: str) -> Metric:
    """Return a metric by its name in rows; `ConfigError` if nothing installed here declares it."""
    if get(name) is None:
        load()  # most are declared where they are computed, which loads torch
    if (metric := get(name)) is None:
        what = f"nothing installed here declares metric {name!r}, so that no values compare"
        raise ConfigError(f"{what}; install the package that brings it")
    return metric


def load_plugins() -> None:
    """Register what plugins declare; without any there is nothing to load, and no torch."""
    if entry_points(group=PROBES) or entry_points(group=GROUP):
        load()


def load() -> None:
    """Register the metrics of all probes and objectives."""
    from fedbench.bench.evaluation import collapse, objective, online  # noqa: F401
    from fedbench.bench.evaluation.objectives.scores import objectives
    from fedbench.bench.evaluation.protocols import probes

    probes()
    objectives()
