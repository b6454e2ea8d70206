"""Events of a study or a sweep, as plain records for whatever shows them."""

from __future__ import annotations

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
class CellProgress:
    """A cell began, or a round of it is over; sent about once a second, not for every round.

    Attributes:
        id: id of the cell.
        label: its name for people.
        round: rounds done; 0 when it begins or is resumed.
        total: rounds of this cell.
        loss: mean of the round; None if no client made a step.
        collapsed: verdict of the collapse detector.
    """

    id: str
    label: str
    round: int
    total: int
    loss: float | None = None
    collapsed: bool = False


@dataclass(frozen=True)
class CellDone:
    """A cell has ended.

    Attributes:
        id: id of the cell.
        label: its name for people.
        status: `ok`, `diverged`, `error`, `paused`, or `elsewhere` if another process
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
    eta_seconds: float
    error: str | None = None


Event = Began | CellProgress | CellDone
OnProgress = Callable[[Event], None]
