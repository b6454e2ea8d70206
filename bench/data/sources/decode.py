"""Decoding of compressed images into the cache, the same for all sources."""

import hashlib
import io
import logging
import struct
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from PIL import Image

from fedbench.bench.data.cache import CLIENTS, SPLITS, CacheWriter, first_line
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
    """One image of a source."""

    content: Path | bytes | npt.NDArray[np.uint8]  # or pixels (H, W) or (H, W, 3)
    label: int | str  # the class, text that names it, or `HIDDEN`
    file: str  # the file or the set that it is in
    row: int | None = None  # its place there, from 0; None where it is the file
    client: str | int | None = None  # value of the column that clients are made of

    @property
    def place(self) -> str:
        """File and row, for messages."""
        return self.file if self.row is None else f"{self.file}, row {self.row}"

    def open(self) -> Image.Image:
        """Open an image that is compressed; only its header is read."""
        content = cast("Path | bytes", self.content)
        try:
            return Image.open(io.BytesIO(content) if isinstance(content, bytes) else content)
        except BROKEN as err:
            raise DataError(f"{self.place}: not a readable image ({_brief(err)})") from err

    def is_held_out(self) -> bool:
        """True for one image in `HELD_OUT`, by the SHA-256 of its file or, without one, pixels."""
        content = self.content
        data = content.read_bytes() if isinstance(content, Path) else bytes(content)
        return int.from_bytes(hashlib.sha256(data).digest()[:8]) % HELD_OUT == 0


Part = Iterable[Picture]
"""Images in the order of their source; iterated anew each time."""


class Splits(NamedTuple):
    """Images of a source."""

    train: Sequence[Part]  # training images, part after part
    test: Sequence[Part]  # test images; empty where the source has no test split
    class_names: tuple[str, ...] | None  # None: labels that are text in their order, else numbers

    def pictures(self) -> Iterator[tuple[str, Picture]]:
        """Yield `train` or `test` and each image, in the order of the source.

        Without a test split one image of six is a test image by its content, so that neither order
        nor place matters; of a set with some labels, only labelled images are.
        """
        if self.test:
            for split, parts in (("train", self.train), ("test", self.test)):
                for picture in chain.from_iterable(parts):
                    yield split, picture
            return
        labelled = any(picture.label != HIDDEN for picture in chain.from_iterable(self.train))
        for picture in chain.from_iterable(self.train):
            may = picture.label != HIDDEN or not labelled
            yield "test" if may and picture.is_held_out() else "train", picture

    def of(self, split: str) -> Iterator[Picture]:
        """Yield the images of `train` or `test`."""
        if self.test:
            return chain.from_iterable(self.train if split == "train" else self.test)
        return (picture for where, picture in self.pictures() if where == split)


HELD_OUT = 6
"""One of so many images is a test image where a data set has no test split."""


def pictures_of(
    images: npt.NDArray[np.uint8] | Sequence[Path],
    labels: Sequence[int | str],
    file: str,
    rows: Iterable[int] | None = None,
    clients: Sequence[str | int] | None = None,
) -> list[Picture]:
    """Return images of a file, (N, H, W), (N, H, W, 3) or files of their own, at `rows` of it."""
    rows = range(len(labels)) if rows is None else rows
    return [*map(Picture, images, labels, repeat(file), rows, clients or repeat(None))]


def decoded(
    images: npt.NDArray[Any], labels: npt.NDArray[Any], file: str, rows: Iterable[int] | None = None
) -> list[Picture]:
    """Check images (N, H, W) or (N, H, W, C) and their labels (N,) or (N, 1)."""
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or images.shape[3:] not in ((), (3,)):
        raise DataError(
            f"{file}: images are {images.dtype}{list(images.shape)}; needed: uint8 [N, H, W], or"
            " [N, H, W, C] with 1 or 3 channels"
        )
    count = len(images)
    if labels.shape not in ((count,), (count, 1)) or labels.dtype.kind not in "iu":
        got = f"{labels.dtype}{list(labels.shape)}"
        raise DataError(f"{file}: labels are {got}; needed: integers [{count}]")
    return pictures_of(images, labels.reshape(-1).tolist(), file, rows)


@dataclass(frozen=True)
class Layout:
    """Labels of a split, images per (width, height), whether an image has colour, and clients."""

    labels: list[int | str]
    sizes: Counter[tuple[int, int]]
    colour: bool
    clients: list[str | int | None]


