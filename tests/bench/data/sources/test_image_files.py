"""Pixels of compressed images as a viewer shows them: upright, on white."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedbench.bench.data.datasets import load_dataset
from fedbench.bench.data.sources.image_files import (
    FRAMES,
    ON_WHITE,
    TURNED,
    header_of,
    looks_like_image,
    pixels_of,
)
from tests.bench.data.files import encoded, refused

WIDE = np.arange(48, dtype=np.uint8).reshape(2, 8, 3) * 5
"""An image of 8 x 2 pixels, no two of which are equal."""


def oriented(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


UPRIGHT = {
    1: WIDE,
    2: WIDE[:, ::-1],
    3: WIDE[::-1, ::-1],
    4: WIDE[::-1],
    5: WIDE.transpose(1, 0, 2),
    6: np.rot90(WIDE, -1),
    7: np.rot90(WIDE, 2).transpose(1, 0, 2),
    8: np.rot90(WIDE),
    9: WIDE,  # no orientation of EXIF
}
"""By orientation: row 0 and column 0 of the stored image are top and left, top and right, … ."""


@pytest.mark.parametrize("form", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", UPRIGHT)
def test_an_image_is_turned_upright(orientation: int, form: str) -> None:
    extra = {"lossless": True} if form == "WEBP" else {}
    data = encoded(Image.fromarray(WIDE), form, exif=oriented(orientation), **extra)
    pixels, done = pixels_of(data, "x", "RGB")
    np.testing.assert_array_equal(pixels, UPRIGHT[orientation])
    assert header_of(data, "x") == (pixels.shape[1::-1], True)
    assert done == ([TURNED] if form != "TIFF" and 2 <= orientation <= 8 else [])


def test_a_damaged_exif_turns_nothing() -> None:
    for exif in (b"Exif\0\0nothing", b"Exif\0\0II*\0\xff\xff\xff\xff", b"MM"):
        data = encoded(Image.fromarray(WIDE), "PNG", exif=exif)
        assert header_of(data, "x")[0] == (8, 2)
        np.testing.assert_array_equal(pixels_of(data, "x", "RGB")[0], WIDE)


def test_a_png_that_is_turned_behind_its_pixels_is_refused(tmp_path: Path) -> None:
    data = encoded(Image.fromarray(WIDE), exif=oriented(6))
    start = data.index(b"eXIf") - 4
    end = start + 12 + int.from_bytes(data[start : start + 4])
    late = data[:start] + data[end:-12] + data[start:end] + data[-12:]  # before IEND
    for split in ("train", "test"):
        (tmp_path / split / "a").mkdir(parents=True)
        (tmp_path / split / "a" / "0.png").write_bytes(late)
    refused(f"folder:{tmp_path}", r"0\.png: decoded it is 2x8, not 8x2 as it begins")


def with_alpha(mode: str, alpha: int) -> bytes:
    """An image of one grey 100, whose left half is opaque, with `alpha` in the other."""
    covers = np.full((2, 4), 255, np.uint8)
    covers[:, 2:] = alpha
    if mode in ("RGBA", "LA"):
        image = Image.new("L" if mode == "LA" else "RGB", (4, 2), "#646464")
        image.putalpha(Image.fromarray(covers))
        return encoded(image)
    image = Image.fromarray(np.where(covers == 255, 100, 0).astype(np.uint8))
    if mode == "P":
        image.putpalette([100] * 768)
        return encoded(image, transparency=bytes([alpha]))
    return encoded(image.convert(mode), transparency=(0, 0, 0) if mode == "RGB" else 0)


@pytest.mark.parametrize(
    ("mode", "alpha", "shade"),
    [
        *((mode, *each) for mode in ("RGBA", "LA") for each in ((0, 255), (128, 177), (255, 100))),
        ("P", 0, 255),
        ("P", 128, 177),
        ("L", 0, 255),
        ("RGB", 0, 255),
    ],
)
def test_transparent_pixels_are_on_white(mode: str, alpha: int, shade: int) -> None:
    """Alpha a of grey 100 on white is (100 a + 255 (255 - a)) / 255: 177.2 for a = 128."""
    data = with_alpha(mode, alpha)
    for colour in ("RGB",) if header_of(data, "x")[1] else ("L", "RGB"):
        pixels, done = pixels_of(data, "x", colour)
        assert pixels.shape == ((2, 4, 3) if colour == "RGB" else (2, 4))
        assert (pixels[:, :2] == 100).all()
        assert (pixels[:, 2:] == shade).all()
        assert done == ([ON_WHITE] if alpha < 255 else [])


def test_of_several_frames_the_first_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (Image.new("L", (4, 2), shade) for shade in (100, 200))
    for form in ("GIF", "TIFF", "PNG", "WEBP"):
        data = encoded(first, form, save_all=True, append_images=[second])
        pixels, done = pixels_of(data, "x", "RGB")
        assert done == [FRAMES]
        assert abs(int(pixels.mean()) - 100) < 3
        for split in ("train", "test"):
            (tmp_path / split / "a").mkdir(parents=True, exist_ok=True)
            (tmp_path / split / "a" / f"0.{form}").write_bytes(data)
    load_dataset(f"folder:{tmp_path}")
    assert "of 8 images with several frames only the first is read" in caplog.text


def test_a_pipe_is_no_image(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    assert not looks_like_image(tmp_path / "x")
