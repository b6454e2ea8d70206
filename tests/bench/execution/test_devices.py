"""Runs with devices: hours in rows and on boards, and messages of those who took part."""

from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from fedbench import ConfigError, leaderboard, plan_run, run, tune
from fedbench.bench.execution.guarantees import columns
from fedbench.bench.results.store.store import Store
from fedbench.bench.testing import train
from tests.specs import setup_of

TINY = {"devices.profile": "phones", "data.train_subset": 80, "model.width": 4}


def test_hours_are_in_row_and_plan_and_rank_the_board(tmp_path: Path) -> None:
    values = {**TINY, "federation.num_rounds": 3, "evaluation.protocols": ["knn"]}
    hours = {}
    planned = plan_run("simclr", set=values, store=tmp_path).estimate
    for spec in ("simsiam", "simclr"):
        done = run(spec, set=values, store=tmp_path, workers=1)
        hours[spec] = done.cost["simulated_hours"]
        points = Store(tmp_path).curve(done.run_id)
        seconds = sum(point["simulated.seconds"] for point in points)
        assert seconds / 3600 == pytest.approx(hours[spec])
    assert planned.simulated_hours == hours["simclr"] == done.metrics["simulated_hours"]
    assert planned.bytes_down == done.cost["bytes_down"]
    assert planned.bytes_up == done.cost["bytes_up"]
    assert planned.num_steps == sum(point["num_steps"] for point in points)
    board = leaderboard(store=tmp_path, metric="simulated_hours", published=False)
    ranked = [(entry.method, entry.mean) for entry in board.board.entries]
    assert ranked == sorted(hours.items(), key=lambda item: item[1] or 0.0)


@pytest.mark.parametrize("more", [{"federation.deadline": 0.5}, {"federation.mode": "buffered"}])
def test_messages_are_of_who_was_asked_and_who_answered(
    tmp_path: Path, more: dict[str, object]
) -> None:
    values = {**TINY, "federation.num_rounds": 4, "federation.buffer_size": 2, **more}
    done = run("simclr", set=values, store=tmp_path, workers=1)
    points = Store(tmp_path).curve(done.run_id)
    for point in points:
        sent = point["cohort_size"] - point["idle_clients"]
        assert point["traffic.up.encoder.messages"] == sent
        assert point["traffic.down.encoder.messages"] == point["simulated.asked"]
    for name in ("bytes_up", "bytes_down"):
        assert sum(point[name] for point in points) == done.cost[name]


def test_a_search_with_a_deadline_that_nobody_meets_does_not_begin(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no client is done"):
        tune("simclr", set={**TINY, "federation.deadline": 1e-6}, store=tmp_path, trials=1)
    assert Store(tmp_path).studies() == []


def test_epsilon_counts_what_was_sent_and_not_who_was_asked(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    setup = setup_of(
        "orchestra",
        method__representations="private",
        federation__num_rounds=6,
        devices__profile="silos",
        devices__failure=0.5,
    )
    trainer = train(setup, tmp_path)
    rounds = [*islice(trainer.timeline.rounds(), trainer.rounds_begun)]
    sent = Counter(task.client_id for this in rounds for task in this.tasks)
    asked = Counter(client_id for this in rounds for client_id in this.asked)
    found = columns(trainer)
    assert found["privacy"]["rounds"] == max(sent.values()) < max(asked.values())
    flows = trainer.ledger.flows
    assert flows["up"]["centroids"].messages == sum(sent.values())
    assert flows["down"]["encoder"].messages == sum(asked.values())
