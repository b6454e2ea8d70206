"""Options that several commands share, grouped in dataclasses; Typer sees each field."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar

from typer.core import TyperCommand

from fedbench.bench.terminal import options as opt
from fedbench.bench.terminal.console import emit_json


class GroupedCommand(TyperCommand):
    """Command whose help lists options in groups: its own ones first."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then the options of each group under its heading."""
        sections: dict[str, list[tuple[str, str]]] = {
            name: [] for name in ("Arguments", "Options", *_HEADINGS.values())
        }
        params = self.get_params(ctx)
        names = {param.name for param in params}
        heading_of = {
            field.name: heading
            for kind, heading in _HEADINGS.items()
            for field in fields(kind)
            # An option of one of these names may mean something else where the others are missing.
            if kind is Places or names.issuperset(other.name for other in fields(kind))
        }
        for param in params:
            if (record := param.get_help_record(ctx)) is None:
                continue
            if param.param_type_name == "argument":
                name = record[0].partition(" <")[0]  # without the Python type
                sections["Arguments"].append((name, record[1]))
            else:
                sections[heading_of.get(param.name or "", "Options")].append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


class Record(Protocol):
    """Result of a command."""

    def as_dict(self) -> dict[str, Any]:
        """Return what `--json` prints."""


R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Settings:
    """Sources of a configuration."""

    preset: opt.Preset = None
    set_: opt.Set = None
    config: opt.Config = None
    seed: opt.Seed = None

    def values(self) -> dict[str, Any]:
        """Return keyword arguments for the functions of `fedbench`."""
        return {**self.without_seed(), "seed": self.seed}

    def words(self, without: Collection[str] = ()) -> list[str]:
        """Return the options except the seed, for the command line of a following command.

        Args:
            without: dotted names whose `--set` is left out.
        """
        texts = [text for text in self.set_ or () if text.partition("=")[0].strip() not in without]
        return _words({"--preset": self.preset, "--config": self.config, "--set": texts})

    def without_seed(self) -> dict[str, Any]:
        """Return keyword arguments for a sweep, which takes its seeds from other options."""
        return {
            "preset": self.preset,
            "set": opt.parse_set(self.set_),
            "config_files": self.config or (),
        }


@dataclass(frozen=True)
class StudySettings(Settings):
    """Sources of the configuration of a study; each trial derives its seeds."""

    seed: opt.StudySeed = None


@dataclass(frozen=True)
class SweepSettings(Settings):
    """Sources of the configuration of a sweep over several seeds."""

    seed: opt.SweepSeed = None


@dataclass(frozen=True)
class Places:
    """Places of results and data, and the device."""

    store: opt.StoreDir = None
    data_dir: opt.DataDir = None
    device: opt.DeviceName = opt.Device.AUTO

    def values(self) -> dict[str, Any]:
        """Return keyword arguments for the functions of `fedbench`."""
        return {"store": self.store, "data_dir": self.data_dir, "device": self.device.value}

    def words(self) -> list[str]:
        """Return the options for the command line of a following command."""
        device = None if self.device is opt.Device.AUTO else self.device.value
        return _words({"--store": self.store, "--data-dir": self.data_dir, "--device": device})


@dataclass(frozen=True)
class Cluster:
    """Number of runs at a time, and their resources."""

    concurrency: opt.Concurrency = None
    workers: opt.CellWorkers = None
    gpus_per_trial: opt.GpusPerTrial = None
    cpus_per_trial: opt.CpusPerTrial = 1
    lanes: opt.Lanes = None
    address: opt.Address = None
    wait_for_nodes: opt.WaitForNodes = 0.0
    checkpoint_dir: opt.CheckpointDir = None

    def values(self) -> dict[str, Any]:
        """Return keyword arguments for the functions of `fedbench`."""
        return {
            "concurrency": opt.parse_workers(self.workers, self.concurrency),
            "gpus_per_trial": self.gpus_per_trial,
            "cpus_per_trial": self.cpus_per_trial,
            "lanes": self.lanes,
            "address": self.address,
            "wait_for_nodes": self.wait_for_nodes,
            "checkpoint_dir": self.checkpoint_dir,
        }

    def words(self) -> list[str]:
        """Return the options for the command line of a following command."""
        number = opt.parse_workers(self.workers, self.concurrency)
        gpus = None if self.gpus_per_trial is None else f"{self.gpus_per_trial:g}"
        return _words(
            {
                "--concurrency": number,
                "--gpus-per-trial": gpus,
                "--cpus-per-trial": None if self.cpus_per_trial == 1 else self.cpus_per_trial,
                "--lanes": self.lanes,
                "--address": self.address,
                "--wait-for-nodes": f"{self.wait_for_nodes:g}" if self.wait_for_nodes else None,
                "--checkpoint-dir": self.checkpoint_dir,
            }
        )


@dataclass(frozen=True)
class Output:
    """Form of the output, and how much of it."""

    json: opt.Json = False
    quiet: opt.Quiet = False
    verbose: opt.Verbose = False
    debug: opt.Debug = False

    def show(self, result: R, as_text: Callable[[R], None]) -> None:
        """Print a result: its record with `--json`, else with a function that prints text."""
        emit_json(result.as_dict()) if self.json else as_text(result)

    @property
    def verbosity(self) -> dict[str, bool]:
        """Keyword arguments for a progress display."""
        return {"quiet": self.quiet, "verbose": self.verbose}

    @property
    def suggests(self) -> bool:
        """True unless `--json` or `--quiet` forbids to name the next command."""
        return not (self.json or self.quiet)


_HEADINGS: Mapping[type, str] = {
    Settings: "Configuration",
    Places: "Places",
    Cluster: "Runs at a time",
    Output: "Output",
}
"""Groups whose options have a heading of their own in the help."""


def _words(options: Mapping[str, Any]) -> list[str]:
    """Return options as words of a command line; a list repeats its option, None leaves it out."""
    words = []
    for name, value in options.items():
        for item in value if isinstance(value, list) else [value]:
            words += [] if item is None else [name, str(item)]
    return words
