"""What a study shows: whether its best trial can be told, and what speaks against it.

A score always ranks trials, also where it says nothing. Therefore no best trial is named where all
that is known without labels could as well be chance, and the preset is recommended.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedbench.bench.results.leaderboard.statistics import correlation, mean, t_interval
from fedbench.bench.results.leaderboard.studies import best_trial, is_usable
from fedbench.bench.system.identity import canonical_json
from fedbench.bench.tuning.scoring import (
    LEAST_MOVEMENT,
    MOVEMENT,
    NUM_SEEDS,
    Scoring,
    noise_limit,
    shrinkage_of,
)

_LEAST_TRIALS = 5  # fewest whose order by two scores is compared
UNLIKE_COMPUTE = 1.05
"""Ratio of images trained on above which two trials cost unlike compute; batches round a little."""
Figures = Mapping[str, float]


@dataclass(frozen=True)
class Verdict:
    """Reasons because of which no best trial can be told, and reasons to be careful with it."""

    doubts: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()


def judge(
    trials: Sequence[Mapping[str, Any]],
    untrained: Sequence[Figures],
    scoring: Scoring,
    leads: Sequence[float] | None = None,
    *,
    preset: Mapping[str, Any] | None = None,
    started: bool = False,
) -> Verdict:
    """Judge a study of which one trial at least has an objective.

    Args:
        trials: all trials, with objectives.
        untrained: figures of encoders before training.
        scoring: the objective.
        leads: of the best trial on the preset, on seeds that the search has not used; None where
            the objective is ranks, or they are one.
        preset: parameters of the preset, whose compute others are compared with.
        started: trials begin with given weights, which move less and lose nothing by it.
    """
    best, usable = best_trial(trials), [trial for trial in trials if is_usable(trial)]
    assert best is not None
    same, chance = _sameness(usable), _chance(usable) if len(usable) > 1 else []
    doubts = [*_noise(best, untrained, scoring), *same, *chance]
    doubts += [] if leads is None else _seed_noise(leads)
    agreed, disagreed = _agreement(usable, scoring)
    careful = [*_start(best, untrained, scoring), *agreed]
    careful += [] if started else _stillness(best, scoring)
    careful += [] if chance else _chance([best])
    careful += _compute(best, usable, preset)
    if parts := best.get("without_gradient"):
        careful.append(f"the loss of the best trial never reached {', '.join(parts)}")
    if not same:
        careful += [
            f"{name} changes nothing: trials that differ in it alone have one objective"
            for name in seen_without_effect(usable)
        ]
    return Verdict(tuple([*doubts, *disagreed]), tuple(careful))


def _noise(best: Mapping[str, Any], untrained: Sequence[Figures], scoring: Scoring) -> list[str]:
    objectives = scoring.scores(untrained)
    limit = noise_limit(objectives)
    if limit is None or best["objective"] > limit:
        return []
    return [
        f"no trial left the noise of the start: the best objective is {best['objective']:.4f},"
        f" {len(objectives)} encoders before training have {mean(objectives):.4f} on average and a"
        f" further one up to {limit:.4f}"
    ]


def _sameness(usable: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say that all trials have one objective, to the last bit."""
    values = {trial["objective"] for trial in usable}
    if len(usable) < 2 or len(values) > 1:
        return []
    varied = ", ".join(usable[0]["params"])
    return [
        f"all {len(usable)} trials have the same objective, {values.pop():.4f}: what they vary"
        f" ({varied}) changes nothing here"
    ]


def _stillness(best: Mapping[str, Any], scoring: Scoring) -> list[str]:
    """Say that a best trial by the default objective hardly moved from its random start."""
    moved = best["spread"].get(MOVEMENT)
    if moved is None or moved >= LEAST_MOVEMENT or not scoring.is_default:
        return []
    return [
        f"the weights of the best trial moved by {moved:.3f} of their length, less than"
        f" {LEAST_MOVEMENT:g}: in older searches such a choice lost 0.7 to 4.3 points of accuracy,"
        " another 0.2 to 0.9; of searches that lost less than a point 0 to 12 % had this caution"
    ]


