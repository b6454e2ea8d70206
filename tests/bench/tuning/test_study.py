"""Studies: same trials despite interruptions, best values, stop rules, no labels."""

import json
import logging
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml

from fedbench.bench.board.plot import search
from fedbench.bench.data.datasets import load_dataset
from fedbench.bench.experiment.fields import flat_config
from fedbench.bench.experiment.resolve import resolve, warn_once
from fedbench.bench.method.registry import parse_spec
from fedbench.bench.results.leaderboard.studies import spent, studies
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import ConfigError, StoreError
from fedbench.bench.terminal.show_tuning import show_study
from fedbench.bench.tuning.best import find_tuned
from fedbench.bench.tuning.grid import TunedValues
from fedbench.bench.tuning.job import Job, Outcome
from fedbench.bench.tuning.scoring import MOVEMENT, SPREAD
from fedbench.bench.tuning.tune import tune

from .conftest import SMALL, Fake, KilledError, Use


def small(store: Path, **settings: Any) -> Any:
    return tune("simclr", store=store, set={**SMALL, **settings.pop("set", {})}, **settings)


def scored(score: Callable[[Job], float | None]) -> Fake:
    """Return outcomes without training: a score of the configuration; None diverges."""

    def make(job: Job) -> Outcome:
        objective = score(job)
        if objective is None:
            return Outcome(job, "diverged", seconds=1.0, bytes=8)
        status = "ok" if job.until_round is None else "paused"
        return Outcome(job, status, figures={"objective": objective}, seconds=1.0, bytes=8)

    return make


def by_lr(job: Job) -> float:
    return 0.5 - abs(job.experiment.config.client.lr - 0.1) - job.experiment.config.seed / 1000


def table(result: Any) -> list[Any]:
    keys = ("number", "status", "params", "objective", "seeds", "seed_objectives", "bytes")
    return [[trial[key] for key in keys] for trial in result.trials]


def test_the_table_does_not_depend_on_order_width_or_kills(
    tmp_path: Path, in_one_process: Use
) -> None:
    settings = {"trials": 11, "seeds_per_trial": 2}
    in_one_process(fake=scored(by_lr), width=1)
    expected = small(tmp_path / "a", **settings)
    in_one_process(fake=scored(by_lr), width=7, seed=4)
    assert table(small(tmp_path / "b", **settings)) == table(expected)
    for seed in range(100):
        in_one_process(fake=scored(by_lr), width=3, seed=seed, die_after=4)
        try:
            killed = small(tmp_path / "c", **settings)
            break
        except KilledError:
            continue
    assert seed > 1
    assert table(killed) == table(expected)
    assert killed.config_file.read_bytes() == expected.config_file.read_bytes()
    assert killed.best == expected.best


def test_a_second_call_runs_nothing_and_more_trials_extend(
    tmp_path: Path, in_one_process: Use
) -> None:
    in_one_process(fake=scored(by_lr))
    first = small(tmp_path / "a", trials=5)
    study = (tmp_path / "a" / "trials" / first.study_id / "study.json").read_bytes()
    again = in_one_process(fake=scored(by_lr))
    second = small(tmp_path / "a", trials=5)
    assert (again.ran, second.to_run, table(second)) == ([], 0, table(first))
    assert (tmp_path / "a" / "trials" / first.study_id / "study.json").read_bytes() == study
    more = small(tmp_path / "a", trials=9)
    assert (more.study_id, more.to_run, len(again.ran)) == (first.study_id, 4, 4)
    assert table(more) == table(small(tmp_path / "b", trials=9))


@pytest.mark.usefixtures("unpriced")
def test_again_compares_the_stored_trials_with_their_repetition(
    tmp_path: Path, in_one_process: Use
) -> None:
    in_one_process(fake=failing({4}))
    first = small(tmp_path, trials=5, again=True)
    assert (first.repeated, first.to_run, first.failed) == (None, 5, 1)  # the store had none
    same = in_one_process(fake=scored(by_lr))
    assert small(tmp_path, trials=6, again=True, dry_run=True).to_run == 2 + 6
    again = small(tmp_path, trials=6, again=True)
    assert (again.repeated, again.to_run, len(same.ran)) == ((), 8, 8 + 2 * 6)
    in_one_process(fake=scored(lambda job: by_lr(job) * (1 + 1e-9)))
    other = small(tmp_path, trials=6, again=True)
    assert {each.name for each in other.repeated} >= {"trial 0 objective", "trial 5 objective"}
    assert table(small(tmp_path, trials=6)) == table(again)


