"""Other data sets on whose images a run's encoder is probed."""

import re
from dataclasses import replace
from pathlib import Path

import torch

from fedbench.bench.config import RunConfig
from fedbench.bench.data.datasets import Dataset, load_dataset
from fedbench.bench.evaluation.features import encode_batch
from fedbench.bench.evaluation.probes import cautions
from fedbench.bench.method import Net
from fedbench.bench.system.errors import ConfigError, DataError, PluginError
from fedbench.bench.training.setup import Setup

PROTOCOLS = ("knn", "linear", "few-shot")
"""Probes that go through other data, too, if `evaluation.protocols` has them."""
_KEY = "evaluation.transfer"


def with_revisions(config: RunConfig, data_dir: Path | None) -> tuple[RunConfig, list[str]]:
    """Return the configuration with the content of each set of `evaluation.transfer`, and cautions.

    NAME becomes NAME@REVISION, each content once, in a fixed order, so that the run's id depends on
    what the sets contain. Of each, `data.train_subset` and `data.test_subset` say how many images
    are taken.

    Raises:
        ConfigError: without one of `PROTOCOLS`, or for a set without labels.
        FedbenchError: as `load_dataset`.
    """
    names = config.evaluation.transfer
    if not names:
        return config, []
    if not {*PROTOCOLS} & {*config.evaluation.protocols}:
        raise ConfigError(
            f"{_KEY}: needs one of {', '.join(PROTOCOLS)} in evaluation.protocols"
            f" (got {list(config.evaluation.protocols)})"
        )
    opened = {name: _open(config, name, data_dir) for name in names}
    found = {dataset.revision: name for name, dataset in opened.items()}
    if len({metric_prefix(opened[name]) for name in found.values()}) < len(found):
        raise ConfigError(f"{_KEY}: two of these sets have one name in metrics; rename a folder")
    transfer = tuple(f"{_split(name)[0]}@{revision}" for revision, name in sorted(found.items()))
    evaluation = config.evaluation.model_copy(update={"transfer": transfer})
    said = [f"{_KEY}: {line}" for each in opened.values() for line in each.cautions]
    for each in opened.values():
        said += cautions(config, each, metric_prefix(each))
    return config.model_copy(update={"evaluation": evaluation}), said


def with_transfer(setup: Setup, net: Net, data_dir: Path | None) -> Setup:
    """Return the setup with the sets of `evaluation.transfer`.

    Raises:
        ConfigError: if the net cannot take the images of one.
        DataError: if a set is missing or has other content than the configuration says.
    """
    config = setup.config
    sets = tuple(_open(config, name, data_dir) for name in config.evaluation.transfer)
    channels = setup.spec.image_shape[0]
    for dataset in sets:
        given = dataset.image_shape
        if given[0] not in (1, channels):
            raise ConfigError(
                f"{_KEY}: images of {dataset.name} have {given[0]} channels, and the encoder takes"
                f" {channels}; gray images serve everywhere"
            )
        blank = torch.zeros(2, channels, *given[1:])
        try:
            encode_batch(lambda x: setup.method.encode(net.eval(), x), blank, "cpu")
        except (DataError, PluginError, RuntimeError) as err:
            size = "x".join(map(str, given[1:]))
            raise ConfigError(
                f"{_KEY}: the encoder cannot take {size} images of {dataset.name}"
                f" ({' '.join(str(err).split())})"
            ) from err
    return replace(setup, transfer=sets)


def metric_prefix(dataset: Dataset) -> str:
    """Return what the names of metrics on a set begin with: `transfer_fashion_mnist_`."""
    return f"transfer_{re.sub(r'[^0-9A-Za-z]+', '_', dataset.name)}_"


def _open(config: RunConfig, entry: str, data_dir: Path | None) -> Dataset:
    name, revision = _split(entry)
    try:
        whole = load_dataset(name, data_dir)
    except DataError as err:
        if "data.image_size" not in str(err):
            raise
        raise DataError(f"{_KEY}: {err} (data.image_size is of the run's own images)") from err
    # Sizes that were chosen for the run's own data may be more than this set has.
    train, test = config.data.train_subset, config.data.test_subset
    dataset = load_dataset(
        name,
        data_dir,
        train_subset=train and min(train, len(whole.train_labels)),
        test_subset=test and min(test, len(whole.test_labels)),
    )
    if revision and dataset.revision != revision:
        raise DataError(
            f"{_KEY}: {name} has other content than in this run (revision {dataset.revision[:8]},"
            f" then {revision[:8]})"
        )
    if not (dataset.train_labels >= 0).any():
        raise ConfigError(f"{_KEY}: no training image of {name} has a label")
    return dataset


def _split(entry: str) -> tuple[str, str]:
    found = re.fullmatch(r"(.+)@([0-9a-f]{64})", entry)
    return (found[1], found[2]) if found else (entry, "")
