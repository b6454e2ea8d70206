"""Tiers of rows, computed from reproductions that others stored: claimed, once, three times.

`reproductions/<row_id>/<hash>.json` of a store holds the whole row that a repetition gave, who did
it, and the hash of the results that it was compared with. Nothing in it is believed that can be
computed: the comparison is made again, and a record counts only as another person's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedbench.bench.board.checks import Claim, Unchecked, check_configuration, check_environment
from fedbench.bench.board.data_facts import DataFacts, facts_of
from fedbench.bench.board.people import Person, person_from, sign, signature_of, signing_key
from fedbench.bench.results.store.reader import list_folder
from fedbench.bench.results.store.replicas import platform_of, replica_hash
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import REPRODUCTIONS, SUBMISSIONS, Store
from fedbench.bench.runs.reproduce import REPRODUCED, Reproduction, Verdict, judge
from fedbench.bench.system.errors import ConfigError, ResourceError, StoreError
from fedbench.bench.system.files import atomic_write_text, read_limited
from fedbench.bench.system.sealed_json import seal, unseal

_FORMAT = 1
_LARGEST, _LARGEST_MANIFEST = 2**20, 2**26
_TIERS = ((3, "reproduced three times"), (1, "reproduced once"), (0, "claimed"))
"""Least number of people other than who submitted a row, and the tier."""


Sender = tuple[Person, str | None]
"""Who submitted a row, and the fingerprint of the key of the manifest's signature."""


@dataclass(frozen=True)
class Record:
    """One reproduction by somebody.

    Attributes:
        file: of the record.
        by: who did it; None if nobody is named.
        key: fingerprint of the SSH key that signed it; None without a signature.
        platform: numeric platform of the repetition.
        verdict: of the comparison, made again; None if it could not be made.
        reason: why it does not count; empty if it does.
    """

    file: str
    by: Person | None
    key: str | None
    platform: str
    verdict: Verdict | None
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return vars(self) | {"by": None if self.by is None else self.by.as_dict()}


@dataclass(frozen=True)
class Tier:
    """Tier of one row.

    Attributes:
        row_id: of the row.
        count: people who reproduced it, other than who submitted it.
        submitted_by: who did, as far as the store knows.
        records: all records of the row, those that do not count included.
    """

    row_id: str
    count: int
    submitted_by: tuple[Person, ...]
    records: tuple[Record, ...]

    @property
    def name(self) -> str:
        """The tier: claimed, reproduced once, reproduced three times."""
        return tier_name(self.count)

    def as_dict(self) -> dict[str, Any]:
        """Part of the output of `fedbench leaderboard --json`."""
        return {
            "row_id": self.row_id,
            "tier": self.name,
            "count": self.count,
            "submitted_by": [person.as_dict() for person in self.submitted_by],
            "records": [record.as_dict() for record in self.records],
        }


def tier_name(count: int) -> str:
    """Return the tier of a row that so many people have reproduced.

    >>> [tier_name(count) for count in range(4)]
    ['claimed', 'reproduced once', 'reproduced once', 'reproduced three times']
    """
    return next(name for least, name in _TIERS if count >= least)


