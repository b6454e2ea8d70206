"""Importance of hyperparameters in a tuning study, by Optuna."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

MIN_TRIALS = 10
"""With fewer finished trials an importance says more about the draws than about the method."""


def importances(
    space: Mapping[str, Mapping[str, Any]], trials: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """Return the importance of each hyperparameter for the objective; the sum is 1.

    Source: Watanabe et al. 2023, https://arxiv.org/abs/2304.10255 (PED-ANOVA): variance of the
    share of good trials (the best tenth) that each value explains.

    Args:
        space: dimensions by name, as a study's description records them.
        trials: as `Store.trials` gives them; those without an objective are left out.

    Returns:
        The most important first; nothing with fewer than `MIN_TRIALS` trials, fewer than two
        dimensions, or one objective throughout.
    """
    usable = [t for t in trials if t["status"] == "ok" and t["objective"] is not None]
    names = [name for name in space if all(name in t["params"] for t in usable)]
    different = {t["objective"] for t in usable}
    if len(usable) < MIN_TRIALS or len(names) < 2 or len(different) < 2:
        return {}
    import optuna

    distributions = {name: _distribution(space[name]) for name in names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            study = optuna.create_study(direction="maximize")
            study.add_trials(
                [
                    optuna.trial.create_trial(
                        params={name: trial["params"][name] for name in names},
                        distributions=distributions,
                        value=trial["objective"],
                    )
                    for trial in usable
                ]
            )
            found = optuna.importance.get_param_importances(study)
        finally:
            optuna.logging.set_verbosity(verbosity)
    return {name: float(value) for name, value in found.items()}


def _distribution(dimension: Mapping[str, Any]) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if "values" in dimension:
        return CategoricalDistribution(dimension["values"])
    low, high, log = dimension["low"], dimension["high"], dimension.get("log", False)
    if dimension["type"] == "float":
        return FloatDistribution(low, high, log=log)
    return IntDistribution(low, high, log=log, step=dimension.get("step", 1))
