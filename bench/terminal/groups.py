"""Options that several commands share, grouped in dataclasses; Typer sees each field."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

from typer.core import TyperCommand

from fedbench.bench.evaluation.objectives.names import GATE, SHIPPED, may_exist
from fedbench.bench.evaluation.objectives.of_clients import OF_CLIENTS
from fedbench.bench.system.errors import UnknownNameError
from fedbench.bench.terminal import completion
from fedbench.bench.terminal import options as opt
from fedbench.bench.terminal.console import emit_json
from fedbench.bench.tuning.rungs import FIDELITIES
from fedbench.bench.tuning.samplers import SAMPLERS


def _objective(name: str) -> str:
    """Refuse an unknown objective before torch is loaded."""
    if not may_exist(name):
        more = f"; each may end in {GATE}"
        raise UnknownNameError("objective", name, [*OF_CLIENTS, *SHIPPED], more)
    return name


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
class Search:
    """How a study searches: the fields of `fedbench.bench.tuning.search.Search`, with their help.

    An option of `tune` is declared here, and there.
    """

    trials: Annotated[
        int, opt.option("N", "Number of trials in the study.", min=1, max=opt.RUNS)
    ] = 20
    seeds_per_trial: Annotated[
        int, opt.option("N", "Runs per trial; its score is their mean.", min=1, max=opt.RUNS)
    ] = 1
    sampler: Annotated[
        str,
        opt.option(
            "NAME",
            "Search algorithm: "
            + "; ".join(f"{name} ({sampler.help})" for name, sampler in SAMPLERS.items())
            + ".",
            autocompletion=completion.samplers,
            callback=opt.one_of("sampler", SAMPLERS),
        ),
    ] = "tpe"
    batch_size: Annotated[
        int | None,
        opt.option(
            "N",
            "Trials suggested together, part of the study's identity; default: as many as run at a"
            " time, 4 on CPUs.",
            "--batch",
            min=1,
            max=opt.RUNS,
        ),
    ] = None
    space_file: Annotated[
        Path | None,
        opt.option("FILE", "Search space file to use instead of the method's own.", "--space"),
    ] = None
    watch_labels: Annotated[
        bool, opt.choice("Record accuracies too; the search never uses them.", "--watch-labels")
    ] = False
    stop_hopeless: Annotated[
        bool,
        opt.choice("Stop collapsed runs, and give bad trials no further seeds.", "--stop-hopeless"),
    ] = False
    study_name: Annotated[
        str | None,
        opt.option("NAME", "Name of the study; default: made from its settings.", "--study"),
    ] = None
    objective: Annotated[
        str,
        opt.option(
            "NAME",
            "Score to maximise, as `fedbench objectives` lists them; NAME+gate refuses trials that"
            " learnt nothing.",
            autocompletion=completion.objectives,
            callback=_objective,
        ),
    ] = "align-unif"
    fidelity: Annotated[
        str,
        opt.option(
            "NAME",
            "Compare trials after fewer rounds and continue the best: none or halving.",
            autocompletion=completion.fidelities,
            callback=opt.one_of("fidelity", FIDELITIES),
        ),
    ] = "none"
    eta: Annotated[
        int | None,
        opt.option("N", "One trial in N goes on after a rung; default: 4.", min=2, max=opt.RUNS),
    ] = None
    rungs: Annotated[
        int | None,
        opt.option(
            "N", "Rungs of a bracket; default: 3, or as many as rounds allow.", min=2, max=opt.RUNS
        ),
    ] = None

    def values(self) -> dict[str, Any]:
        """Return keyword arguments for `fedbench.tune`."""
        return vars(self)


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
