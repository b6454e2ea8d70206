"""Scheduling of jobs onto trial processes, without Ray."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fedbench.bench.config import RunConfig
from fedbench.bench.runs.execute import Origin
from fedbench.bench.system.errors import ConfigError, ResourceError
from fedbench.bench.tuning.cell import CellJob, Outcome
from fedbench.bench.tuning.events import CellDone, CellProgress, CellStarted, Event
from fedbench.bench.tuning.ray import driver as module
from fedbench.bench.tuning.ray.driver import Driver
from fedbench.bench.tuning.ray.executor import choose_concurrency, choose_share
from fedbench.bench.tuning.ray.nodes import Share

ERROR = {"status": "error", "error": "no luck", "seconds": 1.0}


class Fixed:
    """Source of a fixed list of jobs."""

    def __init__(self, jobs: Sequence[CellJob]) -> None:
        self._waiting = deque(jobs)
        self.total, self.ended = len(jobs), 0
        self.outcomes: list[Outcome] = []

    @property
    def finished(self) -> bool:
        return not self._waiting

    def next(self) -> CellJob | None:
        return self._waiting.popleft() if self._waiting else None

    def done(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


def jobs(count: int) -> list[CellJob]:
    names = [f"cell-{index}" for index in range(count)]
    return [
        CellJob(name, "0" * 20, name, RunConfig(), Origin(), Path("store"), Path("data"))
        for name in names
    ]


def make(source: Fixed, **changes: Any) -> Driver:
    settings: dict[str, Any] = {
        "limit": 2,
        "interrupted": lambda: False,
        "check_nodes": lambda: None,
        "on_progress": None,
        **changes,
    }
    driver = Driver(source, **settings)
    driver.begin_tuner()
    return driver


def name(job: Any) -> Any:
    return job.cell if isinstance(job, CellJob) else job


def test_a_job_is_handed_out_only_when_a_process_is_idle() -> None:
    source = Fixed(jobs(3))
    driver = make(source)
    assert [name(driver.hand_out(trial)) for trial in "abc"] == ["cell-0", "cell-1", None]
    driver.reported("a", ERROR)  # its process is still busy with the end of the trial
    assert driver.hand_out("c") is None
    driver.freed("a")
    assert name(driver.hand_out("c")) == "cell-2"
    for trial in "bc":
        assert not driver.exhausted
        driver.reported(trial, ERROR)
        driver.freed(trial)
    assert driver.exhausted
    assert driver.hand_out("d") is False
    assert [outcome.job.cell for outcome in source.outcomes] == ["cell-0", "cell-1", "cell-2"]


def test_a_busy_cell_comes_last_and_waits() -> None:
    driver = make(Fixed(jobs(2)), limit=1)
    driver.hand_out("a")
    driver.reported("a", {"status": "busy"})
    driver.freed("a")
    assert name(driver.hand_out("b")) == "cell-1"
    driver.reported("b", ERROR)
    driver.freed("b")
    again = driver.hand_out("c")
    assert isinstance(again, CellJob)
    assert (again.cell, again.wait_seconds > 0) == ("cell-0", True)


def test_many_cells_go_to_more_than_one_tuner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CELLS_PER_TUNER", 2)
    driver = make(Fixed(jobs(3)), limit=9)
    assert [name(driver.hand_out(trial)) for trial in "abc"] == ["cell-0", "cell-1", False]
    driver.begin_tuner()
    assert name(driver.hand_out("c")) == "cell-2"


def test_events_tell_the_story() -> None:
    seen: list[Event] = []
    driver = make(Fixed(jobs(1)), on_progress=seen.append)
    driver.hand_out("a")
    driver.started("a")
    driver.started("a")  # the same cell after its process died
    running = {"status": "running", "round": 1, "total": 2, "loss": None, "collapsed": True}
    driver.reported("a", running)
    driver.reported("a", ERROR)
    driver.reported("a", running)  # the result is no longer needed
    assert seen == [
        CellStarted("cell-0", "cell-0", 0, 1),
        CellProgress("cell-0", "cell-0", 1, 2, None, True),
        CellDone("cell-0", "cell-0", "error", None, 1.0, 1, 1, 0.0, "no luck"),
    ]


def test_dead_and_forgotten_processes_are_failed_cells() -> None:
    source = Fixed(jobs(2))
    driver = make(source)
    driver.hand_out("a")
    driver.hand_out("b")
    driver.died("a", "")
    driver.end_tuner()
    errors = [outcome.error for outcome in source.outcomes]
    assert errors == [
        "the trial process died: perhaps the memory is full",
        "the trial process died: Ray Tune gave it up",
    ]


def test_the_death_of_ray_itself_is_no_failure_of_a_cell() -> None:
    def ray_is_dead() -> None:
        raise ResourceError("Ray's raylet has died")

    source = Fixed(jobs(1))
    driver = make(source, check_nodes=ray_is_dead)
    driver.hand_out("a")
    with pytest.raises(ResourceError, match="raylet has died"):
        driver.died("a", "killed with the raylet")
    assert source.outcomes == []


def test_a_cell_whose_process_died_is_begun_again_before_it_has_failed() -> None:
    source = Fixed(jobs(1))
    driver = make(source, attempts=3)
    for trial in "abc":
        assert not source.outcomes
        assert name(driver.hand_out(trial)) == "cell-0"
        driver.freed(trial)
        driver.died(trial, "killed")
    assert [outcome.error for outcome in source.outcomes] == ["the trial process died: killed"]
    assert driver.exhausted


def test_a_cell_that_a_tuner_forgot_goes_to_the_next() -> None:
    driver = make(Fixed(jobs(1)), attempts=2)
    driver.hand_out("a")
    driver.end_tuner()
    assert not driver.exhausted
    driver.begin_tuner()
    assert name(driver.hand_out("b")) == "cell-0"


def test_after_a_signal_nothing_begins_and_nothing_is_called_dead() -> None:
    source = Fixed(jobs(2))
    driver = make(source)
    driver.hand_out("a")
    stopped = make(source, interrupted=lambda: True)
    assert stopped.hand_out("b") is False
    stopped.died("a", "killed with the driver")
    assert source.outcomes == []


def test_a_store_error_in_a_trial_ends_everything() -> None:
    driver = make(Fixed(jobs(1)))
    driver.hand_out("a")
    with pytest.raises(ResourceError, match="no GPU"):
        driver.reported("a", {"status": "abort", "kind": "ResourceError", "error": "no GPU"})


def test_a_cluster_that_lost_its_node_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        raise ResourceError("no node")

    now = [0.0]
    monkeypatch.setattr("fedbench.bench.tuning.ray.driver.time.monotonic", lambda: now[0])
    driver = make(Fixed(jobs(1)), check_nodes=check)
    for now[0], statuses in ((1, ["PENDING"]), (100, ["PENDING", "RUNNING"]), (101, ["PENDING"])):
        driver.check_progress(statuses)
    now[0] = 300
    with pytest.raises(ResourceError, match="no node"):
        driver.check_progress(["PENDING", "TERMINATED"])


def test_more_jobs_are_handed_out_when_nodes_join(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("fedbench.bench.tuning.ray.driver.time.monotonic", lambda: now[0])
    driver = make(Fixed(jobs(3)), limit=1, slots=lambda before: before + 1)
    assert [name(driver.hand_out(trial)) for trial in "ab"] == ["cell-0", None]
    for now[0] in (1.0, 30.0):
        driver.check_progress(["RUNNING"])
    assert [name(driver.hand_out(trial)) for trial in "bc"] == ["cell-1", None]


def test_devices_and_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("fedbench.bench.tuning.ray.executor.physical_cores", lambda: 6)
    monkeypatch.setattr("fedbench.bench.tuning.ray.nodes.physical_cores", lambda: 6)
    assert choose_share("auto", None, 1, None) == Share(1, 1)
    assert choose_share("auto", 0, 1, None) == Share(1, 0)
    assert choose_share("cpu", None, 2, None) == Share(2, 0)
    assert choose_share("cuda", None, 1, "host:1") == Share(1, 1)
    assert choose_share("auto", None, 1, "host:1") == Share(1, 0)
    assert choose_share("auto", None, 1, "host:1").automatic
    assert not choose_share("auto", 0, 1, "host:1").automatic
    assert choose_concurrency(None, Share(1, 0.5), None) == 4
    assert choose_concurrency(None, Share(1, 0.25), None) == 6  # 8 would fit on the GPUs
    assert choose_concurrency(None, Share(4), None) == 1
    assert choose_concurrency(None, Share(2), None) == 3
    assert choose_concurrency(None, Share(1), "host:1") is None
    assert choose_concurrency(3, Share(1, 1), None) == 3
    with pytest.raises(ConfigError, match="needs --gpus-per-trial above 0"):
        choose_share("cuda", 0, 1, None)
    with pytest.raises(ConfigError, match=r"a run uses one GPU \(got 2\)"):
        choose_share("auto", 2, 1, None)
    with pytest.raises(ResourceError, match=r"asks for 7 CPU, this machine .*lower --cpus-per"):
        choose_share("cpu", None, 7, None)
    with pytest.raises(ConfigError, match=r"--cpus-per-trial: must be at least 1 \(got 0\)"):
        choose_share("cpu", None, 0, None)
    with pytest.raises(ConfigError, match="--concurrency: must be at least 1"):
        choose_concurrency(0, Share(), None)
