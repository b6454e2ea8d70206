"""Which stored runs are meant, and what a board ranks: options of functions and commands."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, get_args

from fedbench.bench.system.arguments import Option, parse_names

Purpose = Literal["evaluation", "selection", "confirmation", "exploration"]
"""What a run was for; boards count evaluations, unless they are asked for others."""
Wanted = Literal[Purpose, "all"]
PURPOSES: tuple[str, ...] = get_args(Wanted)
AXES: dict[str, str] = {
    "alpha": "heterogeneity",
    "participation": "participation",
    "num_clients": "scaling",
    "local_epochs": "local-epochs",
}
"""Columns over which a board compares methods -> a grid that varies them."""
_names = partial(Option, kind=str | None, metavar="A,B", check=parse_names)


@dataclass(frozen=True)
class Chosen:
    """Which stored runs a page or a board is of."""

    grid: Annotated[str | None, Option("Only runs of this grid, by name or YAML file.")] = None
    dataset: Annotated[str | None, Option("Only runs on this data set.")] = None
    purpose: Annotated[
        Wanted,
        Option("Only runs that were made for this; those that chose settings judge nothing."),
    ] = "evaluation"


@dataclass(frozen=True)
class Ranked(Chosen):
    """Which stored runs are compared, and by what."""

    preset: Annotated[str | None, Option("Only runs that started from this preset.")] = None
    metric: Annotated[
        str,
        Option("Metric to rank by: linear, knn, objective, or another that runs have measured."),
    ] = "linear"


@dataclass(frozen=True)
class Board(Ranked):
    """What a leaderboard ranks and shows."""

    methods: Annotated[Sequence[str] | None, _names("Only runs of these methods.")] = None
    columns: Annotated[
        Sequence[str] | None,
        _names("Columns of tables and CSV, by heading or by name in --json; default: all."),
    ] = None
    published: Annotated[
        bool, Option("Show published numbers too.", "--published/--no-published")
    ] = True
    reach: Annotated[
        float | None, Option("Add the rounds and GB to reach this k-NN accuracy, such as 0.6.")
    ] = None
    over: Annotated[
        str | None,
        Option(
            f"Only the tables of methods over this axis: {', '.join(AXES)}; of JSON and CSV the"
            " rows of their settings.",
            metavar="AXIS",
        ),
    ] = None
    min_seeds: Annotated[
        int,
        Option("Leave out lines with fewer than N seeds; diverged ones count.", limits={"min": 1}),
    ] = 1
