"""Contract tests of plugins, and tiny runs for tests.

The whole test module of a method (pytest collects the inherited tests; nothing else is needed):

    from fedbench.plugin import MethodContract

    class TestMyMethod(MethodContract):
        spec = "my-method"

`BackboneContract` and `ObjectiveContract` with their `name` are those of encoders and objectives.
fedbench runs the same classes over its whole registry. Each test trains a tiny network on a handful
of handwritten digits for a few rounds on one thread; all of them together take seconds.
"""

import atexit
import itertools
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbench.bench.config import ModelConfig, RunConfig
from fedbench.bench.data.batches import Batch, SecondBatches
from fedbench.bench.data.partition import Partition
from fedbench.bench.evaluation.collapse import CollapseMonitor, movement
from fedbench.bench.evaluation.objectives.accumulator import Accumulator
from fedbench.bench.evaluation.objectives.scores import objectives
from fedbench.bench.execution.audit import audit
from fedbench.bench.execution.engines import Where
from fedbench.bench.execution.execute import execute
from fedbench.bench.execution.guarantees import needed_one_by_one
from fedbench.bench.execution.run import store_run
from fedbench.bench.experiment.experiment import Experiment, Origin
from fedbench.bench.experiment.fields import Fields
from fedbench.bench.method import (
    Client,
    Labels,
    Loss,
    Method,
    Net,
    RoundPlan,
    Server,
    Sharing,
    Upload,
    registry,
)
from fedbench.bench.method.sharing import SENT_DOWN
from fedbench.bench.nn.backbones import Backbone, make_backbone
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.seeding import generator, single_thread
from fedbench.bench.training.client import ClientRunner, Task
from fedbench.bench.training.lanes import LaneExecutor
from fedbench.bench.training.ledger import Ledger
from fedbench.bench.training.personal import PersonalStore
from fedbench.bench.training.setup import Setup, least_batch
from fedbench.bench.training.trainer import Trainer
from fedbench.bench.tuning.spaces.space import read_space, space_file

_CPU = torch.device("cpu")
_TINY: Mapping[str, Any] = {
    "data.train_subset": 80,
    "data.test_subset": 40,
    "data.num_clients": 4,
    "data.partition": "iid",
    "model.width": 4,
    "client.lr": 0.05,
    "federation.num_rounds": 2,
}


