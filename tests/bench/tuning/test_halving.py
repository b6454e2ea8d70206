"""Successive halving: decisions that follow from finished rungs only, and continued runs."""

import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fedbench.bench.board.verify import verify
from fedbench.bench.results.leaderboard.studies import best_trial, studies
from fedbench.bench.results.store.merge import merge
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.files import atomic_write_text
from fedbench.bench.tuning import halving
from fedbench.bench.tuning.job import Job, Outcome
from fedbench.bench.tuning.rungs import decide, make_halving

from .conftest import Fake, KilledError, Use, execute_here
from .test_study import scored, small

ROUNDS = 4
HALVING: Mapping[str, Any] = {"trials": 4, "fidelity": "halving", "eta": 2, "rungs": 2}
Curve = Callable[[float, int], float | None]


def search(store: Path, **settings: Any) -> Any:
    values = {"federation.num_rounds": ROUNDS, **settings.pop("set", {})}
    usual = {"sampler": "random", "objective": "align-unif", **HALVING}
    return small(store, set=values, **{**usual, **settings})


def by_curve(curve: Curve) -> Fake:
    """Return outcomes without training: a score by learning rate and rounds; None diverges."""

    def score(job: Job) -> float | None:
        value = curve(job.experiment.config.client.lr, job.until_round or ROUNDS)
        return None if value is None else value - job.experiment.config.seed / 1000

    return scored(score)


def near(lr: float, rounds: int) -> float:
    """Return a score that is best near 0.1 after any number of rounds, and rises with them."""
    return rounds / 100 - abs(lr - 0.1)


def files(store: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in sorted(store.glob("trials/*/bracket-*/*.json"))
    }


def fell(result: Any) -> dict[int, tuple[str, int]]:
    return {trial["number"]: (trial["status"], trial["rounds"]) for trial in result.trials}


