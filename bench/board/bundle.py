"""Bundles: rows with curves, cards and hashes in one folder or .zip, to hand to others.

```
manifest.json               who, rows, and SHA-256 and size of every other file; sealed
manifest.json.sig           signature of the manifest by ssh-keygen -Y, if it was signed
rows/<row_id>.parquet       as in the store
cells/<row_id>/curve.parquet
cards/<row_id>.json         the row for a reader: task, metrics, cost, environment, commands
trials/<study_id>/          the studies that rows took their settings from, as in the store
```

A bundle's folder is a store, so that every command reads it with `--store`. Equal rows and equal
names give equal bytes; the id of a bundle is the SHA-256 of its manifest.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbench.bench.board.people import Person, person_from
from fedbench.bench.config import BENCHMARK_VERSION
from fedbench.bench.config.dotted import flatten
from fedbench.bench.results.metrics import METRICS
from fedbench.bench.results.store.reader import parse_record
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.schema import UNPACKED, has_checksum, read_table, to_records
from fedbench.bench.system.errors import ConfigError, StoreError
from fedbench.bench.system.files import read_regular
from fedbench.bench.system.scratch import temporary_folder
from fedbench.bench.system.sealed_json import seal, unseal

FORMAT = 1
LICENCE = "CC0-1.0"
MANIFEST = "manifest.json"
_SIGNATURE = f"{MANIFEST}.sig"
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""First time that a .zip can hold; that of every entry."""
STUDY_FILE = (
    r"trials/\w[\w.+=@-]{0,127}/(study\.json|best\.yaml|\d+\.parquet|bracket-\d+/rung-\d+\.json)"
)
_FILE = re.compile(
    r"manifest\.json(\.sig)?|rows/[0-9a-f]{20}\.parquet|cards/[0-9a-f]{20}\.json"
    r"|cells/[0-9a-f]{20}/curve\.parquet|" + STUDY_FILE
)
_ID = re.compile(r"[0-9a-f]{20}")
_LARGEST = 64 * 2**20
"""Bytes of a file; rows have some 20 kB, curves of 50,000 rounds some 10 MB."""
_MOST = 4 * 2**30
"""Bytes of a whole .zip when unpacked."""


@dataclass(frozen=True)
class Entry:
    """One row of a bundle with its curve."""

    row: Row
    points: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Bundle:
    """A bundle that was read.

    Attributes:
        root: its folder, or the temporary one that its .zip was unpacked to.
        id: SHA-256 of the manifest, in hexadecimal digits.
        by: who submits it; None if it does not say.
        entries: rows that could be read, by row id.
        problems: row id (empty for the bundle as a whole) and one line for each fault of a file.
    """

    root: Path
    id: str
    by: Person | None
    entries: Mapping[str, Entry]
    problems: tuple[tuple[str, str], ...]


def card(row: Row, points: int) -> dict[str, Any]:
    """Return a row for a reader, as JSON values that follow from the row alone.

    Args:
        row: the row.
        points: number of rounds in its curve.
    """
    columns = row.model_dump(mode="json")
    measured = {name: columns[name] for name in METRICS if columns[name] is not None}
    further = json.loads(row.metrics_json or "{}")
    settings = flatten(json.loads(row.config_json))
    environment = ("git_sha", "package_version", "hardware", "device", "platform")
    cost = ("wall_seconds", "train_seconds", "bytes_up", "bytes_down", "num_parameters")
    task = ("dataset", "dataset_revision", "partition", "alpha", "num_clients", "participation")
    return {
        "row_id": row.row_id,
        "benchmark_version": row.benchmark_version,
        "status": row.status,
        "method": row.method,
        "preset": row.preset,
        "seed": row.seed,
        "task": {name: columns[name] for name in (*task, "num_rounds", "local_epochs")},
        "metrics": {**measured, **further},
        "cost": {name: columns[name] for name in (*cost, "rounds_done")},
        "privacy": {
            name: columns[name]
            for name in ("secure_sum", "revealing_messages", "epsilon", "delta", "epsilon_of")
        },
        "environment": {name: columns[name] for name in environment}
        | json.loads(row.env_json or "{}"),
        "rounds": points,
        "settings": settings,
        "commands": [f"fedbench reproduce {row.row_id}"],
        "licence": LICENCE,
    }


