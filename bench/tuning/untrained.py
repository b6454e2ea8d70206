"""Judgement of a search by encoders that learnt nothing: did any trial leave their noise?

A collapsed encoder scores 0 and an untrained one little more, so that a search whose settings do
not learn prefers the trial that moved least. The search itself stays as it is; its outcome is read
beside untrained encoders of other seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedbench.bench.results.leaderboard.statistics import mean, sample_std
from fedbench.bench.results.metrics import has_contracted

NUM_SEEDS = 5
"""Untrained encoders that are measured, of consecutive seeds."""

SPREAD = ("projection_std_ratio", "effective_rank", "rho", "delta_views", "sep")
"""Figures that trials record beside the objective."""


def noise_limit(objectives: Sequence[float]) -> float | None:
    """Largest objective that one more untrained encoder reaches in 39 of 40 draws.

    The upper end of Student's 95 % prediction interval for a further draw; None below three values.
    """
    centre, std = mean(objectives), sample_std(objectives)
    if centre is None or std is None or len(objectives) < 3:
        return None
    from scipy.special import stdtrit

    n = len(objectives)
    return centre + float(stdtrit(n - 1, 0.975)) * std * math.sqrt(1 + 1 / n)


def is_contracted(trial: Mapping[str, Any], untrained: Sequence[Mapping[str, float]]) -> bool:
    """Return True if a trial's projections have much less spread than untrained ones."""
    name, figures = SPREAD[0], trial.get("spread") or {}
    before = mean([each[name] for each in untrained if name in each])
    return has_contracted(figures.get(name), before)


def cautions(best: Mapping[str, Any], untrained: Sequence[Mapping[str, float]]) -> tuple[str, ...]:
    """List what speaks against using the best trial of a study; empty if nothing does.

    Args:
        best: the record of the trial.
        untrained: figures of untrained encoders.
    """
    objectives = [each["objective"] for each in untrained if "objective" in each]
    limit, found = noise_limit(objectives), []
    if limit is not None and best["objective"] <= limit:
        found.append(
            f"no trial left the noise of untrained encoders: the best objective is"
            f" {best['objective']:.4f}, {len(objectives)} encoders without training have"
            f" {mean(objectives):.4f} on average and a further one up to {limit:.4f}"
        )
    if is_contracted(best, untrained):
        figures = best["spread"]
        before = {name: mean([e[name] for e in untrained if name in e]) for name in SPREAD[:2]}
        found.append(
            f"the projections of the best trial have contracted: spread {figures[SPREAD[0]]:.3f},"
            f" {before[SPREAD[0]]:.3f} before training (effective rank of the features"
            f" {figures[SPREAD[1]]:.1f}, {before[SPREAD[1]]:.1f} before)"
        )
    return tuple(found)
