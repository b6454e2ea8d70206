"""FedBuff with devices that drop out, beside a queue written apart from Nguyen et al. 2022."""

from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest
import torch

from fedbench.bench.evaluation.collapse import CollapseMonitor
from fedbench.bench.method import RoundPlan
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.seeding import numpy_generator
from fedbench.bench.testing import tiny_config, tiny_setup, train
from fedbench.bench.training.client import ClientRunner, Task
from fedbench.bench.training.personal import PersonalStore
from fedbench.bench.training.setup import Setup
from fedbench.bench.training.timeline import image_flop
from fedbench.bench.training.trainer import Trainer

CPU = torch.device("cpu")
CLIENTS, EPOCH = 9, 8  # of each client the images
HOURS = (
    0.517,
    0.713,
    1.129,
    1.301,
    1.733,
    1.907,
    2.311,
    2.939,
    3.163,
)  # that their devices need for an epoch
FAILURE = (0.0, 0.6, 0.3, 0.1, 0.0, 0.5, 0.2, 0.4, 0.3)
ONLINE = ((0, 24), (20, 9), (6, 14), (0, 24), (12, 15), (3, 10), (0, 24), (18, 12), (9, 8))


class Step(NamedTuple):
    """A server step: hours since the last, who sends a change of which model, who was asked."""

    hours: float
    sent: list[tuple[int, int]]  # (model, client)
    asked: list[int]
    failed: int
    alive: set[int]  # models that a client still trains from, and the one of this step


def fedbuff(devices: Sequence[int], seed: int, places: int, size: int) -> Iterator[Step]:
    """Yield server steps; client k has the device `devices[k]`.

    Each free place takes one of all that are online and neither train nor wait in the buffer, each
    with the same chance. It ends if nobody trains and nobody can begin.
    """
    now = since = 0.0
    training: dict[int, tuple[float, int, bool]] = {}  # client -> (end, model, fails)
    waiting: dict[int, int] = {}  # client -> model
    asked: list[int] = []
    failed = steps = 0
    starts = count()

    def online(client: int) -> bool:
        begin, hours = ONLINE[devices[client]]
        return (now - begin) % 24 < hours

    while True:
        for _ in range(places - len(training)):
            idle = [k for k in range(CLIENTS) if k not in training and k not in waiting]
            if not (free := [k for k in idle if online(k)]):
                break
            draws = numpy_generator(seed, "start", next(starts))
            client = free[draws.integers(len(free))]
            fails = bool(draws.random() < FAILURE[devices[client]])
            share = draws.random() if fails else 1.0
            end = now + share * HOURS[devices[client]]
            training[client] = end, steps, fails
            asked.append(client)
        if not training:
            return
        now, client = min((end, k) for k, (end, _, _) in training.items())
        _, model, fails = training.pop(client)
        if fails:
            failed += 1
            continue
        waiting[client] = model
        if len(waiting) == size:
            steps += 1
            alive = {model for _, model, _ in training.values()} | {steps}
            sent = sorted((model, k) for k, model in waiting.items())
            yield Step(now - since, sent, sorted(asked), failed, alive)
            since, waiting, asked, failed = now, {}, [], 0


def setup_of(folder: Path, seed: int, places: int, size: int, **values: Any) -> Setup:
    """Return a buffered run, of which `places` clients train at a time."""
    sizes: dict[str, Any] = {
        "data__num_clients": CLIENTS,
        "data__train_subset": CLIENTS * EPOCH,
        "client__batch_size": 4,
    }
    plain = tiny_setup(tiny_config("simclr", **sizes))
    flop = EPOCH * image_flop(plain, plain.make_net())
    columns = {"down_mb_per_s": 1e15, "up_mb_per_s": 1e15, "failure": FAILURE}
    columns |= {"online_from": [b for b, _ in ONLINE], "online_hours": [h for _, h in ONLINE]}
    speeds = [flop / 3600 / hours for hours in HOURS]
    file = folder / "devices.csv"
    pd.DataFrame({"flop_per_s": speeds, **columns}).to_csv(file, index=False)
    sizes |= {"federation__participation": places / CLIENTS, "federation__buffer_size": size}
    buffered = {"federation__mode": "buffered", "devices__profile": str(file)}
    return tiny_setup(tiny_config("simclr", **sizes, **buffered, seed=seed, **values))


