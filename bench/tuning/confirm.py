"""A check of a search by labels: its best trial, the preset and its worst trial on fresh seeds."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedbench.bench.config import RunConfig
from fedbench.bench.experiment.common_options import Places, Settings, Sources
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.experiment.fields import get
from fedbench.bench.results.leaderboard.statistics import MIN_FOR_INTERVAL
from fedbench.bench.results.leaderboard.studies import best_trial, worst_trial
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.tuning.executor import Executor
from fedbench.bench.tuning.grid import Grid
from fedbench.bench.tuning.sweep import sweep

_log = logging.getLogger(__name__)


def check_confirm(seeds: int, config: RunConfig) -> None:
    """Refuse a confirmation (0 seeds = none) that could not compare anything."""
    if 0 < seeds < MIN_FOR_INTERVAL:
        raise ConfigError(
            f"--confirm: needs at least {MIN_FOR_INTERVAL} seeds for an interval (got {seeds})"
        )
    protocols, shares = config.evaluation.protocols, config.evaluation.probe_fractions
    if seeds and "knn" not in protocols and not ("linear" in protocols and 1.0 in shares):
        raise ConfigError(
            "--confirm: needs knn, or linear with 1.0 in evaluation.probe_fractions, among"
            f" evaluation.protocols (got {list(protocols)})"
        )


def confirmation(
    configure: Callable[[dict[str, Any], int], Experiment],
    trials: Sequence[Mapping[str, Any]],
    seeds: Sequence[int],
    settings: Settings,
    places: Places,
    executor: Executor,
) -> dict[str, Any]:
    """Run the configurations on seeds that the search has not used, to compare them by labels.

    The runs are stored like all others; those that failed before run again. Returned is what the
    study keeps: the `trials` that are best and worst, and as `compared` the configurations with
    their runs. There is a warning for each of which one fails or diverges, since it is left out.
    One trial at least has an objective; `configure` is the study's.
    """
    best, worst = best_trial(trials), worst_trial(trials)
    assert best is not None
    assert worst is not None
    compared = {"best trial": best["params"], "preset": {}, "worst trial": worst["params"]}
    configs = {name: configure(params, seeds[0]).config for name, params in compared.items()}
    # Values as configurations have them: a relative path of a trial is absolute there.
    named: dict[str, Mapping[str, Any]] = {
        name: {key: get(config, key) for key in best["params"]} for name, config in configs.items()
    }
    grid = Grid(
        grid="confirm",
        description="best trial, preset and worst trial",
        points=tuple(named.values()),
        methods=(configs["preset"].spec,),
    )
    # A sweep refuses a seed among the values: it has those of its cells.
    values = {key: value for key, value in (settings.set or {}).items() if key != "seed"}
    sources = Sources(settings.preset, settings.dataset, settings.config_files, values)
    given = {**vars(sources), **vars(places), **vars(executor.cluster)}
    given |= {"purpose": "confirmation", "retry_failed": True, "track": executor.tracking.names}
    result = sweep(grid, seeds=seeds, on_progress=executor.on_progress, **given)
    cells: dict[str, list[Mapping[str, Any]]] = {}
    for cell in result.cells:
        name = ", ".join(name for name, params in named.items() if params == cell["axes"])
        cells.setdefault(name, []).append(cell)
    for name, of in cells.items():
        for cell in [cell for cell in of if cell["status"] != "ok"][:1]:
            ended = cell["run_id"], cell["status"]
            _log.warning("%s is not compared: run %s has status %s", name, *ended)
    return {
        "trials": [best["number"], worst["number"]],
        "compared": [
            {
                "name": name,
                "params": named[name.split(", ")[0]],
                "runs": [cell["run_id"] for cell in of],
            }
            for name, of in cells.items()
        ],
    }
