"""All checks of rows that need no run, over a bundle or over the rows of a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedbench.bench.board.bundle import Entry
from fedbench.bench.board.checks import CHECKS, Claim, Point, Unchecked, points_of
from fedbench.bench.board.copies import Copies
from fedbench.bench.board.data_facts import DataFacts, facts_of
from fedbench.bench.board.expected import Expected, expected
from fedbench.bench.config import RunConfig
from fedbench.bench.results.store.store import Store
from fedbench.bench.runs.run import canonical
from fedbench.bench.system.errors import FedbenchError, StoreError

FILES, COPIES = "files", "copies"
"""Names of the two checks that are not of a row alone."""


@dataclass(frozen=True)
class Problem:
    """A contradiction.

    Attributes:
        row_id: of the row; empty for the bundle as a whole.
        check: its name.
        problem: one line.
    """

    row_id: str
    check: str
    problem: str


@dataclass(frozen=True)
class CheckCount:
    """Outcome of one check over all rows.

    Attributes:
        check: its name.
        about: what it compares.
        passed, failed, unchecked: rows.
        reason: why it could not be made for the first of the unchecked rows; else empty.
    """

    check: str
    about: str
    passed: int
    failed: int
    unchecked: int
    reason: str


@dataclass(frozen=True)
class Checked:
    """Outcome of all checks.

    Attributes:
        checks: counts by check, in their order.
        problems: contradictions, by row.
        notes: remarks that are no contradiction.
    """

    checks: tuple[CheckCount, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]


class Checker:
    """Makes the checks that need no run.

    Args:
        board: rows that are there already, to find copies among.
        data_dir: cache of data sets; None = the default one.
        checkout: clone of the project whose commits are known; None = that of this fedbench.
        studies: store of the studies that rows name; None = there are none.
    """

    def __init__(
        self,
        board: Iterable[Entry] = (),
        data_dir: Path | None = None,
        checkout: Path | None = None,
        studies: Store | None = None,
    ) -> None:
        self._studies = studies
        self._known_studies = () if studies is None else frozenset(studies.studies())
        self._copies = Copies(tuple(board))
        self._data_dir = data_dir
        self._checkout = _own_checkout() if checkout is None else checkout
        self._facts: dict[str, DataFacts | None] = {}
        self._counts: dict[str, Counter[str]] = {
            name: Counter() for name in (FILES, *CHECKS, COPIES)
        }
        self._reasons: dict[str, str] = {}
        self._problems: list[Problem] = []
        self._notes: list[str] = []

    def file_problem(self, row_id: str, problem: str) -> None:
        """Count a row whose files are not whole, or one fault of the bundle."""
        self._counts[FILES]["failed"] += 1
        self._problems.append(Problem(row_id, FILES, problem))

    def note(self, text: str) -> None:
        """Add a remark that is no contradiction."""
        self._notes.append(text)

    def __call__(self, entry: Entry) -> None:
        """Check one row and its curve, and remember it for those that follow."""
        row = entry.row
        self._counts[FILES]["passed"] += 1
        points: tuple[Point, ...] = ()
        try:
            points = points_of(entry.points)
        except StoreError as err:
            self._tell(row.row_id, "rounds", [str(err)])
        claim = self._claim(entry, points)
        for name, (check, _) in CHECKS.items():
            if name == "rounds" and entry.points and not points:
                continue  # told above
            try:
                found = list(check(claim))
            except Unchecked as why:
                self._counts[name]["unchecked"] += 1
                self._reasons.setdefault(name, str(why))
                continue
            except (StoreError, TypeError, ValueError, KeyError, AttributeError) as err:
                found = [" ".join(f"a value of another kind than fedbench writes: {err}".split())]
            self._tell(row.row_id, name, found)
        self._tell(row.row_id, COPIES, list(self._copies.problems(entry)))
        self._notes += self._copies.notes(entry)
        if row.study_id is not None and row.study_id not in self._known_studies:
            self._notes.append(
                f"run {row.row_id} is said to be tuned: its study {row.study_id} is not here"
            )
        self._copies.add(entry)

    def result(self) -> Checked:
        """Return the outcome so far."""
        about: Mapping[str, str] = {
            FILES: "in the manifest, SHA-256 equal, schema",
            **{name: text for name, (_, text) in CHECKS.items()},
            COPIES: "no numbers of another seed, one partition for one seed",
        }
        counts = tuple(
            CheckCount(
                name,
                about[name],
                count["passed"],
                count["failed"],
                count["unchecked"],
                self._reasons.get(name, ""),
            )
            for name, count in self._counts.items()
        )
        return Checked(counts, tuple(self._problems), tuple(dict.fromkeys(self._notes)))

    def _tell(self, row_id: str, check: str, found: list[str]) -> None:
        self._counts[check]["failed" if found else "passed"] += 1
        self._problems += [Problem(row_id, check, problem) for problem in found]

    def _claim(self, entry: Entry, points: tuple[Point, ...]) -> Claim:
        row = entry.row
        revision = row.dataset_revision
        if revision not in self._facts:
            self._facts[revision] = facts_of(revision, self._data_dir)
        facts = self._facts[revision]
        config: RunConfig | None = None
        follows: Expected | None = None
        try:
            config = canonical(row.config)
            follows = None if facts is None else expected(config, facts)
        except FedbenchError:
            pass  # the check of the configuration says why
        study = row.study_id if row.study_id in self._known_studies else None
        return Claim(row, facts, config, follows, self._checkout, points, self._studies, study)


def _own_checkout() -> Path | None:
    """Return the clone that this fedbench runs from; None if it is installed as a wheel."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / ".git").exists() else None
