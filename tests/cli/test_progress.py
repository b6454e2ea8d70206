"""Progress displays, in a pipe and on a terminal."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from fedbench.bench.runs.resolve import resolve
from fedbench.bench.terminal.progress import (
    RunProgress,
    StudyProgress,
    SweepProgress,
)
from fedbench.bench.training.history import ClientDone, RoundRecord
from fedbench.bench.tuning import events


def show(progress: SweepProgress) -> None:
    """Send the events of two cells; the first ends well, the second does not."""
    with progress:
        progress(events.Began(total=3, done=1, concurrency=2, gpus=0.5))
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
        *("round 1/100", "round 41/100", "round 42/100", "round 100/100")
    ]
    assert "knn_acc 0.5000" in lines[1]
    assert max(map(len, lines)) <= 120


HEAD = "sweep x · 2 to run, 1 of 3 in the store already · 2 at a time, 0.5 GPU each"
ENDED = "2/3 · simclr seed=0 · ok · objective 0.2500 · 1 min 1 s · 30 s left"
FAILED = "3/3 · simclr seed=1 · error · 1 s · torn"


@pytest.mark.parametrize(("quiet", "lines"), [(False, [HEAD, ENDED, FAILED]), (True, [])])
def test_cells_in_a_pipe(quiet: bool, lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    show(SweepProgress("sweep x", quiet=quiet))
    assert capsys.readouterr().err.splitlines() == lines


def _ended(index: int, metrics: dict[str, float] | None = None) -> RoundRecord:
    return RoundRecord(index, 1.5, {}, 2, 0, 8, 1, 1, 1.0, 9.0, 1.0, False, metrics or {}, 2.0)


@pytest.mark.parametrize("columns", [80, 120])
def test_bars_of_rounds_and_clients(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is cut off at 80 columns."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress = RunProgress("run simclr")
    drawn: list[str] = []

    class Drawn:
        def update(self, shown: Any) -> None:
            console = Console(width=columns, file=io.StringIO(), force_terminal=False)
            console.print(shown)
            assert isinstance(console.file, io.StringIO)
            drawn.append(console.file.getvalue())

    progress._drawn = Drawn()  # type: ignore[assignment]
    config = resolve("simclr", set={"federation.num_rounds": 3}, environ={}).config
    progress.start(config, ["cpu"])
    progress(_ended(0), 3)
    progress.client(ClientDone(1, 1, 2))
    progress._drawn = None
    head, rounds, clients = drawn[-1].splitlines()
    assert head.startswith("run simclr · digits · 4 clients, 2 in each round")
    assert "1/3 loss 1.5000 · spread 1.00" in rounds
    assert "4 s left + evaluation" in rounds
    assert "1/2" in clients


def test_a_study_shows_the_best_trial_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[str, ...]] = []
    monkeypatch.setattr(SweepProgress, "update", lambda _, *texts: drawn.append(texts))
    progress = StudyProgress("tune x", quiet=True)
    label = "trial {} · client.lr={}"
    for number, rate, score, status in (
        (0, 0.1, 0.3, "ok"), (1, 0.2, 0.5, "ok"), (2, 0.3, 0.9, "stopped"), (3, 0.4, 0.4, "ok"),
    ):  # fmt: skip
        name = label.format(number, rate)
        progress(events.CellDone(str(number), name, status, score, 1.0, number + 1, 9, 5.0))
    progress(events.CellDone("u", "start seed=1", "ok", 0.7, 1.0, 5, 9, 5.0))
    assert [texts[1] for texts in drawn] == [
        "  best so far 0.3000 · trial 0 · client.lr=0.1",
        *["  best so far 0.5000 · trial 1 · client.lr=0.2"] * 4,
    ]
    assert drawn[-1][0] == "tune x · 5/9 done · 5 s left"
