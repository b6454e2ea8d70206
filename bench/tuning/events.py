"""Events of a study or a sweep, as plain records for whatever shows them."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Estimating:
    """Parts of a run are being timed for a plan; it stands for all runs that take equally long."""

    label: str  # its method


@dataclass(frozen=True)
class CellsBegan:
    """There are cells to run; sent at once, before the first process starts."""

    total: int  # cells of the whole command
    done: int  # cells that had ended before it
    concurrency: int | None  # cells at a time, at most; None = as many as the cluster holds
    gpus: float  # of each cell
    checks: int = 0  # of `total`, the last ones: they compare a study's best trial with the preset


@dataclass(frozen=True)
class CellProgress:
    """A cell began, or a round of it is over; sent about once a second, not for every round."""

    id: str
    label: str  # its name for people
    round: int  # rounds done; 0 when it begins or is resumed
    total: int  # rounds of this cell
    loss: float | None = None  # mean of the round; None if no client made a step
    collapsed: bool = False
    eta_seconds: float | None = None  # until the last cell of the command ends; None = not known
    preparatory: int = 0  # of `total`, the first ones


@dataclass(frozen=True)
class CellDone:
    """A cell has ended."""

    id: str
    label: str
    status: str  # `ok diverged error paused`, or `elsewhere` if another process ran it
    objective: float | None
    seconds: float  # wall time of the cell
    done: int  # cells that have ended, this one included; encoders before training are none
    total: int  # cells of the whole command
    eta_seconds: float | None  # until the last cell of the command ends; None = not known
    error: str | None = None  # in one line


Event = Estimating | CellsBegan | CellProgress | CellDone
OnProgress = Callable[[Event], None]
