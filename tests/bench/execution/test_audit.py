"""The audit refuses plugins that leak, by name, and accepts those that declare what they send."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from pydantic import Field
from torch import Tensor, nn

from fedbench.bench.data.batches import Batch, ClientData
from fedbench.bench.execution.audit import audit, rehearse
from fedbench.bench.execution.engines import Where
from fedbench.bench.execution.execute import execute, prepared
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.method import Client, DataSpec, Extra, Loss, Needs, Net, Sharing, registry
from fedbench.bench.nn.backbones import Backbone
from fedbench.bench.system import first_use
from fedbench.bench.system.errors import PluginError
from fedbench.bench.testing import tiny_config, tiny_setup, train
from fedbench.bench.training.setup import Setup
from fedbench.methods.simclr import SimCLR


class Sends(SimCLR):
    """Base of the plugins of this file, which declare `declares` about their uploads."""

    declares: dict[str, bool] = Field(default_factory=dict)

    def needs(self) -> Needs:
        extras = {name: Extra(per_sample=single) for name, single in self.declares.items()}
        return dataclasses.replace(super().needs(), extras=extras)


def of_rows(name: str, make: Callable[[Tensor], Tensor]) -> type[Sends]:
    """Return a plugin that sends what `make` makes of the features (n, D) of all images."""

    class OfRows(Sends):
        def after_local(self, net: Net, data: ClientData, client: Client) -> Mapping[str, Tensor]:
            rows = [net(x, "encoder") for x in data.ordered("plain", client.rng)]
            return {name: make(torch.cat(rows))}

    return OfRows


LATENTS = of_rows("latents", lambda rows: rows)
MEAN = of_rows("mean", lambda rows: rows.mean(dim=0))
CENTRED = of_rows("centred", lambda rows: rows - rows.mean(dim=0))
CLASSES = of_rows("classes", lambda rows: rows.argmax(dim=1))  # that rarely change


class Labels(Sends):
    """Sends the sum of each image's pixels in random order, padded to a fixed length."""

    def after_local(self, net: Net, data: ClientData, client: Client) -> Mapping[str, Tensor]:
        out = torch.zeros(100)
        some = torch.randperm(len(data), generator=client.rng)[:100]
        out[: len(some)] = data.images[some].float().sum(dim=(1, 2, 3))
        return {"sums": out}


class Memory(Sends):
    """Keeps single projections in a buffer that is averaged with everything else."""

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        net = super().build(backbone, data)
        net.register_buffer("memory", torch.zeros(128, 16))
        return net

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        out = super().loss(net, batch, client)
        rows = net(out.features[0], "projector")
        return dataclasses.replace(out, keep={"rows": rows.detach()})

    def after_step(self, net: Net, out: Loss, client: Client) -> None:
        rows, memory = out.keep["rows"], net.tensor("memory")
        memory.copy_(torch.cat([rows, memory])[: len(memory)])


class PersonalMemory(Memory):
    """Has personal tensors as well, so that clients have files on disk."""

    def sharing(self) -> Mapping[str, Sharing]:
        return {"projector.*": Sharing.PERSONAL, "*": Sharing.AVERAGED}


class Split(Sends):
    """Computes through a part that only the server has."""

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        net = super().build(backbone, data)
        net["far"] = nn.Linear(backbone.dim, 16)
        return net

    def sharing(self) -> Mapping[str, Sharing]:
        return {
            "far.*": Sharing.SERVER_ONLY,
            "projector.*": Sharing.PERSONAL,
            "*": Sharing.AVERAGED,
        }

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        h = net(batch.views[0], "encoder")
        return Loss(net(h, "far").square().mean(), features=(h,))


def setup_of(cls: type[Sends], **declares: bool) -> Setup:
    method = cls(hidden_dim=16, projection_dim=16, declares=declares)
    return dataclasses.replace(tiny_setup(tiny_config("simclr")), method=method)


@pytest.mark.parametrize(("cls", "name"), [(LATENTS, "latents"), (Labels, "sums"), (MEAN, "mean")])
def test_an_undeclared_extra_stops_the_run_by_name(
    cls: type[Sends], name: str, tmp_path: Path
) -> None:
    with pytest.raises(PluginError, match=f"'{name}'"):
        train(setup_of(cls), tmp_path)
    train(setup_of(cls, **{name: True}), tmp_path)


