"""Arguments that functions and commands share: sources of a configuration, places, execution."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fedbench.bench.system.arguments import Option, parse_names
from fedbench.bench.system.cores import MAX_LANES, MAX_WORKERS
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.files import user_path

if TYPE_CHECKING:
    from fedbench.bench.results.store.store import Store


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


_value = partial(Option, panel="Configuration")
_place = partial(Option, panel="Places", metavar="DIR", kind=Path | None)
SET = _value(
    "Set a value by its dotted name; repeatable.",
    kind=list[str] | None,
    metavar="KEY=VALUE",
    check=parse_set,
)
STORE = _place("Folder of results; default: $FEDBENCH_STORE, else ./leaderboards.")
DATA_DIR = _place("Cache of data sets; default: $FEDBENCH_DATA_DIR, else in ~/.cache.")
_DATASET = _value("Data set: a name that `fedbench datasets` lists, or a folder or file of images.")
_CONFIG = _value("YAML file over the preset; repeatable.", "--config", kind=list[Path] | None)
_SEED = _value("Seed of all random draws; for tune, of the search and each trial's first run.")
_DEVICE = Option(
    "Device to compute on; auto prefers a GPU.", kind=Literal["auto", "cpu", "cuda"], panel="Places"
)
CORES = {"min": 1, "max": MAX_WORKERS}
LANES = Option(
    "Clients at a time in one process; steps are recorded once and replayed, as CUDA graphs.",
    limits={"min": 1, "max": MAX_LANES},
)
_ENGINE = Option(
    "Where clients are: process, workers, lanes, messages, or that of a package; default: by"
    " --workers and --lanes.",
    kind=str | None,
    metavar="NAME",
)
StoreDir = Annotated[Any, STORE]
DataDir = Annotated[Any, DATA_DIR]
Workers = Annotated[
    int | None,
    Option("Processes that train clients; default: as many as cores, or GPUs.", limits=CORES),
]
_TRACK = Option(
    "Show runs in tensorboard, wandb or both.", kind=str | None, metavar="NAME", check=parse_names
)
Track = Annotated[Sequence[str] | None, _TRACK]
Again = Annotated[
    bool, Option("Repeat what the store has and compare; replace what older code made.", "--again")
]
DryRun = Annotated[bool, Option("Only show what would be done and what it costs.", "--dry-run -n")]


@dataclass(frozen=True)
class Sources:
    """Preset, values and files of a configuration, without its seed."""

    preset: Annotated[
        str | None,
        _value(
            "Preset to start from, or its YAML file; default: that of the --config file or of the"
            " grid, or demo."
        ),
    ] = None
    dataset: Annotated[str | None, _DATASET] = None
    config_files: Annotated[Sequence[Path | str], _CONFIG] = ()
    set: Annotated[Mapping[str, Any] | None, SET] = None

    def words(self, preset: str) -> list[str]:
        """Return the words of a command line that give these sources, over a preset."""
        from fedbench.bench.config.dotted import flatten
        from fedbench.bench.config.overrides import write_override

        words = ["--preset", preset, *(("--dataset", self.dataset) if self.dataset else ())]
        words += [word for file in self.config_files for word in ("--config", str(file))]
        values = flatten(self.set or {}).items()
        return words + [f"--set={write_override(*item)}" for item in values]


@dataclass(frozen=True)
class Settings(Sources):
    """Preset, values, files and seed of a configuration."""

    seed: Annotated[int | None, _SEED] = None


@dataclass(frozen=True)
class Folders:
    """Folders of results and data; `store` may be a `Store`."""

    store: StoreDir = None
    data_dir: DataDir = None

    def open_store(self) -> "Store":
        """Return the store; its folder need not exist."""
        from fedbench.bench.results.store.store import open_store

        return open_store(self.store)

    @property
    def cache(self) -> Path | None:
        """The cache of data sets as a path; None = the default one."""
        return as_path(self.data_dir)


@dataclass(frozen=True)
class Places(Folders):
    """Folders of results and data, and the device."""

    device: Annotated[str, _DEVICE] = "auto"


@dataclass(frozen=True)
class Execution:
    """How one run is executed."""

    track: Track = None
    again: Again = False
    workers: Workers = None
    lanes: Annotated[int | None, LANES] = None
    engine: Annotated[str | None, _ENGINE] = None
    checkpoint_seconds: Annotated[
        float | None,
        Option(
            "Least seconds between checkpoints; default: 0, or 10 in long runs.",
            limits={"min": 0.0},
        ),
    ] = None


def as_path(path: Path | str | None) -> Path | None:
    """Return a path with `~` replaced by the home folder; None for None."""
    return None if path is None else user_path(path)
