"""fedbench: tune, sweep and compare federated methods that learn without labels.

    import fedbench

    result = fedbench.run("simclr", preset="demo", seed=0)
    result.metrics["linear_acc"]
    fedbench.leaderboard().to_frame()

Each function does what the command of the same name does, returns a record, raises `FedbenchError`
and prints nothing. Importing fedbench loads none of its parts; the first use of a name does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbench.bench.api import (
        export_encoder,
        figures,
        leaderboard,
        merge,
        open_store,
        partition,
        plan_run,
        prepare_data,
        report,
        reproduce,
        resolve,
        run,
        studies,
        sweep,
        tune,
    )
    from fedbench.bench.config import RunConfig
    from fedbench.bench.data.partition.deal import Deal
    from fedbench.bench.results.leaderboard.formats import Ranking
    from fedbench.bench.results.report.page import Report
    from fedbench.bench.results.store.row import Row
    from fedbench.bench.results.store.store import Store
    from fedbench.bench.runs.export import load_encoder
    from fedbench.bench.runs.run import RunPlan, RunResult
    from fedbench.bench.system.errors import (
        ConfigError,
        DataError,
        FedbenchError,
        ResourceError,
        StoreError,
        UnknownNameError,
    )
    from fedbench.bench.tuning.study import StudyResult
    from fedbench.bench.tuning.sweep import SweepResult

__version__ = "0.1.0"

_HOMES = {
    "api": (
        "export_encoder",
        "figures",
        "leaderboard",
        "merge",
        "open_store",
        "partition",
        "plan_run",
        "prepare_data",
        "report",
        "reproduce",
        "resolve",
        "run",
        "studies",
        "sweep",
        "tune",
    ),
    "config": ("RunConfig",),
    "data.partition.deal": ("Deal",),
    "results.leaderboard.formats": ("Ranking",),
    "results.report.page": ("Report",),
    "results.store.row": ("Row",),
    "results.store.store": ("Store",),
    "runs.export": ("load_encoder",),
    "runs.run": ("RunPlan", "RunResult"),
    "system.errors": (
        "ConfigError",
        "DataError",
        "FedbenchError",
        "ResourceError",
        "StoreError",
        "UnknownNameError",
    ),
    "tuning.study": ("StudyResult",),
    "tuning.sweep": ("SweepResult",),
}
_MODULES = {name: f"fedbench.bench.{module}" for module, names in _HOMES.items() for name in names}

__all__ = [
    "ConfigError",
    "DataError",
    "Deal",
    "FedbenchError",
    "Ranking",
    "Report",
    "ResourceError",
    "Row",
    "RunConfig",
    "RunPlan",
    "RunResult",
    "Store",
    "StoreError",
    "StudyResult",
    "SweepResult",
    "UnknownNameError",
    "__version__",
    "export_encoder",
    "figures",
    "leaderboard",
    "load_encoder",
    "merge",
    "open_store",
    "partition",
    "plan_run",
    "prepare_data",
    "report",
    "reproduce",
    "resolve",
    "run",
    "studies",
    "sweep",
    "tune",
]


if not TYPE_CHECKING:  # a type checker is to notice names that do not exist

    def __getattr__(name: str) -> Any:
        """Load the module of a public name when it is first used."""
        if name not in _MODULES:
            raise AttributeError(f"module 'fedbench' has no attribute {name!r}")
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Public names, loaded or not."""
    return sorted({*globals(), *__all__})
