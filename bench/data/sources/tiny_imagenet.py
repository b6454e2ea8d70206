"""TinyImageNet from the folder that its archive unpacks to."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from fedbench.bench.data.sources.base import SOURCES, Entry, PathSource
from fedbench.bench.data.sources.decode import Picture, Splits
from fedbench.bench.data.sources.folder import images_in
from fedbench.bench.system.errors import DataError

FOLDER = "tiny-imagenet-200"
GET = f"get http://cs231n.stanford.edu/{FOLDER}.zip, then: unzip {FOLDER}.zip -d {{raw}}"


class TinyImageNet(PathSource):
    """200 classes, 500 training and 50 validation images of 64x64 pixels each.

    `wnids.txt` names the classes, `train/WNID/images/` has the training images and
    `val/val_annotations.txt` the classes of those in `val/images/`, which are the test images: the
    classes of `test/` are not public. Classes are numbered by their sorted names.
    """

    kind = "tiny-imagenet"

    def files(self) -> list[Path]:
        """Return the two lists and the images of both splits."""
        lists = [self.path / "wnids.txt", self.path / "val" / "val_annotations.txt"]
        pictures = (*self._train(), *self._test())
        return [*lists, *(Path(picture.file) for picture in pictures)]

    def require(self) -> None:
        """Raise `DataError` with the remedy when the folder is missing or incomplete."""
        if not self.path.is_dir():
            raise DataError(
                f"TinyImageNet is not in {str(self.path)!r};"
                f" {GET.format(raw=shlex.quote(str(self.path.parent)))}, or name its folder:"
                " tiny-imagenet:PATH"
            )
        for name in ("wnids.txt", "val/val_annotations.txt", "train", "val/images"):
            place = self.path / name
            if not (place.is_file() if name.endswith(".txt") else place.is_dir()):
                raise DataError(
                    f"tiny-imagenet:{self.path} has no {name}; it must be the unzipped {FOLDER}"
                )

    def splits(self, scratch: Path) -> Splits:
        """Return the images of both splits."""
        return Splits([list(self._train())], [list(self._test())], self._classes())

    def _classes(self) -> tuple[str, ...]:
        classes = sorted((self.path / "wnids.txt").read_text(encoding="utf-8").split())
        if not classes or len(set(classes)) < len(classes):
            raise DataError(f"{self.path / 'wnids.txt'} must name each class once, one per line")
        return tuple(classes)

    def _train(self) -> Iterator[Picture]:
        for label, name in enumerate(self._classes()):
            folder = self.path / "train" / name
            files = images_in(folder)
            if not files:
                raise DataError(f"{folder} has no images, but wnids.txt names {name}")
            for file in files:
                yield Picture(file, label, str(file))

    def _test(self) -> Iterator[Picture]:
        listed = self.path / "val" / "val_annotations.txt"
        numbers = {name: label for label, name in enumerate(self._classes())}
        for number, line in enumerate(listed.read_text(encoding="utf-8").splitlines(), 1):
            name, _, rest = line.partition("\t")
            wnid = rest.partition("\t")[0]
            file = self.path / "val" / "images" / name
            if wnid not in numbers:
                raise DataError(f"{listed}, line {number}: class {wnid!r} is not in wnids.txt")
            if not file.is_file():
                raise DataError(f"{listed}, line {number}: {name!r} is not in val/images")
            yield Picture(file, numbers[wnid], str(file))


SOURCES["tiny-imagenet"] = Entry(
    lambda request: TinyImageNet(request.root / "raw" / FOLDER),
    GET,
    (200, (3, 64, 64), 100_000, 10_000),
)
SOURCES["tiny-imagenet:PATH"] = Entry(TinyImageNet.make, "its unzipped folder")
