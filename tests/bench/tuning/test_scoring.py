"""Scores of studies by name, the gate, and studies that use them."""

from pathlib import Path
from typing import Any

import pytest

from fedbench.bench.evaluation.catalogue import needed
from fedbench.bench.evaluation.objectives.names import DEFAULT
from fedbench.bench.results.leaderboard.studies import best_trial, studies, with_ranks, worst_trial
from fedbench.bench.results.store.store import Store
from fedbench.bench.terminal.show_tuning import show_study
from fedbench.bench.tuning.job import Job, Outcome
from fedbench.bench.tuning.scoring import Scoring, names, noise_limit, shrinkage_of
from fedbench.bench.tuning.verdict import judge

from .conftest import Use
from .test_study import small

BEFORE = [{"rho": 0.9, "sep": 0.2, "participation_ratio": 20.0}, {"rho": 0.7, "sep": 0.4}]
GOOD = {"rho": 0.3, "sep": 0.5, "participation_ratio": 8.0, "projection_std_ratio": 0.5}


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({}, None),
        ({"rho": 0.0799}, "shrunk"),  # a tenth of the mean 0.8
        ({"rho": 0.0801}, None),
        ({"projection_std_ratio": 0.049}, "shrunk"),
        ({"participation_ratio": 4.99}, "narrow"),  # a quarter of 20
        ({"sep": 0.3}, "unlearned"),  # the mean before
        ({"sep": 0.301}, None),
        ({"sep": None}, "unlearned"),  # collapsed encoders have no SEP
    ],
)
def test_the_gate(changed: dict[str, float | None], refusal: str | None) -> None:
    figures = {name: value for name, value in {**GOOD, **changed}.items() if value is not None}
    narrow = Scoring("lidar+gate").refusal({**GOOD, "participation_ratio": 1.9}, [])
    assert narrow == "narrow"  # whatever was before
    assert Scoring("align-unif+gate").refusal(figures, BEFORE) == refusal
    assert Scoring("align-unif").refusal(figures, BEFORE) is None


@pytest.mark.parametrize("name", names())
def test_scores_rise_as_the_leaderboards_do(name: str) -> None:
    scoring = Scoring(name)
    for value in (-1.0, 0.3, 1.0):
        figures = dict.fromkeys(scoring.objective.metrics, value)
        expected = sum(needed(metric).score(value) for metric in scoring.objective.metrics)
        assert scoring.of(figures) == (None if scoring.objective.ranked else expected)
    assert scoring.of({}) is None


def test_sep_is_clipped_in_sums() -> None:
    assert Scoring("objective+sep").of({"objective": 0.5, "sep": -7.0}) == -0.5
    assert Scoring("sep").of({"sep": -7.0}) == -7.0


def test_ranks_are_shares_of_the_other_trials() -> None:
    """Losses 1, 2, 2, 3 beat 3, 1.5, 1.5, 0 of 3 others; SEPs .1, .2, -1 and -1 beat 2, 3, .5, .5.

    A trial without SEP has no rank, and counts for nobody.
    """
    losses, seps = (1.0, 2.0, 2.0, 3.0, 0.1), (0.1, 0.2, -3.0, -1.0, None)
    scores = [{"final_loss": x, "sep": y} for x, y in zip(losses, seps, strict=True)]
    trials = [
        {"number": n, "status": "ok", "objective": None, "scores": each}
        for n, each in enumerate(scores)
    ]
    found = [trial["objective"] for trial in with_ranks(trials, "loss+sep+gate")]
    assert found == [pytest.approx(x) for x in (5 / 6, 4.5 / 6, 2 / 6, 0.5 / 6)] + [None]
    assert with_ranks(trials, "loss") == with_ranks(trials, None) == trials
    for trial, loss in zip(trials, (0.1 + 0.2, 0.3), strict=False):  # a last bit apart: they tie
        trial["scores"] = {"final_loss": loss, "sep": 0.5}
    tied = with_ranks(trials[:2], "loss+sep")
    assert [trial["objective"] for trial in tied] == [0.5, 0.5]
    ends = best_trial(tied), worst_trial(tied)
    assert [end and end["number"] for end in ends] == [0, 1]


