"""Who reproduced which rows: records that others stored, compared again whenever they are read.

`reproductions/<row_id>/<hash>.json` of a store holds the whole row that a repetition gave, who did
it, and the hash of the results that it was compared with. A record counts if its comparison, made
again, succeeds, and if its author neither submitted the row nor counts already.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from fedbench.bench.board.bundle import read_manifest
from fedbench.bench.board.checks import Claim, check_configuration, check_environment
from fedbench.bench.board.expected import data_of
from fedbench.bench.board.people import Person, person_from
from fedbench.bench.data.datasets import Dataset
from fedbench.bench.results.store.reader import list_folder
from fedbench.bench.results.store.replicas import platform_of, replica_hash
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import REPRODUCTIONS, SUBMISSIONS, Store
from fedbench.bench.runs.compare import REPRODUCED, Reproduction, Verdict, judge
from fedbench.bench.runs.run import canonical
from fedbench.bench.runs.spread import widest
from fedbench.bench.system.checksums import json_with_checksum, parse_json
from fedbench.bench.system.errors import FedbenchError, StoreError
from fedbench.bench.system.files import atomic_write_text, read_regular

_FORMAT = 1
_LARGEST, _LARGEST_MANIFEST = 2**20, 2**26


@dataclass(frozen=True)
class Record:
    """One reproduction by somebody.

    Attributes:
        file: of the record.
        by: who did it; None if nobody is named.
        platform: numeric platform of the repetition; empty if the record cannot be read.
        verdict: of the comparison, made again; None if it could not be made.
        limit: largest difference of an accuracy that the comparison allows between platforms.
        reason: why it does not count; empty if it does.
    """

    file: str
    by: Person | None = None
    platform: str = ""
    verdict: Verdict | None = None
    limit: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Reproduced:
    """Reproductions of one row: how many people count, who submitted it, and all records."""

    row_id: str
    count: int
    submitted_by: tuple[Person, ...]
    records: tuple[Record, ...]


def record_reproduction(store: Store, result: Reproduction, who: Person) -> Path:
    """Store a reproduction of a row that the store has, and return its file.

    Raises:
        StoreError: for a row that was not reproduced, or a store that cannot be written.
    """
    if result.verdict not in REPRODUCED:
        raise StoreError(f"run {result.row_id} was not reproduced; there is nothing to record")
    content = {
        "format": _FORMAT,
        "row_id": result.row_id,
        "claimed": replica_hash(result.claimed),
        "by": who.as_dict(),
        "row": result.row.model_dump(mode="json"),
    }
    text = json_with_checksum(content, indent=1) + "\n"
    name = hashlib.sha256(text.encode()).hexdigest()[:20]
    file = store.root / REPRODUCTIONS / result.row_id / f"{name}.json"
    atomic_write_text(file, text)
    return file


def reproductions(store: Store, data_dir: Path | None = None) -> dict[str, Reproduced]:
    """Return the reproductions of the rows of a store that have records, by row id.

    Args:
        store: any store; one without a folder of reproductions has none.
        data_dir: cache of data sets; None = the default one.
    """
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
        dataset = data_of(next(iter(claimed.values())).dataset_revision, data_dir)
        records, seen = [], {person.identity: "by who submitted the row" for person in by}
        for file in list_folder(folder):
            if file.suffix == ".json" and file.name[0] != ".":
                record = _record(file, claimed, rows, dataset)
                name = "" if record.by is None else record.by.identity
                reason = record.reason or unreadable or seen.get(name, "")
                if not reason:
                    seen[name] = "by a person who counts already"
                records.append(replace(record, reason=reason))
        count = sum(not record.reason for record in records)
        found[folder.name] = Reproduced(folder.name, count, by, tuple(records))
    return found


def _record(
    file: Path, claimed: Mapping[str, Row], rows: Sequence[Row], dataset: Dataset | None
) -> Record:
    """Read a record and compare its row again."""
    record = Record(str(file))
    try:
        content = parse_json(read_regular(file, _LARGEST), required=True)
        if content.get("format") != _FORMAT:
            raise StoreError(f"format {content.get('format')!r}, this fedbench reads {_FORMAT}")
        record = replace(record, by=person_from(content.get("by")))
        again = Row.model_validate_json(json.dumps(content.get("row")))
        record = replace(record, platform=platform_of(again))
        row = claimed.get(str(content.get("claimed")))
        if row is None:
            raise StoreError("no row in the store matches this record")
        if record.by is None:
            raise StoreError("nobody is named")
        if (again.started_at, again.finished_at) == (row.started_at, row.finished_at):
            raise StoreError("it is the row itself, not a repetition")
        if again.row_id != row.row_id or again.measured_from is not None:
            raise StoreError(f"it is of run {again.measured_from or again.row_id}")
        if dataset is None:
            raise StoreError("its data revision is not known here")
        claim = Claim(again, (), canonical(again.config), dataset, None, None)
        for check in (check_configuration, check_environment):
            if problem := next(check(claim), None):
                raise StoreError(problem)
    except ValidationError as err:
        return replace(record, reason=f"no row: {err.errors()[0]['msg']}")
    except (FedbenchError, OSError, ValueError, KeyError, TypeError) as err:
        return replace(record, reason=" ".join(str(err).split()))
    judged = judge(row, again, rows, len(dataset.test_labels))
    limit = widest(judged.spread)
    return replace(record, verdict=judged.verdict, limit=limit, reason=judged.reason)


def _submitters(store: Store) -> tuple[dict[str, list[Person]], str]:
    """Return who submitted each row, by row id, and which manifest cannot be read, if any."""
    found: dict[str, list[Person]] = {}
    for file in list_folder(store.root / SUBMISSIONS):
        if file.suffix == ".json":
            try:
                manifest, by = read_manifest(read_regular(file, _LARGEST_MANIFEST))
            except (ValueError, OSError, FedbenchError) as err:
                return {}, f"who submitted rows cannot be read: {file.name}: {err}"
            for row_id in manifest.rows:
                if by is not None:
                    found.setdefault(row_id, []).append(by)
    return found, ""
