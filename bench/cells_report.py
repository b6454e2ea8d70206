"""Many runs at once: what a person sees of a study or a sweep while it works."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from fedbench.bench.console import Status, duration, note

if TYPE_CHECKING:
    from fedbench.bench.tuning.progress import Event, TrialDone

_LINES = 8  # running cells shown at a time


class CellProgress:
    """Cells on stderr: those that run, on a terminal; a line for each that ends, in a pipe.

    Args:
        title: what is running.
        quiet: show nothing.
        verbose: a line for each that ends on a terminal, too.
    """

    def __init__(self, title: str, *, quiet: bool = False, verbose: bool = False) -> None:
        self._title, self._quiet, self._verbose = title, quiet, verbose
        self._status = Status(quiet=quiet)
        self._running: dict[str, str] = {}
        self._head = f"{title} · preparing"

    def __enter__(self) -> Self:
        self._status.__enter__()
        self._draw()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._status.__exit__(kind, error, trace)

    def __call__(self, event: Event) -> None:
        """After everything that happens."""
        from fedbench.bench.tuning.progress import TrialProgress, TrialStarted

        if isinstance(event, TrialStarted):
            self._running[event.id] = event.label
            self._head = f"{self._title} · {event.done}/{event.total} done"
        elif isinstance(event, TrialProgress):
            loss = "-" if event.loss is None else f"{event.loss:.4f}"
            collapsed = " · collapsed" if event.collapsed else ""
            rounds = f"round {event.round}/{event.total}"
            self._running[event.id] = f"{event.label} · {rounds} · loss {loss}{collapsed}"
        else:
            self._running.pop(event.id, None)
            self._end(event)
        self._draw()

    def _end(self, event: TrialDone) -> None:
        left = "" if event.eta_seconds is None else f" · {duration(event.eta_seconds)} left"
        self._head = f"{self._title} · {event.done}/{event.total} done{left}"
        shown = not self._status.live or self._verbose or event.status in ("error", "diverged")
        if self._quiet or not shown:
            return
        objective = "" if event.objective is None else f" · objective {event.objective:.4f}"
        why = f" · {event.error}" if event.error else ""
        note(
            f"{event.done}/{event.total} · {event.label} · {event.status}{objective}"
            f" · {duration(event.seconds)}{why}{'' if event.done == event.total else left}"
        )

    def _draw(self) -> None:
        running = list(self._running.values())
        more = [f"  and {len(running) - _LINES} more"] if len(running) > _LINES else []
        self._status.update(self._head, *(f"  {text}" for text in running[:_LINES]), *more)
