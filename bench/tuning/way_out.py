"""Leave after a signal even if Ray does not let go."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def way_out(seconds: float) -> Iterator[None]:
    """End this process if the block is not left so many seconds after SIGINT or SIGTERM.

    Where a cluster is taken down as a whole, its head may be gone before the driver has asked it
    for anything: calls into Ray then wait for a minute, in which Python runs no signal handler, and
    end the process with an exit code that nobody can tell from a crash. Everything that is finished
    is on the disk, so that the end is as good as an orderly one.

    Only the main thread can do this; in others it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    inner, outer = socket.socketpair()
    outer.setblocking(False)
    before = signal.set_wakeup_fd(outer.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(inner, seconds), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        outer.close()


def _watch(inner: socket.socket, seconds: float) -> None:
    """Waits for a signal's number, then for the end of the block."""
    with inner:
        while (data := inner.recv(1)) and data[0] not in SIGNALS:
            continue
        if not data:
            return
        inner.settimeout(seconds)
        with suppress(TimeoutError):
            while inner.recv(64):
                continue
            return
    text = f"interrupted by {signal.Signals(data[0]).name}; the same command continues\n"
    with suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()
    os._exit(128 + data[0])