def devices_of(trainer: Trainer) -> list[int]:
    """Return the row of the file that each client has, by its speed."""
    assert trainer.timeline.fleet is not None
    rows: list[int] = (-trainer.timeline.fleet.flop_per_s).argsort().argsort().tolist()
    return rows


def trainer_of(setup: Setup, folder: Path) -> Trainer:
    return Trainer(
        setup, folder, "0" * 20, CPU, CollapseMonitor(setup, CPU, PersonalStore(folder / "clients"))
    )


@pytest.mark.parametrize(("places", "size"), [(2, 1), (4, 3), (2, 4), (9, 4)])
def test_the_queue_is_the_one_written_apart(places: int, size: int, tmp_path: Path) -> None:
    """Also with more uploads to a step than clients that train at a time."""
    failed, stale = 0, 0
    for seed in range(3):
        setup = setup_of(tmp_path, seed, places, size, federation__num_rounds=40)
        trainer = trainer_of(setup, tmp_path / f"{seed}")
        rounds, queue = trainer.timeline.rounds(), fedbuff(devices_of(trainer), seed, places, size)
        for at, (found, step) in enumerate(islice(zip(rounds, queue, strict=True), 40)):
            assert found.seconds == pytest.approx(3600 * step.hours, rel=1e-9, abs=1e-6)
            assert [(task.version, task.client_id) for task in found.tasks] == step.sent
            assert [*found.asked] == step.asked
            assert found.dropped == step.failed
            assert found.alive == step.alive
            failed += step.failed
            stale += sum(model < at for model, _ in step.sent)
    assert failed > 30
    assert stale > 30


def test_a_buffer_in_which_all_that_are_online_wait_is_refused_before_the_run(
    tmp_path: Path,
) -> None:
    """At every hour somebody is online, and yet the queue ends."""
    seen = 0
    for seed in range(6):
        queue_of_one = setup_of(tmp_path, seed, 3, 1)
        devices = devices_of(trainer_of(queue_of_one, tmp_path / f"{seed}"))
        steps = len([*islice(fedbuff(devices, seed, 3, 6), 40)])
        setup = setup_of(tmp_path, seed, 3, 6, federation__num_rounds=40)
        if steps == 40:
            trainer_of(setup, tmp_path / f"{seed} whole")
            continue
        with pytest.raises(ConfigError, match=rf"server step {steps + 1} begins.*buffer_size"):
            trainer_of(setup, tmp_path / f"{seed} refused")
        seen += 1
    assert seen


def test_the_model_is_the_sum_of_stale_changes(tmp_path: Path) -> None:
    """Algorithm 1: x <- x + (1 / size) sum of (1 + staleness)^-0.5 (y - x_then)."""
    setup = setup_of(tmp_path, 0, 4, 3, federation__num_rounds=5)
    trainer = train(setup, tmp_path / "run")
    runner = ClientRunner(setup, CPU, tmp_path / "apart")
    models = [trainer.initial.double().numpy()]
    staleness = []
    for at, step in enumerate(islice(fedbuff(devices_of(trainer), 0, 4, 3), 5)):
        change = 0.0 * models[0]
        for model, client in step.sent:
            start = torch.from_numpy(models[model]).float()
            upload = torch.empty(runner.layout.upload_size)
            runner.run(Task(client, at, RoundPlan(1)), start, upload)
            change += (upload.double() - start.double()).numpy() * (1 + at - model) ** -0.5
        models.append(models[-1] + change / 3)
        staleness.append(sum(at - model for model, _ in step.sent) / 3)
    assert trainer.vector.numpy() == pytest.approx(models[-1], rel=1e-5, abs=1e-6)
    assert [record.simulated["staleness"] for record in trainer.history] == staleness
    assert max(staleness) > 0.5
