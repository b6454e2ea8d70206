"""A picture to look at: a training image and a test image of each class, with its name."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from fedbench.bench.data.cache import SPLITS
from fedbench.bench.data.labels import HIDDEN
from fedbench.bench.system.text import single_line

_LEAST, _MOST = 72, 144  # pixels of an image's longer side in the picture
_GAP, _LINE, _ACROSS = 6, 14, 12  # pixels between cells and for a name; cells of a row

MOST_CLASSES = 1000
Arrays = Mapping[str, npt.NDArray[Any]]


def preview_png(
    arrays: Arrays, class_names: Sequence[str], most_classes: int = MOST_CLASSES
) -> bytes:
    """Return a PNG with a cell for each of the first classes: name, training image, test image.

    `arrays` has images (N, C, H, W) and labels (N,) of both splits, as a cache has them. Each image
    is the first of its class there, where the order is that of hashes: any one.
    Images without a label have the last cell. A frame is empty where a split lacks the class.
    """
    first = {}  # split -> label -> place of its first image
    for split in SPLITS:
        labels, places = np.unique(arrays[f"{split}_labels"], return_index=True)
        first[split] = dict(zip(labels.tolist(), places.tolist(), strict=True))
    cells = [*enumerate(class_names[:most_classes])]
    if any(HIDDEN in of_split for of_split in first.values()):
        cells.append((HIDDEN, "no label"))
    width, height = _scaled(*arrays["train_images"].shape[:1:-1])
    step = max(width, _LEAST) + _GAP, _LINE + 2 * (height + _GAP)
    across = min(len(cells), max(_ACROSS, math.isqrt(len(cells))))
    size = across * step[0] + _GAP, -(-len(cells) // across) * step[1] + _GAP
    sheet = Image.new("RGB", size, "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default()
    for number, (label, name) in enumerate(cells):
        x, y = _GAP + number % across * step[0], _GAP + number // across * step[1]
        # The font that comes with Pillow has Latin letters alone, so the number goes before.
        text = single_line(name if name == str(label) or label == HIDDEN else f"{label} {name}")
        text = text.encode("latin-1", "replace").decode("latin-1")
        while font.getlength(text) > step[0] - _GAP:
            text = text[:-1]
        draw.text((x, y), text, "black", font)
        for split in SPLITS:
            top = y + _LINE + (height + 2) * SPLITS.index(split)
            if label not in first[split]:
                draw.rectangle((x, top, x + width - 1, top + height - 1), outline="grey")
            else:
                image = _image(arrays[f"{split}_images"][first[split][label]])
                nearest = image.width < width
                way = Image.Resampling.NEAREST if nearest else Image.Resampling.BOX
                sheet.paste(image.resize((width, height), way), (x, top))
    out = io.BytesIO()
    sheet.save(out, "PNG")
    return out.getvalue()


def _scaled(width: int, height: int) -> tuple[int, int]:
    """Return the size at which an image is shown: a small one by a whole factor."""
    longer = max(width, height)
    factor = -(-_LEAST // longer) if longer < _LEAST else min(1.0, _MOST / longer)
    return max(1, round(width * factor)), max(1, round(height * factor))


def _image(pixels: npt.NDArray[np.uint8]) -> Image.Image:
    """Return pixels (C, H, W) as an image."""
    return Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0).copy())