@pytest.mark.parametrize("search", [{"sampler": "tpe", "batch_size": 2}, {"fidelity": "halving"}])
@pytest.mark.parametrize("objective", ["loss", "loss+sep"])
def test_a_study_by_the_loss(
    tmp_path: Path, in_one_process: Use, objective: str, search: dict[str, Any]
) -> None:
    """Resumed, it is the same; random init has no loss, so that no caution speaks of its noise."""
    in_one_process()
    settings = {"objective": objective, "set": {"federation.num_rounds": 4}, **search}
    result = small(tmp_path, trials=4, **settings)
    ended = [trial for trial in result.trials if trial["status"] == "ok"]
    losses = {trial["number"]: trial["scores"]["final_loss"] for trial in ended}
    best = best_trial(result.trials)
    assert best is not None
    if objective == "loss":
        assert best["number"] == min(losses, key=losses.__getitem__)
        assert best["objective"] == -min(losses.values())
    else:
        assert all(0 <= trial["objective"] <= 1 for trial in ended)
    assert studies(Store(tmp_path))[0].best_objective == best["objective"]
    assert small(tmp_path, trials=4, **settings).trials == result.trials


def test_no_gate_is_blamed_where_there_is_none(
    tmp_path: Path, in_one_process: Use, capsys: pytest.CaptureFixture[str]
) -> None:
    in_one_process(fake=lambda job: Outcome(job, "ok", figures={}))
    result = small(tmp_path, trials=2, objective="sep")
    assert (result.best, {trial["status"] for trial in result.trials}) == (None, {"refused"})
    show_study(result)
    assert "gate" not in capsys.readouterr().out


def test_a_repetition_compares_trials_and_not_their_ranks(
    tmp_path: Path, in_one_process: Use
) -> None:
    def fake(job: Job) -> Outcome:
        return Outcome(
            job, "ok", figures={"final_loss": job.experiment.config.client.lr, "sep": 0.5}
        )

    in_one_process(fake=fake)
    settings = {"objective": "loss+sep"}
    small(tmp_path, trials=3, **settings)
    assert small(tmp_path, trials=5, again=True, **settings).repeated == ()


@pytest.mark.parametrize("objective", ["sep", "loss+sep"])
def test_a_trial_with_a_run_without_score_is_refused(
    tmp_path: Path, in_one_process: Use, objective: str
) -> None:
    """SEP is undefined where an encoder gives all images the same, here under the second seed."""

    def fake(job: Job) -> Outcome:
        figures = {"final_loss": 1.0, "sep": 0.9}
        if job.experiment.config.client.lr > 0.02 and job.experiment.config.seed == 1:
            del figures["sep"]
        return Outcome(job, "ok", figures=figures)

    in_one_process(fake=fake)
    result = small(tmp_path, trials=4, seeds_per_trial=2, objective=objective)
    for trial in result.trials:
        refused = trial["params"]["client.lr"] > 0.02
        assert trial["status"] == ("refused" if refused else "ok")
        assert (trial["objective"] is None) == refused
    assert {trial["status"] for trial in result.trials} == {"ok", "refused"}


def test_halving_compares_by_the_loss_where_no_field_of_the_method_varies(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"trials": 4, "set": {"federation.num_rounds": 4}, "dry_run": True}
    halving = small(tmp_path, fidelity="halving", **settings)
    assert halving.objective == "align-unif"  # losses at other temperatures have no common scale
    settings["set"] = settings["set"] | {"method.temperature": 0.5}
    assert small(tmp_path, fidelity="halving", **settings).objective == "loss"
    assert small(tmp_path, **settings).objective == "align-unif"


