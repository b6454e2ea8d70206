"""Ray Tune under the driver: a searcher asks it for jobs, a callback passes reports to it."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.search import Searcher

from fedbench.bench.tuning.ray.driver import Driver
from fedbench.bench.tuning.ray.nodes import Pool, Share
from fedbench.bench.tuning.ray.remote import train

_NODE = "ray.io/node-id"
"""Label that Ray gives to each node."""


class _Stop(BaseException):
    """Ends Tune's loop at once."""


class _Stateless:
    """Pickles without its attributes."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _JobSearcher(_Stateless, Searcher):  # type: ignore[misc]
    """Searcher whose suggestions are the driver's jobs."""

    def __init__(self, driver: Driver, home: dict[str, str] | None, pool: Pool) -> None:
        super().__init__()
        self._driver, self._pool = driver, pool
        self._common = {} if home is None else {"home": home}

    def suggest(self, trial_id: str) -> Any:
        """Return a trial's configuration, None for later, or FINISHED."""
        try:
            job = self._driver.hand_out(trial_id)
        except Exception as err:
            self._driver.failure = err
            job = False
        if job is False:
            return Searcher.FINISHED
        if job is None:
            return None
        avoid = {"avoid": self._pool.left_out, "broken": dict(self._pool.broken)}
        return {"job": job.dumps(), **avoid, **self._common}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Free the process; outcomes come from reports."""
        self._driver.freed(trial_id)

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the store holds everything."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing."""


class _Reports(_Stateless, tune.Callback):  # type: ignore[misc]
    """Callback that passes reports to the driver; an error there ends the whole command."""

    def __init__(self, driver: Driver) -> None:
        super().__init__()
        self._driver = driver

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Pass on that a trial process has started a cell."""
        self._call(self._driver.started, trial.trial_id)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Pass a report on; Tune keeps last results, so its large parts are taken out."""
        message = dict(result)
        for name in ("row", "history"):
            result.pop(name, None)
        self._call(self._driver.reported, trial.trial_id, message)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Pass on that a trial process died."""
        self._call(self._driver.died, trial.trial_id, _last_line(trial.error_file))

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Check the nodes; stop after a signal or an error.

        Raises:
            _Stop: past Tune, which would wait many seconds for busy processes. Nothing is lost:
                cells continue from their checkpoints.
        """
        at_work = [t.status for t in trials if t.trial_id not in self._driver.holders]
        self._call(self._driver.check_progress, at_work)
        if self._driver.stopping:
            raise _Stop

    def _call(self, function: Any, *args: Any) -> None:
        try:
            if self._driver.failure is None:
                function(*args)
        except Exception as err:
            self._driver.failure = err


class _Holders(_Stateless, tune.Stopper):  # type: ignore[misc]
    """Ends processes that hold a broken GPU once no cell is left for others."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return True for a process that may end."""
        return trial_id in self._driver.holders and self._driver.tuner_is_done

    def stop_all(self) -> bool:
        """Return False: other trials end by themselves."""
        return False


def run_tuner(driver: Driver, pool: Pool, folder: Path, home: dict[str, str] | None) -> None:
    """Run one Tuner until the driver ends it.

    Args:
        driver: hands out jobs and takes reports.
        pool: nodes that get trials.
        folder: for Tune's files.
        home: description of the driver for trials in a cluster (`remote.Home`); None without one.
    """
    driver.begin_tuner()
    tuner = tune.Tuner(
        tune.with_resources(train, partial(_request, pool.need)),
        tune_config=tune.TuneConfig(
            search_alg=_JobSearcher(driver, home, pool),
            num_samples=-1,
            reuse_actors=True,
            trial_name_creator=_trial_name,
            trial_dirname_creator=_trial_name,
        ),
        run_config=tune.RunConfig(
            name=f"run-{driver.tuners}",
            storage_path=str(folder),
            verbose=0,
            stop=_Holders(driver),
            progress_reporter=tune.CLIReporter(),  # silent; in a notebook another would not be
            callbacks=[_Reports(driver)],
            failure_config=tune.FailureConfig(max_failures=0),  # the driver repeats cells
        ),
    )
    with suppress(_Stop):
        tuner.fit()
        driver.end_tuner()


def _request(need: Share, config: dict[str, Any]) -> tune.PlacementGroupFactory:
    """Return the request of one trial, which keeps away from the nodes under `avoid`."""
    avoid = config.get("avoid")
    where = {"bundle_label_selector": [{_NODE: f"!in({','.join(avoid)})"}]} if avoid else {}
    return tune.PlacementGroupFactory([need.resources], **where)


def _trial_name(trial: Any) -> str:
    return str(trial.trial_id)


def _last_line(file: str | None) -> str:
    """Return the last line of a trial's error file, the only reason that Tune gives."""
    if file is None or not Path(file).is_file():
        return ""
    lines = Path(file).read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
