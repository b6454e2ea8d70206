"""Names of the data sets of rows, which say what their images are and not where they lay.

A name without a colon is that of a known content, such as `cifar10`; any other, `hub:FOLDER`, is a
label.
"""

import json
from collections.abc import Iterable

import pandas as pd

from fedbench.bench.config.schema import without_folder
from fedbench.bench.data.sources.base import entries


def dataset_name(name: str) -> str:
    """Return `cifar10` for `cifar10`, `CIFAR-10` and `hub:some/folder/cifar-10`."""
    last = name.split(":", 1)[-1].rstrip("/").rsplit("/", 1)[-1]
    return last.lower().replace("-", "").replace("_", "")


def known_name(dataset: str) -> str | None:
    """Return the data set of a row as `dataset_name` spells it; None for unknown content."""
    return None if ":" in dataset else dataset_name(dataset)


def meant(name: str, held: Iterable[str]) -> set[str]:
    """Return which data sets of rows a name without a colon means: a content, else a folder.

    >>> meant("photos", ["folder:photos", "cifar10"]), meant("cifar10", ["hub:cifar10"])
    ({'folder:photos'}, set())
    """
    alike = {each for each in held if dataset_name(each) == dataset_name(name)}
    contents = {each for each in alike if ":" not in each}
    is_content = contents or dataset_name(name) in map(dataset_name, entries())
    return contents if is_content else alike


def on_dataset(frame: pd.DataFrame, dataset: str) -> pd.DataFrame:
    """Return the rows on a data set, and those on the same images under another name.

    `dataset` is the name of a content or a folder, in any spelling; or `hub:PATH` and the like,
    which stands for what lay in a folder of that name.
    """
    if ":" in dataset:
        label = without_folder(dataset)
        given = frame.config_json.map(lambda text: without_folder(json.loads(text)["data"]["name"]))
        named = (frame.dataset == label) | (given == label)
    else:
        named = frame.dataset.isin(meant(dataset, frame.dataset.unique()))
    return frame[frame.dataset_revision.isin(frame.dataset_revision[named].unique())]


def named_by_content(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with one name for each revision: a known one, else the first label."""
    pairs = frame[["dataset_revision", "dataset"]].drop_duplicates()
    pairs["label"] = pairs.dataset.str.contains(":")
    first = pairs.sort_values(["label", "dataset"]).drop_duplicates("dataset_revision")
    names = first.set_index("dataset_revision").dataset
    return frame.assign(dataset=frame.dataset_revision.map(names))
