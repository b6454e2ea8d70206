"""Names of the data sets of rows, which say what their images are and not where they lay.

A name without a colon is that of a known content, such as `cifar10`; any other, `hub:FOLDER`, is a
label. Rows before benchmark version 4 have labels only and the revision of their images in another
order, so that nothing but the folder's name says what they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from fedbench.bench.config import DataConfig
from fedbench.bench.results.store.row import Row

_BY_FOLDER = ("1", "2", "3")
"""Benchmark versions whose rows are known by the name of the folder."""


def dataset_name(name: str) -> str:
    """Return `cifar10` for `cifar10`, `CIFAR-10` and `hub:some/folder/cifar-10`."""
    last = name.split(":", 1)[-1].rstrip("/").rsplit("/", 1)[-1]
    return last.lower().replace("-", "").replace("_", "")


def known_name(row: Row) -> str | None:
    """Return the name of a row's data set as `dataset_name` spells it; None for unknown content."""
    if ":" not in row.dataset or row.benchmark_version in _BY_FOLDER:
        return dataset_name(row.dataset)
    return None


def is_on(row: Row, dataset: str) -> bool:
    """True if a row is on a data set.

    Args:
        row: any row.
        dataset: name of a content, in any spelling; or `hub:PATH` and the like, which stands for
            what lay in a folder of that name.
    """
    if ":" not in dataset:
        return known_name(row) == dataset_name(dataset)
    given = json.loads(row.config_json)["data"]["name"]
    return _label(dataset) in (row.dataset, _label(given))


def on_dataset(rows: Iterable[Row], dataset: str) -> list[Row]:
    """Return the rows on a data set, and those on the same images under another name.

    Args:
        rows: any rows.
        dataset: see `is_on`.
    """
    rows = list(rows)
    revisions = {row.dataset_revision for row in rows if is_on(row, dataset)}
    return [row for row in rows if row.dataset_revision in revisions]


def _label(name: str) -> str:
    return DataConfig(name=name).public_name


def named_by_content(rows: Iterable[Row]) -> list[Row]:
    """Return the rows with one name for each revision: a known one, else the first label."""
    rows = list(rows)
    names: dict[str, str] = {}
    for row in rows:
        names[row.dataset_revision] = min(
            names.get(row.dataset_revision, row.dataset),
            row.dataset,
            key=lambda name: (":" in name, name),
        )
    return [
        row
        if row.dataset == (name := names[row.dataset_revision])
        else row.model_copy(update={"dataset": name})
        for row in rows
    ]
