"""Weighing, second batches and pre-round statistics, each used by a plugin of somebody else."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedbench.bench.data.batches import ClientData
from fedbench.bench.execution.guarantees import check_privacy, needed_one_by_one
from fedbench.bench.method import (
    AddOn,
    Batch,
    Client,
    Extra,
    Loss,
    Needs,
    Net,
    PluginError,
    Server,
    Sharing,
    register,
)
from fedbench.bench.nn import Backbone
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.testing import all_tensors, train
from tests.specs import setup_of


class Halved(AddOn):
    """Encoders count half."""

    def weigh(
        self, sent: Mapping[str, Tensor], held: Mapping[str, Tensor], round_index: int
    ) -> Mapping[str, float]:
        assert {*sent} == {*held}
        return {name: 0.5 for name in sent if name.startswith("encoder.")}


class Watching(AddOn):
    """Logs the mean of the other images."""

    def needs(self) -> Needs:
        return replace(self.base.needs(), second_batch=("plain", "rot"))

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        first, second = batch.second_batch
        assert first.shape == second.shape == batch.views[0].shape
        return self.base.loss(net, batch, client).plus("others", 0.0 * first.mean())


class Counting(AddOn):
    """Publishes the number of images of the cohort."""

    declared: bool = True

    def needs(self) -> Needs:
        extras = {"images": Extra(summed=self.declared)}
        return replace(self.base.needs(), pre_round=("images",), extras=extras)

    def build(self, backbone: Backbone, data: object) -> Net:
        net = self.base.build(backbone, data)  # type: ignore[arg-type]
        net.register_buffer("images", torch.zeros(1))
        return net

    def sharing(self) -> Mapping[str, Sharing]:
        return {"images": Sharing.BROADCAST, **self.base.sharing()}

    def pre_round(self, net: Net, data: ClientData, client: Client) -> Mapping[str, Tensor]:
        assert not net.training
        return {"images": torch.tensor([float(len(data))])}

    def server_pre_round(self, net: Net, sums: Mapping[str, Tensor], server: Server) -> None:
        net.tensor("images").copy_(sums["images"])

    def before_local(self, net: Net, data: ClientData, client: Client) -> ClientData:
        assert client.answers["images"].tolist() == [len(data)]
        return self.base.before_local(net, data, client)

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        return self.base.loss(net, batch, client).plus("cohort", net.tensor("images").sum())


@pytest.fixture(autouse=True)
def _plugins(_own_registry: None) -> None:
    for name, cls in (("halved", Halved), ("watching", Watching), ("counting", Counting)):
        cls.name = ""
        register(name, bases=("simclr",))(cls)


def test_factors_scale_what_a_client_adds(tmp_path: Path) -> None:
    """With equal weights the encoder becomes half the mean of the clients' encoders."""
    one = {"federation__num_rounds": 1, "server__weighting": "uniform"}
    plain, halved = (
        train(setup_of(spec, **one), tmp_path / spec) for spec in ("simclr", "simclr+halved")
    )
    for slot in plain.layout.server:
        part = slice(slot.start, slot.stop)
        factor = 0.5 if slot.name.startswith("encoder.") else 1.0
        torch.testing.assert_close(
            halved.vector[part], factor * plain.vector[part], atol=1e-7, rtol=1e-6
        )


def test_factors_need_single_uploads_and_exclude_client_privacy() -> None:
    private = {"privacy__clip": 1.0, "server__weighting": "uniform", "model__norm": "group"}
    setup = setup_of("simclr+halved", **private)
    assert "weights of its own" in needed_one_by_one(setup.method, setup.config.server)
    with pytest.raises(ConfigError, match="halved"):
        check_privacy(setup)


def test_a_second_batch_moves_no_other_draw(tmp_path: Path) -> None:
    plain, watching = (
        train(setup_of(spec), tmp_path / spec) for spec in ("simclr", "simclr+watching")
    )
    assert torch.equal(all_tensors(plain), all_tensors(watching))


def test_statistics_before_a_round_sum_up_over_its_cohort(tmp_path: Path) -> None:
    setup = setup_of("simclr+counting", federation__participation=0.5)
    for record in train(setup, tmp_path).history:
        sizes = [int(setup.partition.sizes[k]) for k in setup.cohort(record.round_index)]
        assert record.parts["cohort"] == sum(sizes)


def test_pre_round_declare_sums_and_names_broadcast_tensors(tmp_path: Path) -> None:
    setup = setup_of("simclr+counting", method__counting__declared=False)
    with pytest.raises(PluginError, match="'images'"):
        train(setup, tmp_path)

    class Misnamed(Counting):
        def needs(self) -> Needs:
            return replace(super().needs(), pre_round=("image",))

    register("misnamed", bases=("simclr",))(Misnamed)
    with pytest.raises(PluginError, match="'image'"):
        train(setup_of("simclr+misnamed"), tmp_path)
