"""Encoders for other programs: each is loaded where fedbench cannot be imported."""

import copy
import errno
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedbench.bench.config import ModelConfig
from fedbench.bench.execution import formats
from fedbench.bench.execution.export import FORMAT, Encoder, export_encoder, load_encoder
from fedbench.bench.nn import backbones
from fedbench.bench.nn.backbones import Backbone, CustomShape, make_backbone
from fedbench.bench.system import tensor_files
from fedbench.bench.system.errors import ConfigError, DataError, ResourceError, StoreError
from fedbench.bench.system.seeding import generator
from fedbench.bench.testing import tiny_config

NAMES = ("onnx", "onnxruntime", "onnxscript")
WITH_ONNX = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in NAMES), reason="the extra export has it"
)
Case = tuple[str, tuple[int, int, int], Mapping[str, Any]]
CASES: list[Case] = [  # channels and sides, norms, kinds of pixels, transformers, other libraries
    ("resnet8", (3, 32, 32), {"norm": "batch", "width": 16}),
    ("resnet8", (1, 8, 8), {"norm": "group", "width": 4, "pixels": "unit"}),
    ("resnet8", (3, 16, 20), {"norm": "batch", "width": 4, "feature_dim": 5}),
    ("cct-4-3x2", (3, 16, 16), {"width": 16}),
    ("vit-5", (1, 28, 28), {"width": 24}),
    ("torchvision:shufflenet_v2_x0_5", (3, 32, 32), {"norm": "batch"}),
    ("timm:test_vit", (3, 32, 32), {}),
]


def write(file: Path, backbone: str, shape: tuple[int, int, int], fields: Mapping[str, Any]) -> str:
    """Write an encoder with weights and statistics of its own, as a run leaves it."""
    if backbone.startswith("timm:"):
        pytest.importorskip("timm")
    given = dict(fields)
    card = {
        "format": FORMAT,
        "run_id": "0" * 20,
        "image_shape": [*shape],
        "pixels": given.pop("pixels", "normalised"),
        "preprocessing": "as the run's",
        "metrics": {"linear_acc": 0.43214, "knn_acc": None, "objective": None},
        "config": tiny_config("simclr").model_dump(mode="json"),
    }
    dim = given.pop("feature_dim", None)
    model = ModelConfig(backbone=backbone, **given)
    maker = make_backbone(model, shape[0], shape[1:])
    net = replace(maker, seed=3).make().train()
    if dim is not None:
        net = nn.Sequential(net, nn.Linear(maker.dim, dim))
    with torch.no_grad():
        net(torch.randn(16, *shape, generator=generator(0, "statistics")) * 2)
    card |= {"model": model.model_dump(mode="json"), "feature_dim": dim or maker.dim}
    counted = "num_batches_tracked"
    tensors = {k: v for k, v in net.state_dict().items() if not k.endswith(counted)}
    file.write_bytes(tensor_files.encode({"card": card}, tensors))
    return str(file)


def images_of(shape: tuple[int, ...], count: int = 7) -> Tensor:
    return torch.randint(
        0, 256, (count, *shape), dtype=torch.uint8, generator=generator(1, "images")
    )


WITHOUT = """
import sys
sys.modules["fedbench"] = None  # any import of it fails
import json, pathlib
import numpy as np
for folder in map(pathlib.Path, sys.argv[1:]):
    for file in sorted(folder.glob("*.npy")):
        images = np.load(file)
        if (folder / "encoder.onnx").exists():
            import onnxruntime
            session = onnxruntime.InferenceSession(folder / "encoder.onnx")
            batch, _, *sides = session.get_inputs()[0].shape
            assert [batch, *sides] in (["batch", "height", "width"], ["batch", *images.shape[2:]])
            assert "run_id" in json.loads(session.get_modelmeta().custom_metadata_map["card"])
            features = session.run(["features"], {"images": images})[0]
        else:
            import torch
            cards = {"card.json": ""}
            program = torch.export.load(folder / "encoder.pt2", extra_files=cards)
            assert "run_id" in json.loads(cards["card.json"])
            features = program.module()(torch.from_numpy(images)).detach().numpy()
        np.savetxt(file.with_suffix(".txt"), features)
"""


