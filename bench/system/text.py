"""Text from outside, made fit for UTF-8 files and for terminals."""

import json
import re
from collections.abc import Sequence
from typing import Any

_LONE_SURROGATES = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_HIDDEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f"  # C0 without the line end, DEL, C1
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"  # direction marks, line separators
)
_MARKUP = re.compile(r"[\\`|<$\[\]]|(?<=.)\*|\*(?=.)|~(?=~)")
"""The `*` of a table's best is alone in its cell."""


def utf8_text(text: str) -> str:
    r"""Return a text that UTF-8 can encode.

    Surrogates, by which Python holds odd bytes of a file name, are decoded again or become U+FFFD.

    >>> ascii(utf8_text("\udcc3\udca9 \udcff"))
    "'\\xe9 \\ufffd'"
    """
    if text.isascii():
        return text
    paired = _LONE_SURROGATES.sub("\ufffd", text)
    return paired.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def visible(text: str) -> str:
    r"""Return a text with control characters and direction marks as escapes; line ends stay.

    A name must not clear the screen, colour it, ring, or show its letters in another order.

    >>> print(visible("red\x1b[31m"), visible("a\u202eb"))
    red\x1b[31m a\u202eb
    """
    if text.isascii() and text.isprintable():
        return text
    return _HIDDEN.sub(lambda match: ascii(match[0])[1:-1], utf8_text(text))


def single_line(text: str) -> str:
    r"""Return `visible` text with line ends as escapes, too, for one cell of a table.

    >>> print(single_line("a\nb"))
    a\nb
    """
    return visible(text).replace("\n", r"\n")


def markdown(text: str) -> str:
    r"""Escape a text for Markdown, and HTML in it, so that it is shown as it is, on one line.

    >>> print(markdown("a|b"), markdown("<script>"), markdown("*"))
    a\|b \<script> *
    """
    return _MARKUP.sub(r"\\\g<0>", single_line(text))


def visible_json(value: Any, **options: Any) -> str:
    r"""Return JSON that is valid UTF-8, without raw control characters and direction marks.

    >>> print(visible_json(["é", "\x9b31m", "\udcff"]))
    ["é", "\u009b31m", "�"]
    """
    text = utf8_text(json.dumps(value, ensure_ascii=False, allow_nan=False, **options))
    return _HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


_NUMBER = re.compile(r"[-+≥]?[\d.,]+(e[-+]?\d+)?( ?(%|[kMG]?B|s|min|h|d)| [±\[(].*)*|-|")
"""A cell of a column that is aligned to the right and never wrapped."""


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> str:
    """Format a table as text, with two spaces between columns.

    >>> print(plain_table(["name", "size"], [["a", "10"], ["bc", "2"]], title="things"))
    things
    name  size
    a       10
    bc       2
    """
    right = number_columns(header, rows)
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [title] if title else []
    for row in (header, *rows):
        cells = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def number_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    """For each column, whether it holds numbers."""
    return [all(map(_NUMBER.fullmatch, column)) for column in zip(*rows or [header], strict=True)]
