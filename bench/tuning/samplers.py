"""Search algorithms of a study: a table of what each is, what it needs, and how Optuna makes it.

Settings that change results are explicit here, not Optuna's defaults. Nothing heavy is imported
until a sampler is made: the command line lists the table.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedbench.bench.system.errors import ConfigError, ResourceError, UnknownNameError
from fedbench.bench.system.packages import install_extra

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler

Space = Mapping[str, "BaseDistribution"]
_STARTUP_TRIALS = 8


def _tpe(seed: int, space: Space) -> BaseSampler:
    from optuna.samplers import TPESampler

    return TPESampler(
        n_startup_trials=_STARTUP_TRIALS, multivariate=True, constant_liar=True, seed=seed
    )


def _random(seed: int, space: Space) -> BaseSampler:
    from optuna.samplers import RandomSampler

    return RandomSampler(seed=seed)


def _sobol(seed: int, space: Space) -> BaseSampler:
    from optuna.samplers import QMCSampler

    class Sobol(QMCSampler):
        """Scrambled Sobol points; unlike its parent it also has one for the first trial."""

        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            return dict(space)

    return Sobol(qmc_type="sobol", scramble=True, seed=seed)


def _gp(seed: int, space: Space) -> BaseSampler:
    from optuna.samplers import GPSampler

    return GPSampler(n_startup_trials=_STARTUP_TRIALS, seed=seed)


def _cmaes(seed: int, space: Space) -> BaseSampler:
    from optuna.samplers import CmaEsSampler

    return CmaEsSampler(n_startup_trials=1, seed=seed, independent_sampler=_random(seed, space))


@dataclass(frozen=True)
class Sampler:
    """A search algorithm.

    Attributes:
        help: what it does, for `--help`.
        factory: (seed, search space) -> Optuna's sampler.
        learns: whether a suggestion depends on results; else no trial waits for another.
        finished_only: whether it learns from nothing but trials that were run to their end.
        stateful: asked for all trials of a study in order, with one seed; others are made anew for
            each trial, with a seed of its own.
        ranges_only: whether it needs two or more ranges of numbers, and no choice.
        diverged: objective that stands for a diverged trial; None = such a trial is pruned.
        package: package that it needs besides Optuna; empty = none. The extra has the sampler's
            name.
    """

    help: str
    factory: Callable[[int, Space], BaseSampler]
    learns: bool = True
    finished_only: bool = False
    stateful: bool = False
    ranges_only: bool = False
    diverged: float | None = None
    package: str = ""

    def make(self, seed: int, space: Space) -> BaseSampler:
        """Return Optuna's sampler without the warning that it is experimental."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.factory(seed, space)


SAMPLERS = {
    "tpe": Sampler("tree-structured Parzen estimator", _tpe),
    "random": Sampler("independent draws", _random, learns=False),
    "sobol": Sampler("points that fill the space evenly", _sobol, learns=False, stateful=True),
    "grid": Sampler("the values that the space lists", _random, learns=False),
    "gp": Sampler("Gaussian process", _gp, finished_only=True, package="greenlet"),
    "cmaes": Sampler(
        "CMA-ES, for ranges of numbers",
        _cmaes,
        finished_only=True,
        stateful=True,
        ranges_only=True,
        diverged=-1e300,  # it only ranks, and leaves pruned trials out
        package="cmaes",
    ),
}
"""Every trial of `grid` gets a point of the grid, whatever its sampler would draw."""


def find_sampler(name: str) -> Sampler:
    """Return a sampler whose package is installed.

    Raises:
        UnknownNameError: for an unknown name.
        ResourceError: if its package is missing.
    """
    if name not in SAMPLERS:
        raise UnknownNameError("sampler", name, SAMPLERS)
    sampler = SAMPLERS[name]
    if sampler.package and importlib.util.find_spec(sampler.package) is None:
        raise ResourceError(
            f"--sampler {name}: needs the package {sampler.package}: {install_extra(name)}; or use"
            " --sampler tpe"
        )
    return sampler


def check_space(name: str, space: Space) -> None:
    """Check that a sampler can search a space.

    Raises:
        ConfigError: for a choice or a single dimension, if it needs ranges of numbers.
    """
    if not SAMPLERS[name].ranges_only:
        return
    from optuna.distributions import CategoricalDistribution

    choices = [key for key, one in space.items() if isinstance(one, CategoricalDistribution)]
    if choices or len(space) < 2:
        names = ", ".join(choices or space)
        found = f"{names} is a choice" if choices else f"it has {names} alone"
        raise ConfigError(
            f"--sampler {name}: needs a search space of two or more ranges of numbers, but {found};"
            " use --sampler tpe, or --space with other dimensions"
        )
