"""Check of the names in a tar shard: its reader says neither which file nor which rule it broke."""

import re
import tarfile
from contextlib import suppress
from itertools import islice
from pathlib import Path

from fedbench.bench.data.sources.splits import some
from fedbench.bench.system.errors import DataError

_FIRST = 1000  # files that are looked at
_ALIKE = 5  # samples whose kinds of files the reader compares
_MANY = 20  # kinds of files in one sample: names with dots make one sample of all
_NAME = re.compile(r"(?P<sample>(?:.*/)?[^./]+)\.(?P<kind>[^/]+)")
_IMAGES = frozenset({"png", "jpg", "jpeg", "webp", "bmp", "tif", "tiff", "ppm", "pgm", "gif"})


def check_samples(file: Path) -> None:
    """Raise `DataError` unless all samples have files of the same kinds, and `.cls` integers.

    A file that is no tar, or torn, is left to the reader.
    """
    samples: dict[str, dict[str, str]] = {}  # name up to the first dot -> kind -> whole name
    with suppress(tarfile.TarError, OSError), tarfile.open(file, "r:") as tar:
        for member in islice(tar, _FIRST):
            match = _NAME.fullmatch(member.name)
            if match is None or not member.isfile():
                continue
            samples.setdefault(match["sample"], {})[match["kind"]] = member.name
            stream = tar.extractfile(member) if match["kind"] == "cls" else None
            if stream and not re.fullmatch(rb"\s*[+-]?\d+\s*", content := stream.read(1000)):
                shown = content.decode(errors="replace")[:40]
                raise DataError(
                    f"{file}: {member.name} is {shown!r}; .cls holds an integer, .txt text labels"
                )
    kinds = [frozenset(sample) for sample in samples.values()]
    images = {frozenset(k for k in of if k.split(".")[-1].lower() in _IMAGES) for of in kinds}
    alike = len({*kinds[:_ALIKE]}) < 2 and len(images - {frozenset()}) < 2
    if alike and all(len(of) <= _MANY for of in kinds):
        return
    names = [name for sample in samples.values() for kind, name in sample.items() if "." in kind]
    if names:
        raise DataError(
            f"{file}: {some(names)}: a sample's name ends at the first dot, and only the ending of"
            " a file may follow; write other dots in another way, such as v1-2_000.png"
        )
    listed = [" and ".join(f".{kind}" for kind in sorted(of)) for of in dict.fromkeys(kinds)]
    raise DataError(
        f"{file}: samples have files of different kinds ({some(listed)}); all need the same, such"
        " as .png and .cls"
    )