def card_text(row: Row, points: int) -> str:
    """Return the text of a row's card."""
    return json.dumps(card(row, points), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def manifest_text(files: Mapping[str, bytes], by: Person | None) -> str:
    """Return the text of the manifest of files, by path."""
    rows = sorted(Path(name).stem for name in files if name.startswith("rows/"))
    hashes = {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        for name, data in sorted(files.items())
    }
    manifest = {
        "format": FORMAT,
        "benchmark_version": BENCHMARK_VERSION,
        "by": None if by is None else by.as_dict(),
        "licence": LICENCE,
        "rows": rows,
        "files": hashes,
    }
    return seal(manifest, indent=2) + "\n"


def zipped(files: Mapping[str, bytes], path: Path) -> None:
    """Write files to a .zip; equal files give equal bytes, whatever the version of zlib."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system, entry.external_attr = 3, 0o100644 << 16
            archive.writestr(entry, data)


@contextmanager
def open_bundle(path: Path | str) -> Iterator[Bundle]:
    """Read a bundle; a .zip is unpacked to a temporary folder while the block runs.

    Raises:
        StoreError: for a path that holds no bundle.
    """
    path = Path(path).expanduser()
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError as cause:  # a name that is too long
        raise StoreError(f"cannot read {str(path)!r}: {cause.strerror}") from cause
    if is_folder:
        yield _read(path, path)
    elif is_file:
        with temporary_folder() as folder:
            yield _read(_unpacked(path, folder / "bundle"), path)
    else:
        raise StoreError(f"there is no bundle at {str(path)!r}; `fedbench submit` writes one")


def _unpacked(path: Path, folder: Path) -> Path:
    """Unpack a .zip whose names and sizes are those of a bundle."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            names = [entry.filename for entry in entries]
            for entry in entries:
                if not _FILE.fullmatch(entry.filename):
                    raise StoreError(
                        f"{str(path)!r} holds {entry.filename[:80]!r}, which is no file of a bundle"
                    )
                if entry.file_size > _LARGEST:
                    raise StoreError(
                        f"{str(path)!r}: {entry.filename} has {entry.file_size:,} bytes; a file of"
                        f" a bundle has at most {_LARGEST:,}"
                    )
            if len(set(names)) < len(names):
                raise StoreError(f"{str(path)!r} holds two files of one name")
            if sum(entry.file_size for entry in entries) > _MOST:
                raise StoreError(f"{str(path)!r} unpacks to more than {_MOST:,} bytes")
            archive.extractall(folder, names)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError) as cause:
        raise StoreError(f"{str(path)!r} is no .zip that can be read: {cause}") from cause
    except OSError as cause:
        raise StoreError(f"cannot unpack {str(path)!r}: {cause.strerror or cause}") from cause
    return folder


def _read(root: Path, path: Path) -> Bundle:
    try:
        data = read_regular(root / MANIFEST, _LARGEST)
    except FileNotFoundError as cause:
        raise StoreError(
            f"{str(path)!r} is no bundle: it has no {MANIFEST}; `fedbench submit` writes bundles,"
            " and `fedbench verify --store` checks a store"
        ) from cause
    except OSError as cause:
        raise StoreError(f"cannot read {str(root / MANIFEST)!r}: {cause.strerror}") from cause
    identity = hashlib.sha256(data).hexdigest()
    try:
        rows, hashes, by = _manifest(data)
    except (ValueError, ConfigError) as err:
        return Bundle(root, identity, None, {}, (("", f"{MANIFEST}: {err}"),))
    problems = list(_file_problems(root, rows, hashes))
    bad = {row_id for row_id, _ in problems}
    entries: dict[str, Entry] = {}
    left = UNPACKED
    for row_id in rows:
        if row_id not in bad:
            try:
                entries[row_id], size = _entry(root, row_id, left)
                left -= size
            except StoreError as err:
                problems.append((row_id, str(err)))
    return Bundle(root, identity, by, entries, tuple(problems))


