"""The renderer of results: a record as names with their values, records as a table.

A terminal gets tables drawn by rich. A pipe gets plain text: no colours, no box characters, no
wrapping, one line for each row.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from fedbench.bench.evaluation.metrics import heading, is_accuracy
from fedbench.bench.system.text import number_columns, plain_table, single_line
from fedbench.bench.terminal.console import emit, is_terminal, rich_console, wrapped, write
from fedbench.bench.terminal.units import text

_LEAST, _GAP = 16, 2
"""Fewest characters of a column of words (then columns are dropped), and blanks between two."""
_HEADS = {
    "run_id": "run",
    "study_id": "study",
    "num_bytes": "traffic",
    "num_train": "training images",
    "num_test": "test images",
    "image_shape": "image",
    "get": "how to get it",
    "finished_at": "finished",
    "at_chance": "loss hardly fell",
    "goes_with": "goes with",
}
"""Headings of values whose names are no words."""
_LABELS = {
    "at_chance": _HEADS["at_chance"],
    "hours": "time",
    "device_hours": "time one by one",
    "finish_hours": "time with N at once",
}
"""Labels in records; other values go by the names that JSON has."""
_DROPPED_FIRST = (
    "aliases goes_with data code start participation local_epochs grid num_rounds num_clients"
    " partition image_shape num_classes num_bytes seconds objective knn_acc notes preset"
    " formula finished_at dataset presets spec alpha status"
)
"""Values of records that a narrow terminal does without, in this order."""


def show_record(
    head: str, record: Mapping[str, Any], names: Sequence[str] = (), *, sentences: bool = False
) -> None:
    """Print a headline, and below it the values of a record: those called `names`, or all.

    Empty values are left out; texts in a list take a line each, `sentences` as many as needed.

    >>> show_record("things", {"name": "a", "num_bytes": 1200, "notes": ["an x", "a y"]})
    things
      name       a
      num_bytes  1.2 kB
      notes      an x
                 a y
    """
    lists = {
        _LABELS.get(name, name): [*filter(None, value)]
        if _are_lines(value)
        else [text(name, value)]
        for name in names or record
        if (value := record.get(name)) not in (None, "", [], (), {})
    }
    width = max(map(len, lists), default=0)
    lines = [head] if head else []
    for name, texts in lists.items():
        if sentences:
            dash = "- " * (len(texts) > 1)
            hang = " " * len(dash)
            texts = [line for each in texts for line in wrapped(dash + each, width + 4, hang)]
        labels = [name, *[""] * (len(texts) - 1)]
        lines += [f"  {label:<{width}}  {line}" for label, line in zip(labels, texts, strict=True)]
    emit("\n".join(lines))


def _are_lines(value: Any) -> bool:
    """Return whether a value is a list of texts, rather than of names or numbers."""
    texts = isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
    return texts and any(" " in each for each in value)


def show_records(
    records: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    *,
    title: str = "",
    bold: Sequence[bool] = (),
) -> None:
    """Print records as a table: a column for each name whose values are not all empty."""
    columns = {name: [text(name, record.get(name)) for record in records] for name in names}
    filled = {name: cells for name, cells in columns.items() if any(cells)}
    rows = list(zip(*filled.values(), strict=True))
    if rows:
        narrow = [head(name) for name in _DROPPED_FIRST.split()]
        show_table([*map(head, filled)], rows, title=title, bold=bold, narrow=narrow)


def head(name: str) -> str:
    """Return the heading of a value of a record, in words.

    >>> head("knn_acc"), head("num_clients"), head("seeds_per_trial"), head("client.batch_size")
    ('k-NN %', 'clients', 'seeds per trial', 'client.batch_size')
    """
    if "." in name:  # a setting, which goes by its name everywhere
        return name
    words = heading(name) if is_accuracy(name) else name.removeprefix("num_")
    return _HEADS.get(name, words.replace("_", " "))


def show_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str = "",
    bold: Sequence[bool] = (),
    narrow: Sequence[str] = (),
) -> None:
    """Print a table, with columns of numbers aligned to the right and, in a terminal, bold rows.

    A terminal without room for all columns leaves out those with the headings of `narrow`, the
    first one first, and says so. What is still too wide wraps.
    """
    lines = [list(map(single_line, row)) for row in (header, *rows)]
    title = single_line(title)
    if not is_terminal(sys.stdout):
        emit(plain_table(lines[0], lines[1:], title=title))
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console = rich_console(sys.stdout)
    right = number_columns(lines[0], lines[1:])
    columns = [_Column(number, *cells) for number, *cells in zip(right, *lines, strict=True)]
    dropped = []
    for name in narrow:
        if sum(column.width for column in columns) > console.width:
            dropped += [column.name for column in columns if column.name == name]
            columns = [column for column in columns if column.name != name]
    style = not os.environ.get("NO_COLOR")
    table = Table(
        header_style="bold cyan" if style else "",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        collapse_padding=True,
    )
    fits = sum(column.width for column in columns) <= console.width
    for column in columns:
        justify: Any = "right" if column.number else "left"
        whole = column.whole and fits
        table.add_column(column.name, justify=justify, overflow="fold", no_wrap=whole)
    for index, row in enumerate(zip(*(column.cells for column in columns), strict=True)):
        in_bold = style and index < len(bold) and bold[index]
        table.add_row(*row, style="bold" if in_bold else "")
    with console.capture() as captured:
        if title:  # rich would wrap a table's own title at the width of the table
            console.print(Text(title, style="bold" if style else ""))
        console.print(table)
    write(captured.get())
    if dropped:
        left = f"no room for {', '.join(dropped)}: widen the terminal, or use --json"
        emit("\n".join(wrapped(left)))


class _Column:
    """A column of a drawn table; numbers and ids stay in one line, others wrap."""

    def __init__(self, number: bool, name: str, *cells: str) -> None:
        self.number, self.name, self.cells = number, name, cells
        self.whole = number or name in ("run", "study", "key")
        size = max(map(len, (name, *cells)))
        self.width = _GAP + (size if self.whole else min(size, _LEAST))
