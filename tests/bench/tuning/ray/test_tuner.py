"""Jobs that are handed to trial processes, without any process."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fedbench.bench.config import RunConfig
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.results.store.store import Store
from fedbench.bench.results.trackers import Tracking
from fedbench.bench.system.errors import ConfigError, FedbenchError, ResourceError
from fedbench.bench.tuning.cluster import Cluster, Share
from fedbench.bench.tuning.job import Job, Outcome
from fedbench.bench.tuning.ray.nodes import Pool
from fedbench.bench.tuning.ray.session import Session

if TYPE_CHECKING:  # it imports Ray, which one process of three needs
    from fedbench.bench.tuning.ray.tuner import JobSearcher


class Fixed:
    """A fixed list of jobs."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._waiting = deque(jobs)
        self.total, self.ended, self.checks = len(jobs), 0, 0
        self.outcomes: list[Outcome] = []

    @property
    def finished(self) -> bool:
        return not self._waiting

    def next(self) -> Job | None:
        return self._waiting.popleft() if self._waiting else None

    def done(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


class Nodes(Pool):
    """Nodes without a Ray, that hold a number of trials; each look finds one more."""

    def __init__(self, found: int, joined: bool = False) -> None:
        super().__init__(Share(), joined=joined)
        self.found = found

    def slots(self) -> int:
        return self.found

    def admit_new(self) -> None:
        self.found += 1

    def check(self) -> None:
        if not self.found:
            raise ResourceError("no node")


def jobs(count: int) -> list[Job]:
    names = [f"cell-{index}" for index in range(count)]
    return [Job(name, name, Experiment(RunConfig()), Path("store")) for name in names]


ERROR = Outcome(jobs(1)[0], "error", error="no luck", seconds=1.0).report()


def make(source: Fixed, **changes: Any) -> JobSearcher:
    from fedbench.bench.tuning.ray.tuner import JobSearcher

    settings: dict[str, Any] = {
        "pool": Nodes(changes.pop("limit", 2), changes.pop("joined", False)),
        "session": Session(Path("ray")),
        "tracking": Tracking((), Store("store")),
        **changes,
    }
    searcher = JobSearcher(source, **settings)
    searcher.begin_tuner()
    return searcher


def name(suggestion: Any) -> Any:
    """Return the name of a suggested job, None for later, False for the end of the Tuner."""
    if suggestion == "FINISHED":  # Ray's word
        return False
    return None if suggestion is None else suggestion["job"].name


def test_a_job_is_handed_out_only_when_a_process_is_idle() -> None:
    source = Fixed(jobs(3))
    searcher = make(source)
    assert [name(searcher.suggest(trial)) for trial in "abc"] == ["cell-0", "cell-1", None]
    searcher.reported("a", ERROR)  # its process is still busy with the end of the trial
    assert searcher.suggest("c") is None
    searcher.on_trial_complete("a")
    assert name(searcher.suggest("c")) == "cell-2"
    for trial in "bc":
        assert not searcher.exhausted
        searcher.reported(trial, ERROR)
        searcher.on_trial_complete(trial)
    assert searcher.exhausted
    assert name(searcher.suggest("d")) is False
    assert [outcome.job.name for outcome in source.outcomes] == ["cell-0", "cell-1", "cell-2"]


def test_a_busy_cell_comes_last_and_waits() -> None:
    searcher = make(Fixed(jobs(2)), limit=1)
    searcher.suggest("a")
    searcher.reported("a", {"status": "busy"})
    searcher.on_trial_complete("a")
    assert name(searcher.suggest("b")) == "cell-1"
    searcher.reported("b", ERROR)
    searcher.on_trial_complete("b")
    again = searcher.suggest("c")["job"]
    assert (again.name, again.wait_seconds > 0) == ("cell-0", True)


def test_dead_and_forgotten_processes_are_failed_cells() -> None:
    source = Fixed(jobs(2))
    searcher = make(source)
    searcher.suggest("a")
    searcher.suggest("b")
    searcher.died("a", "")
    searcher.end_tuner()
    first, second = (outcome.error or "" for outcome in source.outcomes)
    assert "memory" in first
    assert "Ray Tune" in second


# As Ray 2.60 puts it, shortened: the reason is not in its last line.
FULL = """2 worker(s) were killed due to the node running low on memory.
Memory on the node (IP: 192.0.2.2, ID: 08f3) was 23.39GB used / 23.54GB limit (0.993408)
Ray killed 2 worker(s) based on the killing policy
Refer to the documentation on how to address the out of memory issue
"""


def test_a_full_memory_ends_a_job_and_not_the_sweep(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Tune takes the kill of a process at work for its own end, of an idle one for a trial's."""
    from ray.exceptions import OutOfMemoryError

    from fedbench.bench.tuning.ray import tuner

    class Full:
        def __init__(self, *given: Any, **settings: Any) -> None:
            pass

        def fit(self) -> None:
            try:
                raise OutOfMemoryError(FULL)
            except OutOfMemoryError as err:
                raise RuntimeError(f"Caught unexpected exception: {err}") from err

    monkeypatch.setattr("ray.tune.Tuner", Full)
    source = Fixed(jobs(2))
    searcher = make(source, session=Session(tmp_path))
    searcher.suggest("a")
    assert tuner.run_tuner(searcher) is None
    (tmp_path / "error.txt").write_text(FULL, encoding="utf-8")
    searcher.suggest("b")
    searcher.died("b", tuner._error(str(tmp_path / "error.txt")))
    reason = "the memory of its machine was nearly full: 23.39GB used / 23.54GB limit"
    assert [one.error for one in source.outcomes] == [f"the trial process died: {reason}"] * 2
    assert searcher.exhausted

    def broken(self: Full) -> None:
        raise RuntimeError("no such actor")

    monkeypatch.setattr(Full, "fit", broken)
    with pytest.raises(RuntimeError, match="no such actor"):
        tuner.run_tuner(searcher)


def test_the_death_of_ray_itself_is_no_failure_of_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    def ray_is_dead(session: Session) -> None:
        raise ResourceError("Ray's raylet has died")

    monkeypatch.setattr(Session, "check_parts", ray_is_dead)
    source = Fixed(jobs(1))
    searcher = make(source)
    searcher.suggest("a")
    with pytest.raises(ResourceError, match="raylet"):
        searcher.died("a", "killed with the raylet")
    assert source.outcomes == []


def test_after_a_signal_nothing_begins_and_nothing_is_called_dead() -> None:
    source = Fixed(jobs(2))
    searcher = make(source)
    searcher.suggest("a")
    stopped = make(source, session=Session(Path("ray"), received=[signal.SIGTERM]))
    assert name(stopped.suggest("b")) is False
    stopped.died("a", "killed with the driver")
    assert source.outcomes == []
    searcher.reported("a", ERROR)
    searcher.session.received.append(signal.SIGINT)
    with pytest.raises(FedbenchError, match=r"by SIGINT; 1 of 2 runs are stored, and the same"):
        searcher.session.raise_if_ending()


def test_an_error_of_a_trial_or_of_the_jobs_ends_everything() -> None:
    source = Fixed(jobs(2))
    searcher = make(source)
    searcher.suggest("a")
    with pytest.raises(ResourceError, match="no GPU"):
        searcher.reported("a", {"status": "abort", "error": ResourceError("no GPU")})
    source._waiting.clear()  # `next` raises: an IndexError, as a StoreError of a study would
    source.next = source._waiting.popleft  # type: ignore[method-assign]
    assert name(searcher.suggest("b")) is False
    assert isinstance(searcher.failure, IndexError)
    assert name(searcher.suggest("c")) is False


def test_a_cluster_that_lost_its_node_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("fedbench.bench.tuning.ray.tuner.time.monotonic", lambda: now[0])
    nodes = Nodes(1)
    searcher = make(Fixed(jobs(1)), pool=nodes)
    nodes.found = 0
    for now[0], statuses in ((1, ["PENDING"]), (100, ["PENDING", "RUNNING"]), (101, ["PENDING"])):
        searcher.check_progress(statuses)
    now[0] = 300
    with pytest.raises(ResourceError, match="no node"):
        searcher.check_progress(["PENDING", "TERMINATED"])


def test_more_jobs_are_handed_out_when_nodes_join(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("fedbench.bench.tuning.ray.tuner.time.monotonic", lambda: now[0])
    searcher = make(Fixed(jobs(3)), limit=1, joined=True)
    assert [name(searcher.suggest(trial)) for trial in "ab"] == ["cell-0", None]
    for now[0] in (1.0, 30.0):
        searcher.check_progress(["RUNNING"])
    assert [name(searcher.suggest(trial)) for trial in "bc"] == ["cell-1", None]


def test_devices_and_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("fedbench.bench.tuning.cluster.usable_cores", lambda: 6)
    there = Cluster(address="host:1")
    assert Cluster().share("auto") == Share(1, 1)
    assert Cluster(gpus_per_trial=0).share("auto") == Share(1, 0)
    assert Cluster(workers=2).share("cpu") == Share(2, 0)
    assert there.share("cuda") == Share(1, 1)
    assert there.share("auto") == Share(1, 0)
    assert there.share("auto").automatic
    assert not Cluster(address="host:1", gpus_per_trial=0).share("auto").automatic
    assert Cluster().at_a_time(Share(1, 0.5)) == 4
    assert Cluster().at_a_time(Share(1, 0.25)) == 6  # 8 would fit on the GPUs
    assert Cluster().at_a_time(Share(1, 0.4)) == 4  # two on each, and none on both
    assert Cluster().at_a_time(Share(4)) == 1
    assert Cluster().at_a_time(Share(2)) == 3
    assert there.at_a_time(Share(1)) is None
    assert Cluster(concurrency=3).at_a_time(Share(1, 1)) == 3
    with pytest.raises(ResourceError, match=r"7 CPU.*--workers"):
        Cluster(workers=7).share("cpu")
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: Cluster(gpus_per_trial=0).share("cuda"), "--gpus-per-trial"),
        (lambda: Cluster(gpus_per_trial=2).share("auto"), "--gpus-per-trial"),
        (lambda: Cluster(gpus_per_trial=-1).share("auto"), "--gpus-per-trial"),
        (lambda: Cluster(gpus_per_trial=1).share("cpu"), "--device cpu"),
        (lambda: Cluster(workers=0).share("cpu"), "--workers"),
        (lambda: Cluster(concurrency=0).at_a_time(Share()), "--concurrency"),
        (lambda: Cluster(wait_for_nodes=1.0).share("cpu"), "--address"),
    ]
    for call, named in wrong:
        with pytest.raises(ConfigError, match=named):
            call()