def test_again_deletes_a_study_of_code_that_is_gone(
    tmp_path: Path, in_one_process: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = {"simclr": "old"}
    monkeypatch.setattr("fedbench.bench.experiment.fields.foreign_code", lambda *_: dict(hashes))
    in_one_process(fake=scored(by_lr))
    old, seeded = small(tmp_path, trials=4), small(tmp_path, trials=4, seed=1)
    hashes["simclr"] = "new"
    new = small(tmp_path, trials=4)
    assert new.outdated == (old.study_id,)
    assert small(tmp_path, trials=4, again=True).outdated == (old.study_id,)
    assert Store(tmp_path).studies() == sorted({new.study_id, seeded.study_id})


@pytest.mark.usefixtures("unpriced")
def test_what_makes_another_study(tmp_path: Path) -> None:
    def name(**options: Any) -> str:
        return str(small(tmp_path, **{"trials": 2, "dry_run": True, **options}).study_id)

    settings: list[dict[str, Any]] = [
        {},
        {"seed": 1},
        {"sampler": "random"},
        {"batch_size": 2},
        {"seeds_per_trial": 2},
        {"watch_labels": True},
        {"study_name": "mine"},
        {"set": {"data.alpha": 1.0}},
        {"set": {"client.lr": 0.05}},
    ]
    ids = [name(**options) for options in settings]
    assert len(set(ids)) == len(ids)
    assert ids[6].startswith("mine-")
    of_no_account = ({"concurrency": 12}, {"batch_size": 4}, {"address": "none:1"})
    for options in ({"trials": 3}, *of_no_account):  # nor does it depend on the machine
        assert name(**options) == ids[0]


def test_the_seed_of_the_configuration_is_that_of_the_study(
    tmp_path: Path, in_one_process: Use
) -> None:
    in_one_process(fake=scored(by_lr))
    result = small(tmp_path, trials=1, seeds_per_trial=2, set={"seed": 3})
    assert result.trials[0]["seeds"] == [3, 4]
    assert result.study_id == small(tmp_path, trials=1, seeds_per_trial=2, seed=3).study_id
    assert small(tmp_path, trials=1, seed=5, set={"seed": 3}).trials[0]["seeds"] == [5]


def test_dimensions_that_are_not_searched(tmp_path: Path, in_one_process: Use) -> None:
    in_one_process(fake=scored(by_lr))
    result = small(tmp_path, trials=2, set={"client": {"lr": 0.05}})
    assert all(list(trial["params"]) == ["method.temperature"] for trial in result.trials)
    with pytest.raises(ConfigError, match=r"client.lr"):
        small(tmp_path, set={"client.lr": 0.05, "method.temperature": 0.5})
    space = tmp_path / "space.yaml"
    space.write_text("method: simclr\nspace: {data.image_size: {type: choice, values: [8, 16]}}\n")
    with pytest.raises(ConfigError, match=r"data.image_size"):
        small(tmp_path, space_file=space)


def test_the_best_file_is_a_configuration(tmp_path: Path, in_one_process: Use) -> None:
    in_one_process(fake=scored(lambda job: 1 - job.experiment.config.client.lr))
    result = small(tmp_path, trials=6, study_name="tiny rates")
    assert result.best["trial"] == 3  # the paper's 0.001, the end of the range
    resolved = resolve("simclr", config_files=[result.config_file], environ={})
    values = flat_config(resolved.config)
    assert resolved.origin.study_id == result.study_id
    assert {key: values[key] for key in result.best["params"]} == result.best["params"]
    part = load_dataset("digits", train_subset=60, test_subset=30)
    costs = spent(Store(tmp_path), ["gone", result.study_id])
    assert costs == {result.study_id: (6, "digits", part.revision)}
    found = {"simclr": TunedValues(result.best["params"], result.study_id)}
    for name, others in (("auto", []), (result.study_id, ["byol"]), (result.config_file, ["byol"])):
        assert find_tuned(Store(tmp_path), name, ["simclr", *others], "demo", part) == found


def test_tuned_values_that_are_not_there(tmp_path: Path, in_one_process: Use) -> None:
    store = Store(tmp_path)
    in_one_process(fake=scored(by_lr))
    study = small(tmp_path, trials=1).study_id

    digits = load_dataset("digits")
    sets = {"digits": digits, "cifar10": replace(digits, name="cifar10", whole="0" * 64)}

    for tuned, specs, preset, data, named in (
        ("auto", ["simclr", "supervised"], "demo", "digits", "supervised"),
        ("auto", ["simclr"], "laptop", "digits", "'laptop'"),
        ("auto", ["simclr"], "demo", "cifar10", f"'cifar10'.*{study}"),
        (f"{study}0", ["simclr"], "demo", "digits", study),
        (study, ["supervised"], "demo", "digits", "'simclr'"),
        ([], ["simclr"], "demo", "digits", "--tuned"),
        ([study, study], ["simclr"], "demo", "digits", f"{study} and {study}"),
    ):
        with pytest.raises(ConfigError, match=named):
            find_tuned(store, tuned, specs, preset, sets[data])
    # A study on other data is not taken automatically, but it can be named.
    by_name = find_tuned(store, study, ["simclr"], "demo", sets["cifar10"])
    assert by_name["simclr"].study == study
    # Nor is one of other code.
    assert find_tuned(store, "auto", ["simclr"], "demo", digits)["simclr"].study == study
    now = store.study(study)
    for change in ({"code": {"simclr": "0" * 20}}, {"benchmark": "0"}):
        store.write_study(study, {**now, **change})
        with pytest.raises(ConfigError, match="simclr"):
            find_tuned(store, "auto", ["simclr"], "demo", digits)
        assert find_tuned(store, study, ["simclr"], "demo", digits)["simclr"].study == study


@pytest.mark.parametrize("tuned", ["auto", ["simclr-0", "byol-0", "rotpred-0"]])
def test_methods_share_the_line_of_a_cause(
    tuned: str | list[str],
    tmp_path: Path,
    in_one_process: Use,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of one cause the figures differ; `rotpred` has another as well."""
    in_one_process(fake=scored(by_lr))
    store, digits = Store(tmp_path), load_dataset("digits")
    meta = store.study(small(tmp_path, trials=1, study_name="first").study_id)
    for spec, lead in (("simclr", "-0.01 [-0.2"), ("byol", "+0.2 [0.1"), ("rotpred", "0 [-0.3")):
        cautions = [f"is {lead}, +0.3] ahead", *["ended at chance in all 2"] * (spec == "rotpred")]
        known = {"whole": digits.whole, "best": {"params": {}}, "cautions": cautions}
        store.write_study(f"{spec}-0", {**meta, **known, "spec": spec, "study_id": f"{spec}-0"})
    warn_once.cache_clear()
    caplog.clear()
    find_tuned(store, tuned, ["simclr", "byol", "rotpred"], "demo", digits)
    lead, chance = caplog.messages
    assert "simclr, byol, rotpred: is -0.01 [-0.2, +0.3] ahead (" in lead
    assert chance.endswith(" rotpred: ended at chance in all 2")


@pytest.mark.parametrize(
    ("spec", "objective", "told"),
    [
        ("mim", None, True),
        ("fedx+fedprox", "align-unif+gate", True),
        ("mim", "loss", False),
        ("simclr", None, False),
    ],
)
def test_a_score_that_failed_with_a_method_is_told_before_a_search(
    spec: str, objective: str | None, told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tune(spec, store=tmp_path, set=SMALL, trials=2, objective=objective, dry_run=True)
    assert [line for line in caplog.messages if "lost" in line and spec in line] == (
        [f"{spec}: {parse_spec(spec)[0].cls.objective_caution}"] if told else []
    )


def test_when_every_trial_fails(tmp_path: Path, in_one_process: Use) -> None:
    in_one_process(fake=scored(lambda job: None))
    result = small(tmp_path, trials=3)
    assert (result.status, result.best, result.config_file) == ("finished", None, None)
    assert [trial["status"] for trial in result.trials] == ["diverged"] * 3
    assert not list(tmp_path.rglob("best.yaml"))
    with pytest.raises(ConfigError, match=result.study_id):
        find_tuned(Store(tmp_path), result.study_id, ["simclr"], "demo", load_dataset("digits"))


def test_a_search_in_which_nothing_learnt_says_so(
    tmp_path: Path, in_one_process: Use, caplog: pytest.LogCaptureFixture
) -> None:
    # objectives up to 0, untrained ones about 0.1
    in_one_process(fake=scored(lambda job: by_lr(job) - 0.5))
    result = small(tmp_path / "bad", trials=3)
    (text,) = result.doubts
    assert "noise of the start" in text
    assert (result.best, result.cautions) == (None, ())
    assert [figures["seed"] for figures in result.untrained] == [0, 1, 2, 3, 4]
    assert result.config_file is not None
    content = yaml.safe_load(result.config_file.read_text())
    assert content["caution"] == text
    assert content["client.lr"] == resolve("simclr", preset="demo").config.client.lr
    assert text not in caplog.text
    store = Store(tmp_path / "bad")
    warn_once.cache_clear()
    find_tuned(store, result.study_id, ["simclr"], "demo", load_dataset("digits"))
    assert re.search(f"{re.escape(text)}.* preset", caplog.text)
    view = studies(store)[0]
    assert (view.cautions, len(view.untrained)) == ((text,), 5)

    in_one_process(fake=scored(by_lr))
    good = small(tmp_path / "good", trials=3)
    assert (good.best is None, good.doubts, good.cautions) == (False, (), ())
    assert good.config_file is not None
    assert "caution" not in yaml.safe_load(good.config_file.read_text())


def test_untrained_encoders_that_are_missing_are_measured_later(
    tmp_path: Path, in_one_process: Use
) -> None:
    in_one_process(fake=scored(by_lr))
    first = small(tmp_path, trials=3)
    store = Store(tmp_path)
    meta = dict(store.study(first.study_id))
    store.write_study(first.study_id, {**meta, "untrained": meta["untrained"][:1], "cautions": []})
    again = in_one_process(fake=scored(by_lr))
    second = small(tmp_path, trials=3)
    assert (again.ran, second.untrained, second.cautions) == ([], first.untrained, first.cautions)
    assert store.study(first.study_id)["cautions"] == list(first.cautions)


def test_encoders_that_cannot_be_measured_leave_a_caution(
    tmp_path: Path, in_one_process: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("fedbench.bench.tuning.job.untrained_figures")
    in_one_process()
    result = small(tmp_path, trials=1)
    assert (result.failed, result.untrained) == (0, ())
    assert any("only 0 of 5 encoders" in text for text in result.cautions)


def test_values_that_do_not_go_together_are_an_error_of_their_trial(
    tmp_path: Path, in_one_process: Use, caplog: pytest.LogCaptureFixture
) -> None:
    """Krum takes uploads of 3 clients, which are half of 6 and more than a quarter."""
    in_one_process(fake=scored(lambda job: 0.5))
    space = tmp_path / "space.yaml"
    shares = "{type: choice, values: [0.5, 0.25, 1.0]}"
    space.write_text(f"method: simclr\nspace: {{federation.participation: {shares}}}\n")
    krum = {"server.aggregator": "krum", "server.num_byzantine": 0, "data.num_clients": 6}
    result = small(tmp_path, space_file=space, sampler="grid", trials=2, set=krum)
    assert [trial["status"] for trial in result.trials] == ["ok", "error"]
    assert "krum" in result.trials[1]["error"]
    assert "2 of the search space's 3 points" in caplog.text


@pytest.mark.parametrize("sampler", ["tpe", "random", "sobol", "grid"])
def test_null_is_a_value_of_a_choice(
    sampler: str, tmp_path: Path, in_one_process: Use, capsys: pytest.CaptureFixture[str]
) -> None:
    """A study finds that all clients score best, which is said by null alone."""

    def by_clients(job: Job) -> float:
        config = job.experiment.config
        return 1 / (config.evaluation.objective_clients or 0.5) - config.client.lr

    in_one_process(fake=scored(by_clients))
    space = tmp_path / "space.yaml"
    space.write_text(
        """method: simclr
space:
  client.lr: {type: float, low: 0.01, high: 0.1, log: true, grid: [0.01, 0.1]}
  evaluation.objective_clients: {type: choice, values: [2, null, 1]}
points: [{client.lr: 0.1, evaluation.objective_clients: 1}]
"""
    )
    name = "evaluation.objective_clients"
    settings: dict[str, Any] = {"space_file": space, "sampler": sampler, "trials": 12}
    result = small(tmp_path / "store", **settings)
    values = [trial["params"][name] for trial in result.trials]
    assert {*values} == {None, 1, 2}
    assert result.best["params"][name] is None
    assert table(small(tmp_path / "store", **settings)) == table(result)  # from its records
    show_study(result)
    shown = capsys.readouterr().out
    assert shown.count(f"{name}=null") > values.count(None)  # in the table, and the best
    assert "None" not in shown
    best = resolve("simclr", config_files=[result.config_file], environ={}).config
    assert best.evaluation.objective_clients is None
    part = load_dataset("digits", train_subset=60, test_subset=30)
    tuned = find_tuned(Store(tmp_path / "store"), "auto", ["simclr"], "demo", part)["simclr"]
    assert tuned.tuned[name] is None
    if sampler == "tpe":  # two of its columns have a title: what is searched explains the score
        (view,) = studies(Store(tmp_path / "store"))
        labels = [text.get_text() for axes in search(view).axes for text in axes.get_xticklabels()]
        assert {"null", "1", "2"} <= {*labels}


def failing(cells: set[int]) -> Any:
    """Return outcomes by learning rate, and errors for the trials of these numbers."""
    score = scored(by_lr)

    def make(job: Job) -> Outcome:
        number = int(job.name.split(".")[-2])
        return Outcome(job, "error", error="no memory") if number in cells else score(job)

    return make


def test_an_error_is_tried_again_until_later_trials_build_on_it(
    tmp_path: Path, in_one_process: Use
) -> None:
    settings = {"batch_size": 2}
    in_one_process(fake=failing({1}))
    first = small(tmp_path / "a", trials=2, **settings)
    assert (first.failed, first.kept_errors) == (1, ())
    stale = Store(tmp_path / "a").cell_dir(f"{first.study_id}.0002.0")
    stale.mkdir()  # a run of the next batch, whose parameters may change now
    retry = in_one_process(fake=failing(set()))
    second = small(tmp_path / "a", trials=2, **settings)
    assert (second.to_run, second.failed, second.kept_errors) == (1, 0, ())
    assert [cell.split(".")[-2] for cell in retry.ran] == ["0001"]
    assert not stale.exists()
    assert table(second) == table(small(tmp_path / "b", trials=2, **settings))

    in_one_process(fake=failing({1, 3}))
    third = small(tmp_path / "c", trials=4, **settings)
    assert (third.failed, third.kept_errors) == (2, (1,))
    retry = in_one_process(fake=failing(set()))
    fourth = small(tmp_path / "c", trials=4, **settings)
    assert [cell.split(".")[-2] for cell in retry.ran] == ["0003"]
    assert (fourth.failed, fourth.kept_errors) == (1, (1,))
    small(tmp_path / "c", trials=4, **settings)
    assert len(retry.ran) == 1


@pytest.mark.parametrize(
    ("score", "totals"),
    [
        (lambda job: -job.experiment.config.client.lr, [9] * 9),  # six runs check the best trial
        (by_lr, [9, 9, 3]),  # the preset is the best: there is nothing to check
    ],
)
def test_a_study_counts_all_runs_from_its_start_and_shows_untrained_encoders_once(
    tmp_path: Path,
    in_one_process: Use,
    capsys: pytest.CaptureFixture[str],
    score: Any,
    totals: list[int],
) -> None:
    in_one_process(fake=scored(score), width=1)
    events: list[Any] = []
    show_study(small(tmp_path, trials=3, on_progress=events.append))
    starts = re.findall("^start +(.*)", capsys.readouterr().out, re.MULTILINE)
    assert starts == ["0.1  before training, 5 seeds: 0.09 to 0.11"]
    assert [event.total for event in events] == totals
    assert [event.done for event in events] == [*range(1, totals[-1] + 1)]


def test_what_a_killed_process_left_of_checks_is_deleted(
    tmp_path: Path, in_one_process: Use
) -> None:
    """Killed after the last check was noted, or in one of a trial that is no longer the best."""
    in_one_process(fake=scored(by_lr))
    first = small(tmp_path, trials=3)
    runs = ("preset.1", "0000.2", "0001.3", "0002.3", "untrained.0", "untrained.4")
    left = [Store(tmp_path).cell_dir(f"{first.study_id}.{run}") for run in runs]
    for folder in left:
        folder.mkdir(parents=True)
    assert small(tmp_path, trials=3).to_run == 0
    assert not any(folder.exists() for folder in left)


def test_what_another_process_did_before_the_lock_is_not_done_again(
    tmp_path: Path, in_one_process: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = in_one_process(fake=scored(by_lr))
    lock = Store.lock

    def late(self: Store, name: str) -> Any:
        monkeypatch.setattr(Store, "lock", lock)
        small(tmp_path, trials=3)
        return lock(self, name)

    monkeypatch.setattr(Store, "lock", late)
    result = small(tmp_path, trials=3)
    assert (len(executor.ran), result.to_run, len(result.trials)) == (3, 0, 3)


def test_one_study_at_a_time(tmp_path: Path, in_one_process: Use) -> None:
    in_one_process(fake=scored(by_lr))
    planned = small(tmp_path, trials=2, dry_run=True)
    assert (planned.status, planned.to_run, planned.best) == ("planned", 2, None)
    assert planned.estimate.bytes_up > 0
    assert not list(tmp_path.iterdir())
    with Store(tmp_path).lock(planned.study_id), pytest.raises(StoreError, match=planned.study_id):
        small(tmp_path, trials=2)


def test_optuna_logs_the_callers_own_studies_and_none_of_ours(
    tmp_path: Path,
    in_one_process: Use,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(logging.getLogger("optuna"), "propagate", True)
    in_one_process(fake=scored(by_lr))
    small(tmp_path, trials=8)
    search(studies(tmp_path)[0])
    assert not [record for record in caplog.records if record.name.startswith("optuna")]
    optuna.create_study()
    assert caplog.records[-1].name.startswith("optuna")


def test_real_trials_read_no_label_and_leave_no_cells(tmp_path: Path, in_one_process: Use) -> None:
    in_one_process()
    result = small(tmp_path, trials=2, seeds_per_trial=2)
    assert [trial["status"] for trial in result.trials] == ["ok", "ok"]
    assert all(trial["watched"] == {} for trial in result.trials)
    assert all(set(trial["spread"]) == {*SPREAD, MOVEMENT} for trial in result.trials)
    assert all(set(SPREAD) < set(figures) for figures in result.untrained)
    assert [path.name for path in (tmp_path / "cells").iterdir()] == [result.study_id]
    watched = small(tmp_path, trials=3, watch_labels=True)
    assert all(0 <= trial["watched"]["knn_acc"] <= 1 for trial in watched.trials)
    assert watched.correlation.n == 3
    assert json.dumps(asdict(watched), default=str)


def test_unlike_compute_is_told_before_and_shown(
    tmp_path: Path,
    in_one_process: Use,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each trial shows the images that it trained on, twice as many for two local epochs."""
    in_one_process(width=1)
    space = tmp_path / "space.yaml"
    space.write_text(
        """
method: simclr
space: {client.local_epochs: {type: choice, values: [1, 2]}}
"""
    )
    result = small(tmp_path / "store", space_file=space, trials=2)
    assert "varies client.local_epochs: a trial that trains more scores higher" in caplog.text
    images = {t["params"]["client.local_epochs"]: t["images"] for t in result.trials}
    assert images[2] == 2 * images[1] > 0
    show_study(result)
    assert "images" in capsys.readouterr().out.splitlines()[0]
