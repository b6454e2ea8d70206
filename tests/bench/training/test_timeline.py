"""Rounds of a simulated fleet: who counts, who is late, and what time it is, computed by hand.

Three clients hold 20 images each, five batches of four. Links take no time to speak of, and their
devices need 1, 2 and 5 seconds for an epoch: A, B and C.
"""

import math
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from fedbench.bench.evaluation.collapse import CollapseMonitor
from fedbench.bench.method import RoundPlan
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.testing import all_tensors, assert_same_run, tiny_config, tiny_setup, train
from fedbench.bench.training.client import ClientRunner, Task
from fedbench.bench.training.personal import PersonalStore
from fedbench.bench.training.setup import Setup
from fedbench.bench.training.timeline import Round, check_devices, image_flop
from fedbench.bench.training.trainer import Trainer
from tests.specs import setup_of

CPU = torch.device("cpu")
SECONDS = {"A": 1.0, "B": 2.0, "C": 5.0}
CLIENTS: Mapping[str, Any] = {"data__num_clients": 3, "data__train_subset": 60}
Make = Callable[..., Setup]


@pytest.fixture
def fleet(tmp_path: Path) -> Make:
    """Return a maker of runs of the three clients."""

    def make(spec: str = "simclr", columns: Mapping[str, Any] = {}, **values: Any) -> Setup:
        given = {**CLIENTS, "client__batch_size": 4, "federation__num_rounds": 3, **values}
        plain = tiny_setup(tiny_config(spec, **CLIENTS))
        flop = 20 * image_flop(plain, plain.make_net())
        speeds = [flop / seconds for seconds in SECONDS.values()]
        links = {"down_mb_per_s": 1e15, "up_mb_per_s": 1e15}
        table = pd.DataFrame({"flop_per_s": speeds, **links, **columns})
        file = tmp_path / f"{len(list(tmp_path.glob('*.csv')))}.csv"
        table.to_csv(file, index=False)
        config = tiny_config(spec, devices__profile=str(file), **given)
        check_devices(config, plain.method)
        return tiny_setup(config)

    return make


def trainer_of(setup: Setup, folder: Path) -> Trainer:
    return Trainer(
        setup, folder, "0" * 20, CPU, CollapseMonitor(setup, CPU, PersonalStore(folder / "clients"))
    )


def names_of(trainer: Trainer) -> dict[int, str]:
    """Return which of A, B and C each client is."""
    assert trainer.timeline.fleet is not None
    order = trainer.timeline.fleet.flop_per_s.argsort()[::-1].tolist()
    return dict(zip(order, "ABC", strict=True))


def shown(setup: Setup, folder: Path) -> list[tuple[str, Any, int, int]]:
    """Return of three rounds whose uploads count, seconds, late and dropped clients."""
    trainer = trainer_of(setup, folder)
    names = names_of(trainer)

    def line(this: Round) -> tuple[str, Any, int, int]:
        clients = "".join(sorted(names[task.client_id] for task in this.tasks))
        assert this.seconds is not None
        return clients, pytest.approx(this.seconds), this.late, this.dropped

    return [line(each) for each in islice(trainer.timeline.rounds(), 3)]


def test_a_round_lasts_as_long_as_its_slowest_client(fleet: Make, tmp_path: Path) -> None:
    assert shown(fleet(), tmp_path) == [("ABC", 5, 0, 0)] * 3
    assert shown(fleet(client__local_epochs=2), tmp_path) == [("ABC", 10, 0, 0)] * 3


def test_images_that_are_left_out_take_no_time(fleet: Make, tmp_path: Path) -> None:
    """A supervised client trains on the half of its images whose labels it sees."""
    assert (
        shown(fleet("supervised", data__label_fraction=0.5), tmp_path) == [("ABC", 2.5, 0, 0)] * 3
    )


def test_of_those_asked_too_many_the_first_are_taken(fleet: Make, tmp_path: Path) -> None:
    setup = fleet(federation__participation=0.67, federation__over_selection=1.5)
    assert setup.config.cohort_size == 2
    assert shown(setup, tmp_path) == [("AB", 2, 1, 0)] * 3


