"""An exported encoder gives the run's features to the bit and describes itself."""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from fedbench.bench.evaluation.features import extract
from fedbench.bench.execution.export import export_encoder, load_encoder
from fedbench.bench.execution.run import run
from fedbench.bench.nn.weights import encoder_file
from fedbench.bench.results.store.store import Store
from fedbench.bench.system import tensor_files
from fedbench.bench.system.errors import ConfigError, DataError, StoreError
from fedbench.bench.system.seeding import single_thread
from fedbench.bench.testing import tiny_config, tiny_setup, train


@pytest.mark.parametrize(
    ("spec", "norm"), [("simclr+uv", "group"), ("simclr+uv", "batch"), ("fedavg-ae", "group")]
)
def test_features_are_the_runs(tmp_path: Path, spec: str, norm: Literal["group", "batch"]) -> None:
    fields = {"method__latent_dim": 5} if spec == "fedavg-ae" else {}
    config = tiny_config(spec, model__norm=norm, **fields)
    store = Store(tmp_path / "store")
    row = run(config, store=store, workers=1).row
    exported = export_encoder(row.row_id, tmp_path / "out" / "encoder.safetensors", store=store)
    encoder = load_encoder(exported.file)

    setup = tiny_setup(config)
    trainer = train(setup, tmp_path / "again")
    net = trainer.binding.net.eval()
    images = torch.from_numpy(setup.dataset.test_images.copy())
    with single_thread(), torch.no_grad():
        expected = extract(lambda x: setup.method.encode(net, x), images, device="cpu")
        assert torch.equal(encoder(images), expected)
    assert not encoder.training

    card = json.loads(exported.card.read_text())
    assert card == encoder.card
    assert card["run_id"] == row.row_id
    assert card["feature_dim"] == expected.shape[1]
    assert card["metrics"]["knn_acc"] == row.knn_acc
    assert exported.sha256 == hashlib.sha256(exported.file.read_bytes()).hexdigest()
    with pytest.raises(TypeError, match="uint8"):
        encoder(images.float())


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.root.mkdir()
    out = tmp_path / "encoder.safetensors"
    with pytest.raises(ConfigError, match=r"\.safetensors"):
        export_encoder("0" * 20, tmp_path / "encoder.pt", store=store)
    with pytest.raises(StoreError, match=r"'0+'"):
        export_encoder("0" * 20, out, store=store)
    local = run(tiny_config("simclr", model__norm="batch-local"), store=store, workers=1)
    with pytest.raises(StoreError, match=r"one encoder per client .* model\.norm=batch"):
        export_encoder(local.row.row_id, out, store=store)
    for path in store.cell_dir(local.run_id).glob("round-*"):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError):
        export_encoder(local.row.row_id, out, store=store)
    for path in store.cell_dir(local.run_id).glob("round-*"):
        path.unlink()
    with pytest.raises(StoreError):
        export_encoder(local.row.row_id, out, store=store)
    assert not out.exists()


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(DataError, match=r"x.safetensors': no such file; .*@"):
        load_encoder(path)
    with pytest.raises(DataError, match=r"'orchestra': no such file; .*orchestra@laptop"):
        load_encoder("orchestra")
    header = json.dumps({"__metadata__": {"card": "[" * 5000}}).encode()
    altered = bytearray(encoder_file("simclr@laptop").read_bytes())
    altered[-1] ^= 1
    contents = (b"else", struct.pack("<Q", 2**60), struct.pack("<Q", len(header)) + header, altered)
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(DataError):
            load_encoder(path)


@pytest.mark.parametrize(
    "card",
    [
        {"model": {"backbone": "resnet8", "width": 10**6}},
        {"model": {"backbone": "x"}},
        {"feature_dim": 10**15},
        {"image_shape": [-1, 0, 10**30]},
    ],
)
def test_a_card_is_not_believed(tmp_path: Path, card: dict[str, Any]) -> None:
    """Nothing is allocated for it: one 3×3 convolution of width 1e6 has 9e12 weights."""
    good = {
        "format": "fedbench-encoder-1",
        "model": {"backbone": "resnet8", "width": 4},
        "image_shape": [3, 8, 8],
        "feature_dim": 32,
        "pixels": "unit",
    }
    path = tmp_path / "encoder.safetensors"
    path.write_bytes(tensor_files.encode({"card": good | card}, {}))
    with pytest.raises(DataError, match=r"encoder\.safetensors") as error:
        load_encoder(path)
    assert "\n" not in str(error.value)