TORCHVISION = """
import sys
sys.modules["fedbench"] = None  # any import of it fails
from pathlib import Path
import numpy as np
import torch
import torchvision
from torch import nn
net = torchvision.models.resnet18()
net.conv1, net.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
net.fc = nn.Identity()
net.load_state_dict(torch.load(sys.argv[1], weights_only=True))
folder = Path(sys.argv[2])
images = torch.from_numpy(np.load(folder / "images.npy"))
np.save(folder / "features.npy", net.eval()((images / 255 - 0.5) / 0.5).detach().numpy())
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".pt2", pytest.param(".onnx", marks=WITH_ONNX)])
def test_features_are_those_of_load_encoder_without_fedbench(ending: str, tmp_path: Path) -> None:
    """For another number of images, and other sides, too, where the encoder takes them."""
    expected = {}
    for index, case in enumerate(CASES):
        folder = tmp_path / f"{index}"
        folder.mkdir()
        name = write(folder / "given.safetensors", *case)
        made = export_encoder(name, folder / f"encoder{ending}")
        assert json.loads(made.card.read_text()) == load_encoder(name).card
        channels, *sides = case[1]
        sizes = [sides, [24, 40]] if case[0] == "resnet8" else [sides]
        for height, width in sizes:
            file = folder / f"{height}x{width}.npy"
            images = images_of((channels, height, width))
            np.save(file, images.numpy())
            with torch.no_grad():
                expected[file.with_suffix(".txt")] = load_encoder(name)(images)
    words = [str(folder) for folder in tmp_path.iterdir()]
    subprocess.run([sys.executable, "-c", WITHOUT, *words], check=True)
    for file, features in expected.items():
        got = torch.from_numpy(np.loadtxt(file, np.float32, ndmin=2))
        torch.testing.assert_close(got, features, rtol=0, atol=1e-5 * float(features.abs().max()))


def test_a_program_can_be_trained_and_has_no_paths_of_this_machine(tmp_path: Path) -> None:
    name = write(tmp_path / "given.safetensors", *CASES[1])
    file = export_encoder(name, tmp_path / "encoder.pt2").file
    assert str(Path(formats.__file__).resolve().parent).encode() not in file.read_bytes()
    net = torch.export.load(file).module()
    net(images_of((1, 8, 8))).square().sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    with pytest.raises(NotImplementedError):
        net.train()
    with pytest.raises(AssertionError, match="size"):
        net(images_of((3, 8, 8)))


def test_a_card_does_not_replace_another_file(tmp_path: Path) -> None:
    name = write(tmp_path / "given.safetensors", "resnet8", (3, 8, 8), {})
    other = tmp_path / "package.json"
    other.write_text('{"name": "an app"}')
    with pytest.raises(ConfigError, match="is another file"):
        export_encoder(name, tmp_path / "package.pt2")
    assert (other.read_text(), (tmp_path / "package.pt2").exists()) == ('{"name": "an app"}', False)
    for _ in range(2):  # its own card it does
        export_encoder(name, tmp_path / "encoder.pt2")


def test_resnet18_has_the_names_of_torchvision(tmp_path: Path) -> None:
    """With the small stem, which torchvision's ResNet-18 gets by two lines."""
    name = write(tmp_path / "given.safetensors", "resnet18", (3, 16, 16), {"norm": "batch"})
    file = export_encoder(name, tmp_path / "encoder.pth").file
    images = images_of((3, 16, 16))
    np.save(tmp_path / "images.npy", images.numpy())
    subprocess.run([sys.executable, "-c", TORCHVISION, str(file), str(tmp_path)], check=True)
    found = torch.from_numpy(np.load(tmp_path / "features.npy"))
    torch.testing.assert_close(found, load_encoder(name)(images))


