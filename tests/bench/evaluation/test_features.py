from typing import Any

import numpy as np
import pytest
import torch

from fedbench.bench.evaluation.features import extract, take_images
from fedbench.bench.system import seeding
from fedbench.bench.system.compute import resident
from fedbench.bench.system.errors import PluginError

IMAGES = seeding.numpy_generator(0, "images").integers(0, 256, (23, 1, 4, 5), dtype=np.uint8)


def mean_and_first(images: torch.Tensor) -> torch.Tensor:
    flat = images.flatten(1)
    return torch.stack([flat.mean(1), flat[:, 0]], dim=1)


@pytest.mark.parametrize("batch_size", [1, 5, 23, 500])
def test_extract_keeps_the_order_and_brings_pixels_to_minus_one_and_one(
    batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedbench.bench.evaluation.features.BATCH_SIZE", batch_size)
    # (x / 255 - 0.5) / 0.5 = x / 127.5 - 1, computed here in double precision
    scaled = IMAGES.reshape(23, -1) / 127.5 - 1
    expected = np.stack([scaled.mean(1), scaled[:, 0]], axis=1)
    for images in (IMAGES, torch.from_numpy(IMAGES)):
        features = extract(mean_and_first, images, device="cpu")
        np.testing.assert_allclose(features.numpy(), expected, atol=1e-6)
        assert features.dtype == torch.float32


def test_a_method_whose_features_are_no_rows_is_refused() -> None:
    with pytest.raises(PluginError, match=r"\(23, 1, 4, 5\)"):
        extract(lambda images: images, IMAGES, device="cpu")


@pytest.mark.parametrize("kind", ["slice", "array", "tensor"])
def test_a_tensor_of_images_gives_the_images_of_the_array(kind: str) -> None:
    """Evaluation on a GPU keeps images there as a tensor, where a CPU reads the array."""
    images = np.arange(6 * 3 * 2 * 2, dtype=np.uint8).reshape(6, 3, 2, 2)
    chosen = np.array([4, 0, 4])
    kinds: dict[str, Any] = {
        "slice": slice(1, 3),
        "array": chosen,
        "tensor": torch.from_numpy(chosen),
    }
    rows = kinds[kind]
    from_array = take_images(images, rows)
    assert torch.equal(take_images(torch.from_numpy(images), rows), from_array)
    assert resident(images, torch.device("cpu")) is images
