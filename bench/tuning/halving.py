"""Runs of a study by successive halving, continued from rung to rung.

Every trial has a record per rung, as JSON with a checksum, in `bracket-<n>/` of the study's folder.
Which trials go on follows from the records of a rung, so that a restarted study reads these and
decides again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedbench.bench.evaluation.objectives.names import GATE, OF_CLIENTS
from fedbench.bench.results.leaderboard.statistics import mean
from fedbench.bench.results.leaderboard.studies import mean_ranks
from fedbench.bench.system.checksums import json_with_checksum, parse_json
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.files import atomic_write_text
from fedbench.bench.tuning.rungs import decide
from fedbench.bench.tuning.study import Params, Record, Study
from fedbench.bench.tuning.trials import Open, Trials, check_params


@dataclass
class _Bracket:
    """A bracket whose trials have no record in the store yet."""

    folder: Path  # of the records of its rungs
    waiting: set[int]  # numbers of the trials that have not reached the rung
    rung: int = 0
    records: dict[int, Record] = field(default_factory=dict)  # of the trials that have

    def path(self, number: int) -> Path:
        return self.folder / f"rung-{self.rung}.trial-{number:04d}.json"

    def write(self, number: int, record: Record) -> None:
        atomic_write_text(self.path(number), f"{json_with_checksum(record, indent=2)}\n")


class RungTrials(Trials):
    """The runs of a study, rung by rung; takes the arguments of `Trials`.

    A trial gets its record in the store when it falls or reaches the last rung. One that failed
    falls; where no other goes on, at the last rung or if all have failed, the next command runs it
    again.
    """

    def __init__(self, study: Study, records: Sequence[Record]) -> None:
        assert study.halving is not None
        self._halving = study.halving
        self._brackets: dict[int, _Bracket] = {}  # by the numbers of their trials
        stored_before = {record["number"] for record in records}
        super().__init__(study, records)
        brackets, runs, ended = self._halving.brackets(study.total), sum(self._halving.counts()), 0
        for index, trials in enumerate(brackets):
            if stored_before.issuperset(trials):
                ended += runs
                continue
            folder = study.folder / f"bracket-{index:04d}"
            ended += len([*folder.glob("rung-*.trial-*.json")])
            self._brackets.update(dict.fromkeys(trials, _Bracket(folder, {*trials})))
        self.ended = ended * len(study.seeds)
        self.total = runs * len(brackets) * len(study.seeds) + self.checks

    def _begin(self, number: int, params: Params) -> None:
        path = self._brackets[number].path(number)
        if path.exists():  # an earlier command wrote it
            stored = _read(path)
            check_params(repr(str(path)), stored["params"], params)
            self._reached(number, stored)
        else:
            super()._begin(number, params)

    def _stage(self, number: int) -> tuple[str, int | None]:
        rung, rounds = self._brackets[number].rung, self._halving.rounds
        # Not fewer `num_rounds`: ids hash these, and a checkpoint refuses a run of another id.
        until = None if rung == len(rounds) - 1 else rounds[rung]
        return f" · rung {rung + 1}/{len(rounds)}", until

    def _close(self, number: int, trial: Open) -> None:
        bracket, record = self._brackets[number], self._summary(trial)
        known = [value for value in record["seed_objectives"] if value is not None]
        record["score"] = mean(known)  # also of a trial that the gate refuses
        if record["status"] != "error":
            bracket.write(number, record)
        self._reached(number, record)

    def _reached(self, number: int, record: Record) -> None:
        """Take the record of a trial at a rung; decide after the last one."""
        bracket = self._brackets[number]
        bracket.records[number] = record
        bracket.waiting.discard(number)
        if not bracket.waiting:
            self._decide(bracket)

    def _with_ranks(self, records: Mapping[int, Record]) -> dict[int, Record]:
        """Return the records of a rung, scored by their ranks in it if the objective is ranks."""
        if not self._study.scoring.objective.ranked:
            return {**records}
        one = OF_CLIENTS[self._study.scoring.name.removesuffix(GATE)]
        ranks = mean_ranks(one, {number: record["scores"] for number, record in records.items()})
        ranked = dict[int, Record]()
        for number, record in records.items():
            rank, passed = ranks.get(number), record["status"] == "ok"
            ranked[number] = {**record, "score": rank, "objective": rank if passed else None}
        return ranked

    def _decide(self, bracket: _Bracket) -> None:
        """Continue the best trials of a rung, and give the others their records in the store."""
        halving, rung = self._halving, bracket.rung
        records = self._with_ranks({n: bracket.records[n] for n in sorted(bracket.records)})
        failed = [number for number, record in records.items() if record["status"] == "error"]
        bracket.records = {}
        last = rung == len(halving.rounds) - 1
        counts = halving.counts(rung, len(records))  # of trials: here, and to go on
        kept = decide(records, 0 if last else counts[1])
        needless = sum(counts[1:]) - sum(halving.counts(rung + 1, len(kept)))
        self.total -= needless * len(self._study.seeds)
        for number in failed:
            if kept:  # from now on others depend on it
                bracket.write(number, records[number])
            else:
                self._finish(number, records.pop(number))
        bracket.rung, bracket.waiting = rung + 1, {*kept}
        for number in [number for number in records if number not in kept]:
            record = {**records[number], "bracket": number // halving.size}
            record |= {"rung": rung, "rounds": halving.rounds[rung]}
            if not last and record["status"] == "ok":
                record["status"] = "pruned"
            self._finish(number, record)
        for number in sorted(kept):
            self._begin(number, records[number]["params"])


def _read(path: Path) -> Record:
    """Return the record in a file; refuse one that is torn or altered."""
    try:
        return parse_json(path.read_bytes())
    except (OSError, ValueError) as err:
        raise StoreError(
            f"{str(path)!r}: {err}; delete the folder {str(path.parent)!r} to run its trials again"
        ) from err