class MethodContract:
    """Tests that every method must pass; set `spec`, and `fields` if defaults are too large.

    Attributes:
        spec: the method spec under test.
        fields: dotted configuration values with `__` for the dot, for example
            `{"method__memory_size": 32}`.
    """

    spec: str = ""
    fields: Mapping[str, Any] = MappingProxyType({})

    def test_the_loss_reaches_every_trained_tensor(self) -> None:
        """The loss is a finite scalar whose gradient reaches each tensor that clients train."""
        for norm, labels in itertools.product(("group", "batch"), self._label_fractions()):
            work = Local(self._setup(model__norm=norm, **labels))
            trained = {n: value for n, value in work.net.named_parameters() if value.requires_grad}
            for value in trained.values():
                if not bool(value.any()):
                    value.data.fill_(0.01)  # a factor of zeros hides the other one
            for batch in work.batches(every_phase=True):
                out = work.loss(batch)
                assert out.total.shape == ()
                assert bool(out.total.isfinite())
                assert all(value.numel() == 1 for value in out.parts.values())
                for features in out.features:
                    assert features.shape[0] == len(batch.labels)
                    assert features.dim() == 2
                out.total.backward()
            for name, value in trained.items():
                assert value.grad is not None
                assert bool(value.grad.isfinite().all()), name
                assert bool(value.grad.any()), f"no gradient on {name!r}"

    def test_the_loss_is_pure(self) -> None:
        """Apart from batch-norm statistics, computing the loss changes nothing in the net."""
        for norm in ("group", "batch"):
            work = Local(self._setup(model__norm=norm))
            net = work.runner.binding.net
            before = {name: value.clone() for name, value in net.state_dict().items()}
            for batch in work.batches():
                work.loss(batch).total.backward()
            for name, value in net.state_dict().items():
                if not name.endswith(("running_mean", "running_var")):
                    assert torch.equal(value, before[name]), f"loss() changes {name!r}"

    def test_the_sharing_table_is_complete(self) -> None:
        """Each tensor meets a pattern, each pattern a tensor, under all norms."""
        norms = ("group", "batch", "batch-local")
        for norm, labels in itertools.product(norms, self._label_fractions()):
            setup = self._setup(model__norm=norm, **labels)
            net = setup.make_net()
            layout = setup.layout(net)
            names = [slot.name for slot in (*layout.server, *layout.personal)]
            assert sorted([*names, *layout.frozen]) == sorted(net.state_dict())

    def test_private_tensors_stay_where_they_are(self, tmp_path: Path) -> None:
        """Personal tensors and tensors that only the server holds are never uploaded.

        Neither are frozen ones, which training leaves as they are.
        """
        cases: list[dict[str, Any]] = [{"model__norm": norm} for norm in ("group", "batch-local")]
        with suppress(ConfigError):  # of an add-on that freezes by itself, or a lone encoder
            frozen: dict[str, Any] = {"model__norm": "batch", "model__trainable": "heads"}
            setup = self._setup(**frozen)
            setup.layout(setup.make_net())
            cases.append(frozen)
        for index, values in enumerate(cases):
            work = Local(self._setup(**values), tmp_path / str(index))
            start = work.setup.make_net()
            layout, vector = work.runner.layout, work.runner.binding.server.data.clone()
            upload = torch.full((layout.upload_size,), torch.nan)
            trained = work.runner.run(Task(work.client.id, 0, RoundPlan(1)), vector, upload)
            sent = Ledger.of_client(layout)
            shared = [slot for slot in layout.server if slot.rule in SENT_DOWN]
            assert sent.bytes_down == sum(4 * (slot.stop - slot.start) for slot in shared)
            assert layout.upload_size * 4 == sent.bytes_up
            assert not bool(upload.isnan().any())
            server_only = [slot for slot in layout.server if slot.rule is Sharing.SERVER_ONLY]
            private = work.runner.binding.named([*server_only, *layout.personal])
            for (name, extra), (other, value) in itertools.product(
                trained.extras.items(), private.items()
            ):
                same = value.numel() > 1 and torch.equal(extra.flatten(), value.flatten())
                assert not same, f"extra {name!r} holds the private tensor {other!r}"
            for name in layout.frozen:
                kept = torch.equal(work.runner.binding.net.tensor(name), start.tensor(name))
                assert kept, f"training changes the frozen tensor {name!r}"

    def test_what_reveals_single_images_is_declared(self) -> None:
        """No upload holds single samples, unless `needs().extras` says so."""
        audit(self._setup())

    def test_declared_sums_are_all_that_the_server_needs(self, tmp_path: Path) -> None:
        """The server's step needs sums only, if that is what `needs()` and the table declare."""
        setup = self._setup()
        if needed_one_by_one(setup.method, setup.config.server):
            return
        runner = ClientRunner(setup, _CPU, tmp_path)
        vector = runner.binding.server.data.clone()
        last = setup.needs.preparatory_rounds + setup.config.federation.num_rounds - 1
        uploads = []
        for k in range(setup.partition.num_clients):
            out = torch.empty(runner.layout.upload_size)
            trained = runner.run(Task(k, last, RoundPlan(1)), vector, out)
            uploads.append(Upload(k, trained.num_examples, trained.num_steps, trained.extras))
        results = []
        for given in (uploads, _summed(uploads)):
            binding = setup.bound()
            before = dict(binding.net.state_dict())
            server = Server(last, generator(0, "server"), {}, before=before)
            setup.method.server_step(binding.net, given, server)
            results.append(binding.server.data)
        torch.testing.assert_close(*results)

    def test_hidden_labels_change_nothing(self, tmp_path: Path) -> None:
        """Other labels in place of those that the method may not see give the same bits."""
        for index, fraction in enumerate(self._label_fractions()):
            setup = self._setup(**fraction)
            hidden = setup.labels < 0
            assert hidden.all() or setup.needs.labels is not Labels.NONE
            labels = np.array(setup.dataset.train_labels)
            labels[hidden] = (labels[hidden] + 1 + np.arange(hidden.sum()) % 8) % 10
            other = self._setup(train_labels=labels, **fraction)
            runs = [
                train(run, tmp_path / f"{index}{name}")
                for run, name in ((setup, "a"), (other, "b"))
            ]
            assert (setup.labels == other.labels).all()
            assert_same_run(*runs)

    def test_chance_is_stated_for_every_logged_term(self, tmp_path: Path) -> None:
        """If the method states what a net without information reaches, it leaves no term out."""
        setup = self._setup()
        if not (stated := setup.method.chance(setup.config)):
            return
        history = train(setup, tmp_path).history
        logged = {"loss", *(name for record in history for name in record.parts)}
        named = {name for term in stated for name in term.split(" - ")}
        assert logged <= named, f"chance() lacks {sorted(logged - named)}"
        for term, value in stated.items():
            if not isinstance(value, str):
                assert np.isfinite(value)
                assert {*term.split(" - ")} <= logged, f"no run logs {term!r}"

    def test_an_interrupted_run_ends_with_the_same_bits(self, tmp_path: Path) -> None:
        """A run that pauses is at its pause, and ends, where another that never pauses is.

        A run of another seed ends elsewhere.
        """
        values: dict[str, Any] = {
            "server__optimizer": "adam",  # with a state of its own, which averaging lacks
            "federation__participation": 0.5,
            "federation__num_rounds": 4,
        }
        setup = self._setup(**values)
        passed: list[Tensor] = []
        whole = train(setup, tmp_path / "whole", passed=passed)
        folder = tmp_path / "cut"
        paused = train(setup, folder, rounds=2)
        assert torch.equal(all_tensors(paused), passed[paused.rounds_done - 1])
        resumed = train(self._setup(**values), folder)
        assert resumed.resumes == 1
        assert_same_run(whole, resumed)
        other = train(self._setup(**values, seed=1), tmp_path / "other", rounds=1)
        assert not torch.equal(all_tensors(other), passed[0])

    def test_fields_are_checked_and_survive_a_round_trip(self) -> None:
        """Fields survive a round trip through JSON; bad names and values are refused by name."""
        method = self._method()
        written = registry.dump(method)
        assert registry.dump(registry.create(self.spec, written)) == written
        assert registry.create(self.spec, written) == method
        _refused(self.spec, {"method.no_such_field": 1}, "no_such_field")
        for name, info in Fields.of(self.spec).infos.items():
            if not name.startswith("method."):
                continue
            assert info.description, f"{name} has no description"
            for value in _out_of_range(info.metadata):
                _refused(self.spec, {name: value}, name)

    def test_its_search_space_has_fields_that_are_there(self) -> None:
        """`NAME.yaml` names fields of the method and of the configuration, and values they take."""
        fields = Fields.of(self.spec)
        for file in filter(None, (space_file(part.name) for part in fields.parts)):
            read_space(file, fields)

    def test_clients_of_any_size_work(self, tmp_path: Path) -> None:
        """Clients with 0, 1 and 2 images train or sit out without harm, also one at a time."""
        shares = [[0], [1, 2], [], list(range(3, 30))]
        for norm, participation in (("group", 1.0), ("batch", 1.0), ("group", 0.25)):
            setup = self._setup(
                shares=shares, model__norm=norm, federation__participation=participation
            )
            trainer = train(setup, tmp_path / f"{norm}-{participation}")
            assert bool(all_tensors(trainer).isfinite().all())
            largest = 3 if participation == 1 else 1
            plans = [setup.method.plan_round(r.round_index, RoundPlan(1)) for r in trainer.history]
            for record, plan in zip(trainer.history, plans, strict=True):
                assert plan.cohort != "sampled" or record.cohort_size == largest

    def test_clients_without_a_step_do_not_stop_the_others(self, tmp_path: Path) -> None:
        """Clients with images, but fewer than a batch, leave the training to those with more."""
        setup = self._setup(
            shares=[[*range(32)], [32, 33, 34], [*range(35, 67)], [67]],
            model__norm="group",
            client__batch_size=8,
            client__keep_last_batch=False,
        )
        trainer = train(setup, tmp_path)
        assert bool(all_tensors(trainer).isfinite().all())
        assert movement(trainer) > 0
        assert setup.needs.pooled or trainer.history[-1].idle_clients == 2

    def test_lanes_change_no_bits(self, tmp_path: Path) -> None:
        """Clients trained in turns by replayed steps end like clients one after another."""
        # Full batches alone, too few images for one, a rest, no image, one image.
        sizes = (16, 4, 33, 0, 1)
        ends = itertools.accumulate(sizes)
        setup = self._setup(
            shares=[list(range(e - n, e)) for n, e in zip(sizes, ends, strict=True)],
            data__num_clients=len(sizes),
            model__norm="batch",
            client__batch_size=8,
            client__keep_last_batch=True,
        )
        alone = train(setup, tmp_path / "alone")
        assert_same_run(alone, train(setup, tmp_path / "lanes", lanes=3))

    def test_features_do_not_depend_on_the_batch(self) -> None:
        """In eval mode, `encode` and `embed` give each image a row that others do not change."""
        setup = self._setup(model__norm="batch")
        net = setup.make_net().eval()
        images = torch.randn(6, *setup.spec.image_shape, generator=generator(0, "images"))
        with single_thread(), torch.inference_mode():
            for run in (setup.method.encode, setup.method.embed):
                rows = run(net, images)
                assert rows.dim() == 2
                assert len(rows) == 6
                torch.testing.assert_close(run(net, images[2:3]), rows[2:3])

    def _setup(
        self,
        *,
        shares: Sequence[Sequence[int]] | None = None,
        train_labels: np.ndarray | None = None,
        **values: Any,
    ) -> Setup:
        labelled = self._method().needs().labels is not Labels.NONE
        fraction = {"data__label_fraction": 0.5} if labelled else {}
        config = tiny_config(self.spec, **{**fraction, **self.fields, **values})
        return tiny_setup(config, shares=shares, train_labels=train_labels)

    def _method(self) -> Method:
        config = tiny_config(self.spec, **self.fields)
        return registry.create(config.spec, config.method)

    def _label_fractions(self) -> list[dict[str, Any]]:
        """Label fractions that the method distinguishes, as fields of a configuration."""
        optional = self._method().needs().labels is Labels.OPTIONAL
        return [{}, {"data__label_fraction": 0.0}] if optional else [{}]


