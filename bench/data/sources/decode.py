"""Decoding of compressed images into the cache; knows nothing of where they come from."""

from __future__ import annotations

import io
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from fedbench.bench.data.cache import CacheWriter
from fedbench.bench.system.errors import DataError

Progress = Callable[[int, int], None]
"""Called with (images done, images in all) while a data set is built."""

BLOCK = 512  # images decoded before they are written
GREY_MODES = frozenset({"1", "L", "LA"})
COLOUR_MODES = frozenset({"RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr", "HSV", "LAB"})
BROKEN = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, zlib.error)
"""What Pillow raises for pictures that are not intact."""


class Picture(NamedTuple):
    """One compressed image: the file it is in, its row there (None: the file itself), its label."""

    file: Path
    row: int | None
    data: bytes | None
    label: int

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return str(self.file) if self.row is None else f"{self.file}, row {self.row}"

    def open(self) -> Image.Image:
        """The image, of which only the header has been read.

        Raises:
            DataError: it is no image that Pillow knows.
        """
        try:
            return Image.open(self.file if self.data is None else io.BytesIO(self.data))
        except BROKEN as err:
            raise DataError(f"{self.place}: not a readable image ({_brief(err)})") from err


class Pictures(Protocol):
    """A split that can be read more than once."""

    def __iter__(self) -> Iterator[Picture]:
        """The pictures in the order of the data set."""
        ...


@dataclass(frozen=True)
class Layout:
    """What the headers of a split say."""

    labels: npt.NDArray[np.int64]
    sizes: Counter[tuple[int, int]]
    colour: bool


def write_splits(
    writer: CacheWriter,
    train: Pictures,
    test: Pictures,
    class_names: tuple[str, ...] | None,
    progress: Progress | None,
) -> tuple[str, ...]:
    """Decode both splits into the cache: RGB when any image has colour, else one grey channel.

    Two passes: headers first, so that shape and number are known before the first byte is written
    and memory stays at one block of images.

    Args:
        writer: of the cache folder that is being built.
        train: training split.
        test: test split.
        class_names: names by label; None calls classes "0", "1", … up to the largest label.
        progress: see `Progress`.

    Returns:
        The class names.

    Raises:
        DataError: a picture is torn, sizes differ, a label is out of range, or a split is empty.
    """
    layouts = {"train": _scan(train, class_names), "test": _scan(test, class_names)}
    for split, layout in layouts.items():
        if not len(layout.labels):
            raise DataError(f"the {split} split has no images")
    sizes = layouts["train"].sizes + layouts["test"].sizes
    if len(sizes) > 1:
        found = ", ".join(f"{w}x{h} ({n} images)" for (w, h), n in sizes.most_common(5))
        more = f" and {len(sizes) - 5} more" if len(sizes) > 5 else ""
        raise DataError(
            f"all images must have one size, but widths x heights are {found}{more}; resize them"
        )
    (width, height), total = next(iter(sizes.items()))
    mode = "RGB" if any(layout.colour for layout in layouts.values()) else "L"
    done = 0
    for split, pictures in (("train", train), ("test", test)):
        labels = layouts[split].labels
        channels = len(mode) if mode == "RGB" else 1
        with writer.array(f"{split}_images", (len(labels), channels, height, width)) as append:
            for block in _blocks(pictures, mode):
                append(block)
                done += len(block)
                if progress is not None:
                    progress(done, total)
        writer.put(f"{split}_labels", labels)
    if class_names is not None:
        return class_names
    num_classes = 1 + max(int(layout.labels.max()) for layout in layouts.values())
    return tuple(str(c) for c in range(num_classes))


def _scan(pictures: Iterable[Picture], class_names: tuple[str, ...] | None) -> Layout:
    labels: list[int] = []
    sizes: Counter[tuple[int, int]] = Counter()
    colour = False
    # Without names only a label that would make a huge, mostly empty list of classes is refused.
    limit = len(class_names) if class_names is not None else 1 << 16
    for picture in pictures:
        if not 0 <= picture.label < limit:
            raise DataError(
                f"{picture.place}: label {picture.label} is out of range; allowed: 0..{limit - 1}"
            )
        with picture.open() as image:
            if image.mode not in GREY_MODES | COLOUR_MODES:
                raise DataError(
                    f"{picture.place}: pixel mode {image.mode} is not supported; convert it to"
                    " 8-bit grey or RGB"
                )
            colour = colour or image.mode in COLOUR_MODES
            sizes[image.size] += 1
        labels.append(picture.label)
    return Layout(np.array(labels, dtype=np.int64), sizes, colour)


def _blocks(pictures: Iterable[Picture], mode: str) -> Iterator[npt.NDArray[np.uint8]]:
    """Blocks (B, C, H, W) of decoded images, B <= BLOCK."""
    block: list[npt.NDArray[np.uint8]] = []
    for picture in pictures:
        block.append(_pixels(picture, mode))
        if len(block) == BLOCK:
            yield _stack(block)
            block = []
    if block:
        yield _stack(block)


def _pixels(picture: Picture, mode: str) -> npt.NDArray[np.uint8]:
    """Pixels (H, W) or (H, W, 3)."""
    with picture.open() as image:
        try:
            image.load()  # explicitly, because NumPy may hide what goes wrong in it
            if image.mode == mode:
                return np.asarray(image)
            # By way of RGBA a palette with transparency converts without a warning.
            through = image.convert("RGBA") if image.mode in ("P", "PA") else image
            return np.asarray(through.convert(mode))
        except BROKEN as err:
            raise DataError(f"{picture.place}: not a readable image ({_brief(err)})") from err


def _stack(block: list[npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint8]:
    stacked = np.stack(block)
    return stacked[:, None] if stacked.ndim == 3 else stacked.transpose(0, 3, 1, 2)


def _brief(err: BaseException) -> str:
    # Pillow names the buffer's address, which says nothing and differs between runs.
    text = (str(err).splitlines() or [type(err).__name__])[0]
    return "unknown format" if "cannot identify image file" in text else text
