"""Releases: all rows of a store in one Parquet file, and ranks that differ from an earlier one."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedbench.bench.config.yaml_files import dump_yaml
from fedbench.bench.results.leaderboard.comparability import class_of
from fedbench.bench.results.leaderboard.leaderboard import leaderboard
from fedbench.bench.results.store.files import pack
from fedbench.bench.results.store.frame import frame_of
from fedbench.bench.results.store.released import RELEASE, SUMS
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.schema import table_bytes
from fedbench.bench.results.store.store import Store, open_store
from fedbench.bench.system.errors import ConfigError, StoreError
from fedbench.bench.system.files import atomic_write_bytes, user_path, write_error
from fedbench.bench.system.text import markdown, visible_json

_TITLE = "fedbench results: federated representation learning without labels"
HOLDS = (
    "configuration, label-free scores, accuracy of probes, traffic, time, and a record of every"
    " round"
)
LICENCE = "CC0-1.0"
_LICENCE_URL = "https://creativecommons.org/publicdomain/zero/1.0/"
_TYPES = {
    "string": "sc:Text",
    "double": "sc:Float",
    "bool": "sc:Boolean",
    "int32": "sc:Integer",
    "int64": "sc:Integer",
    "timestamp[us, tz=UTC]": "sc:DateTime",
}
"""Croissant's name of each Arrow type of a column."""


def describe(
    rows: Sequence[Row],
    schema: pa.Schema,
    *,
    version: str,
    file: str,
    holds: str,
    origin: str,
    use: str,
    data: bytes | None = None,
) -> dict[str, bytes]:
    """Return data card, citation and Croissant record of runs in Parquet files, by name.

    Args:
        rows: the runs.
        schema: of the files, with the meaning and unit of each column.
        version: of the release.
        file: name of the Parquet file; a pattern if there are many.
        holds: what is in it.
        origin: section of the card: where the numbers are from.
        use: section of the card: how to use them.
        data: content of the file; None if there are many.
    """
    columns = [(field.name, str(field.type), _meaning(field)) for field in schema]
    newest = max(row.finished_at for row in rows).date().isoformat()  # made again, it has the same
    methods, datasets = ({getattr(row, name) for row in rows} for name in ("method", "dataset"))
    summary = (
        f"{len(rows):,} runs of {len(methods)} method{'s' * (len(methods) != 1)} for federated"
        f" representation learning without labels on {', '.join(sorted(datasets))}: {holds}."
    )
    counted = ("method", "dataset", "preset", "benchmark_version", "status", "platform")
    contents = [
        f"| {name} | {markdown(value)} | {number:,} |"
        for name in counted
        for value, number in sorted(Counter(str(getattr(row, name)) for row in rows).items())
    ]
    card = _CARD.format(
        hub=dump_yaml(
            {  # what the Hugging Face Hub reads of a card
                "license": LICENCE.lower(),
                "pretty_name": _TITLE,
                "configs": [{"config_name": "runs", "data_files": file}],
            }
        ),
        title=_TITLE,
        version=version,
        summary=markdown(summary),
        use=use,
        origin=origin,
        contents="\n".join(contents),
        columns="\n".join(
            f"| {markdown(name)} | {kind} | {markdown(meaning)} |"
            for name, kind, meaning in columns
        ),
        licence=f"{LICENCE}: {_LICENCE_URL}",
    )
    citation = {
        "cff-version": "1.2.0",
        "message": "If you use these results, please cite them and the papers of the methods.",
        "title": _TITLE,
        "type": "dataset",
        "version": version,
        "date-released": newest,
        "license": LICENCE,
        "authors": [{"name": "The fedbench authors"}],
    }
    croissant = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": "fedbench-results",
        "description": summary,
        "license": _LICENCE_URL,
        "version": version,
        "datePublished": newest,
        "creator": {"@type": "sc:Organization", "name": "The fedbench authors"},
        "citeAs": f"The fedbench authors. {_TITLE}, version {version}.",
        **_records(columns, file, data),
    }
    return {
        "README.md": card.encode(),
        "CITATION.cff": dump_yaml(citation).encode(),
        "croissant.json": f"{visible_json(croissant, indent=2)}\n".encode(),
    }


def _meaning(field: pa.Field) -> str:
    about: dict[bytes, bytes] = field.metadata
    unit = about.get(b"unit", b"").decode()
    return about[b"doc"].decode() + (f" [{unit}]" if unit else "")


