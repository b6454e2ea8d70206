"""Comparison of a search with encoders at random init: did any trial leave their noise?

A collapsed encoder scores 0 and one at random init little more, so that a search whose settings do
not learn prefers the trial that moved least. The search itself stays as it is; its outcome is
compared with encoders at random init of other seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedbench.bench.config import RunConfig
from fedbench.bench.evaluation.shrinkage import FIGURES, shrinkage
from fedbench.bench.results.leaderboard.statistics import mean, sample_std

if TYPE_CHECKING:
    from fedbench.bench.tuning.scoring import Scoring

NUM_SEEDS = 5
"""Encoders at random init that are measured, of consecutive seeds."""

SPREAD = (*FIGURES, "rho", "delta_views", "sep")
"""Figures that trials record besides the objective."""

_LEAST = 3
"""Fewest encoders at random init whose spread means anything."""


def without_training(config: RunConfig) -> RunConfig:
    """Return the configuration that costs what measuring an encoder at random init does."""
    federation = config.federation.model_copy(update={"num_rounds": 0})
    evaluation = config.evaluation.model_copy(update={"protocols": (), "untrained": False})
    return config.model_copy(update={"federation": federation, "evaluation": evaluation})


def noise_limit(objectives: Sequence[float]) -> float | None:
    """Return the largest objective that one more encoder at random init reaches in 39 of 40 draws.

    The upper end of Student's 95 % prediction interval for a further draw of a normal quantity;
    None below three values.
    """
    centre, std = mean(objectives), sample_std(objectives)
    if centre is None or std is None or len(objectives) < _LEAST:
        return None
    from scipy.special import stdtrit

    n = len(objectives)
    return centre + float(stdtrit(n - 1, 0.975)) * std * math.sqrt(1 + 1 / n)


def shrinkage_of(trial: Mapping[str, Any], untrained: Sequence[Mapping[str, float]]) -> str:
    """Describe how a trial's encoder has shrunk since random init; empty if it has not."""
    before = {
        name: mean([figures[name] for figures in untrained if name in figures]) for name in SPREAD
    }
    return shrinkage(trial.get("spread") or {}, before)


def cautions(
    best: Mapping[str, Any],
    untrained: Sequence[Mapping[str, float]],
    scoring: Scoring,
) -> tuple[str, ...]:
    """List the reasons not to trust the best trial of a study; empty if there are none.

    Args:
        best: the record of the trial.
        untrained: figures of encoders at random init.
        scoring: of the study.
    """
    objectives = scoring.scores(untrained)
    limit, texts = noise_limit(objectives), list[str]()
    if limit is None and not scoring.trained:
        texts.append(
            f"only {len(objectives)} of {NUM_SEEDS} encoders at random init were measured, too few"
            " to tell whether a trial has learnt anything; the same `fedbench tune` command"
            " measures the others"
        )
    elif limit is not None and best["objective"] <= limit:
        texts.append(
            f"no trial left the noise of random init: the best objective is"
            f" {best['objective']:.4f}, {len(objectives)} encoders at random init have"
            f" {mean(objectives):.4f} on average and a further one up to {limit:.4f}"
        )
    # Below 0 an objective rises by shrinking alone; SEP does not depend on scale.
    seps = [figures["sep"] for figures in untrained if "sep" in figures]
    sep, most = (best.get("spread") or {}).get("sep"), noise_limit(seps)
    if sep is not None and most is not None and sep <= most:
        texts.append(
            f"the best trial tells images apart from views of one image no better than random"
            f" init: SEP {sep:.3f}, {len(seps)} encoders at random init have {mean(seps):.3f} on"
            f" average and a further one up to {most:.3f}"
        )
    if text := shrinkage_of(best, untrained):
        texts.append(f"the encoder of the best trial is narrower than before training: {text}")
    return tuple(texts)
