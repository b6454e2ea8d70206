"""Temporary folders, which the next start deletes if their process has died."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import psutil

from fedbench.bench.system.errors import ResourceError, StoreError
from fedbench.bench.system.files import NO_LOCKS, lock_file, release_lock

_PREFIX = "fb-"  # Ray's sockets below such a folder leave no room for a longer name
_OWNER = ".fedbench"
"""File that the owner of a folder holds locked; the system releases it however the owner ends."""
_SECONDS_TO_DIE = 5.0
_SECONDS_TO_SETTLE = 2.0
_SECONDS_OF_A_LOG = 60.0
_AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")  # a node of Ray ends if one does
_SURVIVOR = "import fedbench.bench.system.scratch as scratch; scratch.clear_up_after_parent()"


@contextmanager
def temporary_folder(place: Path | None = None) -> Iterator[Path]:
    """Make a folder that is gone after the block, and delete folders of dead processes.

    It is made in `place`, else in the system's folder for temporary files. Raises `ResourceError`
    if it cannot be made or written in.
    """
    place = temporary_place() if place is None else place
    try:
        sweep_folders(place)
        folder, owner = _claim(place)
    except OSError as err:
        why = f"cannot make a temporary folder: {err.strerror or err}"
        raise ResourceError(f"{why}; set TMPDIR to a folder with free space") from err
    try:
        yield folder
    except StoreError as err:
        if str(folder) in str(err):
            raise ResourceError(f"{err} (TMPDIR)") from err
        raise
    finally:
        delete_folder(folder)
        release_lock(owner)


def temporary_place() -> Path:
    """Return the system's folder for temporary files."""
    try:
        return Path(tempfile.gettempdir())
    except OSError as err:
        raise ResourceError("no folder takes temporary files; set TMPDIR to one that does") from err


def unnamed_file() -> IO[bytes]:
    """Open a file without a name; it is in memory where the system can, as a disk may be full."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("fedbench"), "w+b", buffering=0)
    return tempfile.TemporaryFile(dir=temporary_place(), buffering=0)  # macOS


def sweep_folders(place: Path) -> None:
    """Delete the temporary folders of this user's dead processes, and end what Ray left in them."""
    for folder in place.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another process may be deleting it too
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            owned = (folder / _OWNER).is_file()
            owner = lock_file(folder / _OWNER) if owned else None
            if owner is None and (owned or not _made_again(folder)):
                continue
            try:
                end_processes(folder, 0.0)
                delete_folder(folder)
            finally:
                release_lock(owner)


def _made_again(folder: Path) -> bool:
    """Return whether a process of Ray wrote its log after the folder had been deleted."""
    names = [path.name for path in folder.iterdir()]
    old = time.time() - folder.stat().st_mtime > _SECONDS_OF_A_LOG
    return old and bool(names) and all(name.startswith("session_") for name in names)


def delete_leftovers() -> None:
    """Sweep every place where a command may have left a temporary folder."""
    usual = [os.environ.get("RAY_TMPDIR"), "/tmp"]
    with suppress(ResourceError):
        for place in {temporary_place(), *(Path(each) for each in usual if each)}:
            sweep_folders(place)


@contextmanager
def cleared_up_if_killed(folder: Path) -> Iterator[None]:
    """Start a second process, which clears up at once if this one is killed.

    Of Ray, whose processes watch each other, some would go on for a minute.
    """
    survivor = subprocess.Popen(
        [sys.executable, "-P", "-c", _SURVIVOR, folder],
        stdin=subprocess.PIPE,  # which the system closes however this process ends
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        survivor.communicate(b"done")


def clear_up_after_parent() -> None:
    """Wait for the end of stdin; then end what works in a folder (the argument) and delete it."""
    if not sys.stdin.read():  # else the parent has ended by itself
        folder = Path(sys.argv[1])
        sweep_folders(folder.parent)
        time.sleep(_SECONDS_TO_SETTLE)
        end_processes(folder, 0.0)  # those that others had just started


def _claim(place: Path) -> tuple[Path, int | None]:
    """Make a folder under a name that no sweep looks for; rename it once its file is locked."""
    made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=place))
    owner = None
    try:
        owner = lock_file(made / _OWNER)
    except OSError as err:
        if err.errno not in NO_LOCKS:  # else no sweep can lock it either
            raise
    return made.rename(place / made.name[1:]), owner


def delete_folder(folder: Path) -> None:
    """Delete a temporary folder, its owner's file last, so that an interrupted deletion goes on."""
    with suppress(OSError):  # what stays is deleted at the next start
        for path in folder.iterdir():
            if path.name == _OWNER:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        (folder / _OWNER).unlink(missing_ok=True)
        folder.rmdir()


def end_processes(folder: Path, seconds: float) -> None:
    """Wait some seconds for Ray's processes that work in a folder to end, and kill the others."""
    _, alive = psutil.wait_procs(_processes(folder), seconds)
    for process in alive:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, _SECONDS_TO_DIE)


def end_workers(folder: Path) -> None:
    """Kill the processes that run the tasks of a Ray that works in a folder."""
    for process in _processes(folder, workers_only=True):
        with suppress(psutil.Error):
            process.kill()


def _processes(folder: Path, *, workers_only: bool = False) -> list[psutil.Process]:
    """Return Ray's processes that name the folder in their command, or have a file in it open."""
    place = f"{folder}{os.sep}"
    working: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid == os.getpid() or process.uids().real != os.getuid():
                continue
            program, *words = process.cmdline() or [""]  # a dead one has none
            is_titled = program.startswith("ray::")
            if workers_only and (program in _AGENTS or not is_titled):
                continue
            if is_titled:  # Ray writes this over the whole command
                ours = any(file.path.startswith(place) for file in process.open_files())
            else:
                rays = Path(program).name.startswith(("raylet", "gcs_server", "python"))
                ours = rays and any(place in word for word in words)
            if ours:
                working.append(process)
    return working
