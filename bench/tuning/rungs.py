"""Brackets of successive halving: their trials, their rounds, and the decision after a rung.

Trials of a bracket are trained for a few rounds each, the best share for more, and so on to the
configured rounds. A decision follows from the finished records of one rung and from nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from typing import Any

from fedbench.bench.system.errors import ConfigError, UnknownNameError

NONE, HALVING, HYPERBAND = FIDELITIES = ("none", "halving", "hyperband")
ETA = 4
RUNGS = 3
"""Default number of rungs; fewer where rounds or trials do not suffice."""
FINISHED_ONLY = ("gp", "cmaes")
"""Samplers that learn nothing from a trial that was not run to its end."""


@dataclass(frozen=True)
class Bracket:
    """Trials that compete with each other.

    Attributes:
        index: position in the study, from 0.
        trials: numbers of its trials.
        rounds: configured rounds after which its rungs end; the last is the whole run.
        eta: one trial in so many goes on after a rung.
    """

    index: int
    trials: range
    rounds: tuple[int, ...]
    eta: int

    def counts(self, rung: int = 0, trials: int | None = None) -> list[int]:
        """Return the number of trials at a rung and at each later one.

        Args:
            rung: the first.
            trials: number at this rung; None = the whole bracket at rung 0.
        """
        left = len(self.trials) if trials is None else trials
        counts = [left]
        for _ in self.rounds[rung + 1 :]:
            counts.append(min(counts[-1], max(1, counts[-1] // self.eta)))
        return counts


@dataclass(frozen=True)
class Fidelity:
    """Rounds as the fidelity of a search.

    Attributes:
        name: `halving` or `hyperband`.
        eta: one trial in so many goes on after a rung.
        rounds: configured rounds after which rungs end; the last is the whole run.
        sizes: trials of the brackets, in order, after which they repeat.
    """

    name: str
    eta: int
    rounds: tuple[int, ...]
    sizes: tuple[int, ...]

    def brackets(self, total: int) -> list[Bracket]:
        """Return the brackets of a study.

        Raises:
            ConfigError: if the trials do not fill the last one.
        """
        brackets: list[Bracket] = []
        start = 0
        while start < total:
            position = len(brackets) % len(self.sizes)
            stop = start + self.sizes[position]
            skipped = position if self.name == HYPERBAND else 0
            rounds = self.rounds[skipped:]
            brackets.append(Bracket(len(brackets), range(start, stop), rounds, self.eta))
            start = stop
        if start != total:
            below = brackets[-1].trials.start
            allowed = f"{below} or {start}" if below else f"{start}"
            raise ConfigError(
                f"--trials {total}: brackets of {self.name} have"
                f" {', '.join(map(str, self.sizes))} trials; give {allowed}"
            )
        return brackets

    def as_dict(self) -> dict[str, Any]:
        """Return what belongs to the identity of a study."""
        return {
            "name": self.name,
            "eta": self.eta,
            "rounds": list(self.rounds),
            "sizes": list(self.sizes),
        }


def check_fidelity(name: str, sampler: str, batch_size: int | None) -> None:
    """Check that a fidelity goes with the other options of a search.

    Raises:
        ConfigError: if it does not.
    """
    if name != NONE and sampler in FINISHED_ONLY:
        raise ConfigError(
            f"--sampler {sampler}: learns from trials that were run to their end, and --fidelity"
            f" {name} runs few of them; use --sampler tpe, random or sobol"
        )
    if name == HYPERBAND and batch_size is not None:
        raise ConfigError(f"--batch {batch_size}: --fidelity {name} has brackets of its own")


def make_fidelity(
    name: str,
    *,
    eta: int | None,
    rungs: int | None,
    rounds: int,
    least_rounds: int,
    size: int,
) -> Fidelity | None:
    """Return the fidelity of a search; None for `none`.

    Args:
        name: one of `FIDELITIES`.
        eta: one trial in so many goes on after a rung; None = `ETA`.
        rungs: number of rungs; None = `RUNGS`, or as many as the rounds and trials suffice for.
        rounds: configured rounds of a run.
        least_rounds: rounds that reach every phase of the method.
        size: trials of a bracket of `halving`; `hyperband` has sizes of its own.

    Raises:
        UnknownNameError: for an unknown name.
        ConfigError: for options that the rounds or the trials do not suffice for.
    """
    if name not in FIDELITIES:
        raise UnknownNameError("fidelity", name, FIDELITIES)
    if name == NONE:
        for option, value in (("--eta", eta), ("--rungs", rungs)):
            if value is not None:
                raise ConfigError(f"{option} {value}: needs --fidelity halving or hyperband")
        return None
    eta = ETA if eta is None else eta
    for option, value in (("--eta", eta), ("--rungs", 2 if rungs is None else rungs)):
        if value < 2:
            raise ConfigError(f"{option}: must be at least 2 (got {value})")

    def problem(number: int) -> str | None:
        ends = _ends(rounds, eta, number)
        if sorted({*ends}) != ends or ends[0] < max(1, least_rounds):
            needed = f" and the method needs {least_rounds}" if least_rounds > 1 else ""
            return f"would end after {', '.join(map(str, ends))} rounds{needed}"
        if name == HALVING and size < eta ** (number - 1):
            return f"need at least {eta ** (number - 1)} trials in a bracket, which has {size}"
        return None

    if rungs is None:
        rungs = next((n for n in range(RUNGS, 2, -1) if problem(n) is None), 2)
    if text := problem(rungs):
        raise ConfigError(
            f"--fidelity {name}: {rungs} rungs with --eta {eta} {text}; give fewer --rungs, another"
            " --eta, or more rounds and trials"
        )
    sizes = (size,)
    if name == HYPERBAND:
        sizes = tuple(ceil(rungs / (s + 1) * eta**s) for s in range(rungs - 1, -1, -1))
    return Fidelity(name, eta, tuple(_ends(rounds, eta, rungs)), sizes)


def _ends(rounds: int, eta: int, rungs: int) -> list[int]:
    """Return the rounds after which rungs end; integers only, so that none is rounded wrongly."""
    return [-(-rounds // eta**left) for left in range(rungs - 1, -1, -1)]


def batch_end(sizes: Sequence[int], number: int) -> int:
    """Return the number after the last trial of a trial's batch.

    Args:
        sizes: of the batches, in order, after which they repeat.
        number: of the trial.
    """
    before = number - number % sum(sizes)
    return next(before + end for end in accumulate(sizes) if before + end > number)


def decide(
    bracket: Bracket, rung: int, records: Iterable[Mapping[str, Any]], keep: int
) -> dict[str, Any]:
    """Return the decision after a rung, as its file holds it.

    Trials with the highest scores go on, those that a gate refused after all others; ties: the
    first. Trials without a score (diverged, failed) never go on.

    Args:
        bracket: the bracket.
        rung: the rung, from 0.
        records: of all trials of the rung: `number status score seed_objectives`.
        keep: number of trials that may go on; 0 after the last rung.
    """
    members = sorted(records, key=lambda record: record["number"])
    usable = [m for m in members if m["score"] is not None and m["status"] in ("ok", "refused")]
    ranked = sorted(usable, key=lambda m: (m["status"] != "ok", -m["score"], m["number"]))
    return {
        "bracket": bracket.index,
        "rung": rung,
        "round": bracket.rounds[rung],
        "trials": [
            {key: member[key] for key in ("number", "status", "score", "seed_objectives")}
            for member in members
        ],
        "kept": [member["number"] for member in ranked[:keep]],
    }
