"""Suggestions from Optuna, independent of when trials end and how often a study was killed.

Trials come in batches: the parameters of a batch are asked for before any of its results is known,
and its results are told in the order of the trials. Samplers that look at no result need no
batches. The sampler of every trial is seeded by the trial's number, except for those with a state:
Sobol points, whose index is the trial's number, and CMA-ES. A study therefore continues by asking
for all trials again and comparing with the stored ones.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedbench.bench.system.errors import ConfigError, ResourceError, StoreError, UnknownNameError
from fedbench.bench.system.identity import canonical_json
from fedbench.bench.system.packages import install_extra
from fedbench.bench.system.seeding import derive

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial


SAMPLERS = ("tpe", "random", "sobol", "grid", "gp", "cmaes")
INDEPENDENT = ("random", "sobol", "grid")
"""Samplers whose suggestions depend on no result."""
FINISHED_ONLY = ("gp", "cmaes")
"""Samplers that learn nothing from a trial that was not run to its end."""
_SEQUENCES = ("sobol", "cmaes")
"""Samplers that are asked for all trials of a study in order, with one seed."""
_PACKAGES = {"gp": "greenlet", "cmaes": "cmaes"}
_WORST = -1e300
BATCH_SIZE = 4
"""Least number of trials per batch, and the number on CPUs, however many processors there are."""
_STARTUP_TRIALS = 8
_BITS = 2**32

Params = dict[str, Any]


@dataclass(frozen=True)
class Suggestion:
    """Parameters of a trial to be run.

    Attributes:
        number: number of the trial, from 0.
        params: dotted names to values.
    """

    number: int
    params: Params


@dataclass(frozen=True)
class ToldTrial:
    """A trial of an earlier session: its parameters, and its outcome as `tell` takes it."""

    params: Params
    objective: float | None
    rounds: int | None = None


class Suggester:
    """Asks Optuna for trials, batch by batch.

    Args:
        study_id: name of the study, for error messages.
        distributions: the search space.
        sampler: one of `SAMPLERS`.
        seed: seed of the study.
        total: trials of the study.
        batch_size: trials per batch; None = all trials at once, for `INDEPENDENT` samplers.
        points: parameters of the first trials; for `grid`, of all trials.
        told: trials by number that are in the store already.

    Raises:
        UnknownNameError: for an unknown sampler.
        ResourceError: if a sampler's package is not installed.
    """

    def __init__(
        self,
        study_id: str,
        distributions: Mapping[str, BaseDistribution],
        *,
        sampler: str = "tpe",
        seed: int = 0,
        total: int,
        batch_size: int | None = BATCH_SIZE,
        points: Sequence[Params] = (),
        told: Mapping[int, ToldTrial] | None = None,
    ) -> None:
        check_sampler(sampler)
        if sampler == "cmaes":
            _check_continuous(distributions)
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study_id, self._distributions = study_id, dict(distributions)
        self._sampler, self._seed = sampler, seed
        self._batch_size = batch_size or total
        self._points = list(points)
        self.total = min(total, len(self._points)) if sampler == "grid" else total
        self._earlier = dict(told or {})
        # The seed of Sobol points and of CMA-ES; other samplers are made for each trial.
        first = make_sampler(sampler, derive(seed, "sampler") % _BITS, distributions)
        self._study = optuna.create_study(direction="maximize", sampler=first)
        self._open: dict[int, Trial] = {}
        self._told: dict[int, tuple[float | None, int | None]] = {}
        self._ready: deque[Suggestion] = deque()
        self._next = 0

    @property
    def exhausted(self) -> bool:
        """True once every trial has been asked for and told."""
        return not self._ready and not self._open and self._next >= self.total

    def ask(self) -> Suggestion | None:
        """Return the next trial to run; None while a batch runs, and after the last trial.

        Raises:
            StoreError: if a stored trial has other parameters than its number gets now.
        """
        while not self._ready and not self._open and self._next < self.total:
            self._ask_batch()
            self._close_batch()
        return self._ready.popleft() if self._ready else None

    def tell(self, number: int, objective: float | None, rounds: int | None = None) -> None:
        """Take the objective of a trial: NaN if it diverged, None after an error.

        The search ranks a diverged trial below all others and learns nothing from an error. If it
        ignored both, it would return to learning rates that are too high.

        Args:
            number: of the trial.
            objective: its score.
            rounds: rounds after which it fell behind others, at that score; None = run to its end.
        """
        self._told[number] = objective, rounds
        self._close_batch()

    def _ask_batch(self) -> None:
        size = self._batch_size
        last = min(self.total, self._next - self._next % size + size)
        for number in range(self._next, last):
            if number < len(self._points):
                self._study.enqueue_trial(self._points[number])
            if self._sampler not in _SEQUENCES:
                seed = derive(self._seed, "sampler", number) % _BITS
                self._study.sampler = make_sampler(self._sampler, seed)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # ExperimentalWarning of samplers
                trial = self._study.ask(fixed_distributions=self._distributions)
            self._open[number] = trial
            stored = self._earlier.get(number)
            if stored is None:
                self._ready.append(Suggestion(number, dict(trial.params)))
                continue
            if canonical_json(stored.params) != canonical_json(trial.params):
                raise StoreError(
                    f"trial {number} of study {self._study_id!r} was made with {stored.params}, but"
                    f" its number gets {trial.params} now (other versions of Optuna or NumPy?);"
                    " use another study name to start a new study"
                )
            self._told[number] = stored.objective, stored.rounds
        self._next = last

    def _close_batch(self) -> None:
        """Tell a complete batch in the order of numbers, whatever the order of completion."""
        from optuna.trial import TrialState

        if not self._open or len(self._told) < len(self._open):
            return
        for number in sorted(self._open):
            value, rounds = self._told[number]
            if value is None:
                self._study.tell(self._open[number], state=TrialState.FAIL)
            elif rounds is not None:  # TPE ranks it by rounds, then by value
                self._open[number].report(value, rounds)
                self._study.tell(self._open[number], state=TrialState.PRUNED)
            elif math.isfinite(value):
                self._study.tell(self._open[number], value)
            elif self._sampler == "cmaes":  # it only ranks, and leaves pruned trials out
                self._study.tell(self._open[number], _WORST)
            else:  # TPE ranks a pruned trial without values below every completed one
                self._study.tell(self._open[number], state=TrialState.PRUNED)
        self._open.clear()
        self._told.clear()


def check_sampler(name: str) -> None:
    """Check that a sampler exists and that its packages are installed.

    Raises:
        UnknownNameError: for an unknown sampler.
        ResourceError: if a package is missing.
    """
    if name not in SAMPLERS:
        raise UnknownNameError("sampler", name, SAMPLERS)
    package = _PACKAGES.get(name)
    if package is not None and importlib.util.find_spec(package) is None:
        raise ResourceError(
            f"--sampler {name}: needs the package {package}: {install_extra(name)}; or use"
            " --sampler tpe"
        )


def _check_continuous(distributions: Mapping[str, BaseDistribution]) -> None:
    """Check that CMA-ES can search a space.

    Raises:
        ConfigError: for a choice between values, or a single dimension.
    """
    from optuna.distributions import CategoricalDistribution

    choices = [
        key for key, one in distributions.items() if isinstance(one, CategoricalDistribution)
    ]
    problem = f"{', '.join(choices)} is a choice between values" if choices else None
    if len(distributions) < 2:
        problem = f"the search space has one dimension, {', '.join(distributions)}"
    if problem is not None:
        raise ConfigError(
            f"--sampler cmaes: needs two or more ranges of numbers and no choices, but {problem};"
            " use --sampler tpe, or --space with other dimensions"
        )


def make_sampler(
    name: str, seed: int, distributions: Mapping[str, BaseDistribution] = MappingProxyType({})
) -> BaseSampler:
    """Return an Optuna sampler; settings that change results are explicit, not Optuna's defaults.

    For `grid` any sampler will do: all its trials are given points. `sobol` needs to know the
    search space.
    """
    from optuna import samplers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ExperimentalWarning
        if name == "tpe":
            return samplers.TPESampler(
                n_startup_trials=_STARTUP_TRIALS,
                multivariate=True,
                constant_liar=True,
                seed=seed,
            )
        if name == "gp":
            return samplers.GPSampler(n_startup_trials=_STARTUP_TRIALS, seed=seed)
        if name == "cmaes":
            return samplers.CmaEsSampler(
                n_startup_trials=1, seed=seed, independent_sampler=samplers.RandomSampler(seed=seed)
            )
        if name == "sobol":

            class Sobol(samplers.QMCSampler):
                """Scrambled Sobol points; unlike its parent it also has one for the first trial."""

                def infer_relative_search_space(
                    self, study: Study, trial: FrozenTrial
                ) -> dict[str, BaseDistribution]:
                    return dict(distributions)

            return Sobol(qmc_type="sobol", scramble=True, seed=seed)
        return samplers.RandomSampler(seed=seed)
