"""Successive halving: the rounds and the trials of its rungs, and the decision after one.

Trials of a bracket are trained for a few rounds each, the best share for more, and so on to the
configured rounds. A decision follows from the finished records of one rung and from nothing else:
ASHA, which Ray Tune and Optuna have, promotes by what has arrived, so that timing and kills would
change which trials go on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedbench.bench.system.errors import ConfigError

NONE, HALVING = FIDELITIES = ("none", "halving")
ETA = 4  # 16 trials in 3 rungs then take 16 % of the rounds of as many whole runs
RUNGS = 3  # default number of rungs; fewer where rounds or trials do not suffice


@dataclass(frozen=True)
class Halving:
    """Rungs of every bracket of a study."""

    eta: int  # one trial in so many goes on after a rung
    rounds: tuple[int, ...]  # configured rounds after which rungs end; the last is the whole run
    size: int  # trials of a bracket, which compete with each other

    def brackets(self, total: int) -> list[range]:
        """Return the numbers of the trials of each bracket; refuse a bracket that is not full."""
        if rest := total % self.size:
            raise ConfigError(
                f"--trials {total}: must be a multiple of {self.size} (a bracket); give"
                f" {total - rest + self.size}"
            )
        return [range(start, start + self.size) for start in range(0, total, self.size)]

    def counts(self, rung: int = 0, trials: int | None = None) -> list[int]:
        """Return the number of trials at a rung, by default a whole bracket, and at later ones."""
        counts = [self.size if trials is None else trials]
        for _ in self.rounds[rung + 1 :]:
            counts.append(min(counts[-1], max(1, counts[-1] // self.eta)))
        return counts

    def as_dict(self) -> dict[str, Any]:
        """Return what belongs to the identity of a study."""
        rounds, sizes = list(self.rounds), [self.size]
        return {"name": HALVING, "eta": self.eta, "rounds": rounds, "sizes": sizes}


def make_halving(
    eta: int | None, rungs: int | None, *, rounds: int, least_rounds: int, size: int
) -> Halving:
    """Return the rungs of a search for a bracket of `size` trials.

    Every rung reaches every phase of the method, for which it needs `least_rounds`. Without `rungs`
    there are `RUNGS`, or as many as the rounds and trials suffice for; too many are refused.
    """
    eta = ETA if eta is None else eta

    def problem(number: int) -> str | None:
        ends = _ends(rounds, eta, number)
        if sorted({*ends}) != ends or ends[0] < max(1, least_rounds):
            needed = f" and the method needs {least_rounds}" if least_rounds > 1 else ""
            return f"would end after {', '.join(map(str, ends))} rounds{needed}"
        if size < eta ** (number - 1):
            return f"need at least {eta ** (number - 1)} trials in a bracket, which has {size}"
        return None

    if rungs is None:
        rungs = next((n for n in range(RUNGS, 2, -1) if problem(n) is None), 2)
    if text := problem(rungs):
        raise ConfigError(
            f"--fidelity halving: {rungs} rungs with --eta {eta} {text}; give fewer --rungs,"
            " another --eta, or more rounds and trials"
        )
    return Halving(eta, tuple(_ends(rounds, eta, rungs)), size)


def _ends(rounds: int, eta: int, rungs: int) -> list[int]:
    """Return the rounds after which rungs end; integers only, so that none is rounded wrongly."""
    return [-(-rounds // eta**left) for left in range(rungs - 1, -1, -1)]


def decide(records: Mapping[int, Mapping[str, Any]], keep: int) -> list[int]:
    """Return the numbers of the trials that go on after a rung, `keep` at most, the best first.

    Trials with the highest scores go on, those that a gate refused after all others; ties: the
    first. Trials without a score (diverged, failed) never go on.
    """
    places = {
        number: (record["status"] != "ok", -record["score"], number)
        for number, record in records.items()
        if record["score"] is not None and record["status"] in ("ok", "refused")
    }
    return sorted(places, key=lambda number: places[number])[:keep]
