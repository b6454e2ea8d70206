"""Estimates: bytes and steps equal those of the run, times are positive."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedbench.bench.evaluation import sgd
from fedbench.bench.evaluation.probes import few_shot_images
from fedbench.bench.execution import estimate
from fedbench.bench.execution.estimate import Estimator
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.testing import tiny_config, tiny_setup, train


@pytest.mark.parametrize(
    ("spec", "keep_last", "fields"),
    [
        ("simclr+uv", True, {}), ("simclr+uv", False, {}), ("orchestra", True, {}),
        ("pfedae", False, {}), ("central-ae", True, {}),
        ("pfedae", True, {"method__gradient": "ship"}),
    ],
)  # fmt: skip
def test_bytes_and_steps_are_those_of_the_run(
    tmp_path: Path, spec: str, keep_last: bool, fields: dict[str, str]
) -> None:
    """This includes extras beside weights, preparatory rounds, and activations in training."""
    config = tiny_config(
        spec,
        **fields,
        federation__participation=0.5,
        client__local_epochs=2,
        client__keep_last_batch=keep_last,
    )
    estimator = Estimator(["cpu"])
    estimate, evaluated = (estimator(Experiment(config), trains=trains) for trains in (True, False))
    assert (evaluated.num_steps, evaluated.bytes_up, evaluated.train_seconds) == (0, 0, 0)
    trainer = train(tiny_setup(config), tmp_path)
    assert estimate.bytes_up == trainer.ledger.bytes_up
    assert estimate.bytes_down == trainer.ledger.bytes_down
    assert estimate.num_steps == sum(record.num_steps for record in trainer.history)
    assert estimate.seconds == pytest.approx(
        estimate.train_seconds + estimate.evaluation_seconds + estimate.start_seconds
    )
    assert min(estimate.train_seconds, estimate.evaluation_seconds, estimate.start_seconds) > 0


def test_rows_of_more_clients_are_bytes_of_their_own_runs() -> None:
    """One measurement serves both numbers of clients; the table of uv has a row for each."""
    configs = [tiny_config("simclr+uv", data__num_clients=count) for count in (4, 8)]
    estimator, runs = Estimator(["cpu"]), [Experiment(config) for config in configs]
    together = [estimator(run).bytes_down for run in runs]
    assert len(estimator._known) == 1
    assert together == [Estimator(["cpu"])(run).bytes_down for run in runs]


@pytest.mark.parametrize(
    "spec", ["simclr+uv", "semifed+uv", pytest.param("central-ae", marks=pytest.mark.extended)]
)
def test_images_without_a_label_count_as_trained_on(tmp_path: Path, spec: str) -> None:
    """The estimate is an upper bound: not all rounds train on all images.

    Only the method knows these images, and for pseudo-labels only after it has learned.
    SemiFed starts on labelled images, the centralised autoencoder ends on them.
    """
    given: dict[str, Any] = {
        "semifed+uv": {"warmup_rounds": 1},
        "central-ae": {"pretrain_rounds": 2},
    }
    fields = {f"method__{name}": value for name, value in given.get(spec, {}).items()}
    values = {"federation__num_rounds": 3, "client__batch_size": 4, **fields}
    config = tiny_config(spec, data__label_fraction=0.25, **values)
    estimated = Estimator(["cpu"])(Experiment(config))
    trainer = train(tiny_setup(config), tmp_path)
    num_steps = sum(record.num_steps for record in trainer.history)
    assert estimated.bytes_up == trainer.ledger.bytes_up
    if spec == "simclr+uv":  # reads no label
        assert estimated.num_steps == num_steps
    else:
        assert estimated.num_steps > num_steps


def test_workers_share_the_clients_and_start_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """With six clients on four workers the busiest trains two: a third of one worker's time."""
    config = tiny_config("supervised", data__num_clients=6, federation__participation=1.0)
    monkeypatch.setattr(Estimator, "_measure", lambda *_: parts(step=0.5, client=0.25))
    alone, shared = Estimator(["cpu"]), Estimator(["cpu"] * 4)
    one, four = alone(Experiment(config)), shared(Experiment(config))
    assert (one.workers, four.workers) == (1, 4)
    assert four.train_seconds == pytest.approx(one.train_seconds / 3)
    assert four.start_seconds == pytest.approx(2 * one.start_seconds)
    assert four.evaluation_seconds == one.evaluation_seconds


