"""The report on a store: one HTML file that needs nothing else."""

from __future__ import annotations

import html
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from fedbench.bench.system.errors import ConfigError, StoreError
from fedbench.bench.system.files import atomic_write_text
from fedbench.bench.system.text import single_line, visible_json

if TYPE_CHECKING:
    from fedbench.bench.results.leaderboard.entries import Spent
    from fedbench.bench.results.store.store import Store

_SCRIPTS = ("d3.min.js", "plot.umd.min.js", "table.js", "figure.js", "charts.js", "page.js")


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
        """Output of `fedbench report --json`."""
        return {**asdict(self), "file": str(self.file), "problems": list(self.problems)}


def write_report(
    file: Path,
    store: Store,
    *,
    grid: str | None,
    row_ids: Collection[str] | None,
    dataset: str | None,
    spent: Mapping[str, Spent],
    data_dir: Path | None = None,
) -> Report:
    """Write the page about a store.

    Args:
        file: ends in .html; replaced if it exists.
        store: read, not written.
        grid: name of the grid, for the title.
        row_ids: only these runs, the cells of the grid.
        dataset: only runs on this data set.
        spent: cost of each tuning study, by its id.
        data_dir: data caches that labels of clients are read from; None = the usual folder.

    Raises:
        ConfigError: for a file of another ending, or one that cannot be written.
        StoreError: for a store that cannot be read, or one without runs on the data set.
    """
    from fedbench.bench.results.leaderboard.data_names import named_by_content, on_dataset
    from fedbench.bench.results.leaderboard.leaderboard import why_empty
    from fedbench.bench.results.report.content import content

    if file.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"a report is a web page: give a name that ends in .html (got {file})")
    frame = store.frame()
    if row_ids is not None:
        frame = frame[frame.row_id.isin(row_ids)]
    if dataset is not None:
        frame = on_dataset(frame, dataset)
        if frame.empty:
            raise StoreError(why_empty(store.frame(), dataset=dataset, grid=None))
    title = " · ".join(filter(None, ("fedbench", store.root.resolve().name, grid, dataset)))
    frame = named_by_content(frame)
    shown = content(store, frame, spent=spent, data_dir=data_dir, title=title)
    atomic_write_text(file, page(shown), error=ConfigError)
    size, problems = file.stat().st_size, tuple(shown["problems"])
    return Report(file, len(frame), len(shown["studies"]), size, problems)


def page(content: Mapping[str, Any]) -> str:
    """Return assets, libraries and data as one HTML text.

    Text from the store cannot end the data's element: `<` is written as an escape.
    """
    data = visible_json(content, separators=(",", ":"))
    return Template(_asset("page.html")).substitute(
        title=html.escape(single_line(str(content["title"]))),
        style=_asset("page.css"),
        data=data.replace("<", "\\u003c"),
        scripts="\n".join(f"<script>{_asset(name)}</script>" for name in _SCRIPTS),
    )


def _asset(name: str) -> str:
    folder = resources.files("fedbench.bench.results.report").joinpath("assets")
    return folder.joinpath(name).read_text(encoding="utf-8")
