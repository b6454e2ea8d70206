"""Bytes of a published file or https address, compared with its sum where that lies beside it.

The sums are a file `SHA256SUMS`, as `sha256sum` writes it.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
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
_LARGEST, _LARGEST_SUMS = 2**28, 2**20
"""Bytes of a file and of its sums; a release of 1,000 runs with their rounds has 1 MB."""
_SECONDS = 300.0
"""Longest time for an address and its sums together, however a server spreads them."""
_IDLE_SECONDS = 60.0  # without a byte from the server
_log = logging.getLogger(__name__)


def is_address(place: str) -> bool:
    """Return True for a text that begins with http:// or https://."""
    return _ADDRESS.match(place) is not None


def plain_place(place: Path | str) -> str:
    """Return a path or an address as text, with the `//` that a `Path` makes one slash of."""
    return _ADDRESS.sub(lambda found: f"{found[1].lower()}://", str(place))


def read_checked(place: str) -> tuple[bytes, str]:
    """Return the bytes of a release at a path or an address, and its name.

    Raises:
        StoreError: if it cannot be had, or its sum is another.
    """
    return _fetched(place) if is_address(place) else _read(place)


def _read(place: str) -> tuple[bytes, str]:
    path = Path(place).expanduser()
    try:
        data = read_limited(path, _LARGEST)
        sums = _local_sums(path.with_name(SUMS))
    except FileNotFoundError as err:
        raise StoreError(f"there is no release at {place!r}; name another with --store") from err
    except OSError as err:
        raise StoreError(f"cannot read the release {place!r}: {err.strerror or err}") from err
    if sums is not None:
        _compare(data, sums, path.name, place)
    return data, place


def _local_sums(path: Path) -> bytes | None:
    return read_limited(path, _LARGEST_SUMS) if path.is_file() else None


def _fetched(place: str) -> tuple[bytes, str]:
    """Return the bytes at an address, and the address."""
    address = plain_place(place)
    parts = urlsplit(address)
    path = PurePosixPath(parts.path)
    deadline = time.monotonic() + _SECONDS
    sums_address = urlunsplit(parts._replace(path=str(path.with_name(SUMS)), query=""))
    sums = _download(sums_address, _LARGEST_SUMS, deadline)
    data = _download(address, _LARGEST, deadline)
    if data is None:
        raise StoreError(f"there is no release at {address} (HTTP 404)")
    if sums is None:
        _log.warning("%s is not checked: no %s lies beside it", address, SUMS)
    else:
        _compare(data, sums, path.name, address)
    return data, address


def _download(address: str, most: int, deadline: float) -> bytes | None:
    """Return what an address holds, or None if the server has nothing there.

    A thread fetches it: a server that sends its answer a byte at a time never lets a read time out.

    Args:
        address: of the file.
        most: bytes that it may have.
        deadline: latest end, in seconds of `time.monotonic`.
    """
    outcome: list[bytes | Exception | None] = []

    def fetch() -> None:
        try:
            outcome.append(_body(address, most, deadline))
        except Exception as err:
            outcome.append(err)

    thread = threading.Thread(target=fetch, daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()))
    match outcome:
        case [] | [TimeoutError()]:
            raise StoreError(
                f"cannot fetch {address}: the server sends nothing for {_IDLE_SECONDS:.0f} s, or"
                f" not all of it within {_SECONDS:.0f} s; download it, and name the file instead"
            )
        case [HTTPError(code=code)]:
            raise StoreError(f"cannot fetch {address}: the server answers {code}")
        case [OSError() | HTTPException() | ValueError() as err]:
            why = str(getattr(err, "reason", None) or err)[:200]
            raise StoreError(f"cannot fetch {address}: {why}") from err
        case [Exception() as err]:
            raise err
        case [bytes() | None as data]:
            return data
    raise AssertionError(outcome)


def _body(address: str, most: int, deadline: float) -> bytes | None:
    """Return the content of an answer; raise a TimeoutError soon after the deadline."""
    parts, size = list[bytes](), 0
    try:
        opened = urlopen(address, timeout=_IDLE_SECONDS)
    except HTTPError as err:
        err.close()
        if err.code == 404:
            return None
        raise
    with opened as answer:
        announced = answer.length or 0  # 0 where the server does not say
        while max(size, announced) <= most and (part := answer.read1(2**16)):
            parts.append(part)
            size += len(part)
            if time.monotonic() > deadline:
                raise TimeoutError
    if max(size, announced) > most:
        raise ValueError(f"it has more than {most:,} bytes, too many for such a file")
    if size < announced:
        raise ValueError(f"the connection ended after {size:,} of {announced:,} bytes")
    return b"".join(parts)


def _compare(data: bytes, sums: bytes, name: str, place: str) -> None:
    """Refuse bytes that are not those of the sums."""
    text = sums.decode("utf-8", errors="replace")
    lines = [parts for line in text.splitlines() if len(parts := line.split(maxsplit=1)) == 2]
    expected = {file.lstrip("*"): value for value, file in lines}.get(name)
    if expected is None:
        _log.warning("%s is not checked: the %s beside it does not name it", place, SUMS)
    elif expected != hashlib.sha256(data).hexdigest():
        raise StoreError(
            f"{place} is not the file of the {SUMS} beside it: torn, altered, or of another"
            " version; fetch both again"
        )
