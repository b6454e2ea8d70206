"""Tables of records in notebooks."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any


class Shown(ABC):
    """A record that a notebook shows as a table."""

    @abstractmethod
    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        """Return headings, and lines of plain values."""

    def _repr_html_(self) -> str:
        return html_table(self, *self.table())


def html_table(caption: Any, header: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    """Return a table of plain values as HTML."""
    cells = "".join(f"<th>{_text(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{_text(value)}</td>" for value in line) + "</tr>" for line in lines
    )
    above = f"<caption>{_text(caption)}</caption><thead><tr>{cells}</tr></thead>"
    return f"<table>{above}<tbody>{body}</tbody></table>"


def _text(value: Any) -> str:
    """Return a value for people, escaped."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return html.escape(" ".join(f"{key}={_text(each)}" for key, each in value.items()))
    return html.escape(str(value))