class BackboneContract:
    """Tests that every encoder must pass."""

    name: str = ""  # the value of `model.backbone`
    width: int | None = None  # `model.width`; None = the encoder's own

    def test_it_encodes_images_of_several_sizes(self) -> None:
        """Features are (B, dim) and finite; the loss reaches each parameter."""
        for channels, side in ((1, 8), (3, 32)):
            for norm in ("group", "batch"):
                backbone = self._backbone(channels, side, norm=norm)
                encoder = backbone.make()
                images = torch.randn(4, channels, side, side, generator=generator(0, "images"))
                features = encoder(images)
                assert features.shape == (4, backbone.dim)
                features.square().sum().backward()
                for name, parameter in encoder.named_parameters():
                    assert parameter.grad is not None, name
                    assert bool(parameter.grad.isfinite().all()), name

    def test_norms_are_those_of_the_configuration(self) -> None:
        """With group norm no image changes another one's features, and nothing is counted."""
        encoder = self._backbone(3, 32, norm="group").make()
        images = torch.randn(4, 3, 32, 32, generator=generator(0, "images"))
        before = {name: value.clone() for name, value in encoder.state_dict().items()}
        torch.testing.assert_close(encoder(images)[:2], encoder(images[:2]), atol=1e-4, rtol=1e-3)
        for name, value in encoder.state_dict().items():
            assert torch.equal(value, before[name]), f"a pass changes {name!r}"

    def test_weights_follow_from_the_seed(self) -> None:
        """Two encoders of one seed have the same bits, those of two seeds have not."""
        backbone = self._backbone(3, 32)
        weights = [
            torch.cat([p.flatten() for p in replace(backbone, seed=seed).make().parameters()])
            for seed in (0, 0, 1)
        ]
        assert torch.equal(weights[0], weights[1])
        assert not torch.equal(weights[0], weights[2])

    def test_a_run_ends_the_same_in_lanes(self, tmp_path: Path) -> None:
        """SimCLR trains it, with the same bits one client after another and in two lanes."""
        given = {"model__backbone": self.name, "model__width": self.width}
        setup = tiny_setup(tiny_config("simclr", **given))
        alone, lanes = (train(setup, tmp_path / str(n), rounds=1, lanes=n) for n in (None, 2))
        assert_same_run(alone, lanes)

    def _backbone(self, channels: int, side: int, *, norm: str = "group") -> Backbone:
        values = {"backbone": self.name, "width": self.width, "norm": norm}
        config = ModelConfig.model_validate(values)
        return make_backbone(config, channels, (side, side))


