"""From content to one HTML file that needs nothing else."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.files import atomic_write_text

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Report:
    """A page that was written.

    Attributes:
        file: the page.
        num_rows: runs on it.
        num_studies: tuning studies on it.
        num_bytes: its size.
        problems: one line per unreadable file of the store; they are on the page, too.
    """

    file: Path
    num_rows: int
    num_studies: int
    num_bytes: int
    problems: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """What `fedbench report --json` prints."""
        return {**asdict(self), "file": str(self.file), "problems": list(self.problems)}


_SCRIPTS = ("d3.min.js", "plot.umd.min.js", "table.js", "charts.js", "page.js")


def page(content: Mapping[str, Any]) -> str:
    """The page: assets, libraries and data in one text.

    Text from the store cannot end the data's element: `<` is written as an escape.
    """
    data = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Template(_asset("page.html")).substitute(
        title=html.escape(str(content["title"])),
        style=_asset("page.css"),
        data=data.replace("<", "\\u003c"),
        scripts="\n".join(f"<script>{_asset(name)}</script>" for name in _SCRIPTS),
    )


def write_page(content: Mapping[str, Any], file: Path) -> None:
    """Write the page.

    Raises:
        ConfigError: for a file that does not end in .html, or cannot be written.
    """
    if file.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"a report is a web page: give a name that ends in .html (got {file})")
    atomic_write_text(file, page(content), error=ConfigError)


def _asset(name: str) -> str:
    folder = resources.files("fedbench.bench.results.report").joinpath("assets")
    return folder.joinpath(name).read_text(encoding="utf-8")