def write_splits(
    writer: CacheWriter, splits: Splits, name: str, size: int | None, progress: Progress | None
) -> tuple[str, ...]:
    """Decode both splits into the cache: RGB when any image has colour, else one grey channel.

    Two passes: headers first, so that shape and number are known before the first byte is written
    and memory stays at one block of images. With a `size` images become squares of that side, else
    they have one size already. Returns the class names. Raises `DataError` if a picture is torn,
    sizes differ, a label is out of range, or a split is empty.
    """
    if not splits.test:
        _log.warning(
            "%s has no test split: one image of %d, by its content, is a test image", name, HELD_OUT
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        layouts = {split: _scan(splits.of(split), splits.class_names) for split in SPLITS}
    for split, layout in layouts.items():
        if not layout.labels:
            raise DataError(f"{name}: the {split} split has no images")
    labels, class_names = _numbered(layouts, splits.class_names)
    unlabelled = int((labels["test"] == HIDDEN).sum())
    if not class_names:
        _log.warning("%s has no labels: encoders can be trained on it, and not probed", name)
    elif unlabelled:
        of = f"{unlabelled:,} of {len(labels['test']):,} test images"
        raise DataError(f"{name}: {of} have no label; leave them out, or the whole split")
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

    def decode(pictures: Iterator[Picture]) -> Iterator[npt.NDArray[np.uint8]]:
        """Decode blocks (B, C, H, W) of at most `BLOCK` images."""
        nonlocal done
        while block := [_pixels(picture, mode, size) for picture in islice(pictures, BLOCK)]:
            stacked = np.stack(block)
            yield stacked[:, None] if stacked.ndim == 3 else stacked.transpose(0, 3, 1, 2)
            done += len(block)
            if progress is not None:
                progress(done, total)

    for split in SPLITS:
        shape = (len(labels[split]), len(mode), height, width)
        writer.put_blocks(f"{split}_images", shape, decode(splits.of(split)))
        writer.put(f"{split}_labels", labels[split])
    clients = layouts["train"].clients
    if clients[0] is not None:
        writer.put(CLIENTS, np.unique(np.array(clients), return_inverse=True)[1].astype(np.int64))
    return class_names


def _numbered(
    layouts: Mapping[str, Layout], class_names: tuple[str, ...] | None
) -> tuple[dict[str, npt.NDArray[np.int64]], tuple[str, ...]]:
    """Return the labels of each split as numbers, and the class names."""
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
                f" below it have no image ({listed}); number them without gaps, or name all classes"
            )
        class_names = tuple(map(str, range(num_classes)))
    labels = {
        split: np.array([numbers.get(label, label) for label in layout.labels], np.int64)
        for split, layout in layouts.items()
    }
    return labels, class_names


def _scan(pictures: Iterator[Picture], class_names: tuple[str, ...] | None) -> Layout:
    labels: list[int | str] = []
    sizes: Counter[tuple[int, int]] = Counter()
    colour, clients = False, []
    # Without names only a label that would make a huge, mostly empty list of classes is refused.
    limit = len(class_names) if class_names is not None else 1 << 16
    for picture in pictures:
        if isinstance(picture.label, int) and not HIDDEN <= picture.label < limit:
            allowed = f"allowed: {HIDDEN} (none), 0..{limit - 1}"
            raise DataError(f"{picture.place}: label {picture.label} is out of range; {allowed}")
        if isinstance(picture.content, np.ndarray):
            height, width, *channels = picture.content.shape
            colour = colour or bool(channels)
            sizes[width, height] += 1
        else:
            with picture.open() as image:
                if image.mode not in GREY_MODES | COLOUR_MODES:
                    what = f"{picture.place}: pixel mode {image.mode}"
                    raise DataError(f"{what} is not supported; convert it to 8-bit grey or RGB")
                colour = colour or image.mode in COLOUR_MODES
                sizes[image.size] += 1
        labels.append(picture.label)
        clients.append(picture.client)
    return Layout(labels, sizes, colour, clients)


def _pixels(picture: Picture, mode: str, size: int | None) -> npt.NDArray[np.uint8]:
    """Pixels (H, W) or (H, W, 3), in grey or colour as `mode` says, resized to `size`."""
    pixels = picture.content
    if isinstance(pixels, np.ndarray):
        if pixels.ndim == 2 and mode == "RGB":
            pixels = np.stack([pixels] * 3, axis=2)
    else:
        with picture.open() as image:
            try:
                image.load()  # explicitly, because NumPy may hide its errors
                # By way of RGBA a palette with transparency converts without a warning.
                whole = image.convert("RGBA") if image.mode in ("P", "PA") else image
                pixels = np.asarray(whole.convert(mode))
            except BROKEN as err:
                raise DataError(f"{picture.place}: not a readable image ({_brief(err)})") from err
    return pixels if size is None else fitted(pixels, size)


def _brief(err: BaseException) -> str:
    # Pillow names the buffer's address, which says nothing and differs between runs.
    text = first_line(err)
    return "unknown format" if "cannot identify image file" in text else text
