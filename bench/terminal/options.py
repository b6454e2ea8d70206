"""Options and arguments of the command line: names, types, help texts, and how to read them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedbench.bench.system.errors import ConfigError, UnknownNameError
from fedbench.bench.terminal import completion


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


def argument(metavar: str, text: str, **more: Any) -> Any:
    """Describe an argument: its name in the help, its help text, and `autocompletion`."""
    return typer.Argument(metavar=metavar, help=text, **more)


def option(metavar: str, text: str, *names: str, **more: Any) -> Any:
    """Describe an option that takes a value; without `names`, it is called like its parameter."""
    return typer.Option(*names, metavar=metavar, help=text, **more)


def choice(text: str, *names: str) -> Any:
    """Describe an option that is on, off or one of a few words, which the help lists."""
    return typer.Option(*names, help=text)


def yaml_name(folder: str) -> Callable[[str | None], str | None]:
    """Return a callback that refuses an unknown grid or preset before torch is loaded."""

    def check(name: str | None) -> str | None:
        if name is not None:
            from fedbench.bench.config.yaml_files import load_named

            load_named(folder, name)
        return name

    return check


def one_of(kind: str, known: Collection[str]) -> Callable[[str], str]:
    """Return a callback that refuses an unknown name before torch is loaded."""

    def check(name: str) -> str:
        if name not in known:
            raise UnknownNameError(kind, name, known)
        return name

    return check


def _trackers(names: str | None) -> str | None:
    if names is not None:
        from fedbench.bench.results.trackers import TRACKERS

        for name in parse_names(names) or ():
            one_of("tracker", TRACKERS)(name)
    return names


_PROCESSES, _LANES, RUNS = 1024, 256, 100_000  # beyond these a number is a slip of the finger

# Shared by many commands

Spec = Annotated[
    str,
    argument(
        "SPEC", "Method with optional add-ons, name[+addon…].", autocompletion=completion.specs
    ),
]
Preset = Annotated[
    str | None,
    option(
        "NAME",
        "Preset to start from, or its YAML file; default: the one that a --config file names, else"
        " demo.",
        autocompletion=completion.presets,
        callback=yaml_name("presets"),
    ),
]
Set = Annotated[
    list[str] | None,
    option(
        "KEY=VALUE",
        "Set a value by its dotted name; repeatable.",
        "--set",
        autocompletion=completion.settings,
    ),
]
Config = Annotated[
    list[Path] | None,
    option("FILE", "YAML file whose values override the preset's; repeatable.", "--config"),
]
Seed = Annotated[int | None, option("N", "Seed of all random draws.")]
StoreDir = Annotated[
    Path | None,
    option(
        "DIR",
        "Folder of results, or a release to read: its folder, Parquet file or https address;"
        " default: $FEDBENCH_STORE, else ./leaderboards.",
        "--store",
    ),
]
DataDir = Annotated[
    Path | None,
    option("DIR", "Cache of data sets; default: $FEDBENCH_DATA_DIR, else in ~/.cache."),
]
DeviceName = Annotated[Device, choice("Device to compute on; auto prefers a GPU.", "--device")]
Workers = Annotated[
    int | None,
    option(
        "N",
        "Processes that train clients; default: one per physical core, or per GPU.",
        min=1,
        max=_PROCESSES,
    ),
]
Lanes = Annotated[
    int | None,
    option(
        "N",
        "Clients at a time in one process; steps are recorded once and replayed, as CUDA graphs on"
        " a GPU.",
        min=1,
        max=_LANES,
    ),
]
CheckpointSeconds = Annotated[
    float | None,
    option(
        "S",
        "Least seconds between checkpoints; by default every round of up to 1,000 has one, and in"
        " longer runs 10 s lie between.",
        min=0.0,
    ),
]
Track = Annotated[
    str | None,
    option(
        "NAME,…",
        "Show runs while they go on in tensorboard, wandb or both.",
        callback=_trackers,
    ),
]
DryRun = Annotated[
    bool, choice("Only show what would be done and what it costs.", "--dry-run", "-n")
]
Json = Annotated[bool, choice("Print one JSON document on stdout.", "--json")]
Quiet = Annotated[bool, choice("Show no progress and no hints.", "--quiet", "-q")]
Verbose = Annotated[bool, choice("Show more progress.", "--verbose", "-v")]
Debug = Annotated[bool, choice("Show the traceback of an error.", "--debug")]

# Studies and sweeps

StudySeed = Annotated[
    int | None, option("N", "Seed of the search and of the first run of each trial.")
]
Concurrency = Annotated[
    int | None, option("N", "Number of runs at a time; default: as many as fit.", min=1, max=RUNS)
]
CellWorkers = Annotated[
    int | None,
    option(
        "N",
        "The same as --concurrency; for processes within a run see --cpus-per-trial.",
        min=1,
        max=RUNS,
    ),
]
Address = Annotated[
    str | None, option("HOST:PORT", "Ray cluster to join, or auto; default: this machine.")
]
GpusPerTrial = Annotated[
    float | None,
    option("X", "GPUs per run; may be a fraction, such as 0.5.", min=0, max=_PROCESSES),
]
CpusPerTrial = Annotated[
    int,
    option(
        "N", "Processes that train the clients of one run, one core each.", min=1, max=_PROCESSES
    ),
]
WaitForNodes = Annotated[
    float,
    option("SECONDS", "Wait for a node that can hold a run; asks an autoscaler.", min=0),
]
CheckpointDir = Annotated[
    Path | None,
    option("DIR", "Folder for checkpoints of unfinished runs, on a disk that all nodes see."),
]
Grid = Annotated[
    str,
    option(
        "NAME",
        "Name of a grid, or its YAML file.",
        autocompletion=completion.grids,
        callback=yaml_name("grids"),
    ),
]
Methods = Annotated[
    str | None,
    option("A,B", "Methods to run instead of the grid's.", autocompletion=completion.spec_list),
]
Seeds = Annotated[str | None, option("0,1", "Seeds to run instead of the grid's.")]
SweepSeed = Annotated[int | None, option("N", "A single seed; the same as --seeds N.")]
Tuned = Annotated[
    str | None,
    option(
        "STUDY,…",
        "Use the best values of these studies or of files written by tune; auto: of each method's"
        " latest study on the same data.",
    ),
]
RetryFailed = Annotated[bool, choice("Run cells again that failed before.", "--retry-failed")]

# Results

ShownSpec = Annotated[
    str | None,
    argument(
        "SPEC",
        "Method with optional add-ons; default: all methods.",
        autocompletion=completion.specs,
    ),
]
ShownObjective = Annotated[
    str | None,
    argument("NAME", "Objective; default: all objectives.", autocompletion=completion.objectives),
]
Key = Annotated[
    str,
    argument("KEY", "Dotted name of a value, such as client.lr.", autocompletion=completion.keys),
]
FileKind = Annotated[
    str, argument("KIND", "Kind of file: grid, space or preset.", autocompletion=completion.kinds)
]
MethodFilter = Annotated[
    str | None,
    option("SPEC", "Only runs of this method.", "--method", autocompletion=completion.specs),
]
PresetFilter = Annotated[
    str | None,
    option(
        "NAME",
        "Only runs that started from this preset.",
        "--preset",
        autocompletion=completion.presets,
    ),
]
StatusFilter = Annotated[
    str | None,
    option(
        "WORD",
        "Only runs that ended so: ok, error or diverged.",
        "--status",
        autocompletion=completion.statuses,
    ),
]
Where = Annotated[
    list[str] | None,
    option(
        "KEY=VALUE",
        "Only runs with this value, of a key or a column; repeatable.",
        "--where",
        autocompletion=completion.settings,
    ),
]
Limit = Annotated[int, option("N", "Show at most so many; 0 = all.", min=0)]
GridFilter = Annotated[
    str | None, option("NAME", "Only cells of this grid.", autocompletion=completion.grids)
]
DatasetFilter = Annotated[
    str | None, option("NAME", "Only runs on this data set.", autocompletion=completion.datasets)
]
Metric = Annotated[
    str,
    option(
        "NAME",
        "Metric to rank by: linear, linear-paper, knn, objective, align, unif, final_loss,"
        " effective_rank, std_ratio, or another that the runs have measured.",
    ),
]
FormatName = Annotated[Format | None, choice("Format of the output; default: table.", "--format")]
Published = Annotated[
    bool, choice("Show published numbers beside ours.", "--published/--no-published")
]
Reach = Annotated[
    float | None, option("X", "Add the rounds and GB to reach this k-NN accuracy, such as 0.6.")
]
MinSeeds = Annotated[
    int, option("N", "Leave out lines with fewer than N seeds; diverged ones count.", min=1)
]
Strict = Annotated[
    bool, choice("Exit with code 5 if a file of the store cannot be read.", "--strict")
]
Ids = Annotated[bool, choice("Show the short ids of runs, which `fedbench show` takes.", "--ids")]
ReportFile = Annotated[Path, argument("FILE", "File to write; its name ends in .html.")]
ShownStudy = Annotated[
    str | None,
    argument(
        "STUDY", "Study to show in full; default: list all.", autocompletion=completion.studies
    ),
]
JournalStudy = Annotated[
    str | None,
    argument("STUDY", "Study to write; default: all.", autocompletion=completion.studies),
]
RunId = Annotated[
    str,
    argument(
        "RUN_ID", "Run id, or an unambiguous beginning of it.", autocompletion=completion.run_ids
    ),
]
RunIds = Annotated[
    list[str],
    argument(
        "RUN_ID…",
        "Run ids, or unambiguous beginnings of them; drawn side by side.",
        autocompletion=completion.run_ids,
    ),
]
EncoderFile = Annotated[Path, argument("FILE", "File to write; its name ends in .safetensors.")]
PictureFolder = Annotated[Path, option("DIR", "Folder to write files to.", "--out")]
PictureFormatName = Annotated[PictureFormat, choice("Format of the pictures.", "--format")]
Images = Annotated[int, option("N", "Maximum number of test images on each map.", min=10, max=RUNS)]
ClientId = Annotated[
    int | None, option("K", "Client whose encoder is drawn, if encoders differ.", min=0)
]
DataName = Annotated[
    str | None, option("NAME", "Data set to use, if it lies elsewhere on this machine.")
]
NewStore = Annotated[Path | None, option("DIR", "Store for the new run; default: discard it.")]
Stores = Annotated[list[Path], argument("STORE…", "Folders of the stores to merge.")]
MergeDryRun = Annotated[bool, choice("Only show what would be merged.", "--dry-run", "-n")]
SubmittedIds = Annotated[
    list[str] | None,
    argument(
        "RUN_ID…",
        "Runs to pack: ids, or unambiguous beginnings of them.",
        autocompletion=completion.run_ids,
    ),
]
AllRuns = Annotated[bool, choice("Pack every run that has a curve and did not fail.", "--all")]
BundleFile = Annotated[
    Path | None,
    option("FILE", "A .zip, or a new folder; default: fedbench-ID.zip here.", "--out", "-o"),
]
ReleaseFolder = Annotated[Path, argument("FOLDER", "New or empty folder.")]
ReleaseVersion = Annotated[
    str, option("TEXT", "Version of the release, such as 2026.11.", "--version")
]
Against = Annotated[
    Path | None,
    option("PLACE", "Earlier release or store: list ranks that have changed since.", "--against"),
]
ReleaseTable = Annotated[
    str | None,
    option(
        "GRID",
        "Write the runs of a grid as a table, a line for each measured round.",
        autocompletion=completion.grids,
    ),
]
By = Annotated[str | None, option("NAME", "Your name, which the bundle tells others.", "--by")]
Orcid = Annotated[str | None, option("ID", "Your ORCID iD beside it.", "--orcid")]
ReproducedBy = Annotated[
    str | None, option("NAME", "Your name: record in the store that you repeated the run.", "--by")
]
CheckedBundle = Annotated[
    Path | None,
    argument("BUNDLE", "A .zip or folder of `fedbench submit`; default: check the store."),
]
Rerun = Annotated[
    int, option("N", "Also run N rows again, which the bundle's hash chooses.", min=0)
]
AddTo = Annotated[
    Path | None, option("DIR", "Store that takes the rows if nothing contradicts them.")
]
Claims = Annotated[bool, choice("Check the rows of the store as those of a bundle.", "--claims")]

# Configurations and data

AsYaml = Annotated[bool, choice("Print YAML that --config accepts.", "--yaml")]
Labels = Annotated[
    str | None,
    option(
        "balanced:N:C",
        "Partition N examples in C equal classes instead of the data set; needs no images.",
    ),
]
DatasetName = Annotated[
    str,
    argument(
        "NAME", "Name of a data set, hub:PATH, folder:PATH, …", autocompletion=completion.datasets
    ),
]


def parse_format(form: Format | None, as_json: bool) -> Format:
    """Return the format of a leaderboard; `--json` is short for `--format json`.

    Raises:
        ConfigError: for `--json` together with another format.
    """
    if as_json and form not in (None, Format.JSON):
        raise ConfigError(f"--json and --format {form} exclude each other; give one")
    return Format.JSON if as_json else form or Format.TABLE


def parse_set(texts: Sequence[str] | None, option: str = "--set") -> dict[str, Any]:
    """Return the values of `--set` or other options by dotted name; a later one wins.

    Raises:
        ConfigError: for text that is not KEY=VALUE.
    """
    from fedbench.bench.config.overrides import parse_override

    try:
        return dict(parse_override(text) for text in texts or ())
    except ConfigError as err:
        raise ConfigError(f"{option} {err}") from err


def check_verify(
    bundle: Path | None, *, rerun: int, add_to: Path | None, claims: bool, by: str | None
) -> None:
    """Refuse options of `verify` that need a bundle, or do without one.

    Raises:
        ConfigError: naming the option.
    """
    if bundle is not None and claims:
        raise ConfigError("--claims checks the store; give it without a bundle")
    if bundle is None and (rerun or add_to is not None):
        option = "--rerun" if rerun else "--add-to"
        raise ConfigError(f"{option} needs a bundle: fedbench verify BUNDLE {option} …")
    if by is not None and (not rerun or add_to is None):
        raise ConfigError("--by records rows that were run again: it needs --rerun and --add-to")


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
