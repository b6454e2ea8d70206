"""The public names of `fedbench`, and where each is: `__init__.py` loads them from there."""

from fedbench import plot as plot
from fedbench import plugin as plugin
from fedbench.bench.board.boards import leaderboard as leaderboard
from fedbench.bench.board.boards import report as report
from fedbench.bench.board.compare import Comparison as Comparison
from fedbench.bench.board.compare import compare as compare
from fedbench.bench.board.verify import Verification as Verification
from fedbench.bench.board.verify import verify as verify
from fedbench.bench.config import RunConfig as RunConfig
from fedbench.bench.data.partition import PartitionSummary as PartitionSummary
from fedbench.bench.execution.describe import Description as Description
from fedbench.bench.execution.describe import describe as describe
from fedbench.bench.execution.export import export_encoder as export_encoder
from fedbench.bench.execution.export import load_encoder as load_encoder
from fedbench.bench.execution.figures import figures as figures
from fedbench.bench.execution.result import RunPlan as RunPlan
from fedbench.bench.execution.result import RunResult as RunResult
from fedbench.bench.execution.run import plan_run as plan_run
from fedbench.bench.execution.run import reproduce as reproduce
from fedbench.bench.execution.run import run as run
from fedbench.bench.experiment.data import partition as partition
from fedbench.bench.experiment.data import prepare_data as prepare_data
from fedbench.bench.experiment.data import split_data as split_data
from fedbench.bench.experiment.experiment import Experiment as Experiment
from fedbench.bench.experiment.resolve import resolve as resolve
from fedbench.bench.results.leaderboard.formats import Ranking as Ranking
from fedbench.bench.results.leaderboard.studies import studies as studies
from fedbench.bench.results.listing import Listing as Listing
from fedbench.bench.results.listing import runs as runs
from fedbench.bench.results.report.page import Report as Report
from fedbench.bench.results.store.merge import merge as merge
from fedbench.bench.results.store.row import Row as Row
from fedbench.bench.results.store.store import Store as Store
from fedbench.bench.results.store.store import open_store as open_store
from fedbench.bench.system.errors import ConfigError as ConfigError
from fedbench.bench.system.errors import DataError as DataError
from fedbench.bench.system.errors import FedbenchError as FedbenchError
from fedbench.bench.system.errors import ResourceError as ResourceError
from fedbench.bench.system.errors import StoreError as StoreError
from fedbench.bench.system.errors import UnknownNameError as UnknownNameError
from fedbench.bench.system.records import Records as Records
from fedbench.bench.terminal.progress import RunProgress as RunProgress
from fedbench.bench.terminal.progress import StudyProgress as StudyProgress
from fedbench.bench.terminal.progress import SweepProgress as SweepProgress
from fedbench.bench.terminal.show_lists import list_methods as list_methods
from fedbench.bench.terminal.show_lists import list_presets as list_presets
from fedbench.bench.tuning.explain import explain as explain
from fedbench.bench.tuning.study import StudyResult as StudyResult
from fedbench.bench.tuning.sweep import SweepResult as SweepResult
from fedbench.bench.tuning.sweep import sweep as sweep
from fedbench.bench.tuning.tune import tune as tune

__all__: list[str]
__version__: str
