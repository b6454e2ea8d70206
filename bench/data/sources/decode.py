"""Decoding of compressed images into the cache, the same for all sources."""

from __future__ import annotations

import hashlib
import io
import logging
import struct
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from fedbench.bench.data.cache import CLIENTS, CacheWriter, first_line
from fedbench.bench.data.labels import HIDDEN
from fedbench.bench.data.reading import fitted
from fedbench.bench.system.errors import DataError

_log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with (images done, images in all) while a data set is built."""

BLOCK = 512  # images decoded before they are written
GREY_MODES = frozenset({"1", "L", "LA"})
COLOUR_MODES = frozenset({"RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr", "HSV", "LAB"})
BROKEN = (
    *(OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, zlib.error),
    *(Image.DecompressionBombError, Image.DecompressionBombWarning),
)
"""Errors that Pillow raises for damaged images, and for some that would fill the memory."""


class Picture(NamedTuple):
    """One compressed image.

    Attributes:
        content: its file, or the content of one.
        label: the class, text that names it, or `HIDDEN`.
        place: file and row, for messages.
        client: value of the column that clients are made of.
    """

    content: Path | bytes
    label: int | str
    place: str
    client: str | int | None = None

    def open(self) -> Image.Image:
        """Open the image; only its header is read.

        Raises:
            DataError: Pillow does not know the format.
        """
        content = self.content
        try:
            return Image.open(io.BytesIO(content) if isinstance(content, bytes) else content)
        except BROKEN as err:
            raise DataError(f"{self.place}: not a readable image ({_brief(err)})") from err


HELD_OUT = 6
"""One of so many images is a test image where a data set has no test split."""


@dataclass(frozen=True)
class Part:
    """Training or test images of a data set that comes without a test split.

    The SHA-256 of an image's file decides, so that neither order nor place matters.

    Attributes:
        whole: all pictures, in their order; iterated anew each time.
        held_out: True = the test images.
        labelled: only images with a label are held out.
    """

    whole: Iterable[Picture]
    held_out: bool
    labelled: bool

    def __iter__(self) -> Iterator[Picture]:
        """Yield the pictures of this part."""
        for picture in self.whole:
            content = picture.content
            data = content if isinstance(content, bytes) else content.read_bytes()
            number = int.from_bytes(hashlib.sha256(data).digest()[:8])
            may = picture.label != HIDDEN or not self.labelled
            if (may and number % HELD_OUT == 0) == self.held_out:
                yield picture


def hold_out(whole: Iterable[Picture], name: str) -> tuple[Part, Part]:
    """Return training and test images of a data set without a test split, and log a warning."""
    labelled = any(picture.label != HIDDEN for picture in whole)
    _log.warning(
        "%s has no test split: one image of %d, by its content, is a test image", name, HELD_OUT
    )
    return Part(whole, False, labelled), Part(whole, True, labelled)


@dataclass(frozen=True)
class Layout:
    """Labels of a split, images per (width, height), whether an image has colour, and clients."""

    labels: list[int | str]
    sizes: Counter[tuple[int, int]]
    colour: bool
    clients: list[str | int | None]


def write_splits(
    writer: CacheWriter,
    train: Iterable[Picture],
    test: Iterable[Picture],
    class_names: tuple[str, ...] | None,
    progress: Progress | None,
) -> tuple[str, ...]:
    """Decode both splits into the cache: RGB when any image has colour, else one grey channel.

    Images have one size already, or `writer.image_size` brings them to one.

    Two passes: headers first, so that shape and number are known before the first byte is written
    and memory stays at one block of images.

    Args:
        writer: of the cache folder that is being built.
        train: training split in the order of the data set; is iterated twice.
        test: test split; likewise.
        class_names: names by label; None numbers labels that are text in their order, and calls
            classes "0", "1", … up to the largest label otherwise.
        progress: see `Progress`.

    Returns:
        The class names.

    Raises:
        DataError: a picture is torn, sizes differ, a label is out of range, or a split is empty.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        layouts = {"train": _scan(train, class_names), "test": _scan(test, class_names)}
    for split, layout in layouts.items():
        if not layout.labels:
            raise DataError(f"the {split} split has no images")
    labels, class_names = _numbered(layouts, class_names)
    size = writer.image_size
    sizes = layouts["train"].sizes + layouts["test"].sizes
    if len(sizes) > 1 and size is None:
        smallest = min(min(pair) for pair in sizes)
        listed = ", ".join(f"{w}x{h} ({n} images)" for (w, h), n in sizes.most_common(5))
        more = f" and {len(sizes) - 5} more" if len(sizes) > 5 else ""
        raise DataError(
            f"all images must have one size, but widths x heights are {listed}{more}; set"
            f" data.image_size, for example {smallest}, to resize them"
        )
    ((width, height),) = sizes if size is None else [(size, size)]
    total = sizes.total()
    mode = "RGB" if any(layout.colour for layout in layouts.values()) else "L"
    done = 0

    def decode(pictures: Iterable[Picture]) -> Iterator[npt.NDArray[np.uint8]]:
        """Decode blocks (B, C, H, W) of at most `BLOCK` images."""
        nonlocal done
        remaining = iter(pictures)
        while block := [_pixels(picture, mode, size) for picture in islice(remaining, BLOCK)]:
            yield _stack(block)
            done += len(block)
            if progress is not None:
                progress(done, total)

    for split, pictures in (("train", train), ("test", test)):
        shape = (len(labels[split]), len(mode), height, width)
        writer.put_blocks(f"{split}_images", shape, decode(pictures))
        writer.put(f"{split}_labels", labels[split])
    clients = layouts["train"].clients
    if clients[0] is not None:
        writer.put(CLIENTS, np.unique(np.array(clients), return_inverse=True)[1].astype(np.int64))
    return class_names