def test_a_killed_driver_leaves_no_trace(
    tmp_path: Path, in_one_process: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_one_process(fake=by_curve(near), width=1)
    expected = search(tmp_path / "whole")
    assert sorted(status for status, _ in fell(expected).values()) == ["ok", "ok", *["pruned"] * 2]
    merge([tmp_path / "whole"], tmp_path / "merged")
    assert files(tmp_path / "merged") == files(tmp_path / "whole")
    left = -1
    write, write_trial = atomic_write_text, Store.write_trial

    def count() -> None:
        nonlocal left
        left -= 1
        if left == -1:
            raise KilledError

    def counted(path: Path, text: str) -> None:
        count()
        write(path, text)

    def counted_trial(store: Store, *args: Any) -> bool:
        count()
        return write_trial(store, *args)

    monkeypatch.setattr(halving, "atomic_write_text", counted)
    monkeypatch.setattr(Store, "write_trial", counted_trial)
    boundaries = 4 + 2 + 2 + 2  # records and fallen trials of both rungs
    for boundary in range(boundaries):
        store, left = tmp_path / f"at-{boundary}", boundary
        in_one_process(fake=by_curve(near), seed=boundary, width=1 + boundary % 4)
        with pytest.raises(KilledError):
            search(store)
        left = -1
        again = in_one_process(fake=by_curve(near), width=4)
        result = search(store)
        assert files(store) == files(tmp_path / "whole")
        assert fell(result) == fell(expected)
        assert result.best == expected.best
        assert len(again.ran) == 6 - sum(boundary > n for n in (0, 1, 2, 3, 6, 7))
    left = boundaries
    search(tmp_path / "all")
    assert left == 0


def test_real_runs_pause_continue_and_may_lose_their_checkpoints(
    tmp_path: Path, in_one_process: Use
) -> None:
    in_one_process(width=1)
    small = {"set": {"federation.num_rounds": 2}, "watch_labels": True}
    expected = search(tmp_path / "whole", **small)
    full = search(tmp_path / "full", **small, fidelity="none", eta=None, rungs=None)
    scores = {trial["number"]: trial for trial in full.trials}
    finished = [trial for trial in expected.trials if trial["status"] == "ok"]
    assert len(finished) == 2
    for trial in finished:
        same = ("objective", "watched", "bytes", "scores", "spread")
        assert [trial[key] for key in same] == [scores[trial["number"]][key] for key in same]

    def lossy(job: Job) -> Outcome:
        if job.until_round is None and ".000" in job.name and job.experiment.config.seed == 0:
            assert any(job.folder.glob("round-*.safetensors"))
            shutil.rmtree(job.folder)
        return execute_here(job)

    in_one_process(fake=lossy, width=3, seed=2)
    lost = search(tmp_path / "lost", **small)
    for ours, theirs in zip(lost.trials, expected.trials, strict=True):
        assert ours["objective"] == theirs["objective"]
    assert fell(lost) == fell(expected)
    assert not [*(tmp_path / "whole" / "cells").glob("*/*.safetensors")]


def highest(result: Any) -> int:
    best = best_trial(result.trials)
    assert best is not None
    return int(best["number"])


def crossing(lr: float, rounds: int) -> float:
    """Return a score by which the best rate after the last round is the worst before."""
    return near(lr, rounds) if rounds == ROUNDS else -near(lr, rounds)


def test_stable_ranks_find_the_winner_and_crossing_curves_say_where_it_fell(
    tmp_path: Path, in_one_process: Use
) -> None:
    in_one_process(fake=by_curve(near))
    best = highest(search(tmp_path, fidelity="none", eta=None, rungs=None))
    assert highest(search(tmp_path)) == best
    in_one_process(fake=by_curve(crossing))
    crossed = search(tmp_path / "crossing")
    assert highest(crossed) != best
    assert fell(crossed)[best] == ("pruned", 2)
    (view,) = studies(tmp_path / "crossing")
    assert view.fidelity == {"name": "halving", "eta": 2, "rounds": [2, 4], "sizes": [4]}


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_brackets_follow_each_other_and_extend_a_study(
    sampler: str, tmp_path: Path, in_one_process: Use
) -> None:
    in_one_process(fake=by_curve(near), width=1)
    settings = {"sampler": sampler, "seeds_per_trial": 2, "batch_size": 4}
    first = search(tmp_path / "a", **settings)
    more = search(tmp_path / "a", **settings, trials=8)
    in_one_process(fake=by_curve(near), width=5, seed=3)
    at_once = search(tmp_path / "b", **settings, trials=8)
    assert first.study_id == more.study_id == at_once.study_id
    assert more.to_run == 4
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert [t["params"] for t in more.trials] == [t["params"] for t in at_once.trials]
    again = in_one_process(fake=by_curve(near))
    assert search(tmp_path / "b", **settings, trials=8).to_run == len(again.ran) == 0
    longer = search(tmp_path / "b", **settings, trials=12)
    assert (longer.study_id, longer.to_run) == (first.study_id, 4)


def test_failed_and_diverged_trials_never_go_on(tmp_path: Path, in_one_process: Use) -> None:
    in_one_process(fake=by_curve(near))
    lowest = sorted(t["params"]["client.lr"] for t in search(tmp_path / "rates").trials)

    def fake(job: Job) -> Outcome:
        if job.experiment.config.client.lr == lowest[0]:
            return Outcome(job, "error", error="broken")
        return by_curve(lambda lr, rounds: None if lr > lowest[1] else 1.0)(job)

    in_one_process(fake=fake)
    result = search(tmp_path)
    ends = sorted(t["status"] for t in result.trials)
    assert ends == ["diverged", "diverged", "error", "ok"]
    assert len(result.kept_errors) == 1
    again = in_one_process(fake=fake)
    assert (search(tmp_path).to_run, again.ran) == (0, [])


def test_who_fails_at_the_last_rung_runs_again_until_others_are_suggested_after_it(
    tmp_path: Path, in_one_process: Use
) -> None:
    settings = {"sampler": "tpe", "batch_size": 16, "eta": 8}  # 16, 2; TPE learns from 8 on
    failed = set[str]()

    def fake(job: Job) -> Outcome:
        if job.until_round is None and not failed - {job.name}:
            failed.add(job.name)
            return Outcome(job, "error", error="no memory")
        return by_curve(near)(job)

    for name, trials, killed_after, kept in (("a", 16, 99, 0), ("b", 32, 21, 0), ("c", 32, 99, 1)):
        failed.clear()
        in_one_process(fake=fake, die_after=killed_after, width=1)
        with suppress(KilledError):
            assert search(tmp_path / name, **settings, trials=trials).failed == 1
        again = in_one_process(fake=by_curve(near))
        result = search(tmp_path / name, **settings, trials=trials)
        assert result.failed == len(result.kept_errors) == kept
        ran = [run for run in again.ran if run.endswith(".0") and ".preset." not in run]
        assert len(ran) == {"a": 1, "b": 1 + 18, "c": 0}[name]
    whole = search(tmp_path / "whole", **settings, trials=32)
    assert search(tmp_path / "b", **settings, trials=32).trials == whole.trials


def test_an_altered_record_is_refused(tmp_path: Path, in_one_process: Use) -> None:
    in_one_process(fake=by_curve(near), die_after=5)
    with pytest.raises(KilledError):
        search(tmp_path)
    path = next(tmp_path.glob("trials/*/bracket-0000/rung-0.trial-*.json"))
    path.write_text(path.read_text().replace('"ok"', '"refused"', 1))
    with pytest.raises(StoreError, match=path.name):
        search(tmp_path)
    assert [damage.file for damage in verify(tmp_path).damaged] == [str(path)]


@pytest.mark.parametrize(
    ("n", "eta", "rungs", "share"),
    [(16, 4, 3, 0.1562), (16, 2, 4, 0.3125), (24, 4, 3, 0.1406), (27, 3, 4, 0.1111)],
)
def test_shares_of_a_full_search(n: int, eta: int, rungs: int, share: float) -> None:
    rounds = 10 * eta ** (rungs - 1)
    halving = make_halving(eta, rungs, rounds=rounds, least_rounds=0, size=n)
    added = [end - start for start, end in zip((0, *halving.rounds), halving.rounds, strict=False)]
    cost = sum(a * b for a, b in zip(halving.counts(), added, strict=True))
    assert cost / (n * rounds) == pytest.approx(share, abs=1e-4)


def test_the_gate_ranks_refused_trials_last() -> None:
    record = {"status": "ok", "score": 0.5}
    records: dict[int, dict[str, Any]] = {
        0: {"status": "refused", "score": 0.9},
        3: record,
        1: {"status": "diverged", "score": None},
        2: record,
    }
    assert decide(records, 2) == [2, 3]
    assert decide(records, 3) == [2, 3, 0]
    assert decide({0: records[0]}, 1) == [0]
