"""Who reproduced which rows: records that others stored, compared again whenever they are read.

`reproductions/<row_id>/<hash>.json` of a store holds the row that a repetition gave, who did it,
and the hash of the results that it was compared with. A record counts if the comparison, made
again, succeeds, and if its author neither submitted the row nor counts already.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from fedbench.bench.board.bundle import Person, read_manifest
from fedbench.bench.board.checks import data_of
from fedbench.bench.execution.compare import Reproduction, Verdict, judge
from fedbench.bench.results.store.files import list_folder
from fedbench.bench.results.store.replicas import platform_of, replica_hash
from fedbench.bench.results.store.row import Row, first_problem
from fedbench.bench.results.store.store import REPRODUCTIONS, SUBMISSIONS, Store
from fedbench.bench.system.checksums import json_with_checksum, parse_json
from fedbench.bench.system.errors import FedbenchError
from fedbench.bench.system.files import atomic_write_text, read_regular

_LARGEST, _LARGEST_MANIFEST = 2**20, 2**26


class _Content(BaseModel):
    format: Literal[1] = 1
    row_id: str
    claimed: str
    by: Person
    row: Row


@dataclass(frozen=True)
class Repetition:
    """One reproduction by somebody."""

    file: str
    by: Person | None = None
    platform: str = ""  # of the repetition; empty if the record cannot be read
    verdict: Verdict | None = None  # of the comparison, made again; None if it could not be made
    limit: float | None = None  # difference of an accuracy allowed between platforms
    reason: str = ""  # why it does not count; empty if it does


@dataclass(frozen=True)
class Reproduced:
    """Reproductions of one row: how many people count, who submitted it, and all records."""

    run_id: str
    count: int
    submitted_by: tuple[Person, ...]
    records: tuple[Repetition, ...]


def record_reproduction(store: Store, result: Reproduction, who: Person) -> Path:
    """Store a reproduction (`REPRODUCED`) of a row that the store has, and return its file."""
    content = _Content(
        row_id=result.run_id, claimed=replica_hash(result.claimed), by=who, row=result.row
    )
    text = json_with_checksum(content.model_dump(mode="json"), indent=1) + "\n"
    name = hashlib.sha256(text.encode()).hexdigest()[:20]
    file = store.root / REPRODUCTIONS / result.run_id / f"{name}.json"
    atomic_write_text(file, text)
    return file


def reproductions(store: Store) -> dict[str, Reproduced]:
    """Return the reproductions of the rows of a store that have records, by row id."""
    folders = [path for path in list_folder(store.root / REPRODUCTIONS) if path.is_dir()]
    if not folders:
        return {}
    rows, found = store.rows(), {}
    submitters, unreadable = _submitters(store)
    for folder in folders:
        claimed = {replica_hash(row): row for row in rows if row.row_id == folder.name}
        if not claimed:
            continue
        by = tuple(dict.fromkeys(submitters.get(folder.name, [])))
        dataset = data_of(next(iter(claimed.values())).dataset_revision, None)
        num_test = None if dataset is None else len(dataset.test_labels)
        records, seen = [], {person.identity: "by who submitted the row" for person in by}
        for file in list_folder(folder):
            if file.suffix == ".json" and file.name[0] != ".":
                record = _record(file, claimed, rows, num_test)
                name = "" if record.by is None else record.by.identity
                reason = record.reason or unreadable or seen.get(name, "")
                if not reason:
                    seen[name] = "by a person who counts already"
                records.append(replace(record, reason=reason))
        count = sum(not record.reason for record in records)
        found[folder.name] = Reproduced(folder.name, count, by, tuple(records))
    return found


def _record(
    file: Path, claimed: Mapping[str, Row], rows: Sequence[Row], num_test: int | None
) -> Repetition:
    """Read a record and compare its row again."""
    record = Repetition(str(file))
    try:
        plain = parse_json(read_regular(file, _LARGEST))
        content = _Content.model_validate_json(json.dumps(plain))
    except ValidationError as err:
        return replace(record, reason=first_problem(err))
    except (OSError, ValueError) as err:
        return replace(record, reason=str(err))
    again, row = content.row, claimed.get(content.claimed)
    record = replace(record, by=content.by, platform=platform_of(again))
    if row is None:
        return replace(record, reason="no row in the store matches this record")
    if (again.started_at, again.finished_at) == (row.started_at, row.finished_at):
        return replace(record, reason="it is the row itself, not a repetition")
    if again.row_id != row.row_id or again.measured_from is not None:
        return replace(record, reason=f"it is of run {again.measured_from or again.row_id}")
    if num_test is None:
        return replace(record, reason="its data revision is not known here")
    try:
        judged = judge(row, again, rows, num_test)
    except FedbenchError as err:  # of another version, or of a plugin that is gone
        return replace(record, reason=str(err))
    return replace(record, verdict=judged.verdict, limit=judged.limit, reason=judged.reason)


def _submitters(store: Store) -> tuple[dict[str, list[Person]], str]:
    """Return who submitted each row, by row id, and which manifest cannot be read, if any."""
    found: dict[str, list[Person]] = {}
    for file in list_folder(store.root / SUBMISSIONS):
        if file.suffix == ".json":
            try:
                manifest = read_manifest(read_regular(file, _LARGEST_MANIFEST))
            except (ValueError, OSError) as err:
                return {}, f"who submitted rows cannot be read: {file.name}: {err}"
            if manifest.by is not None:
                for row_id in manifest.rows:
                    found.setdefault(row_id, []).append(manifest.by)
    return found, ""
