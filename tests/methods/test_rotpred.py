"""RotPred: loss, turns, and traffic."""

from __future__ import annotations

import math

import pytest
import torch

from fedbench.bench.config import ModelConfig
from fedbench.bench.data.batches import Batch
from fedbench.bench.method import Client, DataSpec, Net
from fedbench.bench.nn.backbones import make_backbone
from fedbench.bench.system.seeding import generator, scope
from fedbench.bench.testing import loss_of
from fedbench.methods.rotpred import RotPred

SPEC = DataSpec((3, 32, 32), 10, 100)


def make(method: RotPred, backbone: str = "resnet8", width: int | None = 4) -> Net:
    config = ModelConfig(backbone=backbone, width=width, norm="batch")
    with scope(0, "init"):
        return method.build(make_backbone(config, 3), SPEC)


def batch_of(images: torch.Tensor) -> Batch:
    return Batch((images,), torch.full((len(images),), -1))


def test_loss_is_the_cross_entropy_of_the_drawn_turns() -> None:
    method = RotPred(hidden_dim=8, projection_dim=8)
    net = make(method).eval()
    x = torch.randn(6, 3, 8, 8, generator=generator(0, "x"))
    out = loss_of(method, net, batch_of(x), Client(0, 0, generator(0, "client")))
    turns = torch.randint(4, (6,), generator=generator(0, "client")).tolist()
    assert len(set(turns)) > 1
    total = 0.0
    for image, turn in zip(x, turns, strict=True):
        turned = torch.rot90(image, turn, (1, 2)).unsqueeze(0)
        logits = net(turned, "encoder", "projector", "rotation")[0].tolist()
        total -= logits[turn] - math.log(sum(math.exp(v) for v in logits))
    assert float(out.total.detach()) == pytest.approx(total / 6, rel=1e-5)
    assert out.features[0].shape == (6, 16)  # width 4, doubled twice
