"""Bytes of a published file or https address, compared with its sum where that lies beside it.

The sums are a file `SHA256SUMS`, as `sha256sum` writes it.
"""

from __future__ import annotations

import hashlib
import logging
import re
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from urllib.error import HTTPError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import urlopen

from fedbench.bench.system.errors import StoreError

SUMS = "SHA256SUMS"
_ADDRESS = re.compile(r"^(https?):/+", re.IGNORECASE)
_SECONDS = 60.0  # without a byte from the server
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
        data = path.read_bytes()
    except FileNotFoundError as err:
        raise StoreError(f"there is no release at {place!r}; name another with --store") from err
    except OSError as err:
        raise StoreError(f"cannot read the release {place!r}: {err.strerror or err}") from err
    sums = path.with_name(SUMS)
    if sums.is_file():
        _compare(data, sums.read_text(encoding="utf-8", errors="replace"), path.name, place)
    return data, place


def _fetched(place: str) -> tuple[bytes, str]:
    """Return the bytes at an address, and the address."""
    address = plain_place(place)
    parts = urlsplit(address)
    path = PurePosixPath(parts.path)
    sums = _download(urlunsplit(parts._replace(path=str(path.with_name(SUMS)), query="")), address)
    data = _download(address, address)
    if data is None:
        raise StoreError(f"there is no release at {address} (HTTP 404)")
    if sums is None:
        _log.warning("%s is not checked: no %s lies beside it", address, SUMS)
    else:
        _compare(data, sums.decode("utf-8", errors="replace"), path.name, address)
    return data, address


def _download(address: str, wanted: str) -> bytes | None:
    """Return what an address holds, or None if the server has nothing there."""
    try:
        with urlopen(address, timeout=_SECONDS) as answer:
            return bytes(answer.read())
    except HTTPError as err:
        if err.code == 404:
            return None
        raise StoreError(f"cannot fetch {wanted}: the server answers {err.code}") from err
    except (OSError, HTTPException, ValueError) as err:
        why = getattr(err, "reason", None) or err
        raise StoreError(f"cannot fetch {wanted}: {why}") from err


def _compare(data: bytes, sums: str, name: str, place: str) -> None:
    """Refuse bytes that are not those of the sums."""
    lines = [parts for line in sums.splitlines() if len(parts := line.split(maxsplit=1)) == 2]
    expected = {file.lstrip("*"): value for value, file in lines}.get(name)
    if expected is None:
        _log.warning("%s is not checked: the %s beside it does not name it", place, SUMS)
    elif expected != hashlib.sha256(data).hexdigest():
        raise StoreError(
            f"{place} is not the file of the {SUMS} beside it: torn, altered, or of another"
            " version; fetch both again"
        )
