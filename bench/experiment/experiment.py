"""An experiment: one run before it is run, with everything that follows from its configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any, Self

from fedbench.bench.config import RunConfig
from fedbench.bench.data.datasets import Dataset, load_dataset, reopen
from fedbench.bench.data.partition import Partition, make_partition
from fedbench.bench.data.reading import Reading
from fedbench.bench.experiment.code import foreign_modules, unknown_elsewhere
from fedbench.bench.method import Method, Needs, registry
from fedbench.bench.method.ids import Ids
from fedbench.bench.system.errors import ConfigError, expect
from fedbench.bench.system.source import check_source
from fedbench.bench.training.setup import Setup

CUSTOM = "custom"  # recorded as the preset of a `RunConfig` that was made by hand

_partitions: dict[str, Partition] = {}
"""Those that were made last; runs of a sweep that share one follow each other."""


@dataclass(frozen=True)
class Origin:
    """Circumstances of a run: columns of its row that are not part of its identity."""

    preset: str = CUSTOM  # that its configuration started from
    study_id: str | None = None  # that its values come from, if any
    purpose: str = "evaluation"  # one of `PURPOSES`
    grid: str | None = None
    argv: str | None = None
    measured_from: str | None = None  # row id of the run whose weights are evaluated
    scaled: dict[str, float] = field(default_factory=dict)  # by a rule of the grid: old values


@dataclass(frozen=True)
class Data:
    """A data set that is in the cache, for processes that open it there."""

    path: Path  # the cache folder
    revision: str
    name: str  # by content, which another node may not know


@dataclass(frozen=True)
class Experiment:
    """One run before it is run: its configuration, and what follows from it.

    What takes time is made when it is first asked for, and once. Pickled are the configuration,
    the identities and the place of the data; another process makes the rest again.

    Attributes:
        config: complete and validated.
        origin: what is recorded with the run.
        sources: source of each value by dotted name: `default`, `preset NAME (paper|code|ours)`,
            `tuned study ID`, `file PATH`, `environment VARIABLE`, `--dataset`, `--set` or `--seed`;
            empty for a configuration that was made by hand.
        data_dir: cache of data sets; None = the default one.
    """

    config: RunConfig
    origin: Origin = Origin()
    sources: Mapping[str, str] = field(default_factory=dict)
    data_dir: Path | None = None

    def on(self, dataset: Dataset) -> Self:
        """Return the experiment with its data set, which is open already."""
        other = replace(self)
        vars(other)["dataset"] = dataset  # where the cached property looks first
        return other

    def varied(self, section: str, **values: Any) -> Self:
        """Return an experiment with other values, unchecked, in a section of the configuration."""
        changed = getattr(self.config, section).model_copy(update=values)
        return replace(self, config=self.config.model_copy(update={section: changed}))

    def under(self, origin: Origin) -> Self:
        """Return the experiment with another origin, and all that is made already."""
        other = replace(self, origin=origin)
        vars(other).update(vars(self) | {"origin": origin})
        return other

    def __getstate__(self) -> dict[str, Any]:
        light = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**light, "data": self.data, "ids": self.ids}

    @cached_property
    def method(self) -> Method:
        """The method, with its fields' values."""
        return registry.create(self.config.spec, self.config.method)

    @cached_property
    def needs(self) -> Needs:
        """What the method declares."""
        return expect(self.method.needs(), Needs, "needs()")

    @cached_property
    def modules(self) -> Mapping[str, str]:
        """Modules that other packages bring, by what they bring."""
        return foreign_modules(self.config)

    def workers(self, given: int | None = None) -> int | None:
        """Return `given`, but 1 where it is None for what a script or session has registered.

        Raises:
            ConfigError: for more, since other processes know what is installed only.
        """
        if not (own := unknown_elsewhere(self.modules)):
            return given
        if (given or 1) == 1:
            return 1
        if own <= packages_distributions().keys():  # an entry point may name another package
            return given
        raise ConfigError(
            f"{self.config.spec!r} is registered by this script or session, and other processes"
            " know methods of installed packages only: put it into one (`fedbench new method`"
            " writes one), or train it here by `run` with workers=1"
        )

    def check_code(self) -> None:
        """Refuse code of other packages that has changed since its hash was taken."""
        check_source(self.modules, self.config.code)

    @cached_property
    def dataset(self) -> Dataset:
        """The data set: from the cache, which is built if need be."""
        if "data" in vars(self):
            return reopen(self.data.path, name=self.data.name)
        data = self.config.data
        return load_dataset(
            data.name,
            self.data_dir,
            train_subset=data.train_subset,
            test_subset=data.test_subset,
            reading=Reading.of(data),
        )

    @cached_property
    def data(self) -> Data:
        """Where the data set lies, and what it is."""
        return Data(self.dataset.path, self.dataset.revision, self.dataset.name)

    @cached_property
    def ids(self) -> Ids:
        """Identities of the run on this data."""
        return Ids.of(self.config, self.data.revision)

    # Not a cached property: a sweep would keep the partition of each of its cells.
    @property
    def partition(self) -> Partition:
        """Each client's training images; the last ones made are remembered for all experiments.

        Raises:
            ConfigError: the settings cannot be met by these labels.
        """
        dataset, config = self.dataset, self.config
        fields = config.data.model_dump_json(exclude={"name", "label_fraction"})
        key = f"{dataset.revision} {len(dataset.train_labels)} {config.seed} {fields}"
        if key not in _partitions:
            labels, classes = dataset.train_labels, dataset.num_classes
            made = make_partition(labels, classes, config.data, config.seed, dataset.train_clients)
            _partitions[key] = made
            if len(_partitions) > 8:
                del _partitions[next(iter(_partitions))]
        return _partitions[key]

    @cached_property
    def setup(self) -> Setup:
        """The run before its first round."""
        return Setup.of(self.config, self.dataset, self.partition, self.method)

    def as_dict(self) -> dict[str, Any]:
        """The output of `fedbench config --json`."""
        of, sources = self.origin, dict(self.sources)
        named = {"preset": of.preset, "study": of.study_id, "sources": sources}
        return {**self.config.model_dump(mode="json"), **named}
