"""Functions that partition and prepare data sets; they load torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbench.bench.config import RunConfig
from fedbench.bench.config.dotted import flatten
from fedbench.bench.config.identity import READ_BY_SOURCE
from fedbench.bench.data.datasets import (
    PreparedDataset,
    places_in_source,
    prepare,
    split_of_images,
)
from fedbench.bench.data.partition import PartitionSummary, balanced_labels, make_partition, summary
from fedbench.bench.data.reading import Reading
from fedbench.bench.data.sources.base import with_kind
from fedbench.bench.data.sources.decode import Progress
from fedbench.bench.experiment.common_options import Settings, as_path
from fedbench.bench.experiment.fields import Fields
from fedbench.bench.experiment.resolve import resolve
from fedbench.bench.method.blame import guarded
from fedbench.bench.system.arguments import grouped
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.files import atomic_write_bytes

if TYPE_CHECKING:
    from pandas import DataFrame


@grouped
@guarded()
def partition(
    spec: str | None = None,
    *,
    settings: Settings,
    data_dir: Path | str | None = None,
    labels: str | None = None,
    out: Path | str | None = None,
) -> PartitionSummary:
    """Give a configuration's data set to its clients.

    Args:
        spec: method spec; matters only where a preset's data depend on the method.
        settings: sources of the configuration.
        data_dir: cache of data sets; None = the default one.
        labels: `balanced:N:C` takes N examples in C equal classes instead of the data set's
            labels, so that its images are not needed (subsets are ignored then).
        out: Parquet file to write: a column `client` with that of each training image in the order
            of the source, -1 for none, as `data.partition_file` takes it. It has no angles.

    >>> three = {"data.num_clients": 3, "data.partition": "iid"}
    >>> partition(set=three, labels="balanced:60:4").partition.sizes.tolist()
    [20, 20, 20]
    """
    experiment = resolve(spec or RunConfig().spec, data_dir=data_dir, **vars(settings))
    config, names = experiment.config, None
    if labels is None:
        classes, made = experiment.dataset.train_labels, experiment.partition
        names = experiment.dataset.class_names
    else:
        classes, num_classes = balanced_labels(labels)
        made = make_partition(classes, num_classes, config.data, config.seed)
    if (file := as_path(out)) is not None:
        from pandas import DataFrame

        if file.suffix != ".parquet":
            raise ConfigError(f"a partition is written as .parquet (got {str(out)!r})")
        places, count = np.arange(len(classes)), len(classes)
        if labels is None:
            places, count = places_in_source(config.data, as_path(data_dir))
        clients = np.full(count, -1)
        clients[places[made.indices]] = np.repeat(np.arange(made.num_clients), made.sizes)
        content = DataFrame({"client": clients}).to_parquet(index=False)
        atomic_write_bytes(file, content, error=ConfigError)
    return PartitionSummary(config.data.name, labels, made, summary(made, classes), names)


@guarded()
def prepare_data(
    name: str,
    *,
    set: Mapping[str, Any] | None = None,
    data_dir: Path | str | None = None,
    preview: Path | str | None = None,
    on_progress: Progress | None = None,
) -> PreparedDataset:
    """Download or convert a data set into the cache, verify every byte of it, and look through it.

    Args:
        name: its name, as `data.name`, or a path without its kind.
        set: how it is read, by dotted name: label column, image size, clients.
        data_dir: cache of data sets; None = the default one.
        preview: PNG file to write, with a training and a test image of each class.
        on_progress: called while images are decoded.

    Returns:
        Counts per class and split, copies, images of both splits, and what was left out.

    Raises:
        ConfigError: for an unknown name, values that it cannot be read with, or a preview that
            cannot be written.
        DataError: no network, a torn or missing source, or a folder that cannot be written.

    >>> prepare_data("digits").num_train
    1201
    """
    name = with_kind(name)
    reading = _reading_of(name, set)
    places = as_path(data_dir), as_path(preview)
    return prepare(name, places[0], reading=reading, preview=places[1], progress=on_progress)


def split_data(
    name: str, *, set: Mapping[str, Any] | None = None, data_dir: Path | str | None = None
) -> "DataFrame":
    """Return which images of a data set are training images and which are test images.

    Args:
        name: its name, as `data.name`.
        set: how it is read, as for `prepare_data`.
        data_dir: cache of data sets; None = the default one.

    Returns:
        One row per image, in the order of the source: `split`, `train` or `test`; `file`; and
        `row`, its place in the file from 0, or missing where the image is the file. The training
        images have the order in which `data.partition_file` names clients.

    Raises:
        ConfigError: for an unknown name, or values that it cannot be read with.
        DataError: the source is missing or torn.

    >>> split_data("digits").split.value_counts().to_dict()
    {'train': 1201, 'test': 596}
    """
    from pandas import DataFrame

    name = with_kind(name)
    images = split_of_images(name, as_path(data_dir), _reading_of(name, set))
    frame = DataFrame(images, columns=["split", "file", "row"])
    return frame.astype({"row": "Int64"})


def _reading_of(name: str, set: Mapping[str, Any] | None) -> Reading:
    values = flatten(set or {})
    allowed = sorted(f"data.{key}" for key in ("partition", *READ_BY_SOURCE))
    for key in values.keys() - {*allowed}:
        raise ConfigError(f"{key} does not change what is prepared; allowed: {', '.join(allowed)}")
    return Reading.of(Fields.of(RunConfig().spec).build({"data.name": name, **values}).data)
