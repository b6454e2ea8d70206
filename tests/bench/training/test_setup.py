"""Setup from configuration and data: weights, labels, pixels, norms, refused plugins."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedbench.bench.method import Batch, Client, DataSpec, Loss, Needs, Net, Sharing
from fedbench.bench.nn.backbones import Backbone
from fedbench.bench.nn.freezing import plain_state
from fedbench.bench.system.errors import PluginError
from fedbench.bench.testing import train
from fedbench.bench.training.setup import Setup, num_batches
from fedbench.methods.supervised import Supervised
from tests.specs import SPECS, setup_of


def with_method(cls: type[Supervised]) -> Setup:
    return dataclasses.replace(setup_of("supervised"), method=cls())


def test_batch_local_norm_stays_with_its_client(tmp_path: Path) -> None:
    setup = setup_of("simclr", model__norm="batch-local")
    trainer = train(setup, tmp_path)
    norms = {
        f"{path}.{leaf}"
        for path, module in setup.make_net().named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
        for leaf in module.state_dict()
    }
    norms = {name for name in norms if not name.endswith("num_batches_tracked")}
    assert norms
    assert {slot.name for slot in trainer.layout.personal} == norms
    shared = sum(slot.stop - slot.start for slot in trainer.layout.server)
    assert trainer.ledger.bytes_up == trainer.ledger.bytes_down == 4 * shared * 4 * 2
    assert sorted(trainer.personal_rounds) == [0, 1, 2, 3]
    assert setup.evaluate_on_clients


def test_broken_plugins_are_named(tmp_path: Path) -> None:
    class Constant(Supervised):
        def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
            return Loss(torch.zeros(()))

    class NoEncoder(Supervised):
        def build(self, backbone: Backbone, data: DataSpec) -> Net:
            return Net({"encodr": backbone.make()})

    class FewRows(Supervised):
        def build(self, backbone: Backbone, data: DataSpec) -> Net:
            net = super().build(backbone, data)
            net["rows"] = nn.Linear(2, data.num_clients - 1, bias=False)
            return net

        def sharing(self) -> Mapping[str, Sharing]:
            return {"rows.weight": Sharing.OWN_ROW, "*": Sharing.AVERAGED}

    with pytest.raises(PluginError, match="no tensor that clients train"):
        train(with_method(Constant), tmp_path)
    with pytest.raises(PluginError, match="'encoder'"):
        with_method(NoEncoder).make_net()
    setup = with_method(FewRows)
    with pytest.raises(PluginError, match=r"'rows.weight'.*3 rows for 4 clients"):
        setup.layout(setup.make_net())


def test_labels_reach_a_method_as_far_as_it_asked() -> None:
    for spec, fraction, visible in (
        ("featarc", 0.0, 0),
        ("featarc", 1.0, 0),
        ("simclr", 0.0, 0),
        ("simclr", 0.5, 40),
        ("supervised", 0.0, 80),
        ("supervised", 0.5, 40),
    ):
        setup = setup_of(spec, data__label_fraction=fraction)
        assert int((setup.labels >= 0).sum()) == visible
        given = torch.cat([setup.client_data(k, "cpu").labels for k in range(4)])
        assert int((given >= 0).sum()) == visible
        assert setup.spec.labelled == (visible > 0)
        # What probes may use is the same for methods that see it and methods that do not.
        assert int((setup.known_labels >= 0).sum()) == (80 if fraction == 0 else 80 * fraction)


def test_no_batch_is_smaller_than_the_method_needs() -> None:
    for size, keep, expected in ((1, True, [0, 0, 0]), (4, True, [1, 1, 3]), (4, False, [0, 1, 2])):
        config = setup_of("simclr", client__batch_size=size, client__keep_last_batch=keep).config
        needs = Needs(views=(), min_batch=2)
        assert num_batches(np.array([3, 5, 10]), config, needs).tolist() == expected


@pytest.mark.parametrize("source", ["hsu", "rotation", "joint"])
def test_every_source_of_shift_leaves_each_client_its_share_of_labels(source: str) -> None:
    setup = setup_of("simclr", data__partition=source, data__label_fraction=0.1)
    truth = setup.dataset.train_labels
    for k in range(4):
        indices = setup.partition.client(k)
        data = setup.client_data(k, "cpu")
        assert int((data.labels >= 0).sum()) == 2  # a tenth of 20
        shown = data.labels.numpy() >= 0
        np.testing.assert_array_equal(data.labels.numpy()[shown], truth[indices][shown])
        moved = (data.images.numpy() != setup.dataset.train_images[indices]).any(axis=(1, 2, 3))
        assert moved.any() == (source != "hsu")


@pytest.mark.parametrize("spec", SPECS)
def test_all_methods_start_from_the_same_encoder(spec: str) -> None:
    """This pairs gains over the untrained encoder, and differences of methods, by seed."""
    labels = {"data__label_fraction": 0.5} if spec[:3] in ("sem", "cba") else {}
    encoder, plain = (
        plain_state(setup_of(name, seed=3, **given).make_net()["encoder"])
        for name, given in ((spec, labels), ("simclr", {}))
    )
    shared = [name for name in encoder if name.removeprefix("backbone.") in plain]
    assert len(shared) >= len(plain)
    assert all(torch.equal(encoder[n], plain[n.removeprefix("backbone.")]) for n in shared)
