"""The options of `tune` and of `sweep` that are their own."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from fedbench.bench.evaluation.objectives.names import DEFAULT, LOSS, check_name
from fedbench.bench.experiment.common_options import Again, DryRun, Track
from fedbench.bench.results.choice import Purpose
from fedbench.bench.system.arguments import Option, one_of, parse_names
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.tuning.rungs import FIDELITIES, NONE
from fedbench.bench.tuning.spaces.samplers import SAMPLERS, find_sampler

_MAX_RUNS = 100_000
_MANY, _FROM_2 = {"min": 1, "max": _MAX_RUNS}, {"min": 2, "max": _MAX_RUNS}
_SAMPLER = Option(
    f"Search algorithm: {'; '.join(f'{name} ({one.help})' for name, one in SAMPLERS.items())}.",
    check=one_of("sampler", SAMPLERS),
)
_OBJECTIVE = Option(
    "Score to maximise, as `fedbench objectives` lists them; NAME+gate refuses trials that learnt"
    " nothing. Default: align-unif; with --fidelity halving the last loss, unless the search varies"
    " fields of the method.",
    check=check_name,
)
_FIDELITY = Option(
    "Compare trials after fewer rounds and continue the best: none or halving.",
    check=one_of("fidelity", FIDELITIES),
)


@dataclass(frozen=True)
class Search:
    """Number of trials, their suggestions, how they are scored, and what is done with them.

    Every field's `Option` says what it is. In addition: seeds of a trial are `seed`, `seed + 1`, …;
    `random`, `sobol` and `grid` need no results, so that their trials do not wait for each other;
    the last rung is that of the configured rounds; with `halving` the objective is by default the
    last loss, since after few rounds the other says nothing of the end
    (leaderboards/studies/selection), but for spaces that vary the method's fields: there halving by
    the last loss lost more than four random runs of the same cost
    (leaderboards/studies/confirmation).
    """

    track: Track = None
    trials: Annotated[int, Option("Number of trials in the study.", limits=_MANY)] = 20
    seeds_per_trial: Annotated[
        int, Option("Runs per trial; its score is their mean.", limits=_MANY)
    ] = 1
    sampler: Annotated[str, _SAMPLER] = "tpe"
    batch_size: Annotated[
        int | None,
        Option("Trials suggested together; default: 4, with halving all.", "--batch", _MANY),
    ] = None
    space_file: Annotated[
        Path | str | None,
        Option(
            "Search space instead of the method's.", "--space", kind=Path | None, metavar="FILE"
        ),
    ] = None
    watch_labels: Annotated[
        bool, Option("Record accuracies too; the search never uses them.", "--watch-labels")
    ] = False
    study_name: Annotated[
        str | None, Option("Name of the study; default: made from its settings.", "--study")
    ] = None
    objective: Annotated[str | None, _OBJECTIVE] = None
    fidelity: Annotated[str, _FIDELITY] = NONE
    eta: Annotated[
        int | None, Option("One trial in N goes on after a rung; default: 4.", limits=_FROM_2)
    ] = None
    rungs: Annotated[
        int | None, Option("Rungs of a bracket; default: 3, if rounds allow.", limits=_FROM_2)
    ] = None
    confirm: Annotated[
        int,
        Option(
            "Then compare best, preset and worst by labels on N fresh seeds.", limits={"min": 0}
        ),
    ] = 0
    again: Again = False
    dry_run: DryRun = False

    @property
    def scored_by(self) -> str:
        """Name of the objective."""
        return self.objective or (DEFAULT if self.fidelity == NONE else LOSS)

    def check(self) -> None:
        """Refuse numbers out of range and options that exclude each other."""
        one_of("fidelity", FIDELITIES)(self.fidelity)
        for option, value, least in (
            ("--trials", self.trials, 1),
            ("--seeds-per-trial", self.seeds_per_trial, 1),
            ("--batch", self.batch_size, 1),
            ("--eta", self.eta, 2),
            ("--rungs", self.rungs, 2),
        ):
            if value is not None and value < least:
                raise ConfigError(f"{option}: must be at least {least} (got {value})")
            if value is not None and option in ("--eta", "--rungs") and self.fidelity == NONE:
                raise ConfigError(f"{option} {value}: needs --fidelity halving")
        if self.trials * self.seeds_per_trial > _MAX_RUNS:
            raise ConfigError(
                f"--trials {self.trials} with --seeds-per-trial {self.seeds_per_trial}: a study has"
                f" at most {_MAX_RUNS:,} runs; give a smaller number"
            )
        if find_sampler(self.sampler).finished_only and self.fidelity != NONE:
            raise ConfigError(
                f"--sampler {self.sampler}: learns from trials that were run to their end, and"
                f" --fidelity {self.fidelity} runs few of them; use --sampler tpe, random or sobol"
            )


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
