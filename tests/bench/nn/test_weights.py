"""Files that an encoder starts from, and what is said of those that do not fit."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedbench.bench.config import ModelConfig
from fedbench.bench.nn.autoencoder import group_normed
from fedbench.bench.nn.backbones import Backbone, make_backbone, with_start
from fedbench.bench.nn.weights import read_weights, shipped_encoders, start_of
from fedbench.bench.system.errors import ConfigError, DataError, FedbenchError, UnknownNameError
from fedbench.bench.system.tensor_files import encode


def started(file: Path | str, channels: int = 1, **fields: object) -> Backbone:
    config = ModelConfig.model_validate({"width": 4, "weights": str(file), **fields})
    return with_start(make_backbone(config, channels, (32, 32)), config)


def random_state(channels: int = 1, **fields: object) -> dict[str, Tensor]:
    config = ModelConfig.model_validate({"width": 4, **fields})
    state = make_backbone(config, channels, (32, 32)).make().state_dict()
    return {name: value.clone() for name, value in state.items()}


def test_every_encoder_of_a_run_starts_from_the_file(tmp_path: Path) -> None:
    state = random_state(norm="batch")
    state["stem_norm.running_var"].fill_(3.0)
    save_file({k: v.half() if "stem" in k else v for k, v in state.items()}, tmp_path / "w")
    backbone = started(tmp_path / "w", norm="batch-local")
    for _ in range(2):
        for name, value in backbone.make().state_dict().items():
            assert value.dtype == state[name].dtype
            torch.testing.assert_close(value, state[name], rtol=1e-3, atol=1e-3)
    assert group_normed(backbone).start is None  # the server's own


@pytest.mark.parametrize("name", ["timm:test_resnet", "torchvision:shufflenet_v2_x0_5"])
def test_a_state_dict_of_a_library_loses_its_classifier(name: str, tmp_path: Path) -> None:
    library, _, entry = name.partition(":")
    if library == "timm":
        timm = pytest.importorskip("timm")
        net: nn.Module = timm.create_model(entry, num_classes=7)
    else:
        from torchvision.models import get_model

        net = get_model(entry, weights=None, num_classes=7)
    save_file(net.state_dict(), tmp_path / "w.safetensors")
    backbone = started(tmp_path / "w.safetensors", 3, backbone=name, width=None, norm="batch")
    assert backbone.start is not None
    assert backbone.start.left_out == ("fc.bias", "fc.weight")
    made, images = backbone.make().eval(), torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(net.eval().get_submodule("fc")(made(images)), net(images))


def test_index_tables_of_a_file_are_left_aside(tmp_path: Path) -> None:
    from torchvision.models import swin_t

    save_file(swin_t().state_dict(), tmp_path / "w")
    backbone = started(tmp_path / "w", 3, backbone="torchvision:swin_t", width=None)
    assert backbone.start is not None
    assert backbone.start.left_out == ("head.bias", "head.weight")


LAPTOP = {"width": 16, "stem_stride": 2, "norm": "batch"}


@pytest.mark.parametrize("name", ["simclr@laptop", "fedavg-ae@laptop"])
def test_an_encoder_that_ships_is_a_start(name: str) -> None:
    backbone = started(name, 3, **LAPTOP)
    by_path = started(shipped_encoders()[name], 3, **LAPTOP)
    state = by_path.make().state_dict()
    for key, value in backbone.make().state_dict().items():
        assert torch.equal(value, state[key])


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"stem_stride": 1}, "model.stem_stride=2"),
        ({"norm": "group"}, "model.norm=batch"),
        ({"width": 8}, "model.width=16"),
        ({"backbone": "resnet18"}, "model.backbone=resnet8"),
    ],
)
def test_an_exported_encoder_names_the_settings_that_it_had(
    fields: dict[str, object], named: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        started("simclr@laptop", 3, **LAPTOP | fields)
    assert named in str(caught.value)


def test_a_sequence_is_told_from_an_encoder_below_a_layer(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))  # as the net of docs/plugins.md
    model = ModelConfig(weights=str(tmp_path / "w.safetensors"))
    for layers, left in ((net, ()), (nn.Sequential(net, nn.Linear(4, 2)), ("1.bias", "1.weight"))):
        state = {k: v for k, v in layers.state_dict().items() if "num_batches" not in k}
        exported = encode({"card": {"model": model.model_dump(mode="json")}}, state)
        (tmp_path / "w.safetensors").write_bytes(exported)
        assert start_of(model, net, ()).left_out == left


@pytest.mark.parametrize(
    ("change", "kind", "named"),
    [
        ({"stam.weight": (4, 1, 3, 3)}, ConfigError, ["'stem.weight'", "'stam.weight'"]),
        ({"stem.weight": (4, 3, 3, 3)}, ConfigError, ["'stem.weight'", "4x3x3x3", "4x1x3x3"]),
        ({"fc.weight": (2, 2)}, ConfigError, ["'fc.weight'"]),
        ({"stem.weight": None}, DataError, ["'stem.weight'", "NaN"]),
    ],
)
def test_what_does_not_fit_is_named_in_one_line(
    change: dict[str, tuple[int, ...] | None],
    kind: type[FedbenchError],
    named: list[str],
    tmp_path: Path,
) -> None:
    """Tensors of other shapes, and of no numbers in the shape of the first layer."""
    state = random_state()
    for name, shape in change.items():
        state[name] = torch.zeros(shape) if shape else torch.full((4, 1, 3, 3), torch.nan)
    if "stam.weight" in state:  # it has another name
        del state["stem.weight"]
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(kind) as caught:
        started(tmp_path / "w.safetensors")
    assert all(name in str(caught.value) for name in [*named, "w.safetensors"])
    assert "\n" not in str(caught.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    torch.save(random_state(), tmp_path / "pickled")
    (tmp_path / "empty").touch()
    whole = shipped_encoders()["simclr@laptop"].read_bytes()
    (tmp_path / "altered").write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    (tmp_path / "torn").write_bytes(whole[:-9])
    for name in ("pickled", "empty", "altered", "torn", "missing", "."):
        with pytest.raises(DataError) as caught:
            started(tmp_path / name)
        assert "model.weights" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert ("torn or altered" in str(caught.value)) == (name in ("altered", "torn"))
    with pytest.raises(UnknownNameError, match="'simclr@laptop'"):
        started("simcrl@laptop")


def test_a_file_is_known_by_its_hash(tmp_path: Path) -> None:
    save_file(random_state(), tmp_path / "w")
    config = ModelConfig(width=4, weights=str(tmp_path / "w"))
    pinned = config.model_copy(update={"weights_sha256": read_weights(config).sha256})
    save_file(random_state(norm="batch"), tmp_path / "w")
    assert read_weights(config).sha256 != pinned.weights_sha256
    with pytest.raises(DataError, match=str(pinned.weights_sha256)):
        read_weights(pinned)
    (tmp_path / "w").unlink()
    with pytest.raises(DataError, match=str(pinned.weights_sha256)):
        read_weights(pinned)