def _compute(
    best: Mapping[str, Any],
    usable: Sequence[Mapping[str, Any]],
    preset: Mapping[str, Any] | None,
) -> list[str]:
    """Say that the best trial trained on more images than the preset, and what wins at its cost."""
    of_preset = next((t["images"] for t in usable if t["params"] == preset and "images" in t), 0)
    if not of_preset or (ratio := best.get("images", 0) / of_preset) <= UNLIKE_COMPUTE:
        return []
    alike = [t for t in usable if t.get("images", math.inf) <= UNLIKE_COMPUTE * of_preset]
    cheaper = best_trial(alike)
    assert cheaper is not None  # the preset is among them
    return [
        f"the best trial trained on {ratio:.2g} times the images of the preset, which lifts score"
        f" and accuracy by itself; at the preset's compute trial {cheaper['number']} is best, with"
        f" {cheaper['objective']:.4f}"
    ]


def _chance(trials: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name the terms of the loss that ended at chance in all of some trials."""
    terms = [{*trial["at_chance"]} for trial in trials]
    common = sorted(set.intersection(*terms)) if terms else []
    if not common:
        return []
    where = "the best trial" if len(trials) == 1 else f"all {len(trials)} trials"
    verb = "its task was" if len(common) == 1 else "their tasks were"
    return [f"{' and '.join(common)} ended at chance in {where}: {verb} not learnt"]


def _seed_noise(leads: Sequence[float]) -> list[str]:
    """Say that the best trial's lead on the preset lies within the noise of seeds.

    Runs of one seed share clients, cohorts and first weights, so that their difference counts.
    """
    if (interval := t_interval(leads)) is None:
        return ["the best trial and the preset could not be compared over seeds"]
    low, high = interval
    if low > 0:
        return []
    return [
        f"on {len(leads)} seeds that the search has not used the best trial is"
        f" {mean(leads) or 0:+.4f} [{low:+.4f}, {high:+.4f}] ahead of the preset, which is no lead"
        " that they show"
    ]


def _agreement(
    usable: Sequence[Mapping[str, Any]], scoring: Scoring
) -> tuple[list[str], list[str]]:
    """Compare the order of trials with that by a second score; return a caution, or a doubt."""
    second = "objective" if "sep" in scoring.objective.metrics else "sep"
    pairs = [
        (trial["objective"], value)
        for trial in usable
        if (value := {**trial["scores"], **trial["spread"]}.get(second)) is not None
    ]
    if len(pairs) < _LEAST_TRIALS:
        return [], []
    x, y = zip(*pairs, strict=True)
    rho, low, high = correlation(x, y, ranks=True)
    name = "SEP" if second == "sep" else "align-unif"
    if rho is None:
        return [], []
    low, high = (rho, rho) if low is None else (low, high)
    text = (
        f"{scoring.name} and {name}, both without labels, order {len(pairs)} trials with Spearman"
        f" {rho:.2f} [{low:.2f}, {high:.2f}]"
    )
    if rho <= 0:
        return [], [f"{text}: they do not agree on what is better"]
    return ([f"{text}: they may not agree"] if low <= 0 else []), []


def _start(best: Mapping[str, Any], untrained: Sequence[Figures], scoring: Scoring) -> list[str]:
    """List what speaks against the best trial beside encoders before training."""
    texts, scores = list[str](), scoring.scores(untrained)
    if noise_limit(scores) is None and not scoring.objective.trained:
        texts.append(
            f"only {len(scores)} of {NUM_SEEDS} encoders before training have a score, too few to"
            " tell whether a trial has learnt anything; the same `fedbench tune` command measures"
            " those that failed"
        )
    # Below 0 an objective rises by shrinking alone; SEP does not depend on scale.
    seps = [figures["sep"] for figures in untrained if "sep" in figures]
    sep, most = best["spread"].get("sep"), noise_limit(seps)
    if sep is not None and most is not None and sep <= most:
        texts.append(
            f"the best trial tells images apart from views of one image no better than the"
            f" start: SEP {sep:.3f}, {len(seps)} encoders before training have {mean(seps):.3f} on"
            f" average and a further one up to {most:.3f}"
        )
    if text := shrinkage_of(best, untrained):
        texts.append(f"the encoder of the best trial is narrower than before training: {text}")
    return texts


def seen_without_effect(trials: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the dimensions in which some trials differ alone, all of them of equal objectives.

    Every trial has an objective.
    """
    found = []
    for name in dict.fromkeys(name for trial in trials for name in trial["params"]):
        alike: dict[str, list[float]] = {}  # objectives by the other parameters
        for trial in trials:
            others = canonical_json({k: v for k, v in trial["params"].items() if k != name})
            alike.setdefault(others, []).append(trial["objective"])
        groups = [group for group in alike.values() if len(group) > 1]
        if groups and all(len({*group}) == 1 for group in groups):
            found.append(name)
    return found
