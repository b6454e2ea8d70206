"""What a file may unpack to, so that a small one fills neither memory nor time."""

import gzip
from pathlib import Path

from fedbench.bench.data.sources.decode import MAX_IMAGES
from fedbench.bench.system.errors import DataError

RATIO, LEAST = 256, 1 << 30  # a file may unpack to so many times its size, and to 1 GiB anyway


def check_unpacked(place: str, size: int, unpacked: int) -> None:
    """Raise `DataError` if a file of `size` bytes unpacks to too many, or to at least those."""
    allowed = max(LEAST, RATIO * size)
    if unpacked > allowed:
        raise DataError(
            f"{place}: its {size:,} bytes unpack to {unpacked / 1e9:,.1f} GB or more; allowed:"
            f" {allowed / 1e9:,.1f} GB ({RATIO} times the file, at least 1 GiB)"
        )


def check_rows(number: int, place: str) -> None:
    """Raise `DataError` for more rows than a data set may have."""
    if number > MAX_IMAGES:
        raise DataError(f"{place} has {number:,} rows; allowed: {MAX_IMAGES:,}, so take a part")


class PackedFile(gzip.GzipFile):
    """A file packed by gzip, of which no more is read at once than `check_unpacked` allows."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, "rb")
        self._place, self._size = str(file), file.stat().st_size

    def read(self, size: int | None = -1) -> bytes:
        """Read `size` bytes, or all; `DataError` where all are too many."""
        if size is not None and size >= 0:
            return super().read(size)
        data = super().read(max(LEAST, RATIO * self._size) + 1)
        check_unpacked(self._place, self._size, len(data))
        return data
