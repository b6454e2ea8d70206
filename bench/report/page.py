"""From content to one HTML file that needs nothing else."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from fedbench.bench.errors import ConfigError
from fedbench.bench.files import atomic_write_text

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
    folder = resources.files("fedbench.bench.report").joinpath("assets")
    return folder.joinpath(name).read_text(encoding="utf-8")
