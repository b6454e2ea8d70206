"""Best trial, preset and worst trial on fresh seeds, compared by Welch's interval."""

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from safetensors.torch import save_file
from scipy import stats

from fedbench.bench.experiment.resolve import resolve
from fedbench.bench.nn.backbones import make_backbone
from fedbench.bench.results.leaderboard.statistics import welch_error
from fedbench.bench.results.leaderboard.studies import best_trial, studies, worst_trial
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.tuning.job import Job, Outcome
from fedbench.bench.tuning.tune import tune

from .conftest import SMALL, Use, execute_here


def test_configurations_run_on_seeds_that_the_search_has_not_used(
    tmp_path: Path, in_one_process: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_one_process()
    monkeypatch.setenv("FEDBENCH__SEED", "0")  # gives way to the seeds of the comparison
    found = tune("simclr", store=tmp_path, set=SMALL, trials=3, confirm=3, track=["tensorboard"])
    best, *others = found.confirmed
    assert [name for each in found.confirmed for name in each.name.split(", ")] == [
        "best trial",
        "preset",
        "worst trial",
    ]
    assert best.params == (best_trial(found.trials) or {})["params"]
    assert best.behind is None
    rows = Store(tmp_path).rows()
    assert {row.seed for row in rows} == {*best.values} == {200, 201, 202}
    assert len(rows) == 3 * len(found.confirmed)
    shown = {folder.name[-8:] for folder in (tmp_path / "tensorboard").iterdir()}
    assert {row.row_id[:8] for row in rows} <= shown
    for each in found.confirmed:
        own = [r for r in rows if r.config.client.lr == each.params["client.lr"]]
        assert {row.seed: row.linear_acc for row in own} == dict(each.values)
    for each in others:
        assert each.behind is not None
        error, df = welch_error([*best.values.values()], [*each.values.values()])
        half = stats.t.ppf(0.975, df) * error
        ahead = fmean(best.values.values()) - fmean(each.values.values())
        assert each.behind == pytest.approx((ahead - half, ahead + half))
    given: dict[str, Any] = {"store": tmp_path, "set": SMALL}
    assert studies(tmp_path)[0].confirmed == found.confirmed
    file = tmp_path / "trials" / found.study_id / "study.json"
    before = file.stat().st_mtime_ns
    assert tune("simclr", trials=3, confirm=3, **given).confirmed == found.confirmed
    assert file.stat().st_mtime_ns == before
    more = tune("simclr", trials=4, **given)  # writes the description anew
    assert more.confirmed == ()  # not asked for
    ends = {(find(more.trials) or {})["number"] for find in (best_trial, worst_trial)}
    assert bool(studies(tmp_path)[0].confirmed) is (3 not in ends)
    trial = {"status": "ok", "seeds": [0], "params": {"client.lr": 0.5}, "objective": -9.0}
    Store(tmp_path).write_trial(found.study_id, 4, trial)
    assert studies(tmp_path)[0].confirmed == ()  # another trial is worst


def test_a_run_that_failed_is_run_again_from_weights_at_a_relative_path(
    tmp_path: Path, in_one_process: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = resolve("simclr", set=SMALL, environ={}).config.model
    save_file(make_backbone(model, 1, (8, 8)).make().state_dict(), "start.safetensors")
    Path("space.yaml").write_text(
        "method: simclr\nspace: {model.weights: {type: choice, values: [start.safetensors]}}\n"
    )

    def fake(job: Job) -> Outcome:
        if job.experiment.config.seed == 200:
            return Outcome(job, "error", error="no memory")
        return execute_here(job)

    settings: dict[str, Any] = {"set": SMALL, "space_file": "space.yaml", "trials": 1, "confirm": 3}
    in_one_process(fake=fake)
    assert tune("simclr", **settings).confirmed == ()
    again = in_one_process()
    best, preset = tune("simclr", **settings).confirmed
    assert list(best.values) == list(preset.values) == [200, 201, 202]
    assert len(again.ran) == 2
    assert best.params["model.weights"] == str(Path("start.safetensors").resolve())


TENTH = {"evaluation.protocols": ["linear"], "evaluation.probe_fractions": [0.1]}


@pytest.mark.parametrize(
    ("seeds", "values"), [(2, {}), (3, {"evaluation.protocols": ["mlp"]}), (3, TENTH)]
)
def test_what_cannot_be_compared_is_refused_before_the_search(
    tmp_path: Path, seeds: int, values: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="--confirm"):
        tune("simclr", store=tmp_path, confirm=seeds, set=values)
    assert list(tmp_path.iterdir()) == []
