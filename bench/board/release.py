"""Releases of a board: one Parquet file, and what readers and search engines need beside it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedbench.bench.board.bundle import LICENCE
from fedbench.bench.board.changes import Change, changes, changes_text
from fedbench.bench.config.yaml_files import dump_yaml
from fedbench.bench.results.store.released import CURVE, CURVE_MEANING, SUMS, pack
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.schema import ROW_SCHEMA
from fedbench.bench.results.store.store import Store, open_store
from fedbench.bench.system.errors import ConfigError, StoreError
from fedbench.bench.system.files import atomic_write_bytes

FILE = "fedbench-results.parquet"
_LICENCE_URL = "https://creativecommons.org/publicdomain/zero/1.0/"
_TITLE = "fedbench results: federated representation learning without labels"
_CROISSANT = "http://mlcommons.org/croissant/1.0"
_TYPES = {
    "string": "sc:Text",
    "double": "sc:Float",
    "bool": "sc:Boolean",
    "int32": "sc:Integer",
    "int64": "sc:Integer",
    "timestamp[us, tz=UTC]": "sc:DateTime",
    "list<item: int32>": "sc:Integer",
}
"""Croissant's name of each Arrow type of a column."""


@dataclass(frozen=True)
class Released:
    """A release that was written.

    Attributes:
        folder: where it lies.
        version: of the release.
        files: their names.
        num_rows: rows in it.
        methods: method specs, sorted.
        sha256: of the Parquet file.
        num_bytes: its size.
        against: version or file of the release that it was compared with.
        changes: ranks that differ between the two.
    """

    folder: Path
    version: str
    files: tuple[str, ...]
    num_rows: int
    methods: tuple[str, ...]
    sha256: str
    num_bytes: int
    against: str | None
    changes: tuple[Change, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the output of `fedbench release --json`."""
        return {**asdict(self), "folder": str(self.folder)}


def release(
    folder: Path | str,
    store: Store | Path | str | None = None,
    *,
    version: str,
    against: Store | Path | str | None = None,
) -> Released:
    """Write a release of all rows of a store with their curves; equal stores give equal bytes.

    Args:
        folder: new or empty folder.
        store: see `open_store`.
        version: of the release, such as `2026.11`; letters, digits, dots and hyphens.
        against: an earlier release or a store; ranks that differ are listed with their causes.

    Raises:
        ConfigError: for a bad version, a folder that is not empty, or a store without rows.
        StoreError: for a store with files that cannot be read, or a folder that cannot be written.
    """
    folder = Path(folder).expanduser()
    if not version or not version.replace(".", "").replace("-", "").isalnum():
        raise ConfigError(
            "--version must be letters, digits, dots and hyphens, such as 2026.11"
            f" (got {version!r})"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{str(folder)!r} is not an empty folder; name a new one")
    store = open_store(store).require()
    rows = store.rows()
    if problems := store.problems():
        raise StoreError(f"{problems[0]}; `fedbench verify` lists all damaged files")
    if not rows:
        raise ConfigError(f"there is no run in store {str(store.root)!r}; nothing to release")
    data = pack([(row, store.curve(store.key(row))) for row in rows], version)
    found: tuple[Change, ...] = ()
    files = {FILE: data}
    if against is not None:
        found = changes(open_store(against).require().rows(), rows)
        files["CHANGES.md"] = changes_text(found, str(against), version).encode()
    digest = hashlib.sha256(data).hexdigest()
    files["README.md"] = _card(rows, version).encode()
    files["CITATION.cff"] = _citation(rows, version).encode()
    files["croissant.json"] = _croissant(rows, version, digest, len(data)).encode()
    sums = "".join(
        f"{hashlib.sha256(content).hexdigest()}  {name}\n"
        for name, content in sorted(files.items())
    )
    for name, content in (*files.items(), (SUMS, sums.encode())):
        atomic_write_bytes(folder / name, content)
    return Released(
        folder=folder,
        version=version,
        files=tuple(sorted((*files, SUMS))),
        num_rows=len(rows),
        methods=tuple(sorted({row.method for row in rows})),
        sha256=digest,
        num_bytes=len(data),
        against=None if against is None else str(against),
        changes=found,
    )


def _columns() -> list[tuple[str, pa.DataType, str]]:
    """Name, type and meaning with its unit of each column."""
    columns = []
    for field in ROW_SCHEMA:
        metadata = field.metadata or {}
        unit = metadata.get(b"unit", b"").decode()
        meaning = metadata[b"doc"].decode() + (f" [{unit}]" if unit else "")
        columns.append((field.name, field.type, meaning))
    return [*columns, (CURVE, pa.string(), f"{CURVE_MEANING} [json]")]


def _newest(rows: Sequence[Row]) -> str:
    """Date of the newest row; a release made again has the same."""
    return max(row.finished_at for row in rows).date().isoformat()


def _summary(rows: Sequence[Row]) -> str:
    methods, datasets = ({getattr(row, n) for row in rows} for n in ("method", "dataset"))
    return (
        f"{len(rows):,} runs of {len(methods)} methods for federated representation learning"
        f" without labels on {', '.join(sorted(datasets))}: configuration, label-free scores,"
        " accuracy of probes, traffic, time, and a record of every round."
    )


def _card(rows: Sequence[Row], version: str) -> str:
    """Return the data card."""
    counts = [
        (name, Counter(str(getattr(row, name)) for row in rows))
        for name in ("method", "dataset", "preset", "benchmark_version", "status", "platform")
    ]
    return _CARD.format(
        title=_TITLE,
        version=version,
        summary=_summary(rows),
        file=FILE,
        contents="\n".join(
            f"| {name} | {value} | {number:,} |"
            for name, found in counts
            for value, number in sorted(found.items())
        ),
        columns="\n".join(f"| `{name}` | {kind} | {text} |" for name, kind, text in _columns()),
        licence=f"{LICENCE}: {_LICENCE_URL}",
    )


def _citation(rows: Sequence[Row], version: str) -> str:
    return dump_yaml(
        {
            "cff-version": "1.2.0",
            "message": "If you use these results, please cite them and the papers of the methods.",
            "title": _TITLE,
            "type": "dataset",
            "version": version,
            "date-released": _newest(rows),
            "license": LICENCE,
            "authors": [{"name": "The fedbench authors"}],
        }
    )


def _croissant(rows: Sequence[Row], version: str, digest: str, size: int) -> str:
    """Return the description in Croissant's vocabulary, as JSON-LD."""
    fields = []
    for name, kind, meaning in _columns():
        field: dict[str, Any] = {
            "@type": "cr:Field",
            "@id": f"runs/{name}",
            "name": name,
            "description": meaning,
            "dataType": _TYPES[str(kind)],
            "source": {"fileObject": {"@id": FILE}, "extract": {"column": name}},
        }
        if pa.types.is_list(kind):
            field["repeated"] = True
        fields.append(field)
    record = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": _CROISSANT,
        "name": "fedbench-results",
        "description": _summary(rows),
        "license": _LICENCE_URL,
        "version": version,
        "datePublished": _newest(rows),
        "creator": {"@type": "sc:Organization", "name": "The fedbench authors"},
        "citeAs": f"The fedbench authors. {_TITLE}, version {version}.",
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": FILE,
                "name": FILE,
                "description": "All runs, with the records of their rounds.",
                "contentUrl": FILE,
                "contentSize": f"{size} B",
                "encodingFormat": "application/x-parquet",
                "sha256": digest,
            }
        ],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": "runs",
                "name": "runs",
                "description": "One record for each run.",
                "field": fields,
            }
        ],
    }
    return json.dumps(record, indent=2, ensure_ascii=False) + "\n"


_CARD = """\
# {title}, {version}

{summary}

```sh
sha256sum --check SHA256SUMS
fedbench leaderboard --store {file}
```

```python
import pandas as pd

rows = pd.read_parquet("{file}")
```

## What it is for

Comparing methods under equal conditions, replaying a search of hyperparameters under another
label-free score, and finding out what a claim rests on. `fedbench leaderboard` ranks rows of one
comparability class: those of different `benchmark_version`, data, partition, budget or probe have
no common rank.

## Where it comes from

Each row is one run of fedbench. `config_json` and the data of `dataset_revision` determine its
numbers to the last bit on one numeric platform (`platform`); `fedbench reproduce` repeats it.
`git_sha` names the code. Images are not part of the release, nor are names of persons.

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

_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "equivalentProperty": "cr:equivalentProperty",
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
"""Croissant 1.0's context: its terms, and schema.org for the rest."""
