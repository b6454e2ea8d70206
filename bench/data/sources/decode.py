"""Decoding of compressed images into the cache, the same for all sources."""

import hashlib
import logging
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from fedbench.bench.data.cache import CLIENTS, SPLITS, CacheWriter
from fedbench.bench.data.labels import HIDDEN, WITHOUT_LABELS
from fedbench.bench.data.reading import fitted
from fedbench.bench.data.sources.image_files import FRAMES, header_of, pixels_of
from fedbench.bench.data.sources.splits import nearest, plain, some
from fedbench.bench.system.errors import DataError, ResourceError

_log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with (images done, images in all) while a data set is built."""

BLOCK, BLOCK_BYTES = 512, 1 << 26  # images and bytes decoded before they are written
MAX_IMAGES = 20_000_000  # of a data set
MAX_IMAGE_BYTES = 1 << 28  # of one compressed image
_SIZES = 20  # sizes of images that are counted one by one


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

    def check_size(self) -> None:
        """Raise `DataError` for a compressed image that is larger than any camera's."""
        if isinstance(self.content, np.ndarray):
            return
        content = self.content
        size = content.stat().st_size if isinstance(content, Path) else len(content)
        if size > MAX_IMAGE_BYTES:
            allowed = f"allowed: {MAX_IMAGE_BYTES >> 20} MiB"
            raise DataError(f"{self.place}: the image has {size / 1e6:,.0f} MB; {allowed}")

    def is_held_out(self) -> bool:
        """True for one image in `HELD_OUT`, by the SHA-256 of its file or, without one, pixels."""
        self.check_size()
        content = self.content
        data = content.read_bytes() if isinstance(content, Path) else bytes(content)
        return int.from_bytes(hashlib.sha256(data).digest()[:8]) % HELD_OUT == 0


Part = Iterable[Picture]
"""Images in the order of their source; iterated anew each time."""


VALIDATION = "images of validation, as there is a test split"
"""Why a split is left out."""


class LeftOut(NamedTuple):
    """Images or files of a source that are not read."""

    why: str
    files: Sequence[Path | str]
    said: bool = True  # in a warning, as they may be images that the user wants
    rows: int | None = None  # images in the files, where they are known and more than one each

    @property
    def number(self) -> int:
        """Images that are left out, or files where their images are not counted."""
        return len(self.files) if self.rows is None else self.rows

    def __str__(self) -> str:
        """The reason, the number of images or files, and the first files."""
        first = ["/".join(Path(file).parts[-3:]) for file in self.files[:3]]
        more = ", …" if len(self.files) > len(first) else ""
        return f"{self.number:,} ({self.why}): {', '.join(first)}{more}"

    def record(self) -> dict[str, Any]:
        """Return the reason, the number of images or files, and the first files."""
        first = [str(file) for file in self.files[:5]]
        return {"why": self.why, "count": self.number, "first": first}


class Splits(NamedTuple):
    """Images of a source."""

    train: Sequence[Part]  # training images, part after part
    test: Sequence[Part]  # test images; empty where the source has no test split
    # By number; None: the texts that are labels, sorted, or else the numbers themselves.
    class_names: tuple[str, ...] | None
    left_out: Sequence[LeftOut] = ()  # an entry without files counts for nothing
    read_as: Sequence[str] = ()  # where labels and test images were found, in a line each

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


NO_VALUE = frozenset({"na", "n/a", "#n/a", "nan", "null", "none", "nil", "<na>"})
"""Words, in lower case, that other programs write for no value; here they are classes."""

HELD_OUT = 6
"""One of so many images is a test image where a data set has no test split."""


def decoded(
    images: npt.NDArray[Any], labels: npt.NDArray[Any], file: str, rows: Iterable[int] | None = None
) -> list[Picture]:
    """Return images as pictures, at `rows` of a file, with labels (N,) or (N, 1).

    Images are (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels, else a `DataError`.
    """
    if images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[3] not in (1, 3):
        images = images.transpose(0, 2, 3, 1)
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    is_image = images.ndim in (3, 4) and images.shape[3:] in ((), (3,)) and all(images.shape[1:])
    if images.dtype != np.uint8 or not is_image:
        raise DataError(
            f"{file}: images are {images.dtype}{list(images.shape)}; needed: uint8 [N, H, W], or"
            " [N, H, W, C] or [N, C, H, W] with 1 or 3 channels"
        )
    count = len(images)
    if labels.shape not in ((count,), (count, 1)) or labels.dtype.kind not in "iu":
        got = f"{labels.dtype}{list(labels.shape)}"
        raise DataError(f"{file}: labels are {got}; needed: integers [{count}]")
    rows = range(count) if rows is None else rows
    return [*map(Picture, images, labels.reshape(-1).tolist(), repeat(file), rows)]


