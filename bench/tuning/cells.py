"""Which runs of a grid are made: the options of `sweep` that are its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from fedbench.bench.experiment.common_options import Again, DryRun, Track
from fedbench.bench.results.choice import Purpose
from fedbench.bench.system.arguments import Option, parse_names
from fedbench.bench.system.errors import ConfigError


def _parse_seeds(text: str | None) -> list[int] | None:
    words = parse_names(text)
    if words is not None and not (words and all(w.isascii() and w.isdigit() for w in words)):
        raise ConfigError(f"--seeds: must be whole numbers from 0, such as 0,1,2 (got {text!r})")
    return None if words is None else [int(word) for word in words]


_listed = partial(Option, kind=str | None)


@dataclass(frozen=True)
class Cells:
    """Which runs of a grid are made."""

    track: Track = None
    methods: Annotated[
        Sequence[str] | None,
        _listed("Methods to run instead of the grid's.", metavar="A,B", check=parse_names),
    ] = None
    seeds: Annotated[
        Sequence[int] | None,
        _listed(
            "Seeds instead of the grid's.", "--seeds --seed", metavar="0,1", check=_parse_seeds
        ),
    ] = None
    tuned: Annotated[
        str | Path | Sequence[str | Path] | None,
        _listed(
            "Best values of these studies, or files of tune; auto: of the latest on the same data.",
            metavar="STUDY,…",
            check=lambda text: text if text == "auto" else parse_names(text),
        ),
    ] = None
    purpose: Annotated[Purpose, Option("What the runs are for; boards count evaluations.")] = (
        "evaluation"
    )
    retry_failed: Annotated[bool, Option("Repeat failed runs.", "--retry-failed")] = False
    again: Again = False
    dry_run: DryRun = False