def test_a_gate_may_refuse_every_trial(tmp_path: Path, in_one_process: Use) -> None:
    """Runs that hardly move are no better than encoders without training."""
    in_one_process(width=7)
    result = small(
        tmp_path,
        trials=2,
        sampler="random",
        objective="align-unif+gate",
        set={"client.lr": 1e-9, "model.norm": "group"},
    )
    assert result.best is None
    assert {trial["status"] for trial in result.trials} == {"refused"}
    assert all(trial["objective"] is None for trial in result.trials)
    assert all("refused by the gate" in trial["error"] for trial in result.trials)
    assert result.config_file is None


def trial(number: int, objective: float, **more: Any) -> dict[str, Any]:
    known = {"params": {"client.lr": number / 100}, "spread": {}, "scores": {}, "at_chance": []}
    return {"number": number, "status": "ok", "objective": objective, **known, **more}


def said(
    trials: list[dict[str, Any]], untrained: Any, name: str = DEFAULT, *, started: bool = False
) -> tuple[str, ...]:
    verdict = judge(trials, untrained, Scoring(name), started=started)
    return *verdict.doubts, *verdict.cautions


UNTRAINED = [
    {"objective": value, "projection_std_ratio": 0.8, "effective_rank": 40.0}
    for value in (0.10, 0.11, 0.09, 0.10, 0.10)
]


def test_noise_limit_is_the_end_of_the_prediction_interval() -> None:
    # mean 0.1, sd sqrt(0.0002 / 4), t(4, 0.975) = 2.776445, sqrt(1 + 1 / 5) = 1.095445
    values = [figures["objective"] for figures in UNTRAINED]
    assert noise_limit(values) == pytest.approx(0.1 + 2.776445 * 0.00707107 * 1.095445, abs=1e-6)
    assert noise_limit(values[:2]) is None


@pytest.mark.parametrize(
    ("objective", "spread", "expected"),
    [
        (0.1216, 0.7, []),
        (0.1214, 0.7, ["no trial left the noise"]),
        (0.1216, 0.39, ["spread of projections 0.39, 0.8 before training"]),
        (-0.003, 0.02, ["best objective is -0.0030, 5 encoders", "shrank"]),
    ],
)
def test_cautions(objective: float, spread: float, expected: list[str]) -> None:
    figures = {"projection_std_ratio": spread, "effective_rank": 12.0}
    best = trial(3, objective, spread=figures)
    found = said([best], UNTRAINED)
    assert len(found) == len(expected)
    assert all(part in text for part, text in zip(expected, found, strict=True))
    assert bool(shrinkage_of(best, UNTRAINED)) == (spread < 0.4)


def test_a_rank_that_is_gone_is_shrinkage_too() -> None:
    figures = {"projection_std_ratio": 0.9, "effective_rank": 9.9}
    text = shrinkage_of({"spread": figures}, UNTRAINED)
    assert text.startswith("rank of features 9.9, 40 before training")
    assert not shrinkage_of({"spread": {**figures, "effective_rank": 10.1}}, UNTRAINED)


def test_an_objective_that_rises_by_shrinking_alone_is_a_caution() -> None:
    figures = [{"objective": -0.3, "sep": value} for value in (0.10, 0.11, 0.09, 0.10, 0.10)]
    best = trial(0, -0.05, spread={"sep": 0.1214})  # the limit is 0.1215, as above
    (text,) = said([best], figures)
    assert all(figure in text for figure in ("SEP 0.121", "0.100", "0.122"))
    assert not said([{**best, "spread": {"sep": 0.1216}}], figures)


def test_a_best_trial_that_hardly_moved_is_a_caution() -> None:
    """Below a tenth, by the default objective, from random init."""
    best = trial(0, 0.3, spread={"relative_movement": 0.0999})
    (text,) = said([best], [], "align-unif+gate")[1:]
    assert "0.100" in text
    for other, name, started in ((0.1, "align-unif", False), (0.05, "align-unif", True)):
        still = {**best, "spread": {"relative_movement": other}}
        assert len(said([still], [], name, started=started)) == 1
    assert len(said([best], [], "sep")) == 1


