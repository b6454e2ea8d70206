"""Pack the runs in leaderboards/results, with data card, citation and Croissant description.

Usage: `python leaderboards/card.py`; a test compares the files with the rows. Runs that proposals
have added in files of their own are packed with the others.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from fedbench import open_store
from fedbench.bench.config.yaml_files import dump_yaml
from fedbench.bench.results.store.files import PACKED
from fedbench.bench.results.store.row import Row
from fedbench.bench.system.text import markdown, visible_json
from fedbench.leaderboards.pack import packs, write

FOLDER = Path(__file__).with_name("results")
FILES = f"{PACKED}/*.parquet"
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


_USE = """\
```sh
fedbench leaderboard --store leaderboards/results
fedbench reproduce RUN_ID --store leaderboards/results
```

```python
from fedbench import open_store

rows = open_store("leaderboards/results").rows()
```
"""
_ORIGIN = """\
Each row is one run of fedbench. Its settings (`config.…`) and the data of `dataset_revision`
determine its numbers to the last bit on one numeric platform (`platform`); `fedbench reproduce`
repeats it. `git_sha` names the code. `curve_json` has the rounds of each run. leaderboards/studies/
says which question a grid of runs was to answer, and what was known before they ran.

Compute, as the sum of the rows' `wall_seconds` on shared machines:

{compute}

The presets are small. `laptop` makes 1/520 of the image passes of Lubana et al. 2022 (48,000
against 25 million; each image 1/104 as often), `cross-device-cpu` 1/21 of them.

Images: CIFAR-10 (A. Krizhevsky, Learning multiple layers of features from tiny images, 2009), for
which its authors state no licence and ask to be cited; it is a labelled part of the Tiny Images,
which their authors withdrew in 2020 over offensive labels that CIFAR-10 does not have.
Fashion-MNIST (H. Xiao, K. Rasul, R. Vollgraf, 2017) is under the MIT licence. What is here are
figures of encoders that were trained on them; no image and no label is.
"""


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


def describe(rows: Sequence[Row], schema: pa.Schema) -> dict[str, bytes]:
    """Return data card, citation and Croissant record of packed runs, by name.

    `schema` is that of the files, with the meaning and unit of each column.
    """
    columns = [(field.name, str(field.type), _meaning(field)) for field in schema]
    newest = max(row.finished_at for row in rows)  # made again, the files have the same dates
    version, date = newest.strftime("%Y.%m"), newest.date().isoformat()
    methods, datasets = ({getattr(row, name) for row in rows} for name in ("method", "dataset"))
    summary = (
        f"{len(rows):,} runs of {len(methods)} method{'s' * (len(methods) != 1)} for federated"
        f" representation learning without labels on {', '.join(sorted(datasets))}: {HOLDS}."
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
                "configs": [{"config_name": "runs", "data_files": FILES}],
            }
        ),
        title=_TITLE,
        version=version,
        summary=markdown(summary),
        use=_USE,
        origin=_ORIGIN.format(compute=_compute(rows)),
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
        "date-released": date,
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
        "datePublished": date,
        "creator": {"@type": "sc:Organization", "name": "The fedbench authors"},
        "citeAs": f"The fedbench authors. {_TITLE}, version {version}.",
        **_records(columns),
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


def _records(columns: Sequence[tuple[str, str, str]]) -> dict[str, Any]:
    """Describe the files and their columns in Croissant's vocabulary."""
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"runs/{name}",
            "name": name,
            "description": meaning,
            "dataType": _TYPES[kind],
            "source": {"fileSet": {"@id": FILES}, "extract": {"column": name}},
        }
        for name, kind, meaning in columns
    ]
    distribution = {
        "@id": FILES,
        "name": FILES,
        "description": "A line for each run.",
        "encodingFormat": "application/x-parquet",
        "@type": "cr:FileSet",
        "includes": FILES,
    }
    record = {
        "@type": "cr:RecordSet",
        "@id": "runs",
        "name": "runs",
        "description": "One record for each run.",
        "field": fields,
    }
    return {"distribution": [distribution], "recordSet": [record]}


def _compute(rows: Sequence[Row]) -> str:
    """Return a table of runs and hours by preset and hardware."""
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    runs: dict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        key = row.preset, row.hardware or "unknown"
        seconds[key] += row.wall_seconds or 0.0
        runs[key] += 1
    lines = [
        f"| {' | '.join(key)} | {runs[key]} | {seconds[key] / 3600:.1f} |" for key in sorted(runs)
    ]
    lines.append(f"| all | | {len(rows)} | {sum(seconds.values()) / 3600:.1f} |")
    return "\n".join(["| preset | hardware | runs | hours |", "|---|---|---|---|", *lines])


def files() -> Mapping[str, bytes]:
    """Return the packed runs and the files that describe them, by name."""
    store = open_store(FOLDER)
    packed, schema = packs(store)
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in packed.items())
    return {**packed, "SHA256SUMS": sums.encode(), **describe(store.rows(), schema)}


if __name__ == "__main__":
    write(FOLDER, files())
