"""Options and arguments that several commands share, and how their texts are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fedbench.bench.system.arguments import Option
from fedbench.bench.system.errors import ConfigError

Format = Literal["table", "json", "csv", "markdown", "latex"]
"""Formats of a leaderboard."""


def argument(text: str, metavar: str) -> Any:
    """Describe an argument: its help, and its name there."""
    return typer.Argument(metavar=metavar, help=text)


def option(
    text: str,
    *flags: str,
    metavar: str | None = None,
    panel: str = "",
    check: Callable[[Any], Any] | None = None,
    **limits: float,
) -> Any:
    """Describe an option.

    Args:
        text: its help.
        *flags: its names; without any it is called like its parameter.
        metavar: stands for its value in the help; None = N, X, NAME or FILE by its type.
        panel: its heading in the help; empty = the command's own options.
        check: refuses a value before torch is loaded, and returns it else.
        **limits: `min` and `max` of a number.
    """
    settings: dict[str, Any] = {**limits, "rich_help_panel": panel, "callback": check}
    return typer.Option(*flags, metavar=metavar, help=text, **settings)


def yaml_name(folder: str) -> Callable[[str | None], str | None]:
    """Return a check that refuses an unknown grid or preset."""

    def check(name: str | None) -> str | None:
        if name is not None:
            from fedbench.bench.config.yaml_files import load_named

            load_named(folder, name)
        return name

    return check


def declared(annotation: Any) -> Any:
    """Return the annotation of a parameter, with an `Option` in it described for Typer."""
    for found in getattr(annotation, "__metadata__", ()):
        if isinstance(found, Option):
            flags = [found.flag] if found.flag else []
            described = option(found.help, *flags, check=found.check, **found.limits)
            kind = annotation.__origin__
            # Typer takes no union of two types.
            return Annotated[Path | None if kind == Path | str | None else kind, described]
    return annotation


# Beyond these a number is a slip of the finger.
processes = partial(option, min=1, max=1024)
count = partial(option, min=1, max=100_000)
place = partial(option, panel="Places", metavar="DIR")

Spec = Annotated[str, argument("Method with optional add-ons, name[+addon…].", "SPEC")]
ShownSpec = Annotated[
    str | None, argument("Method with optional add-ons; default: all methods.", "SPEC")
]
RunId = Annotated[str, argument("Run id, or an unambiguous beginning of it.", "RUN_ID")]
RunIds = Annotated[list[str], argument("Run ids, or unambiguous beginnings of them.", "RUN_ID…")]
SomeRunIds = Annotated[
    list[str] | None, argument("Run ids, or unambiguous beginnings of them.", "RUN_ID…")
]
StudyId = Annotated[str | None, argument("Study; default: all.", "STUDY")]
Grid = Annotated[str, option("Name of a grid, or its YAML file.", check=yaml_name("grids"))]
ObjectiveName = Annotated[str | None, argument("Objective; default: all objectives.", "NAME")]
DatasetName = Annotated[str, argument("Name of a data set, file:PATH, folder:PATH, …", "NAME")]
ReadingSet = Annotated[
    list[str] | None,
    option("How it is read, by dotted name; repeatable.", "--set", metavar="KEY=VALUE"),
]
Address = Annotated[
    str | None, option("Ray cluster to check, or auto; default: this machine.", metavar="HOST:PORT")
]
Labels = Annotated[
    str | None,
    option(
        "Partition N examples in C equal classes instead of the data set; needs no images.",
        metavar="balanced:N:C",
    ),
]
StoreDir = Annotated[
    Path | None,
    place(
        "Folder of results, or a release to read: its folder, Parquet file or https address;"
        " default: $FEDBENCH_STORE, else ./leaderboards."
    ),
]
DataDir = Annotated[
    Path | None, place("Cache of data sets; default: $FEDBENCH_DATA_DIR, else in ~/.cache.")
]
Workers = Annotated[
    int | None,
    processes("Processes that train clients; default: one per physical core, or per GPU."),
]
DryRun = Annotated[
    bool, option("Only show what would be done and what it costs.", "--dry-run", "-n")
]
Again = Annotated[
    bool,
    option(
        "Repeat what the store has and compare it; replace what code that is gone has made.",
        "--again",
    ),
]
Ids = Annotated[bool, option("Show the short ids of runs, which `fedbench show` takes.", "--ids")]
GridFilter = Annotated[str | None, option("Only runs of this grid.")]
DatasetFilter = Annotated[str | None, option("Only runs on this data set.")]
DataName = Annotated[
    str | None, option("Data set to use, if it lies elsewhere on this machine.", "--data")
]
ReproducedBy = Annotated[
    str | None, option("Your name: record in the store that you repeated the run.", "--by")
]
Orcid = Annotated[str | None, option("Your ORCID iD, with --by.", metavar="ID")]


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


def parse_names(text: str | None) -> list[str] | None:
    """Split `a,b` into its words; None stays None."""
    return None if text is None else [word for word in map(str.strip, text.split(",")) if word]


def parse_seeds(text: str | None) -> list[int] | None:
    """Return the seeds of `--seeds 0,1,2`; None stays None.

    Raises:
        ConfigError: for text that is not whole numbers from 0.
    """
    words = parse_names(text)
    if words is not None and not (words and all(w.isascii() and w.isdigit() for w in words)):
        raise ConfigError(f"--seeds: must be whole numbers from 0, such as 0,1,2 (got {text!r})")
    return None if words is None else [int(word) for word in words]


def parse_format(form: Format | None, as_json: bool) -> Format:
    """Return the format of a leaderboard; `--json` is short for `--format json`.

    Raises:
        ConfigError: for `--json` together with another format.
    """
    if as_json and form not in (None, "json"):
        raise ConfigError(f"--json and --format {form} exclude each other; give one")
    return "json" if as_json else form or "table"


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
