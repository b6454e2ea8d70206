"""Files that describe the Parquet files of a release or a store: data card, citation, Croissant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from fedbench.bench.board.bundle import LICENCE
from fedbench.bench.config.yaml_files import dump_yaml
from fedbench.bench.results.store.row import Row
from fedbench.bench.system.text import markdown, visible_json

_LICENCE_URL = "https://creativecommons.org/publicdomain/zero/1.0/"
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
class Description:
    """A data set of one Parquet file, or of many with the same columns.

    Attributes:
        name: in the Croissant description; `title` is for readers.
        file: name of the Parquet file; a pattern if there are many.
        records, line: name of its lines, and what one of them is.
        holds: what is in the file.
        origin, use: sections of the data card: where the numbers are from, how to use them.
        schema: of the file, with the meaning and unit of each column.
        rows: the runs in it.
    """

    name: str
    title: str
    version: str
    file: str
    records: str
    line: str
    holds: str
    origin: str
    schema: pa.Schema
    rows: Sequence[Row]
    use: str

    def files(self, digest: str | None = None, size: int | None = None) -> Mapping[str, bytes]:
        """Return the files that describe the Parquet file, by name."""
        return {
            "README.md": self._card().encode(),
            "CITATION.cff": self._citation().encode(),
            "croissant.json": self._croissant(digest, size).encode(),
        }

    def _columns(self) -> list[tuple[str, pa.DataType, str]]:
        """Name, type and meaning with its unit of each column."""
        columns = []
        for field in self.schema:
            metadata = field.metadata or {}
            unit = metadata.get(b"unit", b"").decode()
            meaning = metadata[b"doc"].decode() + (f" [{unit}]" if unit else "")
            columns.append((field.name, field.type, meaning))
        return columns

    def _newest(self) -> str:
        """Date of the newest row; a release made again has the same."""
        return max(row.finished_at for row in self.rows).date().isoformat()

    def _summary(self) -> str:
        methods, datasets = ({getattr(row, n) for row in self.rows} for n in ("method", "dataset"))
        methods_text = f"{len(methods)} method" + ("" if len(methods) == 1 else "s")
        return (
            f"{len(self.rows):,} runs of {methods_text} for federated representation learning"
            f" without labels on {', '.join(sorted(datasets))}: {self.holds}."
        )

    def _card(self) -> str:
        """Return the data card."""
        counts = [
            (name, Counter(str(getattr(row, name)) for row in self.rows))
            for name in ("method", "dataset", "preset", "benchmark_version", "status", "platform")
        ]
        hub = {  # what the Hugging Face Hub reads of a card
            "license": LICENCE.lower(),
            "pretty_name": self.title,
            "configs": [{"config_name": self.records, "data_files": self.file}],
        }
        return _CARD.format(
            hub=dump_yaml(hub),
            title=markdown(self.title),
            version=self.version,
            summary=markdown(self._summary()),
            use=self.use,
            origin=self.origin,
            contents="\n".join(
                f"| {name} | {markdown(value)} | {number:,} |"
                for name, found in counts
                for value, number in sorted(found.items())
            ),
            columns="\n".join(
                f"| {markdown(name)} | {kind} | {markdown(text)} |"
                for name, kind, text in self._columns()
            ),
            licence=f"{LICENCE}: {_LICENCE_URL}",
        )

    def _citation(self) -> str:
        return dump_yaml(
            {
                "cff-version": "1.2.0",
                "message": "If you use these results, please cite them and the papers of the"
                " methods.",
                "title": self.title,
                "type": "dataset",
                "version": self.version,
                "date-released": self._newest(),
                "license": LICENCE,
                "authors": [{"name": "The fedbench authors"}],
            }
        )

    def _croissant(self, digest: str | None, size: int | None) -> str:
        """Return the description in Croissant's vocabulary, as JSON-LD."""
        if digest is None:
            source = "fileSet"
            resource = {"@type": "cr:FileSet", "includes": self.file}
        else:
            source = "fileObject"
            resource = {
                "@type": "cr:FileObject",
                "contentUrl": self.file,
                "contentSize": f"{size} B",
                "sha256": digest,
            }
        fields = [
            {
                "@type": "cr:Field",
                "@id": f"{self.records}/{name}",
                "name": name,
                "description": meaning,
                "dataType": _TYPES[str(kind)],
                "source": {source: {"@id": self.file}, "extract": {"column": name}},
                **({"repeated": True} if pa.types.is_list(kind) else {}),
            }
            for name, kind, meaning in self._columns()
        ]
        record = {
            "@context": _CONTEXT,
            "@type": "sc:Dataset",
            "conformsTo": "http://mlcommons.org/croissant/1.0",
            "name": self.name,
            "description": self._summary(),
            "license": _LICENCE_URL,
            "version": self.version,
            "datePublished": self._newest(),
            "creator": {"@type": "sc:Organization", "name": "The fedbench authors"},
            "citeAs": f"The fedbench authors. {self.title}, version {self.version}.",
            "distribution": [
                {
                    "@id": self.file,
                    "name": self.file,
                    "description": f"A line for each {self.line}.",
                    "encodingFormat": "application/x-parquet",
                    **resource,
                }
            ],
            "recordSet": [
                {
                    "@type": "cr:RecordSet",
                    "@id": self.records,
                    "name": self.records,
                    "description": f"One record for each {self.line}.",
                    "field": fields,
                }
            ],
        }
        return visible_json(record, indent=2) + "\n"


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
Images are not part of the release, nor are names of persons.

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
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "includes": "cr:includes",
    "recordSet": "cr:recordSet",
    "repeated": "cr:repeated",
    "sc": "https://schema.org/",
    "source": "cr:source",
}
"""Croissant 1.0's terms that are used, and schema.org for the rest."""
