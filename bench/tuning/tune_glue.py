"""The two objects that Ray Tune wants: a searcher and a callback. Imported with Ray.

Tune pickles them into files that nobody reads; what they refer to stays behind.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray import tune
from ray.tune.search import Searcher

if TYPE_CHECKING:
    from fedbench.bench.tuning.driver import Driver


class Leave(BaseException):
    """Ends Tune's loop at once."""


class _Light:
    """Pickles as an empty shell."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class Feed(_Light, Searcher):  # type: ignore[misc]
    """Hands jobs to Tune; knows nothing of what they are for."""

    def __init__(self, driver: Driver, home: dict[str, str] | None) -> None:
        super().__init__()
        self._driver = driver
        self._common = {} if home is None else {"home": home}

    def suggest(self, trial_id: str) -> Any:
        """A trial's configuration, None for later, or the mark that all is done."""
        try:
            job = self._driver.hand_out(trial_id)
        except Exception as err:
            self._driver.failure = err
            job = False
        if job is False:
            return Searcher.FINISHED
        return None if job is None else {"job": job.dumps(), **self._common}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Outcomes are taken from reports; this is when a process is free again."""
        self._driver.freed(trial_id)

    def save(self, checkpoint_path: str) -> None:
        """There is nothing to save: the store holds everything."""

    def restore(self, checkpoint_path: str) -> None:
        """There is nothing to restore."""


class Sink(_Light, tune.Callback):  # type: ignore[misc]
    """Passes on what trials report; an error ends the command instead of failing a trial."""

    def __init__(self, driver: Driver) -> None:
        super().__init__()
        self._driver = driver

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial process took up a cell."""
        self._guard(self._driver.started, trial.trial_id)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """A report; what is large is taken out of it, since Tune keeps last results."""
        message = dict(result)
        for name in ("row", "history"):
            result.pop(name, None)
        self._guard(self._driver.reported, trial.trial_id, message)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial process died for good."""
        self._guard(self._driver.died, trial.trial_id, _last_line(trial.error_file))

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Leaves after a signal or an error; looks for trials that no node can hold any more.

        Raises:
            Leave: past Tune, which would wait many seconds for busy processes. Nothing is lost:
                cells continue from their checkpoints.
        """
        self._guard(self._driver.check_progress, [trial.status for trial in trials])
        if self._driver.stopping:
            raise Leave

    def _guard(self, function: Any, *args: Any) -> None:
        try:
            if self._driver.failure is None:
                function(*args)
        except Exception as err:
            self._driver.failure = err


def _last_line(file: str | None) -> str:
    """What stands last in a trial's error file; Tune has nothing better at that moment."""
    if file is None or not Path(file).is_file():
        return ""
    lines = Path(file).read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
