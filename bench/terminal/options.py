"""The options of the command line: their names, types and help texts, shared by the commands."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedbench.bench.system.errors import ConfigError


class Format(StrEnum):
    """Forms of a leaderboard."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"
    LATEX = "latex"


class PictureForm(StrEnum):
    """Forms of a picture."""

    PNG = "png"
    SVG = "svg"
    BOTH = "both"


class Device(StrEnum):
    """Where to compute."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


Spec = Annotated[str, typer.Argument(metavar="SPEC", help="Method, name[+addon…].")]
DatasetName = Annotated[
    str, typer.Argument(metavar="NAME", help="Data set, or hub:PATH, folder:PATH.")
]
RunId = Annotated[str, typer.Argument(metavar="RUN_ID", help="Row id of a run, or how it begins.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="Ends in .safetensors.")]
Preset = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Settings to start from; default: the one a --config names, else demo."
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="One value by dotted name; repeatable."),
]
Config = Annotated[
    list[Path] | None,
    typer.Option("--config", metavar="FILE", help="YAML file over the preset; repeatable."),
]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Seed of the run.")]
FirstSeed = Annotated[
    int | None, typer.Option(metavar="N", help="Of the search, and the first of every trial's.")
]
OneSeed = Annotated[
    int | None, typer.Option(metavar="N", help="A single one: the same as --seeds N.")
]
StoreDir = Annotated[
    Path | None,
    typer.Option(
        "--store", metavar="DIR", help="Results; default: $FEDBENCH_STORE, else ./leaderboards."
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Cache of data sets; default: $FEDBENCH_DATA_DIR or ~/.cache."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Processes that train clients; default: cores, or one per GPU."
    ),
]
DeviceName = Annotated[Device, typer.Option("--device", help="Where to compute.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", "-n", help="Show what would be done and what it costs.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
AsYaml = Annotated[bool, typer.Option("--yaml", help="A file that --config takes.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="More progress.")]
Debug = Annotated[bool, typer.Option("--debug", help="A traceback for every error.")]

Trials = Annotated[int, typer.Option(min=1, metavar="N", help="Trials of the study.")]
SeedsPerTrial = Annotated[
    int, typer.Option(min=1, metavar="N", help="Seeds that a trial's score is the mean of.")
]
Sampler = Annotated[str, typer.Option(metavar="NAME", help="tpe, random, grid or gp.")]
Space = Annotated[
    Path | None,
    typer.Option("--space", metavar="FILE", help="Search space in place of the own one."),
]
WatchLabels = Annotated[
    bool, typer.Option("--watch-labels", help="Record accuracies too; the search never sees them.")
]
StopHopeless = Annotated[
    bool, typer.Option("--stop-hopeless", help="Give up on bad trials before all their seeds ran.")
]
Study = Annotated[
    str | None, typer.Option(metavar="NAME", help="Name of the study; default: from its settings.")
]
Concurrency = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Runs at a time; default: as many as fit.")
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        metavar="N",
        help="The same as --concurrency; within a run: --cpus-per-trial.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Ray cluster to join; default: this machine."),
]
GpusPerTrial = Annotated[
    float | None, typer.Option(min=0, metavar="X", help="GPUs that a run claims, such as 0.5.")
]
CpusPerTrial = Annotated[
    int,
    typer.Option(
        min=1, metavar="N", help="Processes that train the clients of one run, a core each."
    ),
]
CheckpointDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Checkpoints while runs last, on a disk that all nodes see."),
]

Grid = Annotated[str, typer.Option(metavar="NAME", help="A grid, or its YAML file.")]
Methods = Annotated[str | None, typer.Option(metavar="A,B", help="Methods in place of the grid's.")]
Seeds = Annotated[
    str | None, typer.Option(metavar="0,1", help="Run these in place of the grid's seeds.")
]
Tuned = Annotated[
    str | None,
    typer.Option(
        metavar="STUDY,…",
        help="Use what studies or their files found; auto: each method's latest on the same data.",
    ),
]
RetryFailed = Annotated[
    bool, typer.Option("--retry-failed", help="Run cells again that failed before.")
]
OfGrid = Annotated[str | None, typer.Option(metavar="NAME", help="Only the cells of this grid.")]
Dataset = Annotated[str | None, typer.Option(metavar="NAME", help="Only runs on this data set.")]
Metric = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="What to rank by: linear, linear-paper, knn, objective, align, unif, final_loss,"
        " effective_rank, std_ratio, or another that the runs have measured.",
    ),
]
FormatName = Annotated[
    Format | None, typer.Option("--format", help="Form of the output; default: table.")
]
Published = Annotated[
    bool, typer.Option("--published/--no-published", help="Published numbers beside ours.")
]
Reach = Annotated[
    float | None,
    typer.Option(metavar="X", help="Rounds and GB to this k-NN accuracy, such as 0.6."),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Exit code 5 if a file of the store cannot be read.")
]
StudyId = Annotated[str | None, typer.Argument(metavar="[STUDY]", help="Only this one, in full.")]
Stores = Annotated[list[Path], typer.Argument(metavar="STORE…", help="Folders of other stores.")]
DataAt = Annotated[
    str | None, typer.Option("--data", metavar="NAME", help="Where the data set lies here.")
]
Keep = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Store for the new run; default: thrown away.")
]
Track = Annotated[
    str | None,
    typer.Option(metavar="NAME,…", help="Show finished runs in tensorboard, wandb or both."),
]
Port = Annotated[int, typer.Option(min=1, max=65535, metavar="N", help="Of the web server.")]
MirrorOnly = Annotated[
    bool, typer.Option("--mirror-only", help="Write Optuna's journal, start no server.")
]
Page = Annotated[Path, typer.Argument(metavar="FILE", help="Ends in .html.")]
Labels = Annotated[
    str | None,
    typer.Option(metavar="balanced:N:C", help="N examples in C equal classes; needs no images."),
]
RunIds = Annotated[
    list[str],
    typer.Argument(metavar="RUN_ID…", help="Row ids, or how they begin; drawn side by side."),
]
PictureFolder = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the files go.")]
PictureFormName = Annotated[PictureForm, typer.Option("--format", help="Form of the pictures.")]
Images = Annotated[
    int, typer.Option("--images", min=10, metavar="N", help="Test images on each map, at most.")
]
ClientId = Annotated[
    int | None,
    typer.Option(
        "--client", min=0, metavar="K", help="Whose encoder is mapped, where encoders differ."
    ),
]


def parse_format(form: Format | None, as_json: bool) -> Format:
    """The form of a leaderboard; `--json` is short for `--format json`.

    Raises:
        ConfigError: for `--json` beside another form.
    """
    if as_json and form not in (None, Format.JSON):
        raise ConfigError(f"--json and --format {form} exclude each other; give one")
    return Format.JSON if as_json else form or Format.TABLE


def parse_set(texts: Sequence[str] | None) -> dict[str, Any]:
    """`--set` options as dotted names to values; a later one wins.

    Raises:
        ConfigError: for text that is not KEY=VALUE.
    """
    from fedbench.bench.config.overrides import parse_override

    try:
        return dict(parse_override(text) for text in texts or ())
    except ConfigError as err:
        raise ConfigError(f"--set {err}") from err


def parse_names(text: str | None) -> list[str] | None:
    """`a,b` as its words; None for None."""
    return None if text is None else [word for word in map(str.strip, text.split(",")) if word]


def parse_tuned(text: str | None) -> str | list[str] | None:
    """`--tuned auto`, or studies and files separated by commas."""
    return text if text in (None, "auto") else parse_names(text)


def parse_seeds(text: str | None, seed: int | None) -> list[int] | None:
    """`--seeds 0,1,2`, or a single `--seed`, as numbers; None if neither is given.

    Raises:
        ConfigError: for both, or for something that is no whole number from 0.
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
    """Runs at a time: a run of a study or a sweep trains in one process, so both options agree.

    Raises:
        ConfigError: for two different numbers.
    """
    if workers is not None and concurrency is not None and workers != concurrency:
        raise ConfigError("--workers and --concurrency mean the same here; give one")
    return workers if concurrency is None else concurrency
