"""Options and arguments of the command line: names, types, help texts, and how to read them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedbench.bench.system.errors import ConfigError


class Format(StrEnum):
    """Formats of a leaderboard."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"
    LATEX = "latex"


class PictureFormat(StrEnum):
    """Formats of a picture."""

    PNG = "png"
    SVG = "svg"
    BOTH = "both"

    @property
    def names(self) -> tuple[str, ...]:
        """Endings of the files."""
        return ("png", "svg") if self is PictureFormat.BOTH else (self.value,)


class Device(StrEnum):
    """Devices to compute on."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


Spec = Annotated[
    str, typer.Argument(metavar="SPEC", help="Method with optional add-ons, name[+addon…].")
]
Preset = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Preset to start from; default: the one that a --config file names, else demo.",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a value by its dotted name; repeatable."),
]
Config = Annotated[
    list[Path] | None,
    typer.Option(
        "--config", metavar="FILE", help="YAML file whose values override the preset's; repeatable."
    ),
]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Seed of all random draws.")]
StudySeed = Annotated[
    int | None,
    typer.Option(metavar="N", help="Seed of the search and of the first run of each trial."),
]
SweepSeed = Annotated[
    int | None, typer.Option(metavar="N", help="A single seed; the same as --seeds N.")
]
StoreDir = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="DIR",
        help="Folder of results; default: $FEDBENCH_STORE, else ./leaderboards.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Cache of data sets; default: $FEDBENCH_DATA_DIR, else in ~/.cache."
    ),
]
DeviceName = Annotated[Device, typer.Option("--device", help="Device to compute on.")]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Processes that train clients; default: one per physical core, or per GPU.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", "-n", help="Only show what would be done and what it costs.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no hints.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show more progress.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Track = Annotated[
    str | None,
    typer.Option(metavar="NAME,…", help="Send finished runs to tensorboard, wandb or both."),
]

Trials = Annotated[int, typer.Option(min=1, metavar="N", help="Number of trials in the study.")]
SeedsPerTrial = Annotated[
    int, typer.Option(min=1, metavar="N", help="Runs per trial; its score is their mean.")
]
Sampler = Annotated[
    str, typer.Option(metavar="NAME", help="Search algorithm: tpe, random, grid or gp.")
]
Space = Annotated[
    Path | None,
    typer.Option(
        "--space", metavar="FILE", help="Search space file to use instead of the method's own."
    ),
]
WatchLabels = Annotated[
    bool, typer.Option("--watch-labels", help="Record accuracies too; the search never uses them.")
]
StopHopeless = Annotated[
    bool,
    typer.Option(
        "--stop-hopeless", help="Stop collapsed runs, and give bad trials no further seeds."
    ),
]
StudyName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Name of the study; default: made from its settings."),
]
Concurrency = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Number of runs at a time; default: as many as fit."),
]
CellWorkers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        metavar="N",
        help="The same as --concurrency; for processes within a run see --cpus-per-trial.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Ray cluster to join, or auto; default: this machine."),
]
GpusPerTrial = Annotated[
    float | None,
    typer.Option(min=0, metavar="X", help="GPUs per run; may be a fraction, such as 0.5."),
]
CpusPerTrial = Annotated[
    int,
    typer.Option(
        min=1, metavar="N", help="Processes that train the clients of one run, one core each."
    ),
]
CheckpointDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder for checkpoints of unfinished runs, on a disk that all nodes see.",
    ),
]

Grid = Annotated[str, typer.Option(metavar="NAME", help="Name of a grid, or its YAML file.")]
Methods = Annotated[
    str | None, typer.Option(metavar="A,B", help="Methods to run instead of the grid's.")
]
Seeds = Annotated[
    str | None, typer.Option(metavar="0,1", help="Seeds to run instead of the grid's.")
]
Tuned = Annotated[
    str | None,
    typer.Option(
        metavar="STUDY,…",
        help="Use the best values of these studies or of files written by tune; auto: of each"
        " method's latest study on the same data.",
    ),
]
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="Run cells again that failed before.")
]

GridFilter = Annotated[str | None, typer.Option(metavar="NAME", help="Only cells of this grid.")]
DatasetFilter = Annotated[
    str | None, typer.Option(metavar="NAME", help="Only runs on this data set.")
]
Metric = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Metric to rank by: linear, linear-paper, knn, objective, align, unif, final_loss,"
        " effective_rank, std_ratio, or another that the runs have measured.",
    ),
]
FormatName = Annotated[
    Format | None, typer.Option("--format", help="Format of the output; default: table.")
]
Published = Annotated[
    bool, typer.Option("--published/--no-published", help="Show published numbers beside ours.")
]
Reach = Annotated[
    float | None,
    typer.Option(
        metavar="X", help="Add the rounds and GB to reach this k-NN accuracy, such as 0.6."
    ),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Exit with code 5 if a file of the store cannot be read.")
]
ReportFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="File to write; its name ends in .html.")
]
ShownStudy = Annotated[
    str | None, typer.Argument(metavar="STUDY", help="Study to show in full; default: list all.")
]
MirroredStudy = Annotated[
    str | None, typer.Argument(metavar="STUDY", help="Study to show; default: all.")
]
Port = Annotated[int, typer.Option(min=1, max=65535, metavar="N", help="Port of the web server.")]
MirrorOnly = Annotated[
    bool, typer.Option("--mirror-only", help="Write Optuna's journal, but start no server.")
]

RunId = Annotated[
    str, typer.Argument(metavar="RUN_ID", help="Run id, or an unambiguous beginning of it.")
]
RunIds = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN_ID…",
        help="Run ids, or unambiguous beginnings of them; drawn side by side in this order.",
    ),
]
EncoderFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="File to write; its name ends in .safetensors.")
]
PictureFolder = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Folder to write files to.")
]
PictureFormatName = Annotated[
    PictureFormat, typer.Option("--format", help="Format of the pictures.")
]
Images = Annotated[
    int,
    typer.Option(
        "--images", min=10, metavar="N", help="Maximum number of test images on each map."
    ),
]
ClientId = Annotated[
    int | None,
    typer.Option(
        "--client", min=0, metavar="K", help="Client whose encoder is drawn, if encoders differ."
    ),
]
DataName = Annotated[
    str | None,
    typer.Option(
        "--data", metavar="NAME", help="Data set to use, if it lies elsewhere on this machine."
    ),
]
NewStore = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Store for the new run; default: discard it."),
]
Stores = Annotated[
    list[Path], typer.Argument(metavar="STORE…", help="Folders of the stores to merge.")
]
MergeDryRun = Annotated[
    bool, typer.Option("--dry-run", "-n", help="Only show what would be merged.")
]

AsYaml = Annotated[bool, typer.Option("--yaml", help="Print YAML that --config accepts.")]
Labels = Annotated[
    str | None,
    typer.Option(
        metavar="balanced:N:C",
        help="Deal N examples in C equal classes instead of the data set; needs no images.",
    ),
]
DatasetName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of a data set, hub:PATH or folder:PATH.")
]


def parse_format(form: Format | None, as_json: bool) -> Format:
    """Return the format of a leaderboard; `--json` is short for `--format json`.

    Raises:
        ConfigError: for `--json` together with another format.
    """
    if as_json and form not in (None, Format.JSON):
        raise ConfigError(f"--json and --format {form} exclude each other; give one")
    return Format.JSON if as_json else form or Format.TABLE


def parse_set(texts: Sequence[str] | None) -> dict[str, Any]:
    """Return the values of `--set` options by dotted name; a later one wins.

    Raises:
        ConfigError: for text that is not KEY=VALUE.
    """
    from fedbench.bench.config.overrides import parse_override

    try:
        return dict(parse_override(text) for text in texts or ())
    except ConfigError as err:
        raise ConfigError(f"--set {err}") from err


def parse_names(text: str | None) -> list[str] | None:
    """Split `a,b` into its words; None stays None."""
    return None if text is None else [word for word in map(str.strip, text.split(",")) if word]


def parse_tuned(text: str | None) -> str | list[str] | None:
    """Return `auto`, or the studies and files of `--tuned`."""
    return text if text in (None, "auto") else parse_names(text)


def parse_seeds(text: str | None, seed: int | None) -> list[int] | None:
    """Return the seeds of `--seeds 0,1,2` or of `--seed 0`; None without either.

    Raises:
        ConfigError: for both options, or for text that is not whole numbers from 0.
    """
    if text is None:
        return None if seed is None else [seed]
    if seed is not None:
        raise ConfigError("--seed and --seeds exclude each other; give one")
    words = parse_names(text) or [""]
    if not all(word.isascii() and word.isdigit() for word in words):
        raise ConfigError(f"--seeds: must be whole numbers from 0, such as 0,1,2 (got {text!r})")
    return [int(word) for word in words]


def parse_workers(workers: int | None, concurrency: int | None) -> int | None:
    """Return the number of runs at a time, which `--workers` and `--concurrency` both set.

    Raises:
        ConfigError: for two different numbers.
    """
    if workers is not None and concurrency is not None and workers != concurrency:
        raise ConfigError("--workers and --concurrency mean the same here; give one")
    return workers if concurrency is None else concurrency
