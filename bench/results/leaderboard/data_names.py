"""Names of the data sets of rows, which say what their images are and not where they lay.

A name without a colon is that of a known content, such as `cifar10`; any other, `hub:FOLDER`, is a
label.
"""

import json
from typing import Any

import pandas as pd

from fedbench.bench.config import DataConfig


def dataset_name(name: str) -> str:
    """Return `cifar10` for `cifar10`, `CIFAR-10` and `hub:some/folder/cifar-10`."""
    last = name.split(":", 1)[-1].rstrip("/").rsplit("/", 1)[-1]
    return last.lower().replace("-", "").replace("_", "")


def known_name(row: Any) -> str | None:
    """Return the name of a row's data set as `dataset_name` spells it; None for unknown content."""
    return None if ":" in row.dataset else dataset_name(row.dataset)


def is_on(row: Any, dataset: str) -> bool:
    """True if a row, perhaps one of a frame, is on a data set.

    `dataset` is the name of a content, in any spelling; or `hub:PATH` and the like, which stands
    for what lay in a folder of that name.
    """
    if ":" not in dataset:
        return known_name(row) == dataset_name(dataset)
    given = json.loads(row.config_json)["data"]["name"]
    return _label(dataset) in (row.dataset, _label(given))


def on_dataset(frame: pd.DataFrame, dataset: str) -> pd.DataFrame:
    """Return the rows on a data set, and those on the same images under another name."""
    named = frame[["dataset", "config_json"]].itertuples(index=False)
    there = frame.dataset_revision[[is_on(row, dataset) for row in named]]
    return frame[frame.dataset_revision.isin(there.unique())]


def _label(name: str) -> str:
    return DataConfig(name=name).public_name


def named_by_content(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with one name for each revision: a known one, else the first label."""
    pairs = frame[["dataset_revision", "dataset"]].drop_duplicates()
    pairs["label"] = pairs.dataset.str.contains(":")
    first = pairs.sort_values(["label", "dataset"]).drop_duplicates("dataset_revision")
    names = first.set_index("dataset_revision").dataset
    return frame.assign(dataset=frame.dataset_revision.map(names))
