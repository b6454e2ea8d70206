"""Named views: shapes, ranges, reproducibility, and the distribution of their draws."""

import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import RandomResizedCrop

from fedbench.bench.data.views.image_ops import rotate90
from fedbench.bench.data.views.recipes import VIEWS
from fedbench.bench.data.views.views import _draw, draw_resized_crop, make_view, normalise
from fedbench.bench.system.errors import DataError, UnknownNameError
from fedbench.bench.system.seeding import scope


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images_of(batch: int = 40, shape: tuple[int, int, int] = (3, 32, 32)) -> Tensor:
    return torch.randint(0, 256, (batch, *shape), generator=seeded(9), dtype=torch.uint8)


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (1, 8, 8), (3, 12, 20), (3, 4, 4)])
def test_views_are_finite_in_range_and_repeatable(name: str, shape: tuple[int, int, int]) -> None:
    images = images_of(shape=shape)
    before = images.clone()
    view = make_view(name, images, seeded())
    assert view.shape == images.shape
    assert view.dtype == torch.float32
    assert view.is_contiguous()
    low = -1.0 if VIEWS[name].normalised else 0.0
    assert torch.isfinite(view).all()
    assert view.min() >= low
    assert view.max() <= 1.0
    assert torch.equal(images, before)
    assert torch.equal(view, make_view(name, images, seeded()))
    if VIEWS[name].flip:
        assert not torch.equal(view, make_view(name, images, seeded(1)))


@pytest.mark.parametrize("name", ["weak", "strong", "simclr-o", "byol-o-2", "simclr-m"])
def test_an_image_does_not_feel_its_neighbours(name: str) -> None:
    images, others = images_of(), images_of(41)[1:].clone()
    others[7] = images[7]
    first, second = make_view(name, images, seeded()), make_view(name, others, seeded())
    torch.testing.assert_close(first[7], second[7], atol=1e-6, rtol=0)


def test_plain_unit_and_rot() -> None:
    images = images_of(2)
    unit = make_view("unit", images, seeded())
    assert torch.equal(unit, images.float() / 255)
    assert torch.equal(make_view("plain", images, seeded()), normalise(unit))
    assert torch.equal(make_view("rot", images, seeded()), normalise(unit))
    assert normalise(torch.tensor([0.0, 0.5, 1.0])).tolist() == [-1.0, 0.0, 1.0]
    assert torch.equal(rotate90(unit, torch.tensor([4, 4])), unit)


def test_weak_is_a_window_of_the_padded_image_or_of_its_mirror() -> None:
    images = images_of(30, (1, 6, 6))
    view = (make_view("weak", images, seeded()) + 1) / 2 * 255
    for image, result in zip(images, view, strict=True):
        padded = torch.nn.functional.pad(image, (4, 4, 4, 4))
        windows = [padded[:, i : i + 6, j : j + 6] for i in range(9) for j in range(9)]
        candidates = torch.stack([w.float() for x in windows for w in (x, x.flip(-1))])
        assert (candidates - result).abs().amax(dim=(1, 2, 3)).min() < 1e-3


@pytest.mark.parametrize(
    ("size", "scale"), [((32, 32), (0.5, 1.0)), ((32, 32), (0.08, 1.0)), ((16, 40), (0.3, 1.0))]
)
def test_boxes_are_distributed_as_torchvision_draws_them(
    size: tuple[int, int], scale: tuple[float, float]
) -> None:
    count = 4000
    box = draw_resized_crop(seeded(), count, size, scale)
    boxes = torch.stack([box[k] for k in ("top", "left", "height", "width")]).double()
    crop, image = RandomResizedCrop(8, scale=scale), torch.zeros(1, *size)
    with scope(3, "boxes"):
        drawn = [crop.make_params([image]) for _ in range(count)]
    reference = torch.tensor([[d[k] for k in ("top", "left", "height", "width")] for d in drawn]).T
    reference = reference.double()
    # Two-sample Kolmogorov-Smirnov: 1.95 is the bound for p = 0.001 of the scaled statistic.
    for a, b in zip(boxes, reference, strict=True):
        grid = torch.arange(-0.5, max(size) + 1)
        gap = (a[:, None] <= grid).double().mean(0) - (b[:, None] <= grid).double().mean(0)
        assert gap.abs().max() < 1.95 * (2 / count) ** 0.5
    assert ((boxes[0] + boxes[2]) <= size[0]).all()
    assert ((boxes[1] + boxes[3]) <= size[1]).all()


def test_a_box_that_never_fits_is_central_with_an_allowed_aspect_ratio() -> None:
    # A 4 x 40 image: half its area is 80 pixels, so a box would be at least sqrt(80 / (4/3)) = 7.7
    # rows high and none fits. The fallback keeps 4 rows and takes round(4 * 4/3) = 5 columns from
    # column (40 - 5) // 2 = 17 on.
    box = draw_resized_crop(seeded(), 3, (4, 40), (0.5, 1.0))
    assert {key: value.tolist() for key, value in box.items()} == {
        "top": [0] * 3, "left": [17] * 3, "height": [4] * 3, "width": [5] * 3,
    }  # fmt: skip


def test_draws_follow_the_recipe() -> None:
    count = 20000
    draws = _draw(VIEWS["byol-o-2"], seeded(), count, (32, 32))
    # Five standard deviations of a share p among 20000 draws.
    for key, p in {"flip": 0.5, "grayscale": 0.2, "blur": 0.1, "solarize": 0.2}.items():
        assert draws[key].float().mean().item() == pytest.approx(
            p, abs=5 * (p * (1 - p) / count) ** 0.5
        )
    jittered = draws["hue"] != 0
    assert jittered.float().mean().item() == pytest.approx(0.8, abs=5 * (0.16 / count) ** 0.5)
    ranges = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.2, "hue": 0.1}
    for key, half in ranges.items():
        low, high = (-half, half) if key == "hue" else (1 - half, 1 + half)
        values = draws[key][jittered]
        assert values.min().item() == pytest.approx(low, abs=1e-3)
        assert values.max().item() == pytest.approx(high, abs=1e-3)
        assert (draws[key][~jittered] == (0.0 if key == "hue" else 1.0)).all()
    codes = (draws["order"] * torch.tensor([64, 16, 4, 1])).sum(1)
    shares = torch.bincount(codes)[torch.bincount(codes) > 0] / count
    assert len(shares) == 24
    assert (shares - 1 / 24).abs().max() < 5 * (1 / 24 / count) ** 0.5


def test_what_cannot_be_viewed_is_refused() -> None:
    with pytest.raises(DataError, match="4x4 pixels or more, got 8x3"):
        make_view("plain", torch.zeros(2, 3, 8, 3, dtype=torch.uint8), seeded())
    with pytest.raises(UnknownNameError, match=r"'plane'.*'plain'"):
        make_view("plane", images_of(), seeded())