@pytest.mark.parametrize("backbone", ["torchvision:resnet50", "timm:test_resnet"])
def test_nets_of_libraries_keep_their_names(backbone: str, tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    name = write(tmp_path / "given.safetensors", backbone, (3, 32, 32), {"norm": "batch"})
    file = export_encoder(name, tmp_path / "encoder.pth").file
    net = timm.create_model(backbone.partition(":")[2], num_classes=0, checkpoint_path=str(file))
    same_features(net, load_encoder(name))


def same_features(net: nn.Module, encoder: Encoder) -> None:
    images = images_of(tuple(encoder.card["image_shape"]))
    with torch.no_grad():
        expected = encoder(images)
        torch.testing.assert_close(net.eval()((images / 255 - 0.5) / 0.5), expected)


@pytest.mark.parametrize(
    ("backbone", "fields"),
    [("resnet8", {"width": 4}), ("resnet18", {"width": 8}), ("resnet18", {"feature_dim": 5})],
)
def test_a_net_that_no_library_has_is_refused(
    backbone: str, fields: Mapping[str, Any], tmp_path: Path
) -> None:
    name = write(tmp_path / "given.safetensors", backbone, (3, 8, 8), fields)
    with pytest.raises(ConfigError, match=r"torchvision and timm have no net.*\.pt2"):
        export_encoder(name, tmp_path / "encoder.pth")
    assert [path.name for path in tmp_path.iterdir()] == ["given.safetensors"]


@pytest.mark.parametrize("case", [CASES[1], CASES[6], ("torchvision:resnet18", *CASES[0][1:])])
def test_a_folder_for_the_hub(case: Case, tmp_path: Path) -> None:
    name = write(tmp_path / "given.safetensors", case[0], case[1], {**case[2], "width": None})
    made = export_encoder(name, tmp_path / "out" / "folder")
    readme = made.card.read_text()
    assert "license: unknown" in readme
    assert "linear probe, accuracy | 0.4321 |" in readme
    assert "k-NN, accuracy | not measured |" in readme
    images, expected = images_of(case[1]), load_encoder(name)
    again = load_encoder(made.file / "model.safetensors")
    torch.testing.assert_close(again(images), expected(images))
    np.save(made.file / "images.npy", images.numpy())
    subprocess.run([sys.executable, "-c", WITHOUT, str(made.file)], check=True)
    found = torch.from_numpy(np.loadtxt(made.file / "images.txt", np.float32, ndmin=2))
    torch.testing.assert_close(found, expected(images))
    if ":" in case[0]:
        timm = pytest.importorskip("timm")
        same_features(timm.create_model(f"local-dir:{made.file}", pretrained=True), expected)
    else:
        assert not (made.file / "config.json").exists()
    with pytest.raises(ConfigError, match="exists; choose"):
        export_encoder(name, made.file)
    assert [path.name for path in made.file.parent.iterdir()] == ["folder"]


def test_a_folder_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr("fedbench.bench.system.files._write_and_rename", full)
    with pytest.raises(StoreError, match="disk is full"):
        export_encoder("simclr@laptop", tmp_path / "folder")
    assert not any(tmp_path.iterdir())


class Mean(nn.Module):
    """Mean of all pixels, (B, C, H, W) -> (B, 1), times a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x.mean(dim=(1, 2, 3))[:, None]


class ByItsValues(Mean):
    """Not traceable: which way it goes depends on values."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(-x if x.sum() > 0 else x)


class NotInOnnx(Mean):
    """A logarithm of the gamma function is traceable; ONNX has no operator for it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.lgamma(x + 3))


@pytest.fixture(name="plugin")
def _plugin(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[nn.Module]], None]:
    def install(kind: type[nn.Module]) -> None:
        def make(backbone: Backbone) -> nn.Module:
            return kind()

        shape = CustomShape(make, dim=lambda width: 1, width=1, description="a mean")
        monkeypatch.setitem(backbones.BACKBONES, kind.__name__.lower(), shape)

    return install


@pytest.mark.parametrize("ending", [".pt2", pytest.param(".onnx", marks=WITH_ONNX)])
def test_what_cannot_be_traced_is_refused_and_nothing_is_written(
    ending: str, tmp_path: Path, plugin: Callable[[type[nn.Module]], None]
) -> None:
    plugin(ByItsValues)
    name = write(tmp_path / "given.safetensors", "byitsvalues", (3, 8, 8), {"norm": "batch"})
    refused(name, tmp_path / f"encoder{ending}", r"torch\.export cannot trace .*\.safetensors")


def refused(name: str, file: Path, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        export_encoder(name, file)
    assert "\n" not in str(error.value)
    assert [path.name for path in file.parent.iterdir()] == ["given.safetensors"]


@WITH_ONNX
@pytest.mark.slow
def test_an_operator_that_onnx_lacks_is_refused(
    tmp_path: Path, plugin: Callable[[type[nn.Module]], None]
) -> None:
    plugin(NotInOnnx)
    name = write(tmp_path / "given.safetensors", "notinonnx", (3, 8, 8), {"norm": "batch"})
    refused(name, tmp_path / "encoder.onnx", r"ONNX cannot express .*lgamma.*write \.pt2")


@WITH_ONNX
@pytest.mark.slow
def test_onnx_is_compared_with_torch_before_it_is_written(
    tmp_path: Path, plugin: Callable[[type[nn.Module]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin(Mean)
    name = write(tmp_path / "given.safetensors", "mean", (3, 8, 8), {"norm": "batch"})
    trace = formats._trace

    def altered(encoder: nn.Module, card: formats.Card) -> torch.export.ExportedProgram:
        other = copy.deepcopy(encoder)
        with torch.no_grad():
            other.get_parameter("backbone.weight").mul_(1.1)
        return trace(other, card)

    monkeypatch.setattr(formats, "_trace", altered)
    refused(name, tmp_path / "encoder.onnx", r"differ from torch's by .* write \.pt2")


def test_a_file_that_is_no_encoder_and_packages_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"must end in \.safetensors, \.pt2, \.onnx, \.pth"):
        export_encoder("simclr@laptop", tmp_path / "encoder.pb")
    with pytest.raises(DataError, match="no such file"):
        export_encoder("x.safetensors", tmp_path / "encoder.pt2")
    monkeypatch.setattr(formats, "find_spec", lambda name: None)
    with pytest.raises(ResourceError, match=r"onnx.*\[export\]"):
        export_encoder("simclr@laptop", tmp_path / "encoder.onnx")
    assert not any(tmp_path.iterdir())