def _manifest(data: bytes) -> tuple[list[str], dict[str, tuple[str, int]], Person | None]:
    """Return rows, hash and size by file, and who; raise a ValueError for any other content."""
    manifest = unseal(data, required=True)
    if manifest.get("format") != FORMAT:
        raise ValueError(f"its format is {manifest.get('format')!r}, this fedbench reads {FORMAT}")
    rows, files = manifest.get("rows"), manifest.get("files")
    if not isinstance(rows, list) or not isinstance(files, dict) or not rows:
        raise ValueError("it lists no rows")
    if not all(isinstance(row_id, str) and _ID.fullmatch(row_id) for row_id in rows):
        raise ValueError("one of its rows is no row id")
    if len(set(rows)) < len(rows):
        raise ValueError("it lists a row twice")
    hashes = {}
    for name, entry in files.items():
        if not _FILE.fullmatch(name) or name in (MANIFEST, _SIGNATURE):
            raise ValueError(f"{name[:80]!r} is no file of a bundle")
        if not isinstance(entry, dict) or set(entry) != {"sha256", "bytes"}:
            raise ValueError(f"{name} has no hash and size")
        hashes[name] = (str(entry["sha256"]), entry["bytes"])
    expected = {name for row_id in rows for name in files_of(row_id)}
    if unlike := {name for name in set(hashes) ^ expected if not re.fullmatch(STUDY_FILE, name)}:
        other = min(unlike)
        raise ValueError(f"{other} is {'missing from its files' if other in expected else 'extra'}")
    return rows, hashes, person_from(manifest.get("by"))


def files_of(row_id: str) -> tuple[str, str, str]:
    """Return the paths of row, curve and card in a bundle."""
    return f"rows/{row_id}.parquet", f"cells/{row_id}/curve.parquet", f"cards/{row_id}.json"


def _file_problems(
    root: Path, rows: list[str], hashes: Mapping[str, tuple[str, int]]
) -> Iterator[tuple[str, str]]:
    owners = {name: row_id for row_id in rows for name in files_of(row_id)}
    for name, hashed in hashes.items():
        row_id = owners.get(name, "")
        try:
            data = read_regular(root / name, _LARGEST)
        except OSError as err:
            yield row_id, f"{name} cannot be read ({err.strerror})"
            continue
        if (hashlib.sha256(data).hexdigest(), len(data)) != hashed:
            yield row_id, f"{name} is not the file whose SHA-256 the manifest has"
    listed = {MANIFEST, _SIGNATURE, *hashes}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if name not in listed and (path.is_symlink() or not path.is_dir()):
            yield "", f"{name} is not in the manifest"


def _entry(root: Path, row_id: str, most: int) -> tuple[Entry, int]:
    """Return a row with its curve, which may unpack to `most` bytes, and the bytes that it has."""
    row_name, curve_name, card_name = files_of(row_id)
    data = (root / row_name).read_bytes()
    row = parse_record(root / row_name, data, Row)
    if not isinstance(row, Row):
        raise StoreError(str(row).replace(repr(str(root / row_name)), row_name))
    curve = (root / curve_name).read_bytes()
    for name, content in ((row_name, data), (curve_name, curve)):
        if not has_checksum(content):
            raise StoreError(f"{name} has no checksum; it was not written by fedbench")
    try:
        table = read_table(curve, most)
        points = to_records(table)
    except StoreError as err:
        raise StoreError(f"{curve_name}: {err}") from err
    if (root / card_name).read_text("utf-8", "replace") != card_text(row, len(points)):
        raise StoreError(f"{card_name} does not say what the row says")
    return Entry(row, tuple(points)), table.nbytes
