"""Options in groups: dataclasses whose fields are keyword arguments of the functions of `fedbench`.

Typer sees each field; the command takes the whole group and passes it on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from typer.core import TyperCommand

from fedbench.bench.system.errors import UnknownNameError
from fedbench.bench.terminal import options as opt
from fedbench.bench.terminal.console import emit_json, warn
from fedbench.bench.terminal.options import count, option, place, processes
from fedbench.bench.tuning.search import Search as OfStudy

_METAVARS = {"int": "N", "float": "X", "str": "NAME", "Path": "FILE"}
"""By the type of an option whose value has no other name in the help."""
_KIND = re.compile(r"<(?:list\[)?(int|float|str|Path)[^|>]*>")
_config = partial(option, panel="Configuration")
_output = partial(option, panel="Output")
_CLUSTER = "Runs at a time"
_LANES = "Clients at a time in one process; steps are recorded once and replayed, as CUDA graphs."


def _trackers(text: str | None) -> str | None:
    from fedbench.bench.results.trackers import TRACKERS

    for name in opt.parse_names(text) or ():
        if name not in TRACKERS:
            raise UnknownNameError("tracker", name, TRACKERS)
    return text


class GroupedCommand(TyperCommand):
    """Command whose help lists options under headings: its own ones first."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then the options under each heading."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is None:
                continue
            if param.param_type_name == "argument":
                sections["Arguments"].append((record[0].partition(" <")[0], record[1]))
                continue
            flags = _KIND.sub(lambda kind: _METAVARS[kind[1]], record[0])
            heading = getattr(param, "rich_help_panel", "") or "Options"
            sections.setdefault(heading, []).append((flags, record[1]))
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


@dataclass(frozen=True)
class Group:
    """Options that are passed on together."""

    def values(self) -> dict[str, Any]:
        """Return keyword arguments for a function of `fedbench`."""
        return dict(vars(self))

    def words(self) -> list[str]:
        """Return the options that were given, for the command line of a following command."""
        hints = get_type_hints(type(self), include_extras=True)
        words = []
        for field in fields(self):
            value, info = getattr(self, field.name), hints[field.name].__metadata__[0]
            flags = [name for name in (info.default, *info.param_decls) if isinstance(name, str)]
            flag = flags[0] if flags else f"--{field.name.replace('_', '-')}"
            if value != field.default:
                for item in value if isinstance(value, list) else [value]:
                    words += [flag, f"{item:g}" if isinstance(item, float) else str(item)]
        return words


@dataclass(frozen=True)
class Sources(Group):
    """Sources of a configuration, without its seed."""

    preset: Annotated[
        str | None,
        _config(
            "Preset to start from, or its YAML file; default: the one that a --config file names,"
            " else demo.",
            check=opt.yaml_name("presets"),
        ),
    ] = None
    config_files: Annotated[
        list[Path] | None,
        _config("YAML file whose values override the preset's; repeatable.", "--config"),
    ] = None
    set: Annotated[
        list[str] | None,
        _config("Set a value by its dotted name; repeatable.", metavar="KEY=VALUE"),
    ] = None

    def values(self) -> dict[str, Any]:
        """Return keyword arguments for a function of `fedbench`."""
        read = {"set": opt.parse_set(self.set), "config_files": self.config_files or ()}
        return {**vars(self), **read}

    def without(self, keys: Collection[str]) -> Sources:
        """Return the group without a seed and without the `--set` of these dotted names."""
        kept = [text for text in self.set or () if text.partition("=")[0].strip() not in keys]
        return Sources(self.preset, self.config_files, kept or None)


@dataclass(frozen=True)
class Settings(Sources):
    """Sources of a configuration."""

    seed: Annotated[
        int | None,
        _config("Seed of all random draws; for tune, of the search and of each trial's first run."),
    ] = None

    def values(self) -> dict[str, Any]:
        """Return keyword arguments for a function of `fedbench`."""
        values = super().values()
        if self.seed is not None and "seed" in values["set"]:
            warn(f"--set seed={values['set']['seed']} has no effect beside --seed {self.seed}")
        return values


