from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from fedbench.bench.config import ModelConfig
from fedbench.bench.method import Net, Sharing
from fedbench.bench.nn import backbones
from fedbench.bench.nn.backbones import CustomShape, check_output, make_backbone
from fedbench.bench.nn.foreign import ForeignShape
from fedbench.bench.system.errors import ConfigError, PluginError, ResourceError
from fedbench.bench.testing import assert_same_run, train
from fedbench.bench.training.layout import VectorLayout
from tests.specs import setup_of

RESNET, VIT = "timm:test_resnet", "timm:test_vit"
needs_timm = pytest.mark.usefixtures("_timm")


@pytest.fixture(name="_timm")
def _timm() -> None:
    pytest.importorskip("timm")


@needs_timm
@pytest.mark.parametrize(
    ("name", "shape", "dim"),
    [
        (RESNET, (1, 8, 8), 96),
        (RESNET, (3, 20, 33), 96),
        (VIT, (1, 32, 16), 64),
        ("timm:poolformerv2_s12", (3, 32, 32), 512),  # takes no size
        ("timm:pvt_v2_b0", (3, 64, 64), 256),  # whose patches overlap
        ("torchvision:shufflenet_v2_x0_5", (3, 32, 32), 1024),
    ],
)
def test_a_foreign_net_gives_features_without_its_classifier(
    name: str, shape: tuple[int, int, int], dim: int
) -> None:
    config = ModelConfig(backbone=name, norm="batch")
    backbone = replace(make_backbone(config, shape[0], shape[1:]), seed=3)
    assert isinstance(backbone.shape, ForeignShape)
    encoder, again = backbone.make(), backbone.make()
    assert all(map(torch.equal, encoder.parameters(), again.parameters()))
    features = encoder(torch.zeros(2, *shape))
    assert features.shape == (2, dim) == (2, backbone.dim)
    assert not any(k.startswith(backbone.shape.classifier) for k in encoder.state_dict())
    if backbone.shape.has_batch_norm:  # as the server's parts of `pfedae` would need it
        with pytest.raises(ConfigError, match=r"model\.backbone"):
            replace(backbone, norm_name="group").make()


def test_index_tables_are_neither_sent_nor_averaged() -> None:
    config = ModelConfig(backbone="torchvision:swin_t", norm="group")
    encoder = make_backbone(config, 3, (32, 32)).make()
    assert any(not b.is_floating_point() for b in encoder.buffers())
    layout = VectorLayout.of(Net({"encoder": encoder}), {"*": Sharing.AVERAGED})  # float32 only
    assert layout.server_size == sum(p.numel() for p in encoder.parameters())


@needs_timm
@pytest.mark.parametrize(
    "name", ["torchvision:swin_t", "timm:swin_tiny_patch4_window7_224", "timm:ghostnet_050"]
)
def test_a_pass_draws_nothing(name: str) -> None:
    norm = "batch" if "ghost" in name else "group"
    encoder = make_backbone(ModelConfig(backbone=name, norm=norm), 3, (32, 32)).make().train()
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(encoder(images), encoder(images), rtol=0, atol=0)


@needs_timm
@pytest.mark.parametrize("norm", ["batch", "batch-local"])
def test_the_norm_policy_holds_for_foreign_batch_norms(norm: str, tmp_path: Path) -> None:
    fields = {"model__backbone": RESNET, "model__norm": norm, "model__width": None}
    setup = setup_of("simclr", **fields)
    trainer, lanes = (train(setup, tmp_path / str(n), rounds=1, lanes=n) for n in (None, 2))
    assert_same_run(trainer, lanes)
    kept = {s.name for s in trainer.layout.personal if s.name.startswith("encoder.")}
    assert ("encoder.bn1.running_var" in kept) == (norm == "batch-local")
    assert not any("num_batches_tracked" in slot.name for slot in trainer.layout.server)


@needs_timm
@pytest.mark.parametrize(
    ("fields", "shape", "named"),
    [
        ({"backbone": "timm:test_resnt", "norm": "batch"}, (3, 32, 32), "'timm:test_resnet'"),
        ({"backbone": "timm:", "norm": "batch"}, (3, 32, 32), "timm"),
        ({"backbone": RESNET, "norm": "group"}, (3, 32, 32), "model.norm"),
        ({"backbone": RESNET, "norm": "batch", "width": 8}, (3, 32, 32), "model.width=8"),
        ({"backbone": VIT, "stem_stride": 2}, (3, 32, 32), "model.stem_stride=2"),
        ({"backbone": VIT, "init": "he-fan-out"}, (3, 32, 32), "model.init=he-fan-out"),
        ({"backbone": VIT}, (3, 28, 28), "16x16"),
        ({"backbone": "torchvision:resnet18", "norm": "batch"}, (1, 28, 28), "3 channels"),
        ({"backbone": "torchvision:squeezenet1_1"}, (3, 64, 64), "linear"),
        ({"backbone": "torchvision:regnet_y_400mf", "norm": "batch"}, (3, 32, 32), "weights"),
        ({"backbone": "torchvision:vgg11"}, (3, 8, 8), "3x8x8"),
        ({"backbone": "timm:test_resnet.r160_in1k", "norm": "batch"}, (3, 8, 8), RESNET),
    ],
)
def test_what_a_foreign_net_cannot_do_is_refused(
    fields: dict[str, object], shape: tuple[int, int, int], named: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_backbone(ModelConfig.model_validate(fields), shape[0], shape[1:])
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_library_that_is_missing_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    with pytest.raises(ResourceError, match=r"\[timm\]"):
        make_backbone(ModelConfig(backbone="timm:resnet10t"), 3)


@pytest.mark.parametrize(
    ("value", "problem"),
    [("no_module_of_this_name:shape", "no_module"), ("math:pi", "CustomShape")],
)
def test_an_encoder_of_another_package_that_cannot_be_had_is_named(
    value: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = EntryPoint("theirs", value, backbones.PLUGINS)
    monkeypatch.setattr(backbones, "entry_points", lambda group: [point])
    with pytest.raises(PluginError, match=problem):
        make_backbone(ModelConfig(backbone="theirs"), 3)


def test_an_encoder_of_another_package_gives_vectors_of_its_dim() -> None:
    def shape(dim: int) -> CustomShape:
        return CustomShape(lambda _: torch.nn.Flatten(), lambda width: dim, 4, "pixels")

    plain = make_backbone(ModelConfig(), 1, (8, 8))
    check_output(replace(plain, shape=shape(64)), "pixels")
    with pytest.raises(PluginError, match=r"'pixels'.*\[2, 64\].*\[2, 10\]"):
        check_output(replace(plain, shape=shape(10)), "pixels")