def test_checkpoints_of_long_runs_count_by_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One a second long: 1,000 of them in 1,000 rounds, but one every 10 s in longer runs."""
    estimator = Estimator(["cpu"])
    config = tiny_config("supervised", data__num_clients=1, federation__num_rounds=1000)
    longer = tiny_config("supervised", data__num_clients=1, federation__num_rounds=2000)
    monkeypatch.setattr(Estimator, "_measure", lambda *_: parts(server=0.25, checkpoint=1.0))
    assert estimator(Experiment(config)).train_seconds == pytest.approx(1000 * 0.25 + 1000)
    assert estimator(Experiment(longer)).train_seconds == pytest.approx(2000 * 0.25 + 1 + 500 / 10)


def test_stand_ins_count_images_and_leave_the_net_as_it_was() -> None:
    setup = tiny_setup(tiny_config("byol"))
    net = setup.make_net().eval()
    images = torch.rand(5, *setup.spec.image_shape)
    with torch.no_grad():
        expected = net(images, "encoder", "projector")
        stand_ins = estimate._StandIns(setup)
        with stand_ins.of(net):
            features = net(images[:3], "encoder")
            assert net(images, *setup.needs.encoders.values()).shape[0] == 5
            with torch.enable_grad():
                net(images[:2], "encoder", "projector").sum().backward()
            stand_ins.active = False  # as in a step
            assert torch.equal(net(images, "encoder", "projector"), expected)
        assert features.shape == net(images[:3], "encoder").shape
        assert (stand_ins.images, stand_ins.trained) == (3 + 5, 2)
        assert torch.equal(net(images, "encoder", "projector"), expected)
        with pytest.raises(estimate._TooLong), estimate._StandIns(setup, 0.0).of(net):
            net(images, "encoder")


def test_fine_tuning_is_counted_and_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 test images in each of its two shares; 100 images forward and back cost 300."""
    monkeypatch.setattr(sgd, "finetune", None)  # cannot be called
    monkeypatch.setattr(estimate, "finetuned_images", lambda _: 100)
    monkeypatch.setattr(estimate, "evaluate", lambda *_, **__: None)
    experiment = Experiment(tiny_config("simclr", evaluation__protocols=["finetune"]))
    assert len(experiment.dataset.test_images) == 40
    seconds = Estimator(["cpu"])._evaluation_seconds(experiment, 0.5)
    assert seconds == pytest.approx(0.5 * (3 * 100 + 2 * 40), rel=0.2)


@pytest.mark.parametrize(("methods", "images"), [(1, 5), (10, 2)])
def test_a_step_too_long_is_measured_with_fewer_images(
    methods: int, images: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 views, forward and back at 0.045 s an image: 5 of 16 in half of 3 s, or 2, the fewest."""
    seen: list[int] = []

    class Runner(estimate._TimedRunner):
        def step(self, batch: Any, client: Any, optimizer: Any) -> Any:
            seen.append(len(batch.labels))
            return super().step(batch, client, optimizer)

    monkeypatch.setattr(estimate, "_TimedRunner", Runner)
    monkeypatch.setattr(Estimator, "_image_seconds", lambda *_: 0.045)
    config = tiny_config("simclr", client__batch_size=16, data__num_clients=2)
    assert Estimator(["cpu"], methods=methods)(Experiment(config)).step_seconds > 0
    assert {*seen} == {images}


@pytest.mark.parametrize(("rounds", "measured"), [(2, [10, 80]), (1000, [10])])
def test_an_evaluation_short_beside_training_is_measured_by_an_eighth(
    rounds: int, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two passes of the encoder, and between them 3 passes of half of the clients a round."""
    seen: list[int] = []

    def evaluated(part: Any, binding: Any, *_: Any, **__: Any) -> None:
        seen.append(len(part.images))
        binding.net(torch.zeros(2 * len(part.images), *part.spec.image_shape), "encoder")

    monkeypatch.setattr(estimate, "evaluate", evaluated)
    config = tiny_config("simclr", federation__num_rounds=rounds, federation__participation=0.5)
    experiment = Experiment(config)
    assert len(experiment.setup.images) == 80
    assert Estimator(["cpu"])._evaluation_seconds(experiment, 1.0) > 0
    assert seen == measured


def test_compiling_belongs_to_the_start_and_not_to_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two steps of 10 s in which a net is compiled, then steps of 0.5 s: 2 * 9.5 s at the start."""
    now, start = [0.0], 3.0
    clock = SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: now[0])

    class Runner(estimate._TimedRunner):
        def step(self, batch: Any, client: Any, optimizer: Any) -> Any:
            self._compiled = None
            now[0] += 10.0 if len(self.steps) < 2 else 0.5
            return super().step(batch, client, optimizer)

    monkeypatch.setattr(estimate, "time", clock)
    monkeypatch.setattr(estimate, "start_seconds", lambda: start)
    monkeypatch.setattr(estimate, "_TimedRunner", Runner)
    monkeypatch.setattr(Estimator, "_image_seconds", lambda *_: 1e-4)
    config = tiny_config("simclr", client__compile=True, client__batch_size=8, data__num_clients=2)
    estimated = Estimator(["cpu"])(Experiment(config))
    assert estimated.step_seconds == pytest.approx(0.5)
    assert estimated.start_seconds == pytest.approx(start + 2 * 9.5)


def parts(**seconds: float) -> estimate._Parts:
    return estimate._Parts(**{"evaluation": 1.0, **seconds})  # type: ignore[arg-type]


@pytest.mark.parametrize("deadline", [False, True])
def test_few_shot_takes_time_by_the_images_that_its_probes_see(
    deadline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside 1 s for all else, of 3 s for 30 images, or of 3 s for 10 and cut off after these."""
    now, estimator = [0.0], Estimator(["cpu"])
    monkeypatch.setattr(estimator, "_clock", lambda: now[0])
    if deadline:
        monkeypatch.setattr(estimate, "_TOO_LONG", -1.0)

    def evaluated(*_: Any, on_step: Any) -> None:
        now[0] += 1
        on_step("few-shot", 0, 30)
        for done in (10, 30):
            now[0] += 3 if deadline else 1.5
            on_step("few-shot", done, 30)
        assert not deadline

    monkeypatch.setattr(estimate, "evaluate", evaluated)
    experiment = Experiment(tiny_config("simclr", evaluation__protocols=["few-shot"]))
    setup = experiment.setup
    images = few_shot_images(setup.dataset.train_labels[setup.probed], setup.dataset.num_classes)
    per_image = 3 / 10 if deadline else 3 / 30
    seconds = estimator._evaluation_seconds(experiment, image=0.0)
    assert seconds == pytest.approx(1 + images * per_image)