def record_reproduction(
    store: Store, result: Reproduction, who: Person, key: Path | None = None
) -> Path:
    """Store a reproduction of a row that the store has, and return its file.

    Args:
        store: has the row.
        result: the reproduction, which must not have failed.
        who: did it.
        key: SSH key to sign the record with.

    Raises:
        StoreError: for a row that was not reproduced, or a store that cannot be written.
        ConfigError, ResourceError: as `sign`.
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
    text = seal(content, indent=1) + "\n"
    name = hashlib.sha256(text.encode()).hexdigest()[:20]
    file = store.root / REPRODUCTIONS / result.row_id / f"{name}.json"
    atomic_write_text(file, text)
    if key is not None:
        try:
            sign(file, key)
        except (ConfigError, ResourceError) as err:
            raise type(err)(
                f"{err}; the record is stored without a signature: {str(file)!r}, and `ssh-keygen"
                " -Y sign -n fedbench -f KEY FILE` signs it"
            ) from err
    return file


def tiers(store: Store, data_dir: Path | None = None) -> dict[str, Tier]:
    """Return the tiers of the rows of a store that have records, by row id.

    Args:
        store: any store; one without a folder of reproductions has none.
        data_dir: cache of data sets; None = the default one.
    """
    folders = [path for path in list_folder(store.root / REPRODUCTIONS) if path.is_dir()]
    if not folders:
        return {}
    rows, (senders, unreadable) = store.rows(), _senders(store)
    facts: dict[str, DataFacts | None] = {}
    found = {}
    for folder in folders:
        claimed = {replica_hash(row): row for row in rows if row.row_id == folder.name}
        if not claimed:
            continue
        for row in claimed.values():
            if row.dataset_revision not in facts:
                facts[row.dataset_revision] = facts_of(row.dataset_revision, data_dir)
        records = [
            _record(file, claimed, rows, facts)
            for file in list_folder(folder)
            if file.suffix == ".json" and file.name[0] != "."
        ]
        if unreadable:
            records = [_without(record, record.reason or unreadable) for record in records]
        sent = senders.get(folder.name, [])
        counted = tuple(_counted(records, sent))
        number = sum(not record.reason for record in counted)
        people = tuple(dict.fromkeys(person for person, _ in sent))
        found[folder.name] = Tier(folder.name, number, people, counted)
    return found


def _counted(records: list[Record], senders: Sequence[Sender]) -> Iterator[Record]:
    """Yield the records; one of a person or a key that counted already gets a reason."""
    own = {mark for sender in senders for mark in _marks(*sender)}
    seen: set[str] = set()
    for record in records:
        if record.reason or record.by is None:
            yield record
            continue
        marks = _marks(record.by, record.key)
        if marks & own:
            yield _without(record, "by who submitted the row, or with the same key")
        elif marks & seen:
            yield _without(record, "by a person or a key that counts already")
        else:
            seen |= marks
            yield record


def _marks(by: Person, key: str | None) -> set[str]:
    return {by.identity} if key is None else {by.identity, key}


def _without(record: Record, reason: str) -> Record:
    return Record(record.file, record.by, record.key, record.platform, record.verdict, reason)


def _record(
    file: Path,
    claimed: Mapping[str, Row],
    rows: list[Row],
    facts: Mapping[str, DataFacts | None],
) -> Record:
    """Read a record and compare its row again."""
    by, key, again = None, None, None
    try:
        content = unseal(read_limited(file, _LARGEST), required=True)
        if content.get("format") != _FORMAT:
            raise ValueError(f"format {content.get('format')!r}, this fedbench reads {_FORMAT}")
        by = person_from(content.get("by"))
        again = Row.model_validate_json(_json_text(content.get("row")))
        if signature_of(file).exists():
            key = signing_key(file)
        row = claimed.get(str(content.get("claimed")))
    except ValidationError as err:
        return Record(str(file), by, key, "", None, f"no row: {err.errors()[0]['msg']}")
    except (ValueError, OSError, ConfigError, ResourceError, StoreError) as err:
        platform = "" if again is None else platform_of(again)
        return Record(str(file), by, key, platform, None, " ".join(str(err).split()))
    platform = platform_of(again)
    if row is None:
        return Record(str(file), by, key, platform, None, "the store has not the row that it is of")
    if reason := _refusal(row, again, by):
        return Record(str(file), by, key, platform, None, reason)
    known = facts.get(row.dataset_revision)
    if known is None:
        return Record(str(file), by, key, platform, None, "its data revision is not known here")
    judged = judge(row, again, rows, known.num_test)
    return Record(str(file), by, key, platform, judged.verdict, judged.reason)


def _refusal(row: Row, again: Row, by: Person | None) -> str:
    """Return why a repetition cannot be one of the row; empty if it can."""
    if again.row_id != row.row_id:
        return f"it is of run {again.row_id}"
    if by is None:
        return "nobody is named"
    if (again.started_at, again.finished_at) == (row.started_at, row.finished_at):
        return "it is the row itself, not a repetition"
    if again.measured_from is not None:
        return "it was measured from another run, not trained again"
    claim = Claim(again, None, None, None, None, ())
    for check in (check_configuration, check_environment):
        try:
            if problem := next(check(claim), None):
                return problem
        except Unchecked as why:
            return str(why)
    return ""


def _json_text(value: Any) -> str:
    if not isinstance(value, dict):
        raise ValueError("it holds no row")
    return json.dumps(value)


def _senders(store: Store) -> tuple[dict[str, list[Sender]], str]:
    """Return who submitted each row, by row id, and which manifest cannot be read, if any."""
    senders: dict[str, list[Sender]] = {}
    for file in list_folder(store.root / SUBMISSIONS):
        if file.suffix != ".json":
            continue
        try:
            manifest = unseal(read_limited(file, _LARGEST_MANIFEST), required=True)
            by, key = person_from(manifest.get("by")), signing_key(file)
        except (ValueError, OSError, ConfigError, ResourceError) as err:
            return {}, f"who submitted rows cannot be read: {file.name}: {err}"
        for row_id in manifest.get("rows") or ():
            if by is not None:
                senders.setdefault(str(row_id), []).append((by, key))
    return senders, ""
