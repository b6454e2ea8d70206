"""The report on a store: one HTML file that needs nothing else."""

import html
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.files import atomic_write_text
from fedbench.bench.system.text import single_line, visible_json

REPORT = b'<script type="application/json" id="data">'
"""Part of every report, and of hardly another page."""
_SCRIPTS = ("d3.min.js", "plot.umd.min.js", "table.js", "figure.js", "charts.js", "page.js")


@dataclass(frozen=True)
class Report:
    """A page that was written, and what is on it."""

    file: Path
    num_rows: int
    num_studies: int
    num_bytes: int
    problems: tuple[str, ...]  # a line per unreadable file of the store


def write_page(file: Path, content: Mapping[str, Any], num_rows: int) -> Report:
    """Write assets, libraries and content as one page; a ConfigError says why it cannot be."""
    data = visible_json(content, separators=(",", ":"))
    page = Template(_asset("page.html")).substitute(
        title=html.escape(single_line(str(content["title"]))),
        style=_asset("page.css"),
        data=data.replace("<", "\\u003c"),  # text from the store cannot end the data's element
        scripts="\n".join(f"<script>{_asset(name)}</script>" for name in _SCRIPTS),
    )
    atomic_write_text(file, page, error=ConfigError)
    size, problems = file.stat().st_size, tuple(content["problems"])
    return Report(file, num_rows, len(content["studies"]), size, problems)


def _asset(name: str) -> str:
    folder = resources.files("fedbench.bench.results.report").joinpath("assets")
    return folder.joinpath(name).read_text(encoding="utf-8")
