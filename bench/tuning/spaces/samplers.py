"""Search algorithms of a study: a table of what each is, what it needs, and how Optuna makes it.

Settings that change results are explicit here, not Optuna's defaults. Nothing heavy is imported
until a sampler is made: the command line lists the table.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedbench.bench.system.arguments import one_of
from fedbench.bench.system.errors import ConfigError, ResourceError
from fedbench.bench.system.packages import install_extra

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler

Space = Mapping[str, "BaseDistribution"]
_STARTUP = 8


@contextmanager
def quiet() -> Iterator[None]:
    """Inside the block Optuna logs errors alone, and does not warn of what is experimental."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        optuna.logging.set_verbosity(before)


def _optuna(name: str, **settings: Any) -> Callable[[int, Space], BaseSampler]:
    def make(seed: int, space: Space) -> BaseSampler:
        import optuna.samplers

        sampler: BaseSampler = getattr(optuna.samplers, name)(seed=seed, **settings)
        return sampler

    return make


_random = _optuna("RandomSampler")


def _sobol(seed: int, space: Space) -> BaseSampler:
    from optuna.samplers import QMCSampler

    class Sobol(QMCSampler):
        """Scrambled Sobol points; unlike its parent it also has one for the first trial."""

        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            return dict(space)

    return Sobol(qmc_type="sobol", scramble=True, seed=seed)


def _cmaes(seed: int, space: Space) -> BaseSampler:
    from optuna.samplers import CmaEsSampler

    return CmaEsSampler(n_startup_trials=1, seed=seed, independent_sampler=_random(seed, space))


@dataclass(frozen=True)
class Sampler:
    """A search algorithm."""

    help: str
    factory: Callable[[int, Space], BaseSampler]  # seed and search space
    learns: bool = True  # from results; else no trial waits for another
    finished_only: bool = False  # learns from nothing but trials that were run to their end
    # Asked for all trials in order, as Sobol's points are a sequence and CMA-ES learns from trial
    # to trial; else made anew for each trial, by its seed.
    stateful: bool = False
    ranges_only: bool = False  # needs ranges of numbers, and no choice
    diverged: float | None = None  # objective of a diverged trial; None = such a trial is pruned
    diverged_is_worst: bool = False  # it has the lowest objective so far
    package: str = ""  # needed besides Optuna; the extra has the sampler's name

    def make(self, seed: int, space: Space) -> BaseSampler:
        """Return Optuna's sampler."""
        with quiet():
            return self.factory(seed, space)


SAMPLERS = {
    "tpe": Sampler(
        "tree-structured Parzen estimator",
        _optuna("TPESampler", multivariate=True, constant_liar=True, n_startup_trials=_STARTUP),
    ),
    "random": Sampler("independent draws", _random, learns=False),
    "sobol": Sampler("points that fill the space evenly", _sobol, learns=False, stateful=True),
    "grid": Sampler("the values that the space lists", _random, learns=False),
    "gp": Sampler(
        "Gaussian process",
        _optuna("GPSampler", n_startup_trials=_STARTUP),
        finished_only=True,
        package="greenlet",  # without it Optuna's fits go on one after the other, with a warning
        diverged_is_worst=True,  # it models values, and leaves pruned trials out
    ),
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
    """Return a sampler; refuse one whose package is missing."""
    one_of("sampler", SAMPLERS)(name)
    sampler = SAMPLERS[name]
    if sampler.package and importlib.util.find_spec(sampler.package) is None:
        raise ResourceError(
            f"--sampler {name}: needs the package {sampler.package}: {install_extra(name)}; or use"
            " --sampler tpe"
        )
    return sampler


def check_space(name: str, space: Space) -> None:
    """Refuse a choice, if the sampler needs ranges of numbers."""
    from optuna.distributions import CategoricalDistribution

    choices = [key for key, one in space.items() if isinstance(one, CategoricalDistribution)]
    if SAMPLERS[name].ranges_only and choices:
        raise ConfigError(
            f"--sampler {name}: needs a search space of ranges of numbers alone (got"
            f" {', '.join(choices)}); use --sampler tpe, or --space with other dimensions"
        )
