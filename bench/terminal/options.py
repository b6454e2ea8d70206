"""Options and arguments of commands: an `Option` says what each is, a dataclass groups some."""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from fedbench.bench.experiment.common_options import SET, parse_set
from fedbench.bench.system.arguments import Option
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.method_names import check_spec
from fedbench.bench.terminal.console import emit_json
from fedbench.bench.terminal.tables import show_record

Format = Literal["table", "json", "csv", "markdown", "latex"]
"""Formats of a leaderboard."""
_METAVARS = {"int": "N", "float": "X", "str": "NAME", "Path": "FILE", "path": "FILE"}
"""Type of an option -> the name of its value in the help, if it has no other."""
_KIND = re.compile(r"<(?:list\[)?(int|float|str|Path|path)[^|>]*>")
"""What Typer calls the value of an option: `<int range>`, `<list[Path]>`."""


class GroupedCommand(TyperCommand):
    """Command whose help lists options under headings: its own ones first."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse words; refuse `--set KEY VALUE`, whose value would be taken for an argument."""
        for option, key, value in zip(args, args[1:], args[2:], strict=False):
            no_value = "=" not in key and not value.startswith("-")
            if option in ("--set", "--where") and no_value:
                raise ConfigError(f"{option} {key} {value}: write {option} {key}={value}")
        return super().parse_args(ctx, args)

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
        sections["Output"] = sections.pop("Output", [])  # to the end
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def for_typer(annotation: Any) -> Any:
    """Return the annotation of a parameter, with its `Option` described as Typer wants it."""
    if (found := option_of(annotation)) is None:
        return annotation
    settings: dict[str, Any] = {"help": found.help, "metavar": found.metavar, **found.limits}
    described = typer.Option(*found.flags.split(), rich_help_panel=found.panel, **settings)
    return Annotated[found.kind or annotation.__origin__, described]


def option_of(annotation: Any) -> Option | None:
    """Return the `Option` in the annotation of a parameter."""
    found = (each for each in getattr(annotation, "__metadata__", ()) if isinstance(each, Option))
    return next(found, None)


def argument(text: str, metavar: str, check: Callable[[Any], Any] | None = None) -> Any:
    """Describe an argument: its help, its name there, and what it must be."""
    return typer.Argument(metavar=metavar, help=text, callback=check)


Spec = Annotated[str, argument("Method with optional add-ons, name[+addon…].", "SPEC", check_spec)]
ShownSpec = Annotated[
    str | None, argument("Method with add-ons; default: all methods.", "SPEC", check_spec)
]
RunId = Annotated[str, argument("Run id, or an unambiguous beginning of it.", "RUN_ID")]
RunIds = Annotated[list[str], argument("Run ids, or beginnings of them.", "RUN_ID…")]
StudyId = Annotated[str | None, argument("Study; default: all.", "STUDY")]
Address = Annotated[str | None, Option("Ray cluster to check, or auto.", metavar="HOST:PORT")]
Labels = Annotated[
    str | None,
    Option("N examples in C equal classes instead of the data set's.", metavar="balanced:N:C"),
]
Grid = Annotated[str, Option("Name of a grid, or its YAML file.")]
ListedName = Annotated[str | None, argument("Name of one; default: all.", "NAME")]
DatasetName = Annotated[str, argument("Name of a data set, file:PATH, folder:PATH, …", "NAME")]
ReadingSet = Annotated[
    Mapping[str, Any] | None,
    replace(SET, help="How it is read, by dotted name; repeatable.", panel=""),
]
Preview = Annotated[Path | None, Option("PNG to write: a training and a test image of each class.")]
PartitionOut = Annotated[Path | None, Option("Parquet to write: a client for each image.", "--out")]
Images = Annotated[
    bool, Option("Show two images of each class, if the data are here.", "--images/--no-images")
]
Compared = Annotated[str, argument("Method, line of the board, or run id.", "A")]
ComparedTo = Annotated[str, argument("The same; it is subtracted from the first.", "B")]
DataName = Annotated[str | None, Option("Data set, if it lies elsewhere here.", "--data")]
_FROM_0 = {"min": 0}


@dataclass(frozen=True)
class Filters:
    """Which stored runs are listed."""

    method: Annotated[str | None, Option("Only runs of this method.", metavar="SPEC")] = None
    dataset: Annotated[str | None, Option("Only runs on this data set.")] = None
    preset: Annotated[str | None, Option("Only runs that started from this preset.")] = None
    status: Annotated[
        Literal["ok", "error", "diverged"] | None, Option("Only runs that ended so.")
    ] = None
    where: Annotated[
        Mapping[str, Any] | None,
        replace(
            SET,
            help="Only runs with this value, of a key or a column; repeatable.",
            check=partial(parse_set, option="--where"),
            panel="",
        ),
    ] = None
    limit: Annotated[
        int | None,
        Option(
            "Show at most so many; 0 = all.",
            limits=_FROM_0,
            kind=int,
            check=lambda number: number or None,
        ),
    ] = 30


def values(*groups: Any) -> dict[str, Any]:
    """Return groups of options as keyword arguments of a function of `fedbench`."""
    return {name: value for group in groups for name, value in vars(group).items()}


def _plain(result: Any) -> Any:
    if isinstance(result, list):
        return [_plain(each) for each in result]
    if hasattr(result, "as_dict"):
        return result.as_dict()
    return asdict(result) if is_dataclass(result) and not isinstance(result, type) else result


def show_values(result: Any) -> None:
    """Print the values of a record, one per line."""
    show_record("", _plain(result))


_output = partial(Option, panel="Output")


@dataclass(frozen=True)
class Output:
    """Form of the output, and how much of it."""

    json: Annotated[bool, _output("Print one JSON document on stdout.", "--json")] = False
    quiet: Annotated[bool, _output("Show no progress and no hints.", "--quiet -q")] = False
    verbose: Annotated[bool, _output("Show more progress.", "--verbose -v")] = False
    debug: Annotated[bool, _output("Show the traceback of an error.", "--debug")] = False

    def show(self, result: Any, as_text: Callable[[Any], object] = show_values) -> None:
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
