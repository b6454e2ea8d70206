"""Events of a study or a sweep, as plain records for whatever shows them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Began:
    """There are cells to run; sent at once, before the first process starts.

    Attributes:
        total: cells of the whole command.
        done: cells that had ended before it.
        concurrency: cells at a time, at most; None = as many as the cluster holds.
        gpus: GPUs of each cell.
    """

    total: int
    done: int
    concurrency: int | None
    gpus: float


@dataclass(frozen=True)
class CellStarted:
    """A cell began or was resumed.

    Attributes:
        id: id of the cell.
        label: its name for people.
        done: cells that have ended.
        total: cells of the whole command.
    """

    id: str
    label: str
    done: int
    total: int


@dataclass(frozen=True)
class CellProgress:
    """A round of a cell is over; sent about once a second, not for every round.

    Attributes:
        id: id of the cell.
        label: its name for people.
        round: rounds done.
        total: rounds of this cell.
        loss: mean of the round; None if no client made a step.
        collapsed: verdict of the collapse detector.
    """

    id: str
    label: str
    round: int
    total: int
    loss: float | None
    collapsed: bool


@dataclass(frozen=True)
class CellDone:
    """A cell has ended.

    Attributes:
        id: id of the cell.
        label: its name for people.
        status: `ok`, `diverged`, `error`, `stopped`, `paused`, or `elsewhere` if another process
            ran it.
        objective: the label-free score, if there is one.
        seconds: wall time of the cell.
        done: cells that have ended, this one included.
        total: cells of the whole command.
        eta_seconds: seconds until the last cell ends, from the pace so far.
        error: the error in one line.
    """

    id: str
    label: str
    status: str
    objective: float | None
    seconds: float
    done: int
    total: int
    eta_seconds: float | None
    error: str | None = None


Event = Began | CellStarted | CellProgress | CellDone
OnProgress = Callable[[Event], None]


class Pace:
    """Counter of ended cells that predicts how long the others will take.

    Args:
        total: cells of the whole command.
        done: cells that had ended before; they do not count for the pace.
    """

    def __init__(self, total: int, done: int = 0) -> None:
        self.total, self.done = total, done
        self._before = done
        self._began = time.monotonic()

    def step(self, total: int) -> None:
        """Count one more ended cell, of a total that may have shrunk."""
        self.done, self.total = self.done + 1, total

    @property
    def eta_seconds(self) -> float | None:
        """Seconds left; None before the first cell has ended."""
        ended = self.done - self._before
        if ended == 0:
            return None
        return (time.monotonic() - self._began) / ended * max(0, self.total - self.done)