class ObjectiveContract:
    """Tests that every objective must pass."""

    name: str = ""  # as in `evaluation.objectives`

    def test_it_is_a_number_of_the_pooled_images(self) -> None:
        """The value is finite, and the same however images are shared among clients."""
        objective = objectives()[self.name]
        clean, view = (torch.randn(96, 16, generator=generator(0, n)) for n in ("clean", "view"))
        parts = clean, clean + view / 2, torch.randn(96, 4, 16, generator=generator(0, "turned"))
        values = []
        for sizes in ((96,), (10, 1, 85)):
            sums = Accumulator([objective], len(sizes))
            for client in zip(*(part.split(sizes) for part in parts), strict=True):
                sums.add(*client)
            values.append(sums.values()[objective.metric.name])
        assert math.isfinite(values[0])
        assert math.isclose(*values, rel_tol=1e-6, abs_tol=1e-9)

    def test_collapsed_projections_give_no_nan(self) -> None:
        """Equal projections have a finite value or none."""
        objective = objectives()[self.name]
        sums = Accumulator([objective], 1)
        sums.add(torch.ones(8, 16), torch.ones(8, 16), torch.ones(8, 4, 16))
        assert all(map(math.isfinite, sums.values().values()))


def tiny_config(spec: str, /, **values: Any) -> RunConfig:
    """Return a configuration that trains in a fraction of a second: 80 digits, 4 clients, 2 rounds.

    Fields of the method that end in `_dim` become 16, in `_steps` 5. In the names of `values`, `__`
    stands for the dot, as in `client__lr=0.1`.
    """
    narrow = {
        name: value
        for name, info in Fields.of(spec).infos.items()
        for end, value in (("_dim", 16), ("_steps", 5))
        if name.startswith("method.") and name.endswith(end) and info.annotation is int
    }
    given = {name.replace("__", "."): value for name, value in values.items()}
    return Fields.of(spec).build({**_TINY, **narrow, **given})


