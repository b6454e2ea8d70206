"""One compressed image: its upright size from the header, and its pixels without transparency.

- An image is turned as its EXIF orientation says, as viewers and the `datasets` library do.
- Transparent pixels are put on white, whatever colour lies hidden below them.
- Of several frames (GIF, WebP, TIFF, PNG) the first is read.
"""

import io
import re
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from fedbench.bench.data.cache import first_line
from fedbench.bench.system.errors import DataError

GREY_MODES = frozenset({"1", "L", "LA"})
COLOUR_MODES = frozenset({"RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr", "HSV", "LAB"})
BROKEN = (
    OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, zlib.error,
    Image.DecompressionBombError, Image.DecompressionBombWarning,
)  # fmt: skip
"""Errors that Pillow raises for damaged images, and for some that would fill the memory."""

TURNED, ON_WHITE, FRAMES = "turned by EXIF", "transparent, put on white", "several frames"
"""What may be said of an image that is not read pixel by pixel as it is stored."""

_MAGIC = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8[79]a|RIFF....WEBP|II\*\0|MM\0\*|P[1-6]\s|....ftypavif"
    rb"|BM....\0\0\0\0",
    re.DOTALL,
)
"""First bytes of JPEG, PNG, GIF, WebP, TIFF, PPM, AVIF and BMP."""
_EXIF = frozenset({"exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif"})
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""Orientation of EXIF (JEITA CP-3451, tag 0x0112) -> what makes the image upright."""


def looks_like_image(file: Path) -> bool:
    """True if a file begins as an image does; for names without an ending."""
    if not file.is_file():  # a pipe would wait for ever
        return False
    with file.open("rb") as stream:
        return _MAGIC.match(stream.read(16)) is not None


def header_of(content: Path | bytes, place: str) -> tuple[tuple[int, int], bool]:
    """Return width and height of the upright image, and whether it has colour, from its header.

    `place` names the image in a `DataError`.
    """
    with _opened(content, place) as image:
        if image.mode not in GREY_MODES | COLOUR_MODES:
            what = f"{place}: pixel mode {image.mode}"
            raise DataError(f"{what} is not supported; convert it to 8-bit grey or RGB")
        size = image.size[::-1] if _orientation(image) >= 5 else image.size
        return size, image.mode in COLOUR_MODES


def pixels_of(
    content: Path | bytes, place: str, mode: str
) -> tuple[npt.NDArray[np.uint8], list[str]]:
    """Return upright, opaque pixels, (H, W) in `mode` L or (H, W, 3) in RGB, and what was done."""
    with _opened(content, place) as image:
        # The further frames of an MPO, a photograph, are previews and the like of the first.
        has_frames = image.format != "MPO" and getattr(image, "is_animated", False)
        done = [FRAMES] if has_frames else []
        image.load()  # explicitly, because NumPy may hide its errors
        # A palette may have transparency without saying so.
        has_alpha = image.mode in ("LA", "P", "PA", "RGBA") or "transparency" in image.info
        whole = image.convert("LA" if mode == "L" else "RGBA") if has_alpha else image
        flat = whole.convert(mode)
        if has_alpha and (alpha := whole.getchannel("A")).getextrema() != (255, 255):
            flat = Image.composite(flat, Image.new(mode, flat.size, "white"), alpha)
            done.append(ON_WHITE)
        if (turn := _TURNS.get(_orientation(image))) is not None:
            flat = flat.transpose(turn)
            done.append(TURNED)
        return np.asarray(flat), done


@contextmanager
def _opened(content: Path | bytes, place: str) -> Iterator[Image.Image]:
    """Open an image; what Pillow raises, also while it is used, becomes a `DataError`."""
    try:
        with Image.open(io.BytesIO(content) if isinstance(content, bytes) else content) as image:
            yield image
    except BROKEN as err:
        # Pillow names the buffer's address, which says nothing and differs between runs.
        why = "unknown format" if "cannot identify image file" in str(err) else first_line(err)
        raise DataError(f"{place}: not a readable image ({why}); repair or remove it") from err


def _orientation(image: Image.Image) -> int:
    """Return the orientation 1..8 of EXIF; 1, as stored, where there is none or it is damaged."""
    if image.format == "TIFF" or not _EXIF & image.info.keys():  # Pillow itself turns a TIFF
        return 1
    with warnings.catch_warnings(action="ignore"):  # of damaged EXIF
        try:
            # That of PngImageFile would decode the pixels to look behind them.
            value = Image.Image.getexif(image).get(0x0112)
        except BROKEN:
            return 1
    return value if value in _TURNS else 1
