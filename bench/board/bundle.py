"""Bundles: rows with curves, studies and hashes in one folder or .zip, to hand to others.

A bundle is a store, with rows/<row_id>.parquet, cells/<row_id>/curve.parquet and the studies in
trials/<study_id>/ that rows took their settings from. Its `manifest.json` says who submits it and
has SHA-256 and size of every other file. Equal rows and equal names give equal bytes; the id of a
bundle is the SHA-256 of its manifest.
"""

import hashlib
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from fedbench.bench.config import BENCHMARK_VERSION
from fedbench.bench.results.store.files import parse_record
from fedbench.bench.results.store.row import Row, first_problem
from fedbench.bench.results.store.schema import UNPACKED, read_table, to_records
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.checksums import json_with_checksum, parse_json
from fedbench.bench.system.errors import ConfigError, StoreError
from fedbench.bench.system.files import (
    atomic_write_bytes,
    atomic_write_text,
    read_regular,
    user_path,
)
from fedbench.bench.system.scratch import temporary_folder


def _one_line(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError("a name must be printable characters on one line")
    return text


Line = Annotated[str, Field(max_length=200), AfterValidator(_one_line)]


@checked_dataclass(frozen=True)
class Person:
    """A name as its bearer writes it, and an ORCID iD or None."""

    name: Line
    orcid: Line | None = None

    @property
    def identity(self) -> str:
        """Text that is equal for one person: the ORCID iD, else the name without case."""
        return self.orcid or " ".join(self.name.casefold().split())

    def __str__(self) -> str:
        return self.name if self.orcid is None else f"{self.name} ({self.orcid})"


def person(name: str | None, orcid: str | None = None) -> Person | None:
    """Return who is named, None without a name; `ConfigError` for an ORCID iD alone or odd text."""
    if name is None:
        if orcid is not None:
            raise ConfigError("--orcid needs --by NAME")
        return None
    if orcid is not None and re.fullmatch(r"([0-9]{4}-){3}[0-9]{3}[0-9X]", orcid) is None:
        raise ConfigError(f"--orcid must look like 0000-0002-1825-0097 (got {orcid!r})")
    try:
        return Person(name, orcid)
    except ValidationError as err:
        raise ConfigError(f"--by must be 1 to 200 printable characters (got {name!r})") from err


LICENCE = "CC0-1.0"
MANIFEST = "manifest.json"
_MOST_ROUNDS = 1_000_000
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Time of every file in a .zip: the first that it can hold."""
_ID = r"[0-9a-f]{20}"
_STUDY = r"trials/\w[\w.+=@-]{0,127}/(study\.json|best\.yaml|\d+\.parquet)"
_FILE = rf"rows/{_ID}\.parquet|cells/{_ID}/curve\.parquet|{_STUDY}"
_LARGEST, _MOST = 64 * 2**20, 4 * 2**30
"""Bytes of a file, and of a whole .zip when unpacked; a curve of 50,000 rounds has some 10 MB."""


@dataclass(frozen=True)
class Run:
    """One row of a bundle with its curve."""

    row: Row
    points: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Bundle:
    """A bundle that was read."""

    root: Path  # its folder, or the one that its .zip was unpacked to
    id: str  # SHA-256 of the manifest, in hexadecimal digits
    by: Person | None  # who submits it
    runs: Mapping[str, Run]  # rows that could be read, by row id
    problems: tuple[tuple[str, str], ...]  # row id ("" = the bundle) and a line for each bad file


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    sha256: str
    bytes: int


class Manifest(BaseModel):
    """Content of `manifest.json`."""

    model_config = ConfigDict(strict=True)
    format: Literal[1]
    rows: list[Annotated[str, Field(pattern=rf"^{_ID}$")]] = Field(min_length=1)
    files: dict[Annotated[str, Field(pattern=rf"^({_FILE})$")], _File]
    by: Person | None = None


def runs_of(store: Store, rows: Iterable[Row]) -> list[Run]:
    """Return rows of a store with their curves; a curve that cannot be read counts as none."""
    runs = []
    for row in rows:
        try:
            points = store.curve(store.key(row))
        except StoreError:  # `fedbench verify --store` reports it
            points = []
        runs.append(Run(row, tuple(points)))
    return runs


def pack(
    runs: Sequence[Run], who: Person | None, folder: Path, studies: Store | None = None
) -> str:
    """Write a bundle, unchecked, to an empty folder, with its rows' studies; return its id."""
    store = Store(folder)
    for run in runs:
        store.write_row(run.row)
        store.write_curve(run.row.row_id, run.points)
    if studies is not None:
        for study_id in {run.row.study_id for run in runs} & {*studies.studies()}:
            for path in (studies.root / "trials" / str(study_id)).rglob("*"):
                name = path.relative_to(studies.root).as_posix()
                if re.fullmatch(_STUDY, name):
                    atomic_write_bytes(folder / name, path.read_bytes())
    return write_manifest(folder, who)


def write_manifest(folder: Path, who: Person | None) -> str:
    """Write the manifest of the files in a folder, and return the bundle's id."""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    files = {name: (folder / name).read_bytes() for name in names if re.fullmatch(_FILE, name)}
    manifest = {
        "format": 1,
        "benchmark_version": BENCHMARK_VERSION,
        "by": None if who is None else asdict(who),
        "licence": LICENCE,
        "rows": sorted(Path(name).stem for name in files if name.startswith("rows/")),
        "files": {
            name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
            for name, data in files.items()
        },
    }
    text = json_with_checksum(manifest, indent=2) + "\n"
    atomic_write_text(folder / MANIFEST, text)
    return hashlib.sha256(text.encode()).hexdigest()


def zipped(files: Mapping[str, bytes]) -> bytes:
    """Return a .zip of files; equal files give equal bytes, whatever the version of zlib."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _EPOCH)
            # Else they depend on the system that packs: 3 is Unix, whatever packs here.
            entry.create_system, entry.external_attr = 3, 0o100644 << 16
            archive.writestr(entry, data)
    return out.getvalue()


@contextmanager
def open_bundle(path: Path | str) -> Iterator[Bundle]:
    """Read a bundle, a .zip from a temporary folder; `StoreError` if there is no bundle."""
    path = user_path(path)
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError as cause:  # a name that is too long
        raise StoreError(f"cannot read {str(path)!r}: {cause.strerror}") from cause
    if is_folder:
        yield _read(path, path)
    elif is_file:
        with temporary_folder() as folder:
            _unpack(path, folder / "bundle")
            yield _read(folder / "bundle", path)
    else:
        raise StoreError(f"there is no bundle at {str(path)!r}; `fedbench submit` writes one")


_BAD_ZIP = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    RuntimeError,
    OSError,
)
"""What zipfile raises for damaged archives of any compression, and for encrypted ones."""


def _unpack(path: Path, folder: Path) -> None:
    """Unpack a .zip, which may hold files of a bundle only."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            for entry in entries:
                if entry.filename != MANIFEST and not re.fullmatch(_FILE, entry.filename):
                    name = entry.filename[:80]
                    raise StoreError(f"{str(path)!r} holds {name!r}, no file of a bundle")
            if sum(entry.file_size for entry in entries) > _MOST:
                raise StoreError(f"{str(path)!r} unpacks to more than {_MOST:,} bytes")
            archive.extractall(folder, entries)
    except _BAD_ZIP as cause:
        raise StoreError(f"{str(path)!r} is no .zip that can be read: {cause}") from cause


def _read(root: Path, path: Path) -> Bundle:
    try:
        data = read_regular(root / MANIFEST, _LARGEST)
    except FileNotFoundError as cause:
        why = f"it has no {MANIFEST}; `fedbench verify --store` checks a store"
        raise StoreError(f"{str(path)!r} is no bundle: {why}") from cause
    except OSError as cause:
        raise StoreError(f"cannot read {str(root / MANIFEST)!r}: {cause.strerror}") from cause
    identity = hashlib.sha256(data).hexdigest()
    try:
        manifest = read_manifest(data)
    except ValueError as err:
        return Bundle(root, identity, None, {}, (("", f"{MANIFEST}: {err}"),))
    problems = list(_file_problems(root, manifest))
    bad = {row_id for row_id, _ in problems}
    runs: dict[str, Run] = {}
    left = UNPACKED
    for row_id in manifest.rows:
        if row_id not in bad:
            try:
                runs[row_id], size = _run(root, row_id, left)
                left -= size
            except StoreError as err:
                problems.append((row_id, str(err)))
    return Bundle(root, identity, manifest.by, runs, tuple(problems))


def read_manifest(data: bytes) -> Manifest:
    """Return a manifest. Raises `ValueError` for any other content, on one line."""
    content = parse_json(data)
    try:
        manifest = Manifest.model_validate(content)
    except ValidationError as err:
        raise ValueError(first_problem(err)) from err
    expected = {name for row_id in manifest.rows for name in files_of(row_id)}
    listed = {name for name in manifest.files if not re.fullmatch(_STUDY, name)}
    if listed != expected:
        raise ValueError(f"{min(listed ^ expected)} is of no row that it lists, or missing")
    return manifest


def files_of(row_id: str) -> tuple[str, str]:
    """Return the paths of row and curve in a bundle."""
    return f"rows/{row_id}.parquet", f"cells/{row_id}/curve.parquet"


def _file_problems(root: Path, manifest: Manifest) -> Iterator[tuple[str, str]]:
    owners = {name: row_id for row_id in manifest.rows for name in files_of(row_id)}
    for name, hashed in manifest.files.items():
        try:
            data = read_regular(root / name, _LARGEST)
        except OSError as err:
            yield owners.get(name, ""), f"{name} cannot be read ({err.strerror})"
            continue
        if hashlib.sha256(data).hexdigest() != hashed.sha256:
            yield owners.get(name, ""), f"{name} is not the file whose SHA-256 the manifest has"
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if name not in {MANIFEST, *manifest.files} and (path.is_symlink() or not path.is_dir()):
            yield "", f"{name} is not in the manifest; delete it"


def _run(root: Path, row_id: str, most: int) -> tuple[Run, int]:
    """Return a row with its curve, which may unpack to `most` bytes, and the bytes that it has."""
    row_name, curve_name = files_of(row_id)
    data, curve = ((root / name).read_bytes() for name in (row_name, curve_name))
    try:
        row = parse_record(root / row_name, data, Row)
    except StoreError as err:
        raise StoreError(str(err).replace(repr(str(root / row_name)), row_name)) from err
    try:
        table = read_table(curve, most)
        if table.num_rows > _MOST_ROUNDS:
            raise StoreError(f"it has {table.num_rows:,} rounds; at most {_MOST_ROUNDS:,} are read")
        points = to_records(table)
    except StoreError as err:
        raise StoreError(f"{curve_name}: {err}") from err
    return Run(row, tuple(points)), table.nbytes
