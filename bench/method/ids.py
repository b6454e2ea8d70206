"""Identifiers of runs: equal settings on equal data have equal ids, on every machine.

A setting at its default does not count (`config/identity.py`), so that a method, an add-on or a
section of the configuration may get a new field without making strangers of the stored runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from fedbench.bench.config.identity import (
    differing_settings,
    pinned_method_defaults,
    training_settings,
)
from fedbench.bench.config.schema import BENCHMARK_VERSION, RunConfig
from fedbench.bench.method import registry
from fedbench.bench.system.identity import content_id


@dataclass(frozen=True)
class Ids:
    """Identities of a run; see the functions of this module."""

    row: str
    training: str
    config: str

    @classmethod
    def of(cls, config: RunConfig, data_revision: str) -> Self:
        """Return the identities of a configuration on the data of a revision."""
        return cls(*(make(config, data_revision) for make in (row_id, training_id, config_id)))


def row_id(config: RunConfig, data_revision: str) -> str:
    """Identity of a run: settings with seed, data revision, benchmark version.

    It depends neither on the name of a data set nor on fields that the partitioner does not read.
    """
    body = config.model_dump(mode="json")
    evaluation = dict(body["evaluation"])
    # By content, as the run's own data.
    evaluation["transfer"] = [name.rpartition("@")[2] for name in config.evaluation.transfer]
    measured = {**training_settings(body), "evaluation": evaluation, "seed": config.seed}
    # The revision says what a data set is, whatever read it.
    measured["code"] = {k: v for k, v in config.code.items() if not k.startswith("datasets:")}
    return identity(measured, data_revision)


def training_id(config: RunConfig, data_revision: str) -> str:
    """Identity of trained weights: as `row_id`, but however the encoder is evaluated."""
    settings = training_settings(config.model_dump(mode="json"))
    return identity({**settings, "seed": config.seed}, data_revision)


def config_id(config: RunConfig, data_revision: str) -> str:
    """Identity of a training configuration: as `training_id`, but without the seed."""
    return identity(training_settings(config.model_dump(mode="json")), data_revision)


def identity(settings: Mapping[str, Any], data_revision: str) -> str:
    """Identity of settings, on the data of a revision, under the version of the benchmark."""
    body = {"benchmark": BENCHMARK_VERSION, "data": data_revision, "config": counted(settings)}
    return content_id(body)


def counted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that an identity is a hash of: those that differ from the defaults."""
    return differing_settings(settings, method_defaults(settings["spec"]))


def method_defaults(spec: str) -> dict[str, Any]:
    """Return the defaults of a method's fields, and of its add-ons', by dotted name.

    >>> method_defaults("simclr+fedprox")["method.fedprox.mu"]
    0.001
    """
    known, defaults = registry.entries(), dict[str, Any]()
    for entry in (known[name] for name in spec.split("+") if name in known):
        prefix = f"method.{entry.name}" if entry.is_addon else "method"
        defaults |= {f"{prefix}.{field}": value for field, value in entry.defaults.items()}
    ours = "+".join(name if name in known and known[name].ships else "" for name in spec.split("+"))
    return {**defaults, **pinned_method_defaults(ours)}
