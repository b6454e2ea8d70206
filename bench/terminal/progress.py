"""Progress on stderr: rounds of a run, runs of a study or sweep, decoded images."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedbench.bench.evaluation.metrics import main_metrics
from fedbench.bench.evaluation.objectives.names import DEFAULT
from fedbench.bench.terminal.console import Status, note
from fedbench.bench.terminal.units import count, duration, size
from fedbench.bench.tuning.events import CellDone, CellProgress, CellsBegan, Estimating, Event

if TYPE_CHECKING:
    from fedbench.bench.config import RunConfig
    from fedbench.bench.training.history import ClientDone, RoundRecord

_FEW_ROUNDS = 20  # up to this many, a pipe gets a line for every round
_SECONDS = 5.0  # beyond, the least time between two lines
_SHOWN_RUNS = 8  # runs shown at the same time
_BAR = 10  # characters


class RunProgress(Status):
    """Rounds of a run, and clients within a round: bars to look at, plain lines in a pipe.

    With `verbose`, every round gets a plain line with all terms of the loss.
    """

    def __init__(self, title: str, *, quiet: bool = False, verbose: bool = False) -> None:
        super().__init__(title, quiet=quiet, verbose=verbose)
        self.live = self.live and not verbose
        self._head = title
        self._last_line = float("-inf")
        self._total = 0
        self._rounds: int | None = None  # those of the configuration; others come before
        self._round_note = ""  # after the bar

    def start(self, config: RunConfig, devices: Sequence[str]) -> None:
        """Announce a run before its first round."""
        data, federation = config.data, config.federation
        self._total = self._rounds = federation.num_rounds
        subset = "" if data.train_subset is None else f" ({data.train_subset:,} images)"
        self._head = (
            f"{self.title} · {data.public_name}{subset} · {count(data.num_clients, 'client')},"
            f" {config.cohort_size} in each round · {count(federation.num_rounds, 'round')} ·"
            f" {count(len(devices), 'worker')} on {', '.join(dict.fromkeys(devices))}"
        )
        self.update(self._head)
        if not (self.live or self.quiet):
            note(self._head)

    def resume(self, done: int, total: int) -> None:
        """Announce that an earlier attempt is continued after `done` of `total` rounds."""
        step = f"round {done + 1}" if done < total else "the evaluation"
        self.update(self._head, text := f"resuming at {step}: {done} of {total} rounds are done")
        if not self.quiet:
            note(text)

    def client(self, event: ClientDone) -> None:
        """Show that a client has ended its part of a round."""
        self._draw(event.round_index, event.done, event.cohort_size)

    def probe(self, protocol: str, done: int, total: int) -> None:
        """Show how many of at most so many steps of a long probe have ended."""
        self.update(self._head, _bar(protocol, done, total))
        if done and not (self.live or self.quiet) and self._is_time():
            note(f"evaluating · {protocol} {done:,}/{total:,}")

    def _is_time(self) -> bool:
        """Return whether the last line is some seconds ago, and that it is now."""
        now = time.monotonic()
        late = now - self._last_line >= _SECONDS
        self._last_line = now if late else self._last_line
        return late

    def __call__(self, record: RoundRecord, total: int) -> None:
        """Show a finished round."""
        self._total = total
        now = time.monotonic()
        line = self._line(record, total)
        if self.live:
            text = line.removeprefix(f"round {record.round_index + 1}/{total} ")
            self._round_note = text.removeprefix("· ").replace(" left", " left + evaluation")
            self._draw(record.round_index + 1, record.cohort_size, record.cohort_size)
        elif not self.quiet and (
            self.verbose
            or total <= _FEW_ROUNDS
            or record.round_index + 1 == total
            or record.metrics
            or now - self._last_line >= _SECONDS
        ):
            self._last_line = now
            note(line)

    def _draw(self, rounds: int, clients: int, cohort: int) -> None:
        """Draw how many rounds have ended, and how many clients of the cohort in the next one."""
        rounds_bar = _bar("rounds", rounds, self._total, self._round_note)
        self.update(self._head, rounds_bar, _bar("clients", clients, cohort))

    def _line(self, record: RoundRecord, total: int) -> str:
        done = record.round_index + 1
        loss = "-" if record.loss is None else f"{record.loss:.4f}"
        parts = [
            _round(done, total, 0 if self._rounds is None else total - self._rounds),
            f"loss {loss}",
            f"spread {record.std_ratio:.2f}" + (" (collapsed)" if record.collapsed else ""),
            size(record.bytes_up + record.bytes_down),
        ]
        shown = {name: record.metrics[name] for name in main_metrics(record.metrics)}
        if self.verbose:
            shown = {**record.parts, **record.metrics}
        parts += [f"{name} {value:.4f}" for name, value in shown.items()]
        left = f"{duration(record.seconds * (total - done))} left"
        parts.append(left if done < total else "evaluating")
        return " · ".join(parts)


def _round(done: int, total: int, preparatory: int) -> str:
    return f"round {done}/{total}" + " (preparatory)" * (done <= preparatory)


def _bar(name: str, done: int, total: int, text: str = "", share: float | None = None) -> str:
    filled = int(_BAR * (done / max(total, 1) if share is None else share))
    return f"  {name:<7} {'━' * filled}{'┄' * (_BAR - filled)} {done}/{total} {text}"


class SweepProgress(Status):
    """Runs of a study or a sweep: current ones on a terminal, a line per finished run in a pipe.

    A terminal shows how long the command has taken, how long it will, and a bar of the whole, all
    of which move every second. With `verbose` it gets the lines of finished runs too.
    """

    def __init__(self, title: str, *, quiet: bool = False, verbose: bool = False) -> None:
        super().__init__(title, quiet=quiet, verbose=verbose)
        self._running: dict[str, CellProgress] = {}
        self._head = f"{title} · {self.first_step}"
        self._done = self._total = 0
        self._began = time.monotonic()
        self._left: tuple[float, float] | None = None  # seconds, as of a moment

    def __call__(self, event: Event) -> None:
        """Show an event."""
        if isinstance(event, Estimating):
            self._head = f"{self.title} · timing {event.label}"
            if not (self.live or self.quiet):
                note(self._head)
            return
        if isinstance(event, CellsBegan):
            self._begin(event)
            return
        if event.eta_seconds is not None:
            self._left = event.eta_seconds, time.monotonic()
        self._head = self.title
        if isinstance(event, CellProgress):
            self._running[event.id] = event
        else:
            self._running.pop(event.id, None)
            self._end(event)

    def lines(self) -> tuple[str, ...]:
        """Return time, bar and current runs."""
        head = f"{self._head} · {self._elapsed()}"
        if not self._total:
            return (head,)
        # Rich draws in a thread of its own: a copy, since events change the original meanwhile.
        running = [*self._running.values()]
        shown = [f"  {_state(event)}" for event in running[:_SHOWN_RUNS]]
        if len(running) > _SHOWN_RUNS:
            shown.append(f"  and {len(running) - _SHOWN_RUNS} more")
        if self._left is not None and self._done < self._total:
            seconds, moment = self._left
            head += f", {duration(max(0.0, seconds - (time.monotonic() - moment)))} left"
        share = (self._done + sum(e.round / max(1, e.total) for e in running)) / self._total
        return head, _bar("runs", self._done, self._total, share=share), *shown

    def _elapsed(self) -> str:
        return f"{duration(int(time.monotonic() - self._began))} so far"

    def _begin(self, event: CellsBegan) -> None:
        self._done, self._total = event.done, event.total
        device = f"{event.gpus:g} GPU each" if event.gpus else "cpu"
        number = "as many as the cluster holds" if event.concurrency is None else event.concurrency
        last = f", the last {event.checks} to compare the best trial with the preset"
        text = (
            f"{self.title} · {event.total - event.done} to run, {event.done} of {event.total} in"
            f" the store already{last * bool(event.checks)} · {number} at a time, {device}"
        )
        self._head = f"{text} · starting Ray"
        if not (self.live or self.quiet):
            note(text)

    def _end(self, event: CellDone) -> None:
        self._done, self._total = event.done, event.total
        shown = not self.live or self.verbose or event.status in ("error", "diverged")
        if self.quiet or not shown:
            return
        objective = "" if event.objective is None else f" · objective {event.objective:.4f}"
        error = f" · {event.error}" if event.error else ""
        left = ""
        if event.done < event.total and event.eta_seconds is not None:
            left = f" · {self._elapsed()}, {duration(event.eta_seconds)} left"
        status = "run by another process" if event.status == "elsewhere" else event.status
        note(
            f"{event.done}/{event.total} · {event.label} · {status}{objective}"
            f" · {duration(event.seconds)}{error}{left}"
        )


def _state(event: CellProgress) -> str:
    if not event.round:
        return event.label
    loss = "-" if event.loss is None else f"{event.loss:.4f}"
    collapsed = " · collapsed" if event.collapsed else ""
    done = _round(event.round, event.total, event.preparatory)
    return f"{event.label} · {done} · loss {loss}{collapsed}"


class StudyProgress(SweepProgress):
    """Trials of a study, and the best that have ended since the call."""

    _best: tuple[float, str] | None = None
    _objective: str | None

    def __init__(self, title: str, objective: str | None = None, **verbosity: bool) -> None:
        super().__init__(title, **verbosity)
        self._objective = objective  # to be explained before the first score

    def _begin(self, event: CellsBegan) -> None:
        if self._objective is not None and not self.quiet:
            from fedbench.bench.tuning.scoring import Scoring  # loads torch, as the search has

            one = Scoring(self._objective).objective
            note(f"objective: {one.formula}; higher is better, no label is read")
            if getattr(one, "refuted", False):
                note(f"{DEFAULT} ordered runs better (leaderboards/studies/confirmation)")
            self._objective = None
        super()._begin(event)

    def _end(self, event: CellDone) -> None:
        score, best = event.objective, self._best
        if event.status == "ok" and event.label.startswith("trial") and score is not None:
            self._best = (score, event.label) if best is None or score > best[0] else best
        super()._end(event)

    def lines(self) -> tuple[str, ...]:
        """Return time, bar, the best trial and current runs."""
        lines = super().lines()
        if self._best is None:
            return lines
        best = f"  best of this call {self._best[0]:.4f} · {self._best[1]}"
        return *lines[:2], best, *lines[2:]


class DecodingProgress(Status):
    """Number of images decoded so far; nothing in a pipe."""

    first_step = "reading"

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` images are decoded."""
        self.update(f"{self.title} · {done:,} of {total:,} images")
