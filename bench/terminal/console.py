"""Output of the command line: results on stdout, everything else on stderr.

Rich is imported for a terminal only.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO, cast

from fedbench.bench.system.errors import DataError
from fedbench.bench.system.text import visible, visible_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

_PIPE, _NARROWEST = 100, 30
"""Columns of sentences in a pipe, unless COLUMNS says otherwise, and the fewest in a terminal."""
_READER_GONE = {errno.EPIPE, errno.EIO}
"""Errors of a pipe whose reader has closed it, and of a terminal that is gone."""


def emit(text: str) -> None:
    """Write a result to stdout, with control characters as escapes."""
    write(visible(text))


def emit_notes(*texts: str) -> None:
    """Write sentences to stdout, in lines that are broken at blanks."""
    emit("\n".join("\n".join(wrapped(text)) for text in texts))


def wrapped(text: str, indent: int = 0, hang: str = "  ") -> list[str]:
    """Return a text in lines that fit a terminal, or a pipe, beside so many columns.

    Lines after the first begin with `hang`.
    """
    width = shutil.get_terminal_size((_PIPE, 0)).columns - indent
    lines = textwrap.wrap(
        text,
        max(_NARROWEST, width),
        subsequent_indent=hang,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines or [""]


def write(text: str) -> None:
    """Write a result to stdout; exit with 0 if the reader of a pipe or the terminal is gone."""
    try:
        sys.stdout.write(text if text.endswith("\n") or not text else f"{text}\n")
        sys.stdout.flush()
    except OSError as err:
        _discard(sys.stdout)
        if err.errno in _READER_GONE:
            raise SystemExit(0) from None
        raise DataError(f"cannot write to stdout: {err.strerror or err}") from err


def emit_json(value: Any) -> None:
    """Write one JSON document to stdout."""
    text = visible_json(value, indent=2, default=os.fspath)
    if not takes_unicode():  # the stream's own escape of é, \xe9, is no JSON
        text = re.sub(r"[^\x00-\x7f]+", lambda match: json.dumps(match[0])[1:-1], text)
    write(text)


def takes_unicode() -> bool:
    """Return True if stdout takes all letters."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def note(text: str) -> None:
    """Write a line to stderr, with control characters as escapes.

    Without a reader the line is lost, since that must not end a run.
    """
    stream = _Lasting(sys.stderr)
    stream.write(f"{visible(text)}\n")
    stream.flush()


def _discard(stream: TextIO) -> None:
    """Let all further output of a stream go nowhere.

    Buffered text would fail again when the interpreter exits.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class _Lasting:
    """A stream that goes on, into nothing, when its reader or its terminal is gone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> None:
        """Write text, or drop it where nobody reads it."""
        self._try(self._stream.write, text)

    def flush(self) -> None:
        """Flush the stream, or drop its text where nobody reads it."""
        self._try(self._stream.flush)

    def _try(self, write: Callable[..., Any], *text: str) -> None:
        try:
            write(*text)
        except OSError as err:
            if err.errno not in _READER_GONE:
                raise
            _discard(self._stream)


def warn(*texts: str) -> None:
    """Write each text to stderr as a warning."""
    for text in texts:
        note(f"warning: {text}")


def suggest(command: str, store: Path | None = None) -> None:
    """Name the next command on stderr, with the `--store` option that the user gave."""
    option = "" if store is None else f" --store {shlex.quote(str(store))}"
    note(f"next: {command}{option}")


def setup_streams(*, debug: bool = False) -> None:
    """Escape letters that a stream cannot encode; print Python's warnings on one line each."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if debug:
        return

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        warn(" ".join(str(message).split()))

    warnings.showwarning = show


def is_terminal(stream: TextIO) -> bool:
    """Return whether to draw with rich: on a terminal, or with `FORCE_COLOR`."""
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def rich_console(stream: TextIO) -> Console:
    """Return the console that draws on a terminal."""
    from rich.console import Console

    return Console(
        file=cast(TextIO, _Lasting(stream)),
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=False,
        force_terminal=True,
    )


class Status:
    """Lines at the foot of the terminal, replaced as work goes on; nothing in a pipe (not `live`).

    With `verbose` a subclass shows more.
    """

    first_step = "preparing"

    def __init__(self, title: str, *, quiet: bool = False, verbose: bool = False) -> None:
        self.title, self.quiet, self.verbose = title, quiet, verbose
        # FORCE_COLOR makes a terminal of a pipe, but lines that are replaced need a real one.
        self.live = not quiet and is_terminal(sys.stderr) and sys.stderr.isatty()
        self._drawn: Live | None = None
        self._lines: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        self.update(f"{self.title} · {self.first_step}")
        if self.live:
            from rich.live import Live
            from rich.text import Text

            def draw() -> Text:
                text = "\n".join(map(visible, self.lines()))
                return Text(text, overflow="ellipsis", no_wrap=True)

            console = rich_console(sys.stderr)
            self._drawn = Live(
                console=console, transient=True, refresh_per_second=4, get_renderable=draw
            )
            self._drawn.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._drawn is not None:
            self._drawn.stop()
        if isinstance(error, KeyboardInterrupt | SystemExit):  # Typer drops what they say
            for text in getattr(error, "__notes__", ()):
                note(text)

    def update(self, *lines: str) -> None:
        """Replace the lines."""
        self._lines = lines

    def lines(self) -> tuple[str, ...]:
        """Return the lines as they are now; called several times a second."""
        return self._lines