def _numbered(
    layouts: Mapping[str, Layout], class_names: tuple[str, ...] | None
) -> tuple[dict[str, npt.NDArray[np.int64]], tuple[str, ...]]:
    """Return the labels of each split as numbers, and the class names.

    Raises:
        DataError: a class without a name, below the largest, has no image, as if labels were no
            class numbers.
    """
    used = {label for layout in layouts.values() for label in layout.labels} - {HIDDEN}
    numbers: dict[int | str, int] = {}
    if any(isinstance(label, str) for label in used):
        class_names = tuple(sorted(map(str, used)))
        numbers = {label: class_names.index(str(label)) for label in used}
    elif not class_names:
        num_classes = max(map(int, used), default=-1) + 1
        if missing := sorted(set(range(num_classes)) - used):
            listed = ", ".join(map(str, missing[:5])) + (" …" if len(missing) > 5 else "")
            raise DataError(
                f"the largest label is {num_classes - 1:,}, but {len(missing):,} of the classes"
                f" below it have no image ({listed}); number the labels 0, 1, 2, … without gaps,"
                " or name the classes in the features of the data set"
            )
        class_names = tuple(map(str, range(num_classes)))
    labels = {
        split: np.array([numbers.get(label, label) for label in layout.labels], np.int64)
        for split, layout in layouts.items()
    }
    return labels, class_names


def _scan(pictures: Iterable[Picture], class_names: tuple[str, ...] | None) -> Layout:
    labels: list[int | str] = []
    sizes: Counter[tuple[int, int]] = Counter()
    colour, clients = False, []
    # Without names only a label that would make a huge, mostly empty list of classes is refused.
    limit = len(class_names) if class_names is not None else 1 << 16
    for picture in pictures:
        if isinstance(picture.label, int) and not HIDDEN <= picture.label < limit:
            raise DataError(
                f"{picture.place}: label {picture.label} is out of range; allowed:"
                f" {HIDDEN} (none), 0..{limit - 1}"
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
        clients.append(picture.client)
    return Layout(labels, sizes, colour, clients)


def _pixels(picture: Picture, mode: str, size: int | None) -> npt.NDArray[np.uint8]:
    """Pixels (H, W) or (H, W, 3)."""
    pixels = _decoded(picture, mode)
    return pixels if size is None else fitted(pixels, size)


def _decoded(picture: Picture, mode: str) -> npt.NDArray[np.uint8]:
    with picture.open() as image:
        try:
            image.load()  # explicitly, because NumPy may hide its errors
            if image.mode == mode:
                return np.asarray(image)
            # By way of RGBA a palette with transparency converts without a warning.
            whole = image.convert("RGBA") if image.mode in ("P", "PA") else image
            return np.asarray(whole.convert(mode))
        except BROKEN as err:
            raise DataError(f"{picture.place}: not a readable image ({_brief(err)})") from err


def _stack(block: list[npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint8]:
    stacked = np.stack(block)
    return stacked[:, None] if stacked.ndim == 3 else stacked.transpose(0, 3, 1, 2)


def _brief(err: BaseException) -> str:
    # Pillow names the buffer's address, which says nothing and differs between runs.
    text = first_line(err)
    return "unknown format" if "cannot identify image file" in text else text
