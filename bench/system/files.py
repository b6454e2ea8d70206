"""Atomic writes, temporary files that a crash left behind, locks between processes."""

import errno
import fcntl
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from fedbench.bench.system.errors import ConfigError, FedbenchError, StoreError, exhausted

_ATTEMPTS = 3
"""Writes of one file: `sweep_temporary` of another process may delete it before it is locked."""

_WHY = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
        "the disk is full (or a quota or file-size limit is reached); free some space",
    ),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "permission is denied; make it writable"),
    errno.EROFS: "the file system is read-only; make it writable",
    # Missing folders are made first where that is possible.
    errno.ENOENT: "nothing can be created there; check the path",
    **dict.fromkeys(
        (errno.ENOTDIR, errno.EEXIST), "a part of this path is a file, not a folder; rename it"
    ),
}
_NO_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}
NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS}


def home_folder() -> Path | None:
    """Return the user's home folder; None where a user id has none, as in many containers."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def user_path(path: Path | str) -> Path:
    """Return a path that a user gave, with `~` replaced; `ConfigError` if it names no home.

    >>> user_path("a/b").as_posix()
    'a/b'
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as err:
        why = "no such home folder is known here; give the whole path, or set HOME"
        raise ConfigError(f"{str(path)!r}: {why}") from err


def write_error(
    path: Path, cause: OSError, error: type[FedbenchError] = StoreError
) -> FedbenchError:
    """Return the one-line error for a failed write: which file, why, what to do."""
    if (limit := exhausted(cause)) is not None:
        return limit
    why = _WHY.get(cause.errno or 0, f"{cause.strerror or cause}; check the disk")
    return error(f"cannot write {str(path)!r}: {why} or choose another folder")


def read_limited(path: Path, limit: int) -> bytes:
    """Return the bytes, at most `limit`, of an untrusted file, device or pipe.

    Raises `OSError`, with `EFBIG` if it is larger, `EPIPE` for a pipe that nothing writes to.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # else a pipe without a writer hangs
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        state = os.fstat(descriptor)
        first = file.read(1) if stat.S_ISFIFO(state.st_mode) else None  # None: none written yet
        if first == b"":
            raise OSError(errno.EPIPE, "it is a pipe that nothing writes to", str(path))
        os.set_blocking(descriptor, True)
        data = bytearray(first or b"")
        while state.st_size <= limit and len(data) <= limit and (more := file.read(2**16)):
            data += more
    if max(state.st_size, len(data)) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit:,} bytes", str(path))
    return bytes(data)


def atomic_write_bytes(path: Path, data: bytes, *, error: type[FedbenchError] = StoreError) -> None:
    """Write a file so that a reader, or a restart after a crash, sees all of it or nothing.

    The bytes go to a hidden temporary file in the same folder, are flushed to the disk, and get the
    final name in one step; the folder is created if need be. Raises `error` when the disk is full,
    read-only or fails; an existing file stays as it was.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(_ATTEMPTS):
            try:
                _write_and_rename(path, data)
                break
            except FileNotFoundError:
                if attempt + 1 == _ATTEMPTS:
                    raise
        sync_folder(path.parent)
    except OSError as cause:
        raise write_error(path, cause, error) from cause


def write_new_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder with all of its files, or nothing; `StoreError` if the disk refuses."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=folder.parent) as name:
            made = Path(name) / folder.name
            for file, data in files.items():
                atomic_write_bytes(made / file, data)
            made.rename(folder)
    except OSError as cause:
        raise write_error(folder, cause) from cause


def atomic_write_text(path: Path, text: str, *, error: type[FedbenchError] = StoreError) -> None:
    """`atomic_write_bytes` of UTF-8 text; line ends are written as given."""
    atomic_write_bytes(path, text.encode(), error=error)


def _write_and_rename(path: Path, data: bytes) -> None:
    """Write a temporary file, locked as long as it has that name, and rename it."""
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        with temporary.open("wb") as file:
            _try_lock(file.fileno())
            _write_through(file, data)
            temporary.replace(path)
    except BaseException:
        with suppress(OSError):  # the first error is the one to report
            temporary.unlink(missing_ok=True)
        raise


def _write_through(file: IO[bytes], data: bytes) -> None:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


def _try_lock(descriptor: int) -> bool:
    """Lock an open file; return False if another holder has it, or the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries, so that a rename survives a power cut where the system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as cause:
        if cause.errno not in _NO_SYNC:  # some network file systems cannot sync a folder
            raise
    finally:
        os.close(descriptor)


def copy_folder(source: Path, target: Path) -> None:
    """Copy the files of a folder into another, without locks and temporary files."""
    ignore = shutil.ignore_patterns("lock", ".*.tmp")
    try:
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=ignore, copy_function=_copy_anew)
    except OSError as cause:  # shutil.Error has no errno
        raise write_error(target, cause if cause.errno else OSError(str(cause))) from cause


def _copy_anew(source: str, target: str) -> None:
    """Copy a file; one that is there may be a link to the source, or to a file of another run."""
    Path(target).unlink(missing_ok=True)
    shutil.copy2(source, target)


def sweep_temporary(folder: Path) -> None:
    """Delete the `.….tmp` files in `folder` that no living process writes.

    A writer holds a lock on its file, which the system releases when the process ends. These files
    are harmless, so one that cannot be deleted, or locked, is left for the next time.
    """
    for path in folder.glob(".*.tmp"):
        with suppress(OSError), path.open("r+b") as file:
            if _try_lock(file.fileno()):
                path.unlink()


def check_writable(folder: Path) -> None:
    """Try a write in `folder`, or where it would be created; leaves no trace, or `StoreError`."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            _write_through(file, b"\0")
    except OSError as cause:
        raise write_error(folder, cause) from cause


def lock_file(path: Path, *, wait: bool = False) -> int | None:
    """Lock a file and return the descriptor that holds the lock; None if another holder has it.

    The system releases the lock when the holder closes the descriptor or ends, however it ends. The
    file, in a folder that exists, is created if need be and stays: deleting it would let two
    processes lock two files of one name. With `wait`, the other holder is waited for.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as err:
        os.close(descriptor)
        if isinstance(err, BlockingIOError):
            return None
        raise
    return descriptor


def release_lock(descriptor: int | None) -> None:
    """Release a lock of `lock_file`; None = it was not held."""
    if descriptor is not None:
        os.close(descriptor)


@contextmanager
def file_lock(path: Path) -> Iterator[bool]:
    """Hold a `lock_file` inside the block; yields False, at once, if another holder has it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = lock_file(path)
    except OSError as cause:
        if cause.errno not in NO_LOCKS:
            raise write_error(path, cause) from cause
        message = f"cannot lock {str(path)!r}: this file system has no locks; "
        raise StoreError(message + "choose another folder for the store") from cause
    try:
        yield descriptor is not None
    finally:
        release_lock(descriptor)


def append_line(path: Path, line: str, *, sync: bool = True) -> None:
    """Append a line to a text file; a crash may leave a torn last line.

    With `sync`, wait until the disk has it; else a crash of the system, not of the process, may
    lose it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            if sync:
                _write_through(file, f"{line}\n".encode())
            else:
                file.write(f"{line}\n".encode())
    except OSError as err:
        raise write_error(path, err) from err