@dataclass(frozen=True)
class Folders(Group):
    """Places of results and data."""

    store: opt.StoreDir = None
    data_dir: opt.DataDir = None


@dataclass(frozen=True)
class Places(Folders):
    """Places of results and data, and the device."""

    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        place("Device to compute on; auto prefers a GPU.", metavar=None),
    ] = "auto"


@dataclass(frozen=True)
class Tracked(Group):
    """Viewers of runs."""

    track: Annotated[
        str | None,
        option(
            "Show runs while they go on in tensorboard, wandb or both.",
            metavar="NAME,…",
            check=_trackers,
        ),
    ] = None

    def values(self) -> dict[str, Any]:
        """Return keyword arguments for a function of `fedbench`."""
        return {**vars(self), "track": opt.parse_names(self.track) or ()}


@dataclass(frozen=True)
class Execution(Tracked):
    """How one run is executed."""

    again: opt.Again = False
    workers: opt.Workers = None
    lanes: Annotated[int | None, option(_LANES, min=1, max=256)] = None
    checkpoint_seconds: Annotated[
        float | None,
        option(
            "Least seconds between checkpoints; by default every round of up to 1,000 has one, and"
            " in longer runs 10 s lie between.",
            min=0.0,
        ),
    ] = None


@dataclass(frozen=True)
class Cluster(Group):
    """Number of runs at a time, and their resources."""

    concurrency: Annotated[
        int | None,
        count(
            "Number of runs at a time; default: as many as fit. --workers: processes within a run.",
            panel=_CLUSTER,
        ),
    ] = None
    gpus_per_trial: Annotated[
        float | None,
        processes("GPUs per run; may be a fraction, such as 0.5.", panel=_CLUSTER, min=0),
    ] = None
    workers: Annotated[
        int,
        processes(
            "Processes that train the clients of one run, one core each.",
            *("--workers", "--cpus-per-trial"),
            panel=_CLUSTER,
        ),
    ] = 1
    lanes: Annotated[int | None, option(_LANES, panel=_CLUSTER, min=1, max=256)] = None
    address: Annotated[
        str | None,
        option(
            "Ray cluster to join, or auto; default: this machine.",
            metavar="HOST:PORT",
            panel=_CLUSTER,
        ),
    ] = None
    wait_for_nodes: Annotated[
        float,
        option(
            "Seconds to wait for a node that can hold a run; asks an autoscaler.",
            panel=_CLUSTER,
            min=0,
        ),
    ] = 0.0
    checkpoint_dir: Annotated[
        Path | None,
        option(
            "Folder for checkpoints of unfinished runs, on a disk that all nodes see.",
            metavar="DIR",
            panel=_CLUSTER,
        ),
    ] = None


@dataclass(frozen=True)
class Search(OfStudy, Tracked):
    """How a study searches, and whether it is only planned."""

    confirm: Annotated[
        int,
        option(
            "Then run best trial, preset and worst trial with N fresh seeds, and compare them by"
            " labels.",
            metavar="N",
            min=0,
        ),
    ] = 0
    again: opt.Again = False
    dry_run: opt.DryRun = False