def test_the_server_waits_until_the_deadline_for_those_that_are_late(
    fleet: Make, tmp_path: Path
) -> None:
    assert shown(fleet(federation__deadline=3.0), tmp_path) == [("AB", 3, 1, 0)] * 3


def test_a_slow_client_makes_the_steps_that_fit(fleet: Make, tmp_path: Path) -> None:
    """In 3 of its 5 seconds C makes 3 of its 5 steps; in half a second it makes none."""
    setup = fleet(federation__deadline=3.0, federation__partial_work=True)
    assert shown(setup, tmp_path) == [("ABC", 3, 0, 0)] * 3
    trainer = train(setup, tmp_path / "run")
    assert [record.num_steps for record in trainer.history] == [5 + 5 + 3] * 3
    long = fleet(federation__deadline=1e30, federation__partial_work=True)
    assert shown(long, tmp_path / "long") == [("ABC", 5, 0, 0)] * 3
    short = fleet(federation__deadline=0.5, federation__partial_work=True)
    assert [record.num_steps for record in train(short, tmp_path / "b").history] == [2 + 1] * 3
    assert shown(short, tmp_path) == [("AB", 0.5, 1, 0)] * 3


def test_clients_too_small_for_a_batch_only_receive(tmp_path: Path) -> None:
    config = tiny_config(
        "simclr",
        devices__profile="silos",
        data__num_clients=2,
        client__keep_last_batch=False,
        federation__num_rounds=1,
        federation__deadline=1e4,
        federation__partial_work=True,
    )
    trainer = train(tiny_setup(config, shares=[range(2), range(2, 60)]), tmp_path)
    assert [(record.idle_clients, record.cohort_size) for record in trainer.history] == [(1, 2)]
    (this,) = islice(trainer.timeline.rounds(), 1)
    assert [task.max_steps for task in this.tasks] == [0, 58 // 16]


def test_links_take_the_bytes_of_the_model_over_their_speed(tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text("flop_per_s,down_mb_per_s,up_mb_per_s\n1e30,2,0.5\n", "utf-8")
    setup = setup_of("simclr", devices__profile=str(file), devices__draw=True)
    trainer = train(setup, tmp_path / "run", rounds=1)
    record = trainer.history[0]
    one_down, one_up = record.bytes_down / 4, record.bytes_up / 4
    expected = one_down / 2e6 + one_up / 0.5e6
    assert record.simulated["seconds"] == pytest.approx(expected)


def test_who_drops_out_has_received_and_sends_nothing(fleet: Make, tmp_path: Path) -> None:
    setup = fleet(columns={"failure": 0.5}, federation__num_rounds=12)
    trainer = train(setup, tmp_path)
    model = 4 * trainer.layout.num_averaged
    dropped = [int(record.simulated["dropped"]) for record in trainer.history]
    assert {*dropped} == {0, 1, 2, 3}  # twelve rounds of three fair coins
    for record, missing in zip(trainer.history, dropped, strict=True):
        assert record.cohort_size == 3 - missing
        assert record.bytes_down == 3 * model
        assert record.bytes_up == (3 - missing) * model
        assert (record.loss is None) == (missing == 3)


def test_nobody_waits_for_those_that_dropped_out(fleet: Make, tmp_path: Path) -> None:
    """With A away the round is B's and C's; with a deadline the server waits for C, which is late.

    With C away it ends after the 2 seconds of B, whatever the deadline.
    """
    always = 1 - 1e-12
    without_a = {"failure": [always, 0, 0]}
    assert shown(fleet(columns=without_a), tmp_path) == [("BC", 5, 0, 1)] * 3
    late = fleet(columns=without_a, federation__deadline=3.0)
    assert shown(late, tmp_path) == [("B", 3, 1, 1)] * 3
    without_c = fleet(columns={"failure": [0, 0, always]}, federation__deadline=30.0)
    assert shown(without_c, tmp_path) == [("AB", 2, 0, 1)] * 3


def test_only_those_online_are_asked_and_an_empty_hour_is_known_before(
    fleet: Make, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"nobody is online when round 1 begins, at 00:00 of day"):
        trainer_of(fleet(columns={"online_from": 8, "online_hours": 2}), tmp_path)
    with pytest.raises(ConfigError, match=r"nobody is online when server step 1 begins"):
        trainer_of(fleet(**BUFFERED, columns={"online_from": 8, "online_hours": 2}), tmp_path)
    # The day begins at midnight; a round of five seconds at a time leaves the hour after 720.
    hour = {"online_from": 0, "online_hours": 1}
    with pytest.raises(ConfigError, match=r"nobody is online when round 721 begins, at 01:00"):
        trainer_of(fleet(columns=hour, federation__num_rounds=721), tmp_path)
    trainer_of(fleet(columns=hour, federation__num_rounds=720), tmp_path)


def test_a_deadline_that_nobody_meets_is_known_before(fleet: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no client .* the fastest takes 1$"):
        trainer_of(fleet(federation__deadline=0.9), tmp_path)
    with pytest.raises(ConfigError, match=r"the fastest takes 0.2$"):
        trainer_of(fleet(federation__deadline=0.1, federation__partial_work=True), tmp_path)


BUFFERED: Mapping[str, Any] = {"federation__mode": "buffered", "federation__buffer_size": 2}


def by_hand() -> list[tuple[float, list[tuple[str, int]]]]:
    """Three server steps of two uploads: seconds, and who comes with a change of which model.

    At 0 s all start from model 0. A is done at 1 s and waits in the buffer, B at 2 s: step 1. Both
    start anew, are done at 3 s and 4 s: step 2. They start again; at 5 s A is done, and at last C,
    whose change is of model 0: step 3.
    """
    return [
        (2.0, [("A", 0), ("B", 0)]),
        (2.0, [("A", 1), ("B", 1)]),
        (1.0, [("A", 2), ("C", 0)]),
    ]


def test_the_queue_of_a_buffered_run_is_the_one_by_hand(fleet: Make, tmp_path: Path) -> None:
    trainer = trainer_of(fleet(**BUFFERED), tmp_path)
    names = names_of(trainer)
    found: list[tuple[Any, Any]] = []
    for this in islice(trainer.timeline.rounds(), 3):
        comes = sorted((names[task.client_id], task.version) for task in this.tasks)
        found.append((pytest.approx(this.seconds), comes))
    assert found == by_hand()


def test_who_drops_out_of_a_buffered_run_is_replaced(fleet: Make, tmp_path: Path) -> None:
    """A never succeeds: B waits in the buffer from 2 s to C's 5 s, then both start anew."""
    trainer = trainer_of(fleet(**BUFFERED, columns={"failure": [1 - 1e-12, 0, 0]}), tmp_path)
    names = names_of(trainer)
    for step, this in enumerate(islice(trainer.timeline.rounds(), 3)):
        assert this.seconds == pytest.approx(5)
        comes = sorted((names[task.client_id], task.version) for task in this.tasks)
        assert comes == [("B", step), ("C", step)]
        assert len(this.asked) >= this.dropped > 4  # A, again and again, for a second at most each


def test_two_at_a_time_take_the_third_when_one_is_done(fleet: Make, tmp_path: Path) -> None:
    """Beside C, A and B come one after the other (3 s); without it, together, and C starts."""
    seconds = set()
    for seed in range(8):
        setup = fleet(**BUFFERED, federation__participation=0.67, seed=seed)
        trainer = trainer_of(setup, tmp_path / str(seed))
        names = names_of(trainer)
        this = next(trainer.timeline.rounds())
        assert sorted(names[task.client_id] for task in this.tasks) == ["A", "B"]
        assert {names[k] for k in this.asked} == {"A", "B", "C"}
        assert this.seconds is not None
        seconds.add(round(this.seconds, 6))
    assert seconds == {2.0, 3.0}


@pytest.mark.parametrize("exponent", [0.0, 0.5])
def test_a_buffered_run_is_fedbuff(fleet: Make, tmp_path: Path, exponent: float) -> None:
    """Nguyen et al. 2022, algorithm 1: x <- x + lr / K sum of s(staleness) (y - x_then)."""
    setup = fleet(**BUFFERED, federation__staleness_exponent=exponent, server__lr=0.7)
    trainer = train(setup, tmp_path)
    client_of = {name: k for k, name in names_of(trainer).items()}
    runner = ClientRunner(setup, CPU, tmp_path)
    models = [trainer.initial.double()]
    for step, (_, comes) in enumerate(by_hand()):
        total = torch.zeros_like(models[0])
        for name, version in comes:
            start = models[version].float()
            upload = torch.empty(runner.layout.upload_size)
            runner.run(Task(client_of[name], step, RoundPlan(1)), start, upload)
            stale = step - version
            total += (upload - start).double() / math.pow(1 + stale, exponent)
        models.append(models[-1] + 0.7 * total / 2)
    torch.testing.assert_close(trainer.vector.double(), models[-1], rtol=1e-5, atol=1e-7)
    assert [record.simulated["staleness"] for record in trainer.history] == [0, 0, 1]


RUNS = [
    ("simclr", {"federation__deadline": 3.0, "federation__partial_work": True}),
    ("simclr", {"server__weighting": "steps", "columns": {"failure": 0.3}}),
    ("orchestra", {"federation__over_selection": 1.5, "federation__participation": 0.67}),
    ("single-ae", {"columns": {"failure": 0.3}}),
    ("simclr", BUFFERED),
    ("single-ae", {**BUFFERED, "columns": {"failure": 0.3}}),
    ("simclr+uv", {**BUFFERED, "model__norm": "batch"}),
]


@pytest.mark.parametrize(("spec", "values"), RUNS)
def test_a_run_that_was_killed_has_the_same_bits(
    fleet: Make, tmp_path: Path, spec: str, values: dict[str, Any]
) -> None:
    setup = fleet(spec, **values)
    whole = train(setup, tmp_path / "whole")
    for rounds in (1, 2):
        train(setup, tmp_path / "killed", rounds=rounds)
    resumed = train(setup, tmp_path / "killed")
    assert resumed.resumes == 2
    assert_same_run(whole, resumed)
    assert whole.versions.keys() == resumed.versions.keys()
    assert_same_run(whole, train(setup, tmp_path / "lanes", lanes=2))
    first = torch.cat([whole.initial, *[whole.first_personal] * len(whole.personal_rounds)])
    assert not torch.equal(all_tensors(whole), first)


@pytest.mark.parametrize(
    ("spec", "values", "problem"),
    [
        ("simclr", {"devices__profile": "uniform", "federation__deadline": 1.0}, "deadline=1.0"),
        ("simclr", {"devices__profile": "uniform", "devices__failure": 0.2}, "failure=0.2"),
        ("simclr", {"federation__partial_work": True}, "federation.deadline"),
        ("simclr", {"federation__mode": "buffered", "federation__partial_work": True}, "of rounds"),
        ("central-ae", {}, "pooled"),
        ("pfedae", {}, "activations"),
        ("simclr", {"privacy__clip": 1.0}, "privacy.clip"),
        ("simclr", {"server__weighting": "steps", "client__optimizer": "adam"}, "SGD"),
        ("simclr", {"server__weighting": "steps", "server__aggregator": "median"}, "mean"),
        ("orchestra", {"federation__mode": "buffered"}, "centroids"),
        ("simclr+scaffold", {"federation__mode": "buffered"}, "control variate"),
        ("simclr", {"federation__mode": "buffered", "federation__deadline": 1.0}, "of rounds"),
        ("simclr", {"federation__mode": "buffered", "federation__buffer_size": 5}, "above"),
        ("fedsc", {"federation__mode": "buffered"}, "before a round"),
    ],
)
def test_what_does_not_go_together_is_refused(
    spec: str, values: dict[str, Any], problem: str
) -> None:
    config = tiny_config(spec, **{"devices__profile": "phones", **values})
    with pytest.raises(ConfigError, match=problem):
        check_devices(config, tiny_setup(config).method)