@dataclass
class Layout:
    """Labels of a split, images per (width, height), whether an image has colour, and clients."""

    labels: list[int | str] = field(default_factory=list)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    colour: bool = False
    clients: list[str | int | None] = field(default_factory=list)
    first: dict[type, str] = field(default_factory=dict)  # kind of a label -> first such place


def write_splits(
    writer: CacheWriter, splits: Splits, name: str, size: int | None, progress: Progress | None
) -> tuple[str, ...]:
    """Decode both splits into the cache: RGB when any image has colour, else one grey channel.

    Two passes: headers first, so that shape and number are known before the first byte is written
    and memory stays at one block of images. With a `size` images become squares of that side, else
    they have one size already. Returns the class names; the writer's notes say how many images had
    which size, and were turned or put on white. Raises `DataError` if a picture is torn, sizes
    differ, a label is out of range, or a split is empty, `ResourceError` if the disk is too small.
    """
    if not splits.test:
        _log.warning(
            "%s has no test split: one image of %d, by its content, is a test image", name, HELD_OUT
        )
    left_out = [each for each in splits.left_out if each.files]
    if said := [str(each) for each in left_out if each.said]:
        _log.warning("%s: not read are %s", name, "; ".join(said))
    with warnings.catch_warnings():
        # Pillow only warns of images of 89 to 179 megapixels.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        layouts = _scan(splits)
    for split, layout in layouts.items():
        if not layout.labels and not splits.test:
            total = sum(len(each.labels) for each in layouts.values())
            raise DataError(
                f"{name}: of {total:,} images, of which one of {HELD_OUT} is a test image by its"
                f" content, none is for {split}; add images that differ, or a test split"
            )
        if not layout.labels:
            raise DataError(f"{name}: the {split} split has no images")
    labels, class_names = _numbered(layouts, splits.class_names, name, bool(splits.test))
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
        too = "" if class_names else f"; as they have no labels, set {WITHOUT_LABELS} too"
        raise DataError(
            f"all images must have one size, but widths x heights are {listed}{more}; set"
            f" data.image_size, for example {smallest}, to resize them{too}"
        )
    ((width, height),) = sizes if size is None else [(size, size)]
    total = sizes.total()
    mode = "RGB" if any(layout.colour for layout in layouts.values()) else "L"
    each = width * height * len(mode)
    _check_room(writer.folder, total, each, name)
    done, notes = 0, Counter[str]()

    def pixels(picture: Picture) -> npt.NDArray[np.uint8]:
        """Pixels (H, W) or (H, W, 3), in grey or colour as `mode` says, resized."""
        found = picture.content
        if not isinstance(found, np.ndarray):
            found, said = pixels_of(found, picture.place, mode)
            notes.update(said)
        elif found.ndim == 2 and mode == "RGB":
            found = np.stack([found] * 3, axis=2)
        if size is not None:
            found = fitted(found, size)
        if found.shape[:2] != (height, width):  # only of a PNG that has EXIF behind its pixels
            what = f"{picture.place}: decoded it is {found.shape[1]}x{found.shape[0]}"
            raise DataError(f"{what}, not {width}x{height} as it begins; save it upright")
        return found

    def decode(pictures: Iterator[Picture]) -> Iterator[npt.NDArray[np.uint8]]:
        """Decode blocks (B, C, H, W) of at most `BLOCK` images and, roughly, `BLOCK_BYTES`."""
        nonlocal done
        number = max(1, min(BLOCK, BLOCK_BYTES // each))
        while block := [pixels(picture) for picture in islice(pictures, number)]:
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
        if len({*map(type, clients)}) > 1:
            kinds = ", ".join(sorted({type(client).__name__ for client in clients}))
            raise DataError(f"{name}: clients are of several kinds ({kinds}); write all as text")
        writer.put(CLIENTS, np.unique(np.array(clients), return_inverse=True)[1].astype(np.int64))
    if notes[FRAMES]:
        _log.warning(
            "%s: of %d images with several frames only the first is read", name, notes[FRAMES]
        )
    found = {f"{w}x{h}": count for (w, h), count in sizes.most_common(_SIZES)}
    rest = total - sum(found.values())
    writer.notes |= {
        "sizes": found | ({"others": rest} if rest else {}),
        "changed": dict(notes),
        "left_out": [each.record() for each in left_out],
        "read_as": [*splits.read_as],
    }
    return class_names


def _check_room(folder: Path, total: int, each: int, name: str) -> None:
    """Raise `ResourceError` unless the disk has room for that many images of so many bytes."""
    needed, free = 2 * total * each, shutil.disk_usage(folder).free  # twice, to put them in order
    if needed > free:
        raise ResourceError(
            f"{name}: {total:,} images take {needed / 1e6:,.1f} MB while they are unpacked; free:"
            f" {free / 1e6:,.1f} MB; choose another folder with --data-dir, or set data.image_size"
        )


def _numbered(
    layouts: Mapping[str, Layout], class_names: tuple[str, ...] | None, name: str, has_test: bool
) -> tuple[dict[str, npt.NDArray[np.int64]], tuple[str, ...]]:
    """Return the labels of each split as numbers, and the class names."""
    train, test = ({*layouts[split].labels} - {HIDDEN} for split in SPLITS)
    used, texts = train | test, {c for c in train | test if isinstance(c, str)}
    if texts and texts < used:
        first = layouts["test"].first | layouts["train"].first
        raise DataError(
            f"{name}: labels are numbers in {first[int]} and text in {first[str]}; write both in"
            " one form, numbers, text or numbers with the same class names"
        )
    numbers: dict[int | str, int] = {}
    class_names = class_names or ()
    if texts:
        if not texts <= {*class_names}:
            class_names = tuple(sorted({*class_names, *texts}))
        numbers = {label: number for number, label in enumerate(class_names)}
        for label in sorted(label for label in texts if label.lower() in NO_VALUE):
            count = sum(layout.labels.count(label) for layout in layouts.values())
            _log.warning(
                "%s: %r is a class, of %d images; no label is an empty value", name, label, count
            )
    elif not class_names:
        num_classes = max(map(int, used), default=-1) + 1
        if missing := sorted(set(range(num_classes)) - used):
            listed = ", ".join(map(str, missing[:5])) + (" …" if len(missing) > 5 else "")
            hidden = sum(layout.labels.count(HIDDEN) for layout in layouts.values())
            none = f"; {HIDDEN} is no label, and {hidden:,} images have it" if hidden else ""
            raise DataError(
                f"{name}: the largest label is {num_classes - 1:,}, but {len(missing):,} of the"
                f" classes below it have no image ({listed}){none}; number classes 0, 1, 2, …"
                " without gaps, or write their names in place of numbers"
            )
        class_names = tuple(map(str, range(num_classes)))
    if train and test - train:
        known = sorted(_name_of(label, class_names) for label in train)
        never = sorted(_name_of(label, class_names) for label in test - train)
        shown = [f"{each!r}{nearest(each, known)}" for each in never]
        message = (
            f"{name}: test images are of classes that no training image has: {some(shown)};"
            f" training images have {some([*map(repr, known)])}"
        )
        if has_test:
            raise DataError(f"{message}; spell classes alike in both splits, or leave them out")
        _log.warning("%s; give these classes more images, or a test split", message)
    check_spelling(texts, {*map(str, train & test)} if has_test else set(), name)
    labels = {
        split: np.array([numbers.get(label, label) for label in layout.labels], np.int64)
        for split, layout in layouts.items()
    }
    return labels, class_names


def _name_of(label: int | str, class_names: tuple[str, ...]) -> str:
    return label if isinstance(label, str) else class_names[label]


def check_spelling(names: Iterable[str], consistent: Collection[str], place: str) -> None:
    """Raise `DataError` if classes differ in case or blanks alone.

    Single letters may, as in sets of characters, and classes that both splits have.
    """
    alike: dict[str, list[str]] = {}
    for name in sorted(names):
        alike.setdefault(plain(name), []).append(name)
    for spelt in alike.values():
        if len(spelt) > 1 and len(spelt[0]) > 1 and not {*spelt} <= {*consistent}:
            raise DataError(
                f"{place}: the classes {' and '.join(map(repr, spelt))} differ in case or blanks"
                " alone; spell one class in one way, or give two classes other names"
            )


def _scan(splits: Splits) -> dict[str, Layout]:
    layouts = {split: Layout() for split in SPLITS}
    # Without names only a label that would make a huge, mostly empty list of classes is refused.
    limit = len(splits.class_names) if splits.class_names is not None else 1 << 16
    for split, picture in splits.pictures():
        layout = layouts[split]
        if isinstance(picture.label, int) and not HIDDEN <= picture.label < limit:
            allowed = f"allowed: {HIDDEN} (none), 0..{limit - 1}"
            raise DataError(f"{picture.place}: label {picture.label} is out of range; {allowed}")
        if isinstance(picture.content, np.ndarray):
            height, width, *channels = picture.content.shape
            size, has_colour = (width, height), bool(channels)
        else:
            picture.check_size()
            size, has_colour = header_of(picture.content, picture.place)
        layout.sizes[size] += 1
        layout.colour = layout.colour or has_colour
        if len(layout.labels) == MAX_IMAGES:
            what = f"{picture.place}: the data set has more than {MAX_IMAGES:,} images"
            raise DataError(f"{what}; take a part of it")
        if picture.label != HIDDEN:
            layout.first.setdefault(type(picture.label), picture.place)
        layout.labels.append(picture.label)
        layout.clients.append(picture.client)
    return layouts
