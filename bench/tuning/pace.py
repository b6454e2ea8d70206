"""Time left of runs beside each other, from how long others took and how far each has come."""

import math
from dataclasses import dataclass
from statistics import fmean


@dataclass
class _Running:
    began: float
    first: tuple[float, float] | None = None  # moment and share of its first report
    share: float = 0.0  # of its rounds

    def left(self, now: float, usual: float | None) -> float | None:
        """Return the seconds until it ends: by the usual length, else by its own rounds."""
        if usual is not None and now - self.began < usual:
            return usual - (now - self.began)
        if self.first is None or self.share <= self.first[1]:
            return None if usual is None else 0.0
        at, before = self.first
        return (1 - self.share) * (now - at) / (self.share - before)


class Pace:
    """Predicts when the last run ends; moments are of any clock, in seconds."""

    def __init__(self) -> None:
        self._running: dict[str, _Running] = {}
        self._lengths: list[float] = []

    def began(self, run: str, now: float) -> None:
        """Note the start of a run."""
        self._running[run] = _Running(now)

    def reported(self, run: str, share: float, now: float) -> None:
        """Note the share of its rounds that a run has done, in [0, 1]."""
        if (one := self._running.get(run)) is not None:
            one.first, one.share = one.first or (now, share), share

    def ended(self, run: str, now: float, *, counts: bool = True) -> None:
        """Note the end of a run; one that died, say, does not count for the length of others."""
        if (one := self._running.pop(run, None)) is not None and counts:
            self._lengths.append(now - one.began)

    def left(self, waiting: int, at_a_time: int, now: float) -> float | None:
        """Return the seconds until all running and `waiting` runs have ended; None if unknown."""
        usual = fmean(self._lengths) if self._lengths else None
        known = [one.left(now, usual) for one in self._running.values()]
        running = [seconds for seconds in known if seconds is not None]
        if usual is None and running:
            usual = fmean(
                now - one.began + seconds
                for one, seconds in zip(self._running.values(), known, strict=True)
                if seconds is not None
            )
        if usual is None or len(running) < len(known):
            return None if usual is None else usual * math.ceil((waiting + len(known)) / at_a_time)
        if not waiting:
            return max(running, default=0.0)
        return sum(running) / at_a_time + usual * math.ceil(waiting / at_a_time)
