"""How a study searches: the options of `tune` that are its own, each declared here alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fedbench.bench.evaluation.objectives.names import check_name
from fedbench.bench.evaluation.objectives.of_clients import DEFAULT, LOSS
from fedbench.bench.system.arguments import Option, one_of
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.tuning.rungs import FIDELITIES, NONE
from fedbench.bench.tuning.samplers import SAMPLERS, find_sampler

_MAX_RUNS = 100_000
_MANY = {"min": 1, "max": _MAX_RUNS}


@dataclass(frozen=True)
class Search:
    """Number of trials, their suggestions, and how they are scored.

    Attributes:
        trials: number of trials of the whole study.
        seeds_per_trial: runs per trial, with `seed`, `seed + 1`, …; the objective is their mean.
        sampler: a search algorithm of `fedbench.bench.tuning.samplers`.
        batch_size: trials that are suggested together, before any of their results is known; part
            of the study's identity. None = as in a stored study with the same arguments, else as
            many as fill the GPUs, the cluster or `concurrency`, at least 4 and at most a quarter of
            the trials; on CPUs 4, so that machines of different size make the same study.
            `random`, `sobol` and `grid` need no results: their trials do not wait for each other.
        space_file: search space in place of the method's.
        watch_labels: measure k-NN accuracy as well; the search never sees it.
        stop_hopeless: end a run when its encoder has collapsed for three rounds in a row (its
            objective is then 0), and give a trial no further seeds whose first seed lies below the
            median of the first seeds in earlier batches.
        study_name: name of a separate study with the same arguments.
        objective: score that is maximised, as `fedbench objectives` lists them; with `+gate` it is
            undefined for trials that shrank, became narrow or learnt nothing beyond random init.
            None = align + 0.2 unif; with `halving` the last loss, since after few rounds the
            other says nothing of the end (docs/studies/selection.md).
        fidelity: `none` runs every trial to its end; `halving` compares all trials of a bracket
            (`batch_size`; by default all trials of the study) after few rounds and continues the
            best, and so on.
        eta: with `halving`, one trial in so many goes on after a rung; None = 4.
        rungs: rungs of a bracket, the last at the configured rounds; None = 3, or as many as
            rounds and trials suffice for.
    """

    trials: Annotated[int, Option("Number of trials in the study.", limits=_MANY)] = 20
    seeds_per_trial: Annotated[
        int, Option("Runs per trial; its score is their mean.", limits=_MANY)
    ] = 1
    sampler: Annotated[
        str,
        Option(
            f"Search algorithm: {'; '.join(f'{n} ({s.help})' for n, s in SAMPLERS.items())}.",
            check=one_of("sampler", SAMPLERS),
        ),
    ] = "tpe"
    batch_size: Annotated[
        int | None,
        Option(
            "Trials suggested together, part of the study's identity; default: as many as run at a"
            " time, 4 on CPUs.",
            "--batch",
            _MANY,
        ),
    ] = None
    space_file: Annotated[
        Path | str | None, Option("Search space to use instead of the method's own.", "--space")
    ] = None
    watch_labels: Annotated[
        bool, Option("Record accuracies too; the search never uses them.", "--watch-labels")
    ] = False
    stop_hopeless: Annotated[
        bool,
        Option("Stop collapsed runs, and give bad trials no further seeds.", "--stop-hopeless"),
    ] = False
    study_name: Annotated[
        str | None, Option("Name of the study; default: made from its settings.", "--study")
    ] = None
    objective: Annotated[
        str | None,
        Option(
            "Score to maximise, as `fedbench objectives` lists them; NAME+gate refuses trials that"
            " learnt nothing. Default: align-unif; with --fidelity halving loss.",
            check=check_name,
        ),
    ] = None
    fidelity: Annotated[
        str,
        Option(
            "Compare trials after fewer rounds and continue the best: none or halving.",
            check=one_of("fidelity", FIDELITIES),
        ),
    ] = NONE
    eta: Annotated[
        int | None,
        Option("One trial in N goes on after a rung; default: 4.", limits={**_MANY, "min": 2}),
    ] = None
    rungs: Annotated[
        int | None,
        Option(
            "Rungs of a bracket; default: 3, or as many as rounds allow.",
            limits={**_MANY, "min": 2},
        ),
    ] = None

    @property
    def scored_by(self) -> str:
        """Name of the objective."""
        return self.objective or (DEFAULT if self.fidelity == NONE else LOSS)

    def check(self) -> None:
        """Refuse numbers out of range and options that exclude each other.

        Raises:
            ConfigError, UnknownNameError, ResourceError: names the option.
        """
        for option, value in (
            ("--trials", self.trials),
            ("--seeds-per-trial", self.seeds_per_trial),
            ("--batch", self.batch_size),
        ):
            if value is not None and value < 1:
                raise ConfigError(f"{option}: must be at least 1 (got {value})")
        if self.trials * self.seeds_per_trial > _MAX_RUNS:
            raise ConfigError(
                f"--trials {self.trials} with --seeds-per-trial {self.seeds_per_trial}: a study has"
                f" at most {_MAX_RUNS:,} runs; give a smaller number"
            )
        sampler = find_sampler(self.sampler)
        if self.fidelity == NONE:
            return
        if sampler.finished_only:
            raise ConfigError(
                f"--sampler {self.sampler}: learns from trials that were run to their end, and"
                f" --fidelity {self.fidelity} runs few of them; use --sampler tpe, random or sobol"
            )
        if self.stop_hopeless:
            raise ConfigError(
                f"--stop-hopeless: --fidelity {self.fidelity} ends trials by a rule of its own;"
                " leave one of them out"
            )
