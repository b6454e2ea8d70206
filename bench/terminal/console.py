"""Everything that reaches the terminal: results on stdout, the rest on stderr.

The only module that imports rich, and only where a terminal is attached. A pipe gets plain text:
no colours, no box characters, no wrapping.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from fedbench.bench.system.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live


WORDS = frozenset(
    {
        *("method", "notes", "variant", "name", "key", "value", "source", "summary"),
        *("preset", "cells", "status", "how to get it", "largest classes"),
    }
)
"""Headings of columns that are aligned to the left; all others hold numbers."""

_DROPPED_FIRST = (
    "% / GB",
    "per GB",
    "minutes",
    "MB down",
    "MB up",
    "objective",
    "k-NN %",
    "published",
    "gain",
    "notes",
)


def emit(text: str) -> None:
    """Write a result to stdout; a reader that has gone away ends the program quietly.

    Raises:
        SystemExit: with code 0, if nobody reads stdout any more.
        DataError: if stdout is a file that cannot be written.
    """
    try:
        sys.stdout.write(text if text.endswith("\n") or not text else f"{text}\n")
        sys.stdout.flush()
    except OSError as err:
        # What is still buffered would fail once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(err, BrokenPipeError):
            raise SystemExit(0) from None
        raise DataError(f"cannot write to stdout: {err.strerror or err}") from err


def emit_json(value: Any) -> None:
    """Write one JSON document to stdout."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    emit(json.dumps(value, indent=2, ensure_ascii=not unicode, allow_nan=False))


def note(text: str) -> None:
    """Write a line to stderr; a run is worth more than its messages, so a closed stderr is fine."""
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except (BrokenPipeError, ValueError):
        return


def warn(text: str) -> None:
    """Write a warning to stderr."""
    note(f"warning: {text}")


def suggest(command: str, store: Path | None = None, words: str = "next:") -> None:
    """Name a command on stderr, with the option that makes it look into the same store."""
    option = "" if store is None else f" --store {shlex.quote(str(store))}"
    note(f"{words} {command}{option}")


def setup_streams(*, debug: bool = False) -> None:
    """Let no letter be unprintable, and show Python's warnings as one line each."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if debug:
        return

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        warn(" ".join(str(message).split()))

    warnings.showwarning = show


def is_terminal(stream: TextIO) -> bool:
    """Whether rich output is wanted: a terminal, or `FORCE_COLOR`."""
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    return Console(
        file=stream,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=False,
        force_terminal=True,
    )


def show_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str = "",
    bold: Sequence[bool] = (),
) -> None:
    """Print a table to stdout: drawn by rich on a terminal, in aligned plain columns elsewhere.

    Args:
        header: headings; those in `WORDS` are aligned to the left.
        rows: cells.
        title: a line above.
        bold: which rows to stress, on a terminal.
    """
    if not is_terminal(sys.stdout):
        emit(plain_table(header, rows, title=title))
        return
    from io import StringIO

    from rich import box
    from rich.table import Table

    console = _console(sys.stdout)
    header, rows = _fitting(header, rows, console.width)
    style = not os.environ.get("NO_COLOR")
    table = Table(
        title=title or None,
        title_justify="left",
        title_style="bold" if style else "",
        header_style="bold cyan" if style else "",
        box=box.ROUNDED if console.encoding.startswith("utf") else box.ASCII,
    )
    for name in header:
        words = name in WORDS
        table.add_column(
            name, justify="left" if words else "right", overflow="fold", no_wrap=not words
        )
    for index, row in enumerate(rows):
        stressed = style and index < len(bold) and bold[index]
        table.add_row(*row, style="bold" if stressed else "")
    drawn = _console(StringIO())
    drawn.width = console.width
    with drawn.capture() as captured:
        drawn.print(table)
    emit(captured.get())


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> str:
    """A table as text, columns two spaces apart.

    >>> print(plain_table(["name", "size"], [["a", "10"], ["bc", "2"]], title="things"))
    things
    name  size
    a       10
    bc       2
    """
    widths = _widths(header, rows)
    lines = [title] if title else []
    for row in (header, *rows):
        cells = [
            cell.ljust(width) if name in WORDS else cell.rjust(width)
            for cell, width, name in zip(row, widths, header, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _widths(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(header, *rows, strict=True)]


def _fitting(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The table without the columns that a narrow terminal has no room for; words may wrap."""
    for name in _DROPPED_FIRST:
        needed = [
            min(size, 16) if column in WORDS else size
            for column, size in zip(header, _widths(header, rows), strict=True)
        ]
        if sum(needed) + 3 * len(needed) + 1 <= width:
            break
        if name in header:
            place = list(header).index(name)
            header = [*header[:place], *header[place + 1 :]]
            rows = [[*row[:place], *row[place + 1 :]] for row in rows]
    return header, rows


class Status:
    """Lines at the foot of the terminal that are replaced as work goes on; nothing in a pipe.

    Attributes:
        live: whether there is a terminal to draw on.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.live = not quiet and is_terminal(sys.stderr) and sys.stderr.isatty()
        self._drawn: Live | None = None

    def __enter__(self) -> Self:
        if self.live:
            from rich.live import Live

            self._drawn = Live(
                "", console=_console(sys.stderr), transient=True, refresh_per_second=4
            )
            self._drawn.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._drawn is not None:
            self._drawn.stop()
            self._drawn = None

    def update(self, *lines: str) -> None:
        """Replace what is shown."""
        if self._drawn is not None:
            from rich.text import Text

            self._drawn.update(Text("\n".join(lines), overflow="ellipsis", no_wrap=True))
