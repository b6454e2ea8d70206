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
        open_store,
        partition,
        plan_run,
        prepare_data,
        resolve,
        run,
    )
    from fedbench.bench.api_figures import figures
    from fedbench.bench.api_results import (
        export_encoder,
        leaderboard,
        merge,
        report,
        reproduce,
        studies,
    )
    from fedbench.bench.api_tuning import sweep, tune
    from fedbench.bench.config import RunConfig
    from fedbench.bench.errors import (
        ConfigError,
        DataError,
        FedbenchError,
        ResourceError,
        StoreError,
        UnknownNameError,
    )
    from fedbench.bench.export import load_encoder
    from fedbench.bench.records import Deal, Ranking, Report, RunPlan, RunResult
    from fedbench.bench.results.row import Row
    from fedbench.bench.results.store import Store
    from fedbench.bench.tuning.study_result import StudyResult
    from fedbench.bench.tuning.sweep import SweepResult

__version__ = "0.1.0"

_HOMES = {
    "api": (
        "open_store",
        "partition",
        "plan_run",
        "prepare_data",
        "resolve",
        "run",
    ),
    "api_figures": ("figures",),
    "api_results": ("export_encoder", "leaderboard", "merge", "report", "reproduce", "studies"),
    "api_tuning": ("sweep", "tune"),
    "config": ("RunConfig",),
    "errors": (
        "ConfigError",
        "DataError",
        "FedbenchError",
        "ResourceError",
        "StoreError",
        "UnknownNameError",
    ),
    "export": ("load_encoder",),
    "records": ("Deal", "Ranking", "Report", "RunPlan", "RunResult"),
    "results.row": ("Row",),
    "results.store": ("Store",),
    "tuning.study_result": ("StudyResult",),
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