def tiny_setup(
    config: RunConfig,
    *,
    shares: Sequence[Sequence[int]] | None = None,
    train_labels: np.ndarray | None = None,
) -> Setup:
    """Set a run up, as it is before its first round.

    `shares` are each client's positions of training images, in place of the configured partition;
    `train_labels`, (N,), stand in for the data set's, and leave the partition as it is.
    """
    experiment = Experiment(config)
    dataset, partition = experiment.dataset, experiment.partition
    if shares is not None:
        indices = np.array([i for share in shares for i in sorted(share)], dtype=np.int64)
        offsets = np.cumsum([0, *map(len, shares)])
        size, classes = len(dataset.train_labels), dataset.num_classes
        partition = Partition("iid", 1.0, 0, size, classes, indices, offsets)
    if train_labels is not None:
        dataset = replace(dataset, train_labels=train_labels)
    return Setup.of(config, dataset, partition, experiment.method)


def new_folder() -> Path:
    """Return a new folder for an example; it is deleted with the process."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return Path(folder.name)


@cache
def demo_store() -> Store:
    """Return a store with a tiny run of SimCLR, made once and deleted with the process."""
    store, experiment = Store(new_folder()), Experiment(tiny_config("simclr"), Origin("demo"))
    row = execute(experiment, Where(store.cell_dir(experiment.ids.row)))
    store_run(store, row.model_copy(update={"git_sha": None}))  # as from a wheel
    return store


def loss_of(method: Method, net: Net, batch: Batch, client: Client) -> Loss:
    """Return the loss of a batch with what the method draws for it, as in local training."""
    drawn = replace(batch, draws=method.draws(len(batch.labels), client))
    return method.loss(net, drawn, client)


def train(
    setup: Setup,
    folder: Path,
    *,
    rounds: int | None = None,
    lanes: int | None = None,
    passed: list[Tensor] | None = None,
) -> Trainer:
    """Train in this process, from the folder's last checkpoint, until so many `rounds` are done.

    `lanes` clients train at a time (`bench.training.lanes`); `passed` takes `all_tensors` after
    every round.
    """
    with single_thread():
        monitor = CollapseMonitor(setup, _CPU, PersonalStore(folder / "clients"))
        trainer = Trainer(setup, folder, "0" * 20, _CPU, monitor)
        executor = LaneExecutor(setup, _CPU, folder / "clients", lanes)
        for _ in trainer.rounds(executor, until=rounds):
            if passed is not None:
                passed.append(all_tensors(trainer))
    return trainer


def all_tensors(trainer: Trainer) -> Tensor:
    """Return the server's vector and then every client's personal tensors, as one vector."""
    store = PersonalStore(trainer.folder / "clients")
    personal = [store.load(k, r) for k, r in sorted(trainer.personal_rounds.items())]
    return torch.cat([trainer.vector, *personal])


def assert_same_run(a: Trainer, b: Trainer) -> None:
    """Assert that two runs have the same bits: weights, personal tensors, traffic and histories."""
    assert a.personal_rounds == b.personal_rounds
    assert torch.equal(all_tensors(a), all_tensors(b))
    assert a.ledger == b.ledger
    histories = [[replace(record, seconds=0.0) for record in run.history] for run in (a, b)]
    assert histories[0] == histories[1]


class Local:
    """The largest client of a run, ready to compute losses.

    Attributes:
        setup, method, net: the run, its method, and the net as the client received it.
        data, client: the client's images, and the client, in round 0.
        server: what `Method.server_step` is given beside the net.
    """

    def __init__(self, setup: Setup, folder: Path = Path()) -> None:
        self.setup, self.method = setup, setup.method
        self.runner = ClientRunner(setup, _CPU, folder)
        self.net = self.runner.binding.net.train()
        self.client = Client(int(setup.partition.sizes.argmax()), 0, generator(0, "client"))
        self.data = setup.client_data(self.client.id, _CPU)
        self.server = Server(0, generator(0, "server"), {})

    @property
    def batch(self) -> Batch:
        """The first batch, with what the method draws for it."""
        batch = next(self.batches())
        return replace(batch, draws=self.method.draws(len(batch.labels), self.client))

    def batches(self, *, every_phase: bool = False) -> Iterator[Batch]:
        """Yield batches of the first round; with `every_phase`, of those that begin phases too."""
        method, net = self.setup.method, self.runner.binding.net.train()
        needs = self.setup.needs
        self.runner.binding.zero_grad()
        first = needs.preparatory_rounds
        later = {first, first + max(needs.least_rounds, 1) - 1}
        for index in {0} | later if every_phase else {0}:
            self.client = replace(self.client, round=index)
            data = self.setup.client_data(self.client.id, _CPU)
            if needs.pre_round:
                with torch.no_grad():
                    answers = method.pre_round(net.eval(), data, self.client)
                self.client = replace(self.client, answers=answers)
            chosen = method.before_local(net.train(), data, self.client)
            others = SecondBatches(chosen.images, needs.second_batch, generator(0, "companions"))
            for batch in chosen.batches(
                needs.views,
                2,
                16,
                keep_last=True,
                min_batch=least_batch(self.setup.config, needs),
                order=generator(0, "order"),
                augment=generator(0, "views"),
            ):
                more = others.next(len(batch.labels)) if needs.second_batch else ()
                yield replace(batch, second_batch=more)

    def loss(self, batch: Batch) -> Loss:
        """Return the loss of a batch with what the method draws for it."""
        return loss_of(self.method, self.net, batch, self.client)


def example(spec: str, /, **values: Any) -> Local:
    """Return a client of a tiny run, on which the hooks of its method can be called.

    >>> of = example("simclr")
    >>> of.method.loss(of.net, of.batch, of.client).total.shape
    torch.Size([])
    """
    return Local(tiny_setup(tiny_config(spec, **values)))


def _refused(spec: str, flat: Mapping[str, Any], name: str) -> None:
    message = ""
    try:
        Fields.of(spec).build(flat)
    except ConfigError as err:
        message = str(err)
    assert name in message, f"{dict(flat)} was accepted, or the error does not name {name!r}"


def _summed(uploads: Sequence[Upload]) -> list[Upload]:
    """Move the sums over clients into the first upload, and zeros into the others."""
    names = uploads[0].extras
    sums = {name: torch.stack([u.extras[name] for u in uploads]).sum(dim=0) for name in names}
    zeros = {name: torch.zeros_like(value) for name, value in sums.items()}
    first = replace(uploads[0], num_examples=sum(u.num_examples for u in uploads), extras=sums)
    return [first, *(replace(u, num_examples=0, extras=zeros) for u in uploads[1:])]


def _out_of_range(metadata: Sequence[Any]) -> Iterator[float]:
    """Yield values that the constraints of a field forbid."""
    for rule in metadata:
        for name, shift in {"gt": 0, "lt": 0, "ge": -1, "le": 1}.items():
            if isinstance(bound := getattr(rule, name, None), int | float):
                yield bound + shift
