"""Units of encoders, what of them is frozen, and what a frozen batch norm does in training."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from fedbench.bench.config import ModelConfig
from fedbench.bench.method import Net
from fedbench.bench.nn.backbones import make_backbone
from fedbench.bench.nn.freezing import freeze_all_but, frozen_tensors, thaw, units


def encoder_of(backbone: str, trainable: str = "all", norm: str = "batch") -> nn.Module:
    width = 4 if backbone == "resnet8" else None
    values = {"backbone": backbone, "width": width, "norm": norm, "trainable": trainable}
    return make_backbone(ModelConfig.model_validate(values), 3, (32, 32)).make()


@pytest.mark.parametrize(
    ("backbone", "sizes"),
    [
        ("resnet8", [2, 1, 1, 1]),  # the stem has its norm, blocks theirs inside
        # Each convolution with its ReLU and pooling, four layers, of which the last has the norm
        # behind it, and the pool's linear layer.
        ("cct-4-3x2", [3, 3, 1, 1, 1, 2, 1]),
        ("vit-5", [1, 1, 1, 1, 1, 2]),  # patches, five layers, the norm with the last
    ],
)
def test_units_are_layers_and_blocks_and_norms_belong_to_the_one_before(
    backbone: str, sizes: list[int]
) -> None:
    parts = units(encoder_of(backbone))
    assert [len(unit) for unit in parts] == sizes
    if backbone == "resnet8":
        trained = frozen_tensors(encoder_of(backbone, "last:3")) ^ {
            *encoder_of(backbone).state_dict()
        }
        assert {name.split(".")[0] for name in trained} == {"blocks"}


def test_a_head_that_only_norms_is_no_unit() -> None:
    """As in ConvNeXt of timm, whose last child is a pool with a norm."""
    head = nn.Module()
    head.add_module("norm", nn.LayerNorm(2))
    first, last = nn.Linear(2, 2), nn.Linear(2, 2)
    assert units(nn.Sequential(first, last, head)) == [[first], [last, head]]


def test_what_stands_before_the_first_unit_is_frozen_with_it() -> None:
    stage = nn.Sequential(nn.ModuleList([nn.Linear(2, 2)]))
    net = nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 2), stage)
    net.register_parameter("token", nn.Parameter(torch.zeros(2)))
    freeze_all_but(net, "last:1")
    assert {n for n, p in net.named_parameters() if p.requires_grad} == {
        "2.0.0.weight",
        "2.0.0.bias",
    }
    assert frozen_tensors(net) == {"token", "0.weight", "0.bias", "1.weight", "1.bias"}
    assert frozen_tensors(nn.ModuleDict({"copy": deepcopy(net)})) == {
        f"copy.{name}" for name in frozen_tensors(net)
    }


def test_frozen_batch_norms_keep_to_their_statistics_in_training() -> None:
    net = Net({"encoder": encoder_of("resnet8", "last:1")}).train()
    norms = {n: m for n, m in net.named_modules() if isinstance(m, nn.BatchNorm2d)}
    assert {n for n, m in norms.items() if m.training} == {
        n for n in norms if n.startswith("encoder.blocks.2.")
    }
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net(torch.randn(4, 3, 32, 32), "encoder").sum().backward()
    changed = {n for n, value in net.state_dict().items() if not torch.equal(value, before[n])}
    assert changed
    assert not changed & frozen_tensors(net)
    thaw(net)
    assert not frozen_tensors(net)
    assert all(module.training for module in net.train().modules())
    assert all(parameter.requires_grad for parameter in net.parameters())
