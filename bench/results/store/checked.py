"""Bytes of a published file or address, compared with the `SHA256SUMS` that lies beside it."""

from __future__ import annotations

import hashlib
import logging
import re
import time
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from urllib.error import HTTPError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import urlopen

from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.files import read_limited

SUMS = "SHA256SUMS"
_ADDRESS = re.compile(r"^(https?):/+", re.IGNORECASE)
_LARGEST = 2**28
"""Bytes of a file; a release of 1,000 runs with their rounds has 1 MB."""
_SECONDS, _IDLE_SECONDS = 300.0, 60.0
"""Longest time for a file, and without a byte of it from the server."""
_log = logging.getLogger(__name__)


def is_address(place: str) -> bool:
    """Return True for a text that begins with http:// or https://."""
    return _ADDRESS.match(place) is not None


def read_checked(place: str) -> tuple[bytes, str]:
    """Return the bytes of a release at a path or an address, and its name.

    Raises:
        StoreError: if it cannot be had, or its sum is another.
    """
    if is_address(place):
        place = _ADDRESS.sub(r"\1://", place)  # a `Path` makes one slash of two
        parts = urlsplit(place)
        path = PurePosixPath(parts.path)
        beside = urlunsplit(parts._replace(path=str(path.with_name(SUMS)), query=""))
        data, sums, name = _download(place), _download(beside), path.name
    else:
        file = Path(place).expanduser()
        data, sums, name = _read(file), _read(file.with_name(SUMS)), file.name
    if data is None:
        raise StoreError(f"there is no release at {place!r}; name another with --store")
    if sums is not None:
        _compare(data, sums.decode("utf-8", errors="replace"), name, place)
    elif is_address(place):
        _log.warning("%s is not checked: no %s lies beside it", place, SUMS)
    return data, place


def _read(path: Path) -> bytes | None:
    try:
        return read_limited(path, _LARGEST)
    except FileNotFoundError:
        return None
    except OSError as err:
        raise StoreError(f"cannot read the release {str(path)!r}: {err.strerror or err}") from err


def _download(address: str) -> bytes | None:
    """Return what an address holds, or None if the server has nothing there."""
    parts, size, deadline = list[bytes](), 0, time.monotonic() + _SECONDS
    try:
        with urlopen(address, timeout=_IDLE_SECONDS) as answer:
            announced = answer.length or 0  # 0 where the server does not say
            while max(size, announced) <= _LARGEST and (part := answer.read1(2**16)):
                parts.append(part)
                size += len(part)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"not all of it came within {_SECONDS:.0f} s")
        if max(size, announced) > _LARGEST:
            raise ValueError(f"it has more than {_LARGEST:,} bytes, too many for such a file")
        if size < announced:
            raise ValueError(f"the connection ended after {size:,} of {announced:,} bytes")
    except HTTPError as err:
        err.close()
        if err.code == 404:
            return None
        raise StoreError(f"cannot fetch {address}: the server answers {err.code}") from err
    except (OSError, HTTPException, ValueError) as err:
        why = str(getattr(err, "reason", None) or err)[:200]
        raise StoreError(
            f"cannot fetch {address}: {why}; download it, and name the file instead"
        ) from err
    return b"".join(parts)


def _compare(data: bytes, sums: str, name: str, place: str) -> None:
    """Refuse bytes whose sum is another than that in the lines of `sha256sum`."""
    lines = [parts for line in sums.splitlines() if len(parts := line.split(maxsplit=1)) == 2]
    expected = {file.lstrip("*"): value for value, file in lines}.get(name)
    if expected is None:
        _log.warning("%s is not checked: the %s beside it does not name it", place, SUMS)
    elif expected != hashlib.sha256(data).hexdigest():
        raise StoreError(
            f"{place} is not the file of the {SUMS} beside it: torn, altered, or of another"
            " version; fetch both again"
        )