@pytest.mark.parametrize(
    ("cls", "name"),
    [(LATENTS, "latents"), (Labels, "sums"), (Memory, "memory"), (PersonalMemory, "memory")],
)
def test_single_samples_are_found_under_any_name_and_rule(cls: type[Sends], name: str) -> None:
    counts = rehearse(setup_of(cls, **{name: False}))[0]
    assert counts.pop(name) == 8  # every image has separate numbers
    assert set(counts.values()) == {0}  # and none in a weight
    match = f"method 'simclr' uploads '{name}', in which 8 of 8 images .* single samples"
    with pytest.raises(PluginError, match=match):
        audit(setup_of(cls, **{name: False}))
    audit(setup_of(cls, **{name: True}))


def test_a_single_class_is_rehearsed_too() -> None:
    setup = tiny_setup(tiny_config("supervised"))
    one = dataclasses.replace(setup, spec=dataclasses.replace(setup.spec, num_classes=1))
    assert set(rehearse(one)[0].values()) == {0}


@pytest.mark.parametrize(("cls", "name"), [(CENTRED, "centred"), (CLASSES, "classes")])
def test_a_row_for_each_image_is_found_by_its_length(cls: type[Sends], name: str) -> None:
    match = f"uploads '{name}', .*(length follows the number of images|numbers of their own)"
    with pytest.raises(PluginError, match=match):
        audit(setup_of(cls, **{name: False}))
    audit(setup_of(cls, **{name: True}))


def test_nothing_is_compiled_or_compared_for_a_rehearsal() -> None:
    """What is compared in it would not be compared in the run."""
    first_use.begin_run()
    audit(tiny_setup(tiny_config("simclr", client__compile=True)))
    assert not first_use.agreed()


def test_aggregates_pass() -> None:
    assert set(rehearse(setup_of(MEAN, mean=False))[0].values()) == {0}
    audit(setup_of(MEAN, mean=False))


def test_a_round_with_statistics_before_it_is_rehearsed_as_a_whole() -> None:
    """Without what the server makes of the statistics, this loss would divide by zero."""
    fields = {"method__statistics": "global", "method__hidden_dim": 2048}
    setup = tiny_setup(tiny_config("lejepa", **fields))
    assert set(rehearse(setup)[0].values()) == {0}
    audit(setup)


@pytest.mark.parametrize(
    ("spec", "field", "value"),
    [
        *(("orchestra", "representations", v) for v in ("memory", "private", "random")),
        ("orchestra", "strict_k_anonymity", True),
        *(("pfedae", "gradient", value) for value in ("split", "ste", "ship")),
        ("byol", "target", "personal"),
    ],
)
def test_what_ships_declares_its_uploads_under_every_setting(
    spec: str, field: str, value: object
) -> None:
    audit(tiny_setup(tiny_config(spec, **{f"method__{field}": value})))


def test_activations_are_single_samples(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="activations"):
        train(setup_of(Split), tmp_path / "a")
    with pytest.raises(PluginError, match="activations"):
        train(setup_of(Split, activations=False), tmp_path / "b")
    trainer = train(setup_of(Split, activations=True), tmp_path / "c")
    images, dim = 80 * 2, 4 * 2**2  # 2 rounds; 16 features: up, and their gradients back
    flow = trainer.ledger.flows["up"]["activations"]
    assert flow.numbers == images * (dim + 16)  # features, and gradients of what came down
    assert flow.revealing == flow.messages == 2 * 4
    assert trainer.ledger.smallest == 1


def test_a_declared_group_size_must_be_sent(tmp_path: Path) -> None:
    class Sizeless(MEAN):  # type: ignore[misc, valid-type]
        def needs(self) -> Needs:
            extra = {"mean": Extra(group_size="least"), "least": Extra()}
            return dataclasses.replace(SimCLR.needs(self), extras=extra)

    with pytest.raises(PluginError, match=r"'mean'.*'least'"):
        train(setup_of(Sizeless), tmp_path)


def test_a_run_is_stopped_before_it_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Leaky(Memory):
        declares: dict[str, bool] = Field(default_factory=lambda: {"memory": False})

    monkeypatch.setattr(registry, "_ENTRIES", dict(registry.entries()))
    registry.register("leaky")(Leaky)
    config = tiny_config("leaky")
    with pytest.raises(PluginError, match=r"'leaky'.*'memory'"):
        execute(Experiment(config), Where(tmp_path))
    with pytest.raises(PluginError, match=r"'leaky'.*'memory'"):
        prepared(Experiment(config), "cpu", set())  # as a sweep plans it
    assert not list(tmp_path.glob("round-*"))