def _records(
    columns: Sequence[tuple[str, str, str]], file: str, data: bytes | None
) -> dict[str, Any]:
    """Describe the files and their columns in Croissant's vocabulary."""
    source, resource = "fileSet", {"@type": "cr:FileSet", "includes": file}
    if data is not None:
        source = "fileObject"
        resource = {
            "@type": "cr:FileObject",
            "contentUrl": file,
            "contentSize": f"{len(data)} B",
            "sha256": _sha256(data),
        }
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"runs/{name}",
            "name": name,
            "description": meaning,
            "dataType": _TYPES[kind],
            "source": {source: {"@id": file}, "extract": {"column": name}},
        }
        for name, kind, meaning in columns
    ]
    distribution = {
        "@id": file,
        "name": file,
        "description": "A line for each run.",
        "encodingFormat": "application/x-parquet",
        **resource,
    }
    record = {
        "@type": "cr:RecordSet",
        "@id": "runs",
        "name": "runs",
        "description": "One record for each run.",
        "field": fields,
    }
    return {"distribution": [distribution], "recordSet": [record]}


_CARD = """\
---
{hub}---

# {title}, {version}

{summary}

{use}
## What it is for

Comparing methods under equal conditions, replaying a search of hyperparameters under another
label-free score, and finding out what a claim rests on. `fedbench leaderboard` ranks rows of one
comparability class: rows of different `benchmark_version`, data, partition, budget or probe have
no common rank.

## Where it comes from

{origin}
Images are not part of the release. `config.data.name` and `argv` name folders of the machine.

## Limits

Presets for CPUs train for a small part of the papers' budgets, and their accuracies are not
comparable with published ones. Times are of shared machines. Where a method has fewer than three
seeds, nothing is said about its spread.

## Contents

| column | value | rows |
|---|---|---|
{contents}

## Columns

| column | type | meaning [unit] |
|---|---|---|
{columns}

## Licence

{licence}. `CITATION.cff` says how to cite it.
"""

_TERMS = "citeAs column extract field fileObject fileSet includes recordSet repeated source"
_CONTEXT: Mapping[str, Any] = dict(
    sorted(
        {
            "@language": "en",
            "@vocab": "https://schema.org/",
            "conformsTo": "dct:conformsTo",
            "cr": "http://mlcommons.org/croissant/",
            "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
            "dct": "http://purl.org/dc/terms/",
            "sc": "https://schema.org/",
            **{term: f"cr:{term}" for term in _TERMS.split()},
        }.items()
    )
)
"""Croissant 1.0's terms that are used, and schema.org for the rest."""


@dataclass(frozen=True)
class Change:
    """An entry of a leaderboard whose rank is another one."""

    board: str  # title of its comparability class
    method: str
    variant: str  # the hyperparameters that tell it from others of its method; else empty
    before: int | None  # its rank; None if it was not ranked or not there
    after: int | None  # its rank now; None if it is not ranked or not there any more
    cause: str


def changes(old: Sequence[Row], new: Sequence[Row]) -> tuple[Change, ...]:
    """Return every entry whose rank differs, class by class, in the order of the new ranks."""
    before, after = _entries(old), _entries(new)
    found = []
    for key in dict.fromkeys((*after, *before)):
        title, entry = after.get(key) or before[key]
        pair = [entries[key][1] if key in entries else None for entries in (before, after)]
        first, second = (None if each is None else each.rank for each in pair)
        if first != second:
            cause = _cause(*(set() if each is None else {*each.run_ids} for each in pair))
            found.append(Change(title, entry.method, entry.variant, first, second, cause))
    return tuple(found)


def _entries(rows: Sequence[Row]) -> dict[tuple[str, ...], tuple[str, Any]]:
    """Return title and entry of each line, by class, method and configuration.

    The class is that of the line's own runs: which classes a board joins depends on its other rows.
    """
    of_run, found = {row.row_id: row for row in rows}, dict[tuple[str, ...], tuple[str, Any]]()
    board = leaderboard(frame_of(rows), published=False)
    for group in board.groups:
        for entry in group.entries:
            own = [class_of(of_run[i], board.metric) for i in entry.run_ids[:1]]
            key = (*(own or [group.class_id]), entry.method, entry.config_id)
            found[key] = group.title, entry
    return found


