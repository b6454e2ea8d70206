"""Progress displays, in a pipe and on a terminal."""

from dataclasses import replace

import pytest

from fedbench.bench.terminal.progress import RunProgress, StudyProgress, SweepProgress
from fedbench.bench.testing import tiny_config
from fedbench.bench.training.history import RoundRecord
from fedbench.bench.tuning import events


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which does not pass by itself."""
    now = [100.0]
    monkeypatch.setattr("fedbench.bench.terminal.progress.time.monotonic", lambda: now[0])
    return now


def show(progress: SweepProgress) -> None:
    """Send the events of two cells; the first ends well, the second does not."""
    with progress:
        progress(events.CellsBegan(total=3, done=1, concurrency=2, gpus=0.5))
        progress(events.CellProgress("a", "simclr seed=0", 0, 4))
        progress(events.CellProgress("a", "simclr seed=0", 1, 4, loss=0.5, collapsed=False))
        progress(events.CellDone("a", "simclr seed=0", "ok", 0.25, 61.0, 2, 3, 30.0))
        progress(events.CellDone("b", "simclr seed=1", "error", None, 1.0, 3, 3, 0.0, "torn"))


def test_an_evaluated_round_always_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a hundred rounds in less than 5 s a pipe gets the first, the last and these."""
    metrics = {"knn_acc": 0.5, **{f"more_{i}": 0.123 for i in range(30)}}
    progress = RunProgress("run x")
    for index in range(100):
        record = replace(_ended(index, metrics if index in (40, 41) else {}), seconds=0.01)
        progress(record, 100)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" · ")[0] for line in lines] == [
        "round 1/100", "round 41/100", "round 42/100", "round 100/100",
    ]  # fmt: skip
    assert "knn_acc 0.5000" in lines[1]
    assert max(map(len, lines)) <= 120


def test_a_long_probe_has_lines(now: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    """One every five seconds, the first of them at once where no round has just ended."""
    progress = RunProgress("run x")
    for done in range(1, 9):
        progress.probe("few-shot", 1000 * done, 12_000)
        now[0] += 2
    assert capsys.readouterr().err.splitlines() == [
        f"evaluating · few-shot {done},000/12,000" for done in (1, 4, 7)
    ]


def test_a_display_of_two_runs_names_each_once(capsys: pytest.CaptureFixture[str]) -> None:
    progress = RunProgress("seeds")
    for seed in (0, 1):
        progress.start(tiny_config("simclr", seed=seed), ["cpu"])
    first, second = capsys.readouterr().err.splitlines()
    assert first == second


HEAD = "sweep x · 2 to run, 1 of 3 in the store already · 2 at a time, 0.5 GPU each"
ENDED = "2/3 · simclr seed=0 · ok · objective 0.2500 · 1 min 1 s · 0 s so far, 30 s left"
FAILED = "3/3 · simclr seed=1 · error · 1 s · torn"


@pytest.mark.parametrize(("quiet", "lines"), [(False, [HEAD, ENDED, FAILED]), (True, [])])
def test_cells_in_a_pipe(quiet: bool, lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    show(SweepProgress("sweep x", quiet=quiet))
    assert capsys.readouterr().err.splitlines() == lines


def _ended(index: int, metrics: dict[str, float] | None = None) -> RoundRecord:
    return RoundRecord(index, 1.5, {}, 2, 0, 8, 1, 1, 1.0, 9.0, 1.0, False, metrics or {}, 2.0)


def test_a_study_explains_its_score_once_and_counts_all_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    progress = StudyProgress("tune x", "align-unif")
    progress(events.CellsBegan(total=8, done=0, concurrency=2, gpus=0.0, checks=6))
    progress(events.CellsBegan(total=3, done=0, concurrency=2, gpus=0.0))  # of a confirmation
    explained, study, _ = capsys.readouterr().err.splitlines()
    assert explained == (
        "objective: align (views of an image alike) + 0.2 unif (images apart);"
        " higher is better, no label is read"
    )
    assert "8 to run, 0 of 8 in the store already, the last 6 to compare the best" in study


def test_preparatory_rounds_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    progress = RunProgress("run x")
    progress.start(tiny_config("orchestra", federation__num_rounds=1), ["cpu"])
    for index in (0, 1):
        progress(_ended(index), 2)
    _, first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("round 1/2 (preparatory) · loss")
    assert second.startswith("round 2/2 · loss")
    cells = SweepProgress("sweep x", quiet=True)
    cells(events.CellsBegan(total=1, done=0, concurrency=1, gpus=0.0))
    cells(events.CellProgress("a", "a", 1, 2, preparatory=1))
    assert cells.lines()[2] == "  a · round 1/2 (preparatory) · loss -"


def test_time_and_bar_move_between_events(now: list[float]) -> None:
    progress = StudyProgress("tune x", quiet=True)
    progress(events.CellsBegan(total=4, done=0, concurrency=2, gpus=0.0))
    now[0] = 105.0
    assert "starting Ray · 5 s so far" in progress.lines()[0]
    progress(events.CellProgress("s", "start seed=0", 0, 4))
    progress(events.CellDone("s", "start seed=0", "ok", 0.1, 1.0, 0, 4, None))
    progress(events.CellProgress("a", "trial 0", 2, 4, 0.5, eta_seconds=30.0))
    assert progress.lines()[:2] == ("tune x · 5 s so far, 30 s left", "  runs    ━┄┄┄┄┄┄┄┄┄ 0/4 ")
    now[0] = 108.0
    progress(events.CellDone("a", "trial 0", "ok", 0.25, 3.0, 1, 4, 27.0))
    now[0] = 110.0
    head, bar, best, *running = progress.lines()
    assert (head, running) == ("tune x · 10 s so far, 25 s left", [])
    assert bar == "  runs    ━━┄┄┄┄┄┄┄┄ 1/4 "
    assert "0.2500 · trial 0" in best
