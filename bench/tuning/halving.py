"""Runs of a study by successive halving, continued from rung to rung.

Every trial has a record per rung and every rung a decision, as JSON with a checksum, in
`bracket-<n>/` of the study's folder. A restarted study reads the records, decides again and
compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedbench.bench.config import RunConfig
from fedbench.bench.evaluation.objectives.names import GATE
from fedbench.bench.evaluation.objectives.of_clients import OF_CLIENTS
from fedbench.bench.results.leaderboard.statistics import mean
from fedbench.bench.results.leaderboard.studies import mean_ranks
from fedbench.bench.system.checksums import json_with_checksum, parse_json
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.files import atomic_write_text
from fedbench.bench.system.identity import canonical_json
from fedbench.bench.tuning.job import Job
from fedbench.bench.tuning.rungs import Halving, decide
from fedbench.bench.tuning.study_plan import Params
from fedbench.bench.tuning.trials import Open, Trials, check_params


@dataclass
class _Bracket:
    """A bracket whose trials have no record in the store yet.

    Attributes:
        index: position in the study, from 0.
        rung: the rung that its trials run to, from 0.
        waiting: numbers of the trials that have not reached it.
        records: records of those that have.
        retried: numbers of those that failed once.
    """

    index: int
    rung: int = 0
    waiting: set[int] = field(default_factory=set)
    records: dict[int, dict[str, Any]] = field(default_factory=dict)
    retried: set[int] = field(default_factory=set)


class RungTrials(Trials):
    """The runs of a study, rung by rung; takes the arguments of `Trials`.

    A trial gets its record in the store when it falls or reaches the last rung. A trial that failed
    is run once more; if it fails again it falls. If all trials of a rung fail nothing is decided:
    the next command runs them again.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        plan = self._plan
        assert plan.halving is not None
        self._halving: Halving = plan.halving
        self._running: dict[int, _Bracket] = {}
        runs = stored = 0
        planned = sum(self._halving.counts())
        for index, trials in enumerate(self._halving.brackets(plan.total)):
            runs += planned
            if all(number in self._records for number in trials):
                stored += planned
                continue
            stored += len([*self._folder(index).glob("rung-*.trial-*.json")])
            bracket = _Bracket(index, waiting={*trials})
            self._running.update(dict.fromkeys(trials, bracket))
        self.total = runs * len(plan.seeds) + len(self._before)
        self.ended = min(runs, stored) * len(plan.seeds)

    def _folder(self, index: int) -> Path:
        folder = self._plan.store.root / "trials" / self._plan.study_id
        return folder / f"bracket-{index:04d}"

    def _path(self, bracket: _Bracket, number: int) -> Path:
        return self._folder(bracket.index) / f"rung-{bracket.rung}.trial-{number:04d}.json"

    def _begin(self, number: int, params: Params) -> None:
        bracket = self._running[number]
        stored = _read(self._path(bracket, number))
        if stored is None:
            super()._begin(number, params)
            return
        check_params(repr(str(self._path(bracket, number))), stored["params"], params)
        self._reached(bracket, number, stored)

    def _job(self, name: str, config: RunConfig, label: str, number: int | None = None) -> Job:
        job = super()._job(name, config, label, number)
        if number is None:
            return job
        bracket = self._running[number]
        rungs = len(self._halving.rounds)
        last = bracket.rung == rungs - 1
        return replace(
            job,
            label=f"{label} · rung {bracket.rung + 1}/{rungs}",
            until_round=None if last else self._halving.rounds[bracket.rung],
        )

    def _close(self, number: int, trial: Open) -> None:
        bracket, record = self._running[number], self._summary(trial)
        known = [value for value in record["seed_objectives"] if value is not None]
        record["score"] = mean(known)  # also of a trial that the gate refuses
        del self._open[number]
        if record["status"] == "error":
            if trial.error is None and number not in bracket.retried:
                bracket.retried.add(number)
                self.total += len(self._plan.seeds)
                super()._begin(number, trial.params)
                return
        else:
            self._write(bracket, number, record)
        self._reached(bracket, number, record)

    def _write(self, bracket: _Bracket, number: int, record: Mapping[str, Any]) -> None:
        atomic_write_text(self._path(bracket, number), json_with_checksum(record, indent=2) + "\n")

    def _reached(self, bracket: _Bracket, number: int, record: Mapping[str, Any]) -> None:
        """Take the record of a trial at a rung; decide after the last one."""
        bracket.records[number] = {**record, "number": number}
        bracket.waiting.discard(number)
        if not bracket.waiting:
            self._decide(bracket)

    def _rank(self, records: dict[int, dict[str, Any]]) -> None:
        """Score the trials of a rung by their ranks in it."""
        one = OF_CLIENTS[self._plan.scoring.name.removesuffix(GATE)]
        ranks = mean_ranks(one, {number: record["scores"] for number, record in records.items()})
        for number, record in records.items():
            record["score"] = record["objective"] = ranks.get(number)

    def _decide(self, bracket: _Bracket) -> None:
        halving, rung, records = self._halving, bracket.rung, bracket.records
        failed = [n for n in sorted(records) if records[n]["status"] == "error"]
        counts = halving.counts(rung, len(records))
        if self._plan.scoring.ranked:
            self._rank(records)
        if len(failed) == len(records):
            self.total -= sum(counts[1:]) * len(self._plan.seeds)
            for number in failed:
                self._finish(number, _without_number(records[number]))
            return
        for number in failed:  # from now on others depend on it
            self._write(bracket, number, _without_number(records[number]))
        last = rung == len(halving.rounds) - 1
        kept = decide(records.values(), 0 if last else counts[1])
        members = [records[number] for number in sorted(records)]
        fields = ("number", "status", "score", "seed_objectives")
        decision = {
            "bracket": bracket.index,
            "rung": rung,
            "round": halving.rounds[rung],
            "trials": [{key: member[key] for key in fields} for member in members],
            "kept": kept,
        }
        path = self._folder(bracket.index) / f"rung-{rung}.json"
        stored = _read(path)
        if stored is None:
            atomic_write_text(path, json_with_checksum(decision, indent=2) + "\n")
        elif canonical_json(stored) != canonical_json(decision):
            raise StoreError(
                f"{str(path)!r} does not follow from the records of its rung: one of them was"
                f" altered; delete the folder {str(path.parent)!r} to run its trials again, or use"
                " another study name"
            )
        bracket.rung, bracket.records, bracket.waiting = rung + 1, {}, {*kept}
        bracket.retried.clear()
        fewer = sum(counts[1:]) - (sum(halving.counts(rung + 1, len(kept))) if kept else 0)
        self.total -= fewer * len(self._plan.seeds)
        for number in sorted(records):
            if number not in kept:
                record = _without_number(records[number])
                pruned = not last and record["status"] == "ok"
                place = {"bracket": bracket.index, "rung": rung, "rounds": halving.rounds[rung]}
                self._finish(
                    number, {**record, **place, **({"status": "pruned"} if pruned else {})}
                )
        for number in sorted(kept):
            self._begin(number, records[number]["params"])


def _without_number(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "number"}


def _read(path: Path) -> dict[str, Any] | None:
    """Return the content of a file, whose checksum fits; None if there is none.

    Raises:
        StoreError: if it cannot be read, or is torn or altered.
    """
    try:
        return parse_json(path.read_bytes(), required=True)
    except FileNotFoundError:
        return None
    except OSError as err:
        raise StoreError(f"cannot read {str(path)!r}: {err.strerror or err}") from err
    except ValueError as err:
        raise StoreError(
            f"{str(path)!r}: {err}; delete the folder {str(path.parent)!r} to run its trials again"
        ) from err


def ended_brackets(
    brackets: Sequence[range], records: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return the records of the brackets in which every trial has one that stays.

    An error stays if a rung was decided after it, which its `rung` shows.
    """
    by_number = {
        record["number"]: record
        for record in records
        if record["status"] != "error" or "rung" in record
    }
    return [
        by_number[number]
        for bracket in brackets
        if all(number in by_number for number in bracket)
        for number in bracket
    ]