def _cause(before: set[str], after: set[str]) -> str:
    """Count the rows that an entry gained or lost; if none, the rows of others changed."""
    numbers = {"added": len(after - before), "removed": len(before - after)}
    parts = [f"{n} row{'s' * (n > 1)} {how}" for how, n in numbers.items() if n]
    return ", ".join(parts) or "rows of others"


def changes_text(found: Sequence[Change], before: str, after: str) -> str:
    """Return a Markdown page of the changes."""
    lines = [f"# Ranks of {markdown(after)} that {markdown(before)} did not have", ""]
    if not found:
        return "\n".join([*lines, "No rank has changed.", ""])
    for board in dict.fromkeys(change.board for change in found):
        header = ["| method | before | after | cause |", "|---|---|---|---|"]
        lines += [f"## {markdown(board)}", "", *header]
        for change in found:
            if change.board == board:
                name = f"{change.method} ({change.variant})" if change.variant else change.method
                ranks = [str(r) if r is not None else "–" for r in (change.before, change.after)]
                cells = (markdown(name), *ranks, markdown(change.cause))
                lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


_USE = """\
```sh
sha256sum --check SHA256SUMS
fedbench leaderboard --store {file}
```

```python
import pandas as pd

rows = pd.read_parquet("{file}")
```
"""
_ORIGIN = """\
Each row is one run of fedbench. Its settings (`config.…`) and the data of `dataset_revision`
determine its numbers to the last bit on one numeric platform (`platform`); `fedbench reproduce`
repeats it. `git_sha` names the code."""


@dataclass(frozen=True)
class Released:
    """A release that was written."""

    folder: Path
    version: str
    files: tuple[str, ...]
    num_rows: int
    methods: tuple[str, ...]  # method specs, sorted
    sha256: str  # of the Parquet file, as `num_bytes`
    num_bytes: int
    against: str | None  # version or file of the release that it was compared with
    changes: tuple[Change, ...]  # ranks that differ between the two


def release(
    folder: Path | str,
    store: Store | Path | str | None = None,
    *,
    version: str,
    against: Store | Path | str | None = None,
) -> Released:
    """Write all rows of a store with their curves into a new or empty folder.

    Equal stores give equal bytes. The version has letters, digits, dots and hyphens, as `2026.11`.
    `against` is an earlier release or a store; ranks that differ are listed with their causes.
    Raises `ConfigError` for a bad version, a folder that is not empty or a store without rows, and
    `StoreError` for files that cannot be read, or a folder that cannot be written.

    >>> from fedbench.bench.testing import demo_store, new_folder
    >>> release(new_folder(), demo_store(), version="2026.11").num_rows
    1
    """
    folder = user_path(folder)
    if not version.replace(".", "").replace("-", "").isalnum():
        raise ConfigError(
            f"--version must be letters, digits, dots and hyphens, as 2026.11 (got {version!r})"
        )
    try:
        used = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as err:  # a name that is too long, say
        raise write_error(folder, err) from err
    if used:
        raise ConfigError(f"{str(folder)!r} is not an empty folder; name a new one")
    store = open_store(store).require()
    rows = store.rows()
    if problems := store.problems():
        raise StoreError(f"{problems[0]}; `fedbench verify` lists all damaged files")
    if not rows:
        raise ConfigError(f"there is no run in store {str(store.root)!r}; nothing to release")
    runs = [(row, store.curve(store.key(row))) for row in rows]
    table = pack(runs, version)
    data, found = table_bytes(table), tuple[Change, ...]()
    described = describe(
        rows,
        table.schema,
        version=version,
        file=RELEASE,
        holds=HOLDS,
        origin=_ORIGIN,
        use=_USE.format(file=RELEASE),
        data=data,
    )
    files = {RELEASE: data, **described}
    if against is not None:
        found = changes(open_store(against).require().rows(), rows)
        files["CHANGES.md"] = changes_text(found, str(against), version).encode()
    sums = "".join(f"{_sha256(files[name])}  {name}\n" for name in sorted(files))
    files[SUMS] = sums.encode()
    for name, content in files.items():
        atomic_write_bytes(folder / name, content)
    return Released(
        folder=folder,
        version=version,
        files=tuple(sorted(files)),
        num_rows=len(rows),
        methods=tuple(sorted({row.method for row in rows})),
        sha256=_sha256(data),
        num_bytes=len(data),
        against=None if against is None else str(against),
        changes=found,
    )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
