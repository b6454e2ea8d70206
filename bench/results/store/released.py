"""Releases: all rows of a board with their curves as one Parquet file, or its https address.

A release is compared with the `SHA256SUMS` that lies beside it, and kept in the cache as the packed
runs of a store (`files.py`), below the SHA-256 of its bytes.
"""

import hashlib
import logging
import re
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urljoin
from urllib.request import urlopen

from fedbench.bench.results.store.files import PACKED, Pack
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.files import atomic_write_bytes, read_limited, user_path

SUMS = "SHA256SUMS"
RELEASE = "fedbench-results.parquet"
"""Name of the file in the folder that `fedbench release` writes."""
_ADDRESS = re.compile(r"^(https?):/+", re.IGNORECASE)
_LARGEST = 2**28
"""Bytes of a file; a release of 1,000 runs with their rounds has 1 MB."""
_SECONDS = 60.0
"""Longest time without a byte from the server."""
_log = logging.getLogger(__name__)


def is_release(place: str) -> bool:
    """Return True for the name of a Parquet file, or an address."""
    return place.endswith(".parquet") or _ADDRESS.match(place) is not None


def unpacked(place: str, root: Path) -> Path:
    """Return the folder of a store below `root` that has the release at a place.

    Raises:
        StoreError: if nothing can be read there, or what is read is damaged or no release.
    """
    data = read_checked(place)
    folder = root / "releases" / hashlib.sha256(data).hexdigest()[:40]
    file = folder / PACKED / RELEASE
    if file.is_file():
        return folder
    try:
        Pack(data).check()
        atomic_write_bytes(file, data)
    except StoreError as err:
        raise StoreError(f"{place}: {err}") from err
    return folder


def read_checked(place: str) -> bytes:
    """Return the bytes at a path or an address; a StoreError if their checksum does not match."""
    if address := _ADDRESS.match(place):
        place = _ADDRESS.sub(r"\1://", place)  # a `Path` makes one slash of two
        data, sums = _download(place), _download(urljoin(place, SUMS))
    else:
        file = user_path(place)
        data, sums = _read(file), _read(file.with_name(SUMS))
    if data is None:
        raise StoreError(f"there is no release at {place!r}; name another with --store")
    name = place.partition("?")[0].rpartition("/")[2]
    text = "" if sums is None else sums.decode(errors="replace")
    lines = [parts for line in text.splitlines() if len(parts := line.split(maxsplit=1)) == 2]
    expected = {file.lstrip("*"): value for value, file in lines}.get(name)
    if expected is None:
        if address or sums is not None:
            _log.warning("%s is not checked: no %s beside it names it", place, SUMS)
    elif expected != hashlib.sha256(data).hexdigest():
        raise StoreError(
            f"{place} is not the file of the {SUMS} beside it: torn, altered, or of another"
            " version; fetch both again"
        )
    return data


def _read(path: Path) -> bytes | None:
    try:
        return read_limited(path, _LARGEST)
    except FileNotFoundError:
        return None
    except OSError as err:
        raise StoreError(f"cannot read the release {str(path)!r}: {err.strerror or err}") from err


def _download(address: str) -> bytes | None:
    """Return what an address holds, or None if the server has nothing there."""
    try:
        with urlopen(address, timeout=_SECONDS) as answer:
            data: bytes = answer.read(_LARGEST + 1)
            missing = answer.length or 0  # 0 where the server did not say how long it is
        if len(data) > _LARGEST:
            raise ValueError(f"it has more than {_LARGEST:,} bytes, too many for such a file")
        if missing:
            raise ValueError(f"the connection ended {missing:,} bytes too early")
        return data
    except (OSError, HTTPException, ValueError) as err:
        if isinstance(err, HTTPError):
            err.close()
            if err.code == 404:
                return None
        why = " ".join(str(getattr(err, "reason", None) or err).split())[:200]
        raise StoreError(
            f"cannot fetch {address}: {why}; download it, and name the file instead"
        ) from err