def test_a_part_that_no_gradient_reached_is_a_caution() -> None:
    best = trial(0, 0.3, without_gradient=["encoder"])
    assert said([best], [], "align-unif+gate")[1:] == (
        "the loss of the best trial never reached encoder",
    )


def test_a_best_trial_of_more_compute_than_the_preset_is_a_caution() -> None:
    """1,920 images for 960; below 5 % more the two cost alike, as whole batches do."""
    preset, cheap = trial(0, 0.3, images=960), trial(1, 0.35, images=1000)
    best = trial(2, 0.5, images=1920)

    def of(*trials: dict[str, Any], params: Any = preset["params"]) -> tuple[str, ...]:
        return judge([*trials], [], Scoring(), preset=params).cautions[1:]

    (text,) = of(preset, cheap, best)
    assert text.startswith("the best trial trained on 2 times the images of the preset")
    assert text.endswith("at the preset's compute trial 1 is best, with 0.3500")
    (text,) = of(preset, trial(3, 0.4), best)  # of an earlier version, that says no images
    assert text.endswith("trial 0 is best, with 0.3000")
    assert of(preset, cheap) == ()
    assert of(preset, cheap, best, params={"client.lr": 9.0}) == ()  # the preset was not tried


def test_a_task_that_no_trial_learnt_leaves_nothing_to_tell() -> None:
    terms = [["clusters"], ["clusters", "rotation"]]
    both = [trial(n, 0.5 + n / 10, at_chance=each) for n, each in enumerate(terms)]
    assert judge(both, UNTRAINED, Scoring()).doubts == (
        "clusters ended at chance in all 2 trials: its task was not learnt",
    )
    verdict = judge([trial(2, 0.2), *both], UNTRAINED, Scoring())
    assert verdict.doubts == ()
    (text,) = verdict.cautions
    assert text.startswith("clusters and rotation ended at chance in the best trial")


def test_equal_objectives_and_seeds_that_differ_as_much_leave_nothing_to_tell() -> None:
    (text,) = judge([trial(0, 0.5), trial(1, 0.5)], UNTRAINED, Scoring()).doubts
    assert "all 2 trials have the same objective" in text
    assert "client.lr" in text
    trials = [trial(0, 0.5), trial(1, 0.6)]

    def doubts(*leads: float) -> tuple[str, ...]:
        return judge(trials, UNTRAINED, Scoring(), leads).doubts

    # Standard error 0.01 / sqrt(3), 2 degrees of freedom: t = 4.3027.
    half = 4.302653 * 0.01 / 3**0.5
    assert doubts(*(half + 1e-5 + step for step in (-0.01, 0.0, 0.01))) == ()
    (text,) = doubts(*(half - 1e-5 + step for step in (-0.01, 0.0, 0.01)))
    assert "+0.0248 [-0.0000, +0.0497] ahead of the preset" in text
    (text,) = doubts(0.1, 0.1)
    assert "could not be compared" in text


@pytest.mark.parametrize(
    ("seps", "doubts", "cautions"),
    [
        ([1, 2, 3, 4, 5], 0, 0),  # Spearman 1
        ([2, 1, 3, 5, 4], 0, 1),  # 0.8: the interval [-0.28, 0.99] holds 0
        ([5, 4, 3, 2, 1], 1, 0),  # -1
        ([5, 4, 3, 2], 0, 0),  # too few
    ],
)
def test_two_scores_that_order_trials_otherwise_leave_nothing_to_tell(
    seps: list[int], doubts: int, cautions: int
) -> None:
    trials = [trial(n, 0.5 + n / 10, spread={"sep": sep}) for n, sep in enumerate(seps)]
    verdict = judge(trials, UNTRAINED, Scoring())
    assert (len(verdict.doubts), len(verdict.cautions)) == (doubts, cautions)
    assert all("Spearman" in text for text in (*verdict.doubts, *verdict.cautions))
