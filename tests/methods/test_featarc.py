"""FeatARC: loss, anchors, traffic."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedbench.bench.data.batches import Batch
from fedbench.bench.method import Client
from fedbench.bench.nn.losses import nt_xent
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.seeding import generator
from fedbench.bench.testing import MethodContract, tiny_config, tiny_setup, train
from fedbench.methods.featarc import FeatARC

CLIENT = Client(0, 0, generator(0, "client"))


@pytest.mark.parametrize("anchor", ["projector", "backbone-clean"])
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_the_loss_by_hand(anchor: str, norm: str) -> None:
    fields = {"method__anchor": anchor, "method__align_weight": 0.3, "method__temperature": 0.2}
    setup = tiny_setup(tiny_config("featarc", model__norm=norm, **fields))
    net = setup.make_net().train()
    names = ("a", "b", "clean")[: len(setup.method.needs().views)]
    views = tuple(torch.randn(5, 1, 8, 8, generator=generator(0, n)) for n in names)
    received = setup.make_net().eval()
    setup.method.before_local(net, setup.client_data(0, "cpu"), CLIENT)
    with torch.no_grad():  # the client trains, what it received stays
        for part in ("encoder", "projector"):
            for value in net[part].parameters():
                value.mul_(1.1)
    out = setup.method.loss(net, Batch(views, torch.full((5,), -1)), CLIENT)
    h = [net["encoder"](view) for view in views[:2]]
    z = [net["projector"](features) for features in h]
    if anchor == "projector":
        anchors = [received["projector"](received["encoder"](view)) for view in views[:2]]
    else:
        anchors = [received["encoder"](views[2])] * 2
    cosines = [F.cosine_similarity(a, b).mean() for a, b in zip(anchors, z, strict=True)]
    align = -(cosines[0] + cosines[1]) / 2
    torch.testing.assert_close(out.total, nt_xent(z[0], z[1], 0.2) + 0.3 * align)
    torch.testing.assert_close(out.parts["align"], (0.3 * align).detach())
    out.total.backward()
    for name, parameter in net.named_parameters():
        assert (parameter.grad is None) == name.startswith("target_"), name


def test_anchors_come_from_the_round_at_hand(tmp_path: Path) -> None:
    trainer = train(tiny_setup(tiny_config("featarc")), tmp_path)
    assert not trainer.layout.personal  # nothing is kept between rounds
    setup = tiny_setup(tiny_config("featarc"))
    net = setup.make_net()
    with torch.no_grad():
        net.tensor("encoder.stem.weight").fill_(0.5)
    setup.method.before_local(net, setup.client_data(0, "cpu"), CLIENT)
    assert torch.equal(net.tensor("target_encoder.stem.weight"), net.tensor("encoder.stem.weight"))


def test_the_releases_anchor_needs_equal_widths() -> None:
    setup = tiny_setup(tiny_config("featarc"))
    method = FeatARC(anchor="backbone-clean", projection_dim=8)
    with pytest.raises(ConfigError, match="width 16"):
        method.build(setup.backbone, setup.spec)


class TestCleanAnchor(MethodContract):
    """Contract for the release's anchor with its third view."""

    spec = "featarc"
    fields: Mapping[str, Any] = MappingProxyType({"method__anchor": "backbone-clean"})
