"""LoRA: the change by hand, what is trained, and the plain weights that are exported."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedbench.bench.evaluation.features import extract
from fedbench.bench.execution.export import export_encoder, load_encoder
from fedbench.bench.execution.run import reproduce, run
from fedbench.bench.method import DataSpec, registry
from fedbench.bench.nn.backbones import Backbone, CustomShape
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.seeding import single_thread
from fedbench.bench.testing import assert_same_run, tiny_config, tiny_setup, train
from fedbench.methods.divergence import convolutions
from fedbench.methods.lora import LowRank
from tests.specs import setup_of

FACTORS = (".weight.0.a", ".weight.0.b")


def test_the_change_is_the_product_by_hand() -> None:
    """Of a grouped convolution with kernels 2x3x3 too: a loop over all of its numbers."""
    weight = torch.randn(4, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    change = LowRank(weight, rank=2, scale=6.0)
    assert change.a.shape == (2, 18)
    assert change.b.shape == (4, 2)
    assert torch.equal(change(weight), weight)
    nn.init.normal_(change.b)
    expected = weight.clone()
    for out in range(4):
        for i in range(2):
            for y in range(3):
                for x in range(3):
                    column = (i * 3 + y) * 3 + x
                    product = sum(change.b[out, r] * change.a[r, column] for r in range(2))
                    expected[out, i, y, x] += 3.0 * product  # scale / rank
    torch.testing.assert_close(change(weight), expected)


@pytest.mark.parametrize("backbone", ["resnet8", "vit-5"])
def test_the_first_encoder_is_the_starts_and_only_factors_and_heads_are_trained(
    backbone: str,
) -> None:
    width = {"resnet8": 4, "vit-5": 12}[backbone]
    fields: dict[str, Any] = {"model__backbone": backbone, "model__width": width}
    plain, adapted = (setup_of(spec, **fields).make_net() for spec in ("simclr", "simclr+lora"))
    images = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(plain(images, "encoder"), adapted(images, "encoder"))
    assert torch.equal(plain["projector"].state_dict()["0.weight"],
                       adapted["projector"].state_dict()["0.weight"])  # fmt: skip
    trained = {n for n, p in adapted["encoder"].named_parameters() if p.requires_grad}
    layers = [m for m in adapted["encoder"].modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    assert len(trained) == 2 * len(layers)
    assert all(name.endswith(FACTORS) for name in trained)


def factors(net: nn.Module) -> Tensor:
    return torch.cat([p.flatten() for n, p in net.named_parameters() if n.endswith(FACTORS[0])])


def test_factors_follow_the_seed_and_not_the_method() -> None:
    first, other = setup_of("simclr+lora").make_net(), setup_of("byol+lora").make_net()
    assert torch.equal(factors(first["encoder"]), factors(other["encoder"]))
    assert torch.equal(factors(first["encoder"]), factors(other["target_encoder"]))
    assert not torch.equal(factors(first), factors(setup_of("simclr+lora", seed=1).make_net()))


def test_a_run_is_repeated_and_exported_with_plain_weights(tmp_path: Path) -> None:
    config = tiny_config("simclr+lora", model__norm="batch", evaluation__protocols=[])
    store, setup = Store(tmp_path / "store"), tiny_setup(config)
    row = run(config, store=store, workers=1).row
    assert reproduce(row.row_id, store, workers=1).verdict == "same bits"
    alone, lanes = (train(setup, tmp_path / f"{n}", lanes=n) for n in (None, 2))
    assert_same_run(alone, lanes)

    exported = export_encoder(row.row_id, tmp_path / "out.safetensors", store=store)
    plain = setup_of("simclr", model__norm="batch").make_net()["encoder"]
    file = load_file(exported.file)
    assert {*file} == {*plain.state_dict()}
    encoder, net = load_encoder(exported.file), alone.binding.net.eval()
    images = torch.from_numpy(setup.dataset.test_images.copy())
    with single_thread(), torch.no_grad():
        expected = extract(lambda x: setup.method.encode(net, x), images, device="cpu")
        torch.testing.assert_close(encoder(images), expected)
        start = extract(lambda x: plain.eval()(x), images, device="cpu")
    assert not torch.allclose(expected, start)
    onwards = tiny_config("simclr+lora", model__norm="batch", model__weights=str(exported.file))
    again = tiny_setup(onwards).make_net()["encoder"].eval()
    with torch.no_grad():
        torch.testing.assert_close(encoder.backbone(images / 255), again(images / 255))


def test_divergence_sees_the_changed_weights(tmp_path: Path) -> None:
    """FedEMA measures how far W + B A moves, though W does not."""
    setup = setup_of("byol+lora", method__update="fedema", method__target="personal")
    trainer = train(setup, tmp_path)
    first = convolutions(setup.make_net()["encoder"])
    moved = convolutions(trainer.binding.net["encoder"])
    assert not all(map(torch.equal, first, moved))


def test_a_net_without_a_layer_for_it_is_refused() -> None:
    def make(backbone: Backbone) -> nn.Module:
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(1))

    shape = CustomShape(make, dim=lambda width: width, width=1, description="a mean")
    backbone = Backbone(shape, 1, 1, 1, "group", 1, (8, 8))
    method = registry.create("supervised+lora", {})
    with pytest.raises(ConfigError, match=r"^lora: "):
        method.build(backbone, DataSpec((1, 8, 8), 10, 2))


def test_what_is_trained_is_its_own_choice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.trainable.*lora"):
        run(tiny_config("simclr+lora", model__trainable="heads"), store=tmp_path / "store")
    assert not (tmp_path / "store").exists()
