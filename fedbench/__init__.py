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
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbench.bench.board.boards import leaderboard, report
    from fedbench.bench.board.compare import Comparison, compare
    from fedbench.bench.board.paper_figures import PaperFigure, paper_figure
    from fedbench.bench.board.release import release
    from fedbench.bench.board.verify import submit, verify_bundle, verify_claims
    from fedbench.bench.board.whole import Verification, verify
    from fedbench.bench.config import RunConfig
    from fedbench.bench.data.partition import PartitionSummary
    from fedbench.bench.execution.describe import Description, describe
    from fedbench.bench.execution.export import export_encoder, load_encoder
    from fedbench.bench.execution.figures import figures
    from fedbench.bench.execution.result import RunPlan, RunResult
    from fedbench.bench.execution.run import plan_run, reproduce, run
    from fedbench.bench.experiment.data import partition, prepare_data, split_data
    from fedbench.bench.experiment.experiment import Experiment
    from fedbench.bench.experiment.resolve import resolve
    from fedbench.bench.results.leaderboard.formats import Ranking
    from fedbench.bench.results.leaderboard.studies import studies
    from fedbench.bench.results.listing import Listing, runs
    from fedbench.bench.results.report.page import Report
    from fedbench.bench.results.store.merge import merge
    from fedbench.bench.results.store.row import Row
    from fedbench.bench.results.store.store import Store, open_store
    from fedbench.bench.system.errors import (
        ConfigError,
        DataError,
        FedbenchError,
        ResourceError,
        StoreError,
        UnknownNameError,
    )
    from fedbench.bench.system.records import Records
    from fedbench.bench.terminal.progress import RunProgress, StudyProgress, SweepProgress
    from fedbench.bench.terminal.show_lists import list_methods, list_presets
    from fedbench.bench.tuning.explain import explain
    from fedbench.bench.tuning.study import StudyResult
    from fedbench.bench.tuning.sweep import SweepResult, sweep
    from fedbench.bench.tuning.tune import tune

__version__ = "0.5.0"

if not Path(__file__).with_name("bench").is_dir():
    raise ImportError(
        "fedbench/bench is no folder: this checkout has no symbolic links. Clone again with"
        " git -c core.symlinks=true clone, or install a wheel: pip install fedbench-ssl"
    )

_HOMES = {
    "board.boards": "leaderboard report",
    "experiment.data": "partition prepare_data split_data",
    "board.compare": "Comparison compare",
    "board.release": "release",
    "board.verify": "submit verify_bundle verify_claims",
    "config": "RunConfig",
    "data.partition": "PartitionSummary",
    "results.leaderboard.formats": "Ranking",
    "results.listing": "Listing runs",
    "results.leaderboard.studies": "studies",
    "results.report.page": "Report",
    "results.store.merge": "merge",
    "results.store.row": "Row",
    "results.store.store": "Store open_store",
    "execution.describe": "Description describe",
    "execution.export": "export_encoder load_encoder",
    "execution.figures": "figures",
    "experiment.experiment": "Experiment",
    "experiment.resolve": "resolve",
    "execution.result": "RunPlan RunResult",
    "execution.run": "plan_run reproduce run",
    "board.whole": "Verification verify",
    "system.errors": "ConfigError DataError FedbenchError ResourceError StoreError"
    " UnknownNameError",
    "system.records": "Records",
    "terminal.show_lists": "list_methods list_presets",
    "terminal.progress": "RunProgress StudyProgress SweepProgress",
    "tuning.explain": "explain",
    "board.paper_figures": "PaperFigure paper_figure",
    "tuning.study": "StudyResult",
    "tuning.tune": "tune",
    "tuning.sweep": "SweepResult sweep",
}
_MODULES = {
    name: f"fedbench.bench.{module}" for module, names in _HOMES.items() for name in names.split()
}

__all__ = [
    "Comparison",
    "ConfigError",
    "DataError",
    "Description",
    "Experiment",
    "FedbenchError",
    "Listing",
    "PaperFigure",
    "PartitionSummary",
    "Ranking",
    "Records",
    "Report",
    "ResourceError",
    "Row",
    "RunConfig",
    "RunPlan",
    "RunProgress",
    "RunResult",
    "Store",
    "StoreError",
    "StudyProgress",
    "StudyResult",
    "SweepProgress",
    "SweepResult",
    "UnknownNameError",
    "Verification",
    "__version__",
    "compare",
    "describe",
    "explain",
    "export_encoder",
    "figures",
    "leaderboard",
    "list_methods",
    "list_presets",
    "load_encoder",
    "merge",
    "open_store",
    "paper_figure",
    "partition",
    "plan_run",
    "prepare_data",
    "release",
    "report",
    "reproduce",
    "resolve",
    "run",
    "runs",
    "split_data",
    "studies",
    "submit",
    "sweep",
    "tune",
    "verify",
    "verify_bundle",
    "verify_claims",
]


if not TYPE_CHECKING:  # so that a type checker reports names that do not exist

    def __getattr__(name: str) -> Any:
        """Load the module of a public name when it is first used."""
        if name in ("plot", "plugin"):
            return import_module(f"fedbench.{name}")
        if name not in _MODULES:
            raise AttributeError(f"module 'fedbench' has no attribute {name!r}")
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
