"""Groups of options that commands share: dataclasses that Typer sees as single options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar, get_type_hints

from fedbench.bench.terminal import options as opt

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Settings:
    """Where a configuration comes from."""

    preset: opt.Preset = None
    set_: opt.Set = None
    config: opt.Config = None
    seed: opt.Seed = None

    def values(self) -> dict[str, Any]:
        """As `fedbench.bench.api` takes them."""
        return {**self.without_seed(), "seed": self.seed}

    def words(self, without: Collection[str] = ()) -> list[str]:
        """As they were typed, for a command that follows; without the seed.

        Args:
            without: dotted names whose `--set` is left out.
        """
        kept = [text for text in self.set_ or () if text.partition("=")[0].strip() not in without]
        return _words({"--preset": self.preset, "--config": self.config, "--set": kept})

    def without_seed(self) -> dict[str, Any]:
        """The same for a sweep, which has seeds of its own."""
        return {
            "preset": self.preset,
            "set": opt.parse_set(self.set_),
            "config_files": self.config or (),
        }


@dataclass(frozen=True)
class StudySettings(Settings):
    """The same for a study, whose trials have seeds of their own."""

    seed: opt.FirstSeed = None


@dataclass(frozen=True)
class SweepSettings(Settings):
    """The same for a sweep, which goes through several seeds."""

    seed: opt.OneSeed = None


@dataclass(frozen=True)
class Places:
    """Where results and data lie, and what computes."""

    store: opt.StoreDir = None
    data_dir: opt.DataDir = None
    device: opt.DeviceName = opt.Device.AUTO

    def values(self) -> dict[str, Any]:
        """As `fedbench.bench.api` takes them."""
        return {"store": self.store, "data_dir": self.data_dir, "device": self.device.value}

    def words(self) -> list[str]:
        """As they were typed, for a command that follows."""
        device = None if self.device is opt.Device.AUTO else self.device.value
        return _words({"--store": self.store, "--data-dir": self.data_dir, "--device": device})


@dataclass(frozen=True)
class Cluster:
    """How many runs at a time, and on what."""

    concurrency: opt.Concurrency = None
    workers: opt.Processes = None
    gpus_per_trial: opt.GpusPerTrial = None
    cpus_per_trial: opt.CpusPerTrial = 1
    address: opt.Address = None
    checkpoint_dir: opt.CheckpointDir = None

    def values(self) -> dict[str, Any]:
        """As `fedbench.bench.api` takes them."""
        return {
            "concurrency": opt.parse_workers(self.workers, self.concurrency),
            "gpus_per_trial": self.gpus_per_trial,
            "cpus_per_trial": self.cpus_per_trial,
            "address": self.address,
            "checkpoint_dir": self.checkpoint_dir,
        }

    def words(self) -> list[str]:
        """As they were typed, for a command that follows."""
        number = opt.parse_workers(self.workers, self.concurrency)
        gpus = None if self.gpus_per_trial is None else f"{self.gpus_per_trial:g}"
        return _words(
            {
                "--concurrency": number,
                "--gpus-per-trial": gpus,
                "--cpus-per-trial": None if self.cpus_per_trial == 1 else self.cpus_per_trial,
                "--address": self.address,
                "--checkpoint-dir": self.checkpoint_dir,
            }
        )


@dataclass(frozen=True)
class Output:
    """What is said, and in which form."""

    json: opt.Json = False
    quiet: opt.Quiet = False
    verbose: opt.Verbose = False
    debug: opt.Debug = False

    @property
    def loudness(self) -> dict[str, bool]:
        """As progress displays take it."""
        return {"quiet": self.quiet, "verbose": self.verbose}

    @property
    def suggests(self) -> bool:
        """Whether to name the next command."""
        return not (self.json or self.quiet)


def _words(options: Mapping[str, Any]) -> list[str]:
    """Options and their values as words of a command line; a list repeats its option."""
    given = [
        (name, each)
        for name, value in options.items()
        for each in (value if isinstance(value, list) else [value])
        if each is not None
    ]
    return [word for name, value in given for word in (name, str(value))]


def grouped(command: Callable[P, R]) -> Callable[..., R]:
    """A command that takes the fields of its dataclass parameters one by one, each an option.

    >>> def show(*, places: Places, count: int = 1) -> str: return f"{places.device} {count}"
    >>> grouped(show)(device="cpu", count=2)
    'cpu 2'
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    names = {name: [field.name for field in fields(kind)] for name, kind in groups.items()}
    flat: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            flat.append(parameter.replace(annotation=hints[name]))
            continue
        inner = get_type_hints(groups[name], include_extras=True)
        flat += [
            inspect.Parameter(
                field.name, parameter.kind, default=field.default, annotation=inner[field.name]
            )
            for field in fields(groups[name])
        ]

    @wraps(command)
    def call(*args: Any, **given: Any) -> Any:
        for name, kind in groups.items():
            own = {key: given.pop(key) for key in names[name] if key in given}
            given[name] = kind(**own)
        return command(*args, **given)

    # Typer reads both the signature and the annotations.
    call.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in flat}
    return call