@dataclass(frozen=True)
class Cells(Tracked):
    """Which runs of a grid are made."""

    methods: Annotated[
        str | None, option("Methods to run instead of the grid's.", metavar="A,B")
    ] = None
    seeds: Annotated[
        str | None,
        option("Seeds to run instead of the grid's.", "--seeds", "--seed", metavar="0,1"),
    ] = None
    tuned: Annotated[
        str | None,
        option(
            "Use the best values of these studies or of files written by tune; auto: of each"
            " method's latest study on the same data.",
            metavar="STUDY,…",
        ),
    ] = None
    retry_failed: Annotated[bool, option("Repeat runs that failed before.", "--retry-failed")] = (
        False
    )
    again: opt.Again = False
    dry_run: opt.DryRun = False

    def values(self) -> dict[str, Any]:
        """Return keyword arguments for `fedbench.sweep`."""
        return {
            **super().values(),
            "methods": opt.parse_names(self.methods),
            "seeds": opt.parse_seeds(self.seeds),
            "tuned": self.tuned if self.tuned == "auto" else opt.parse_names(self.tuned),
        }


@dataclass(frozen=True)
class Filters(Group):
    """Which stored runs are listed."""

    method: Annotated[str | None, option("Only runs of this method.", metavar="SPEC")] = None
    dataset: opt.DatasetFilter = None
    preset: Annotated[str | None, option("Only runs that started from this preset.")] = None
    status: Annotated[
        Literal["ok", "error", "diverged"] | None, option("Only runs that ended so.")
    ] = None
    where: Annotated[
        list[str] | None,
        option("Only runs with this value, of a key or a column; repeatable.", metavar="KEY=VALUE"),
    ] = None
    limit: Annotated[int, option("Show at most so many; 0 = all.", min=0)] = 30

    def values(self) -> dict[str, Any]:
        """Return keyword arguments for `fedbench.runs`."""
        where = opt.parse_set(self.where, "--where")
        return {**vars(self), "where": where, "limit": self.limit or None}


@dataclass(frozen=True)
class Board(Group):
    """What a leaderboard ranks."""

    grid: opt.GridFilter = None
    dataset: opt.DatasetFilter = None
    metric: Annotated[
        str,
        option(
            "Metric to rank by: linear, linear-paper, knn, objective, align, unif, final_loss,"
            " effective_rank, std_ratio, or another that the runs have measured."
        ),
    ] = "linear"
    published: Annotated[
        bool, option("Show published numbers too.", "--published/--no-published")
    ] = True
    reach: Annotated[
        float | None, option("Add the rounds and GB to reach this k-NN accuracy, such as 0.6.")
    ] = None
    min_seeds: Annotated[
        int, option("Leave out lines with fewer than N seeds; diverged ones count.", min=1)
    ] = 1


@dataclass(frozen=True)
class Checks(Group):
    """What `verify` does in addition to checking files."""

    rerun: Annotated[
        int, option("Also run N rows again, which the bundle's hash chooses.", min=0)
    ] = 0
    add_to: Annotated[
        Path | None, option("Store that takes the rows if nothing contradicts them.", metavar="DIR")
    ] = None
    claims: Annotated[
        bool, option("Check the rows of the store as those of a bundle.", "--claims")
    ] = False


def _plain(result: Any) -> Any:
    if isinstance(result, list):
        return [_plain(each) for each in result]
    return result.as_dict() if hasattr(result, "as_dict") else result


@dataclass(frozen=True)
class Output:
    """Form of the output, and how much of it."""

    json: Annotated[bool, _output("Print one JSON document on stdout.", "--json")] = False
    quiet: Annotated[bool, _output("Show no progress and no hints.", "--quiet", "-q")] = False
    verbose: Annotated[bool, _output("Show more progress.", "--verbose", "-v")] = False
    debug: Annotated[bool, _output("Show the traceback of an error.", "--debug")] = False

    def show(self, result: Any, as_text: Callable[[Any], None]) -> None:
        """Print a result: with `--json` its plain values, else by a function for people."""
        emit_json(_plain(result)) if self.json else as_text(result)

    @property
    def verbosity(self) -> dict[str, bool]:
        """Keyword arguments for a progress display."""
        return {"quiet": self.quiet, "verbose": self.verbose}

    @property
    def suggests(self) -> bool:
        """True unless `--json` or `--quiet` forbids to name the next command."""
        return not (self.json or self.quiet)
