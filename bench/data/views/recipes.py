"""Recipes of the named views, as data.

Source: `-o`: Lubana et al. 2022, https://arxiv.org/abs/2205.11506, and its released transforms;
`-m`: Louizos et al. 2024, https://arxiv.org/abs/2405.02081 (the crop of `simclr-m` is not stated
there). Deviation: pixels stay float from one operation to the next; the former's transforms round
them to 8 bits each time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from fedbench.bench.data.views.resampling import Interpolation
from fedbench.bench.system.errors import UnknownNameError


@dataclass(frozen=True)
class ViewRecipe:
    """Random operations on an image, in the order of the fields; probabilities are per image."""

    description: str
    crop: Literal["none", "resized", "padded"] = "none"  # random box; window of the padded image
    scale: tuple[float, float] = (0.08, 1.0)  # share of the image that a resized crop covers
    interpolation: Interpolation = "bicubic"  # kernel of the resized crop
    flip: float = 0.0  # probability of a left-right flip
    jitter: tuple[float, float, float, float] | None = None  # half-widths, with probability 0.8
    grayscale: float = 0.0
    blur: float = 0.0  # probability of the 3x3 blur with sigma uniform in [0.1, 2]
    solarize: float = 0.0
    rand_augment: tuple[int, int] | None = None  # operations, magnitude 0..30; no resized crop
    cutout: float = 0.0  # side of a greyed-out square, as a share of the image's shorter side
    normalised: bool = True  # shift and scale by the project's one mean and deviation at the end


_PLAIN = ViewRecipe("the image itself")
_WEAK = ViewRecipe("crop of the image padded by 4, and flip", "padded", flip=0.5)
_BASE = ViewRecipe("crop of 50-100 % and flip", "resized", (0.5, 1.0), flip=0.5)
_SIMCLR_O = replace(
    _BASE,
    description="crop of 50-100 %, flip, mild jitter, gray, blur of every second image",
    jitter=(0.4, 0.4, 0.2, 0.1),
    grayscale=0.2,
    blur=0.5,
)
_BYOL_O_2 = replace(
    _SIMCLR_O, description="as simclr-o with little blur, and solarisation", blur=0.1, solarize=0.2
)
_SIMCLR_M = ViewRecipe(
    "crop of 8-100 %, flip, jitter, gray, no blur",
    "resized",
    flip=0.5,
    jitter=(0.4, 0.4, 0.4, 0.1),
    grayscale=0.2,
)

VIEWS: Final[Mapping[str, ViewRecipe]] = {
    "plain": _PLAIN,
    "unit": replace(_PLAIN, description="the image in [0, 1], not normalised", normalised=False),
    "rot": replace(_PLAIN, description="as plain; the method draws the quarter turns"),
    "base": _BASE,
    "weak": _WEAK,
    "strong": replace(
        _WEAK,
        description="as weak, then two RandAugment operations and cutout of half a side",
        rand_augment=(2, 10),
        cutout=0.5,
    ),
    "simclr-o": _SIMCLR_O,
    "byol-o-1": replace(_SIMCLR_O, description="as simclr-o, always blurred", blur=1.0),
    "byol-o-2": _BYOL_O_2,
    "orchestra-o-1": _SIMCLR_O,
    "orchestra-o-2": _BYOL_O_2,
    "mask": ViewRecipe("crop of 20-100 % and flip", "resized", (0.2, 1.0), flip=0.5),
    "spec-o-1": ViewRecipe(
        "bilinear crop of 8-100 % and flip", "resized", interpolation="bilinear", flip=0.5
    ),
    "spec-o-2": replace(
        _SIMCLR_M,
        description="crop of 20-100 %, flip, jitter, gray, blur of every second image",
        scale=(0.2, 1.0),
        blur=0.5,
    ),
    "simclr-m": _SIMCLR_M,
    "simclr-m-pad4": replace(
        _SIMCLR_M, description="as simclr-m with a crop of the padded image", crop="padded"
    ),
}


def check_view(name: str) -> None:
    """Raise `UnknownNameError` unless a name is that of a view of normalised images."""
    known = [view for view, recipe in VIEWS.items() if recipe.normalised]
    if name not in known:
        raise UnknownNameError("view", name, known)
