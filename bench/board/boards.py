"""Functions that read a store: the ranking and the page. They load no torch, but for `grid`."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.bench.config.yaml_files import installed
from fedbench.bench.results.chance import marks
from fedbench.bench.results.choice import AXES, PURPOSES, Board, Chosen
from fedbench.bench.results.leaderboard.curves import load_curves
from fedbench.bench.results.leaderboard.data_names import named_by_content, on_dataset
from fedbench.bench.results.leaderboard.formats import Ranking
from fedbench.bench.results.leaderboard.leaderboard import leaderboard as rank
from fedbench.bench.results.leaderboard.leaderboard import why_empty
from fedbench.bench.results.leaderboard.studies import spent
from fedbench.bench.results.report.page import REPORT, Report, write_page
from fedbench.bench.results.store.frame import lines
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store, open_store
from fedbench.bench.system.arguments import grouped, one_of
from fedbench.bench.system.errors import ConfigError, StoreError, UnknownNameError
from fedbench.bench.system.files import user_path

if TYPE_CHECKING:
    import pandas as pd

_log = logging.getLogger(__name__)


@grouped
def leaderboard(store: Store | Path | str | None = None, *, chosen: Board) -> Ranking:
    """Rank the runs of a store.

    Methods are ranked among those that are asked for. `reach`, a k-NN accuracy in [0, 1], also adds
    the mean over the rounds; it needs `evaluation.every` for more than one value per run.

    Args:
        store: see `open_store`.
        chosen: what is ranked, and what is shown.

    Raises:
        ConfigError: for a `reach` that is no fraction, a `min_seeds` below 1, or `columns` for
            tables `over` an axis, which have their own.
        UnknownNameError: for an unknown grid, metric, column, axis or data set, or a preset or
            method of no run.
        StoreError: for a store that is not there or cannot be read.

    >>> from fedbench.bench.testing import demo_store
    >>> leaderboard(demo_store()).to_frame()[["rank", "method", "n_seeds"]].values.tolist()
    [[1, 'simclr', 1]]
    """
    reach, min_seeds, presets = chosen.reach, chosen.min_seeds, chosen.preset and [chosen.preset]
    if reach is not None and not 0 <= reach <= 1:
        raise ConfigError(f"--reach must be a fraction in [0, 1], such as 0.6 (got {reach:g})")
    if min_seeds < 1:
        raise ConfigError(f"--min-seeds must be at least 1 (got {min_seeds})")
    one_of("axis", AXES)(chosen.over)
    if chosen.over is not None and chosen.columns is not None:
        raise ConfigError("--over has tables with columns of their own: leave out --columns")
    store = open_store(store).require()
    every = store.frame()
    for column, wanted in (("preset", presets), ("method", chosen.methods)):
        if wanted is not None and not every.empty:
            for name in wanted:
                if name not in (held := sorted(every[column].unique())):
                    raise UnknownNameError(f"{column} of a stored run", name, held)
            every = every[every[column].isin(wanted)]
    made = _for_purpose(every, chosen)
    frame = _narrowed(made, store, chosen)
    curves, _, unreadable = ({}, {}, []) if reach is None else load_curves(store, frame)
    whole = rank(
        frame,
        metric=chosen.metric,
        min_seeds=min_seeds,
        columns=chosen.columns,
        published=chosen.published,
        studies=spent(store, frame.study_id.dropna().unique()),
        curves=curves,
        reach=reach,
        marks=marks(store, lines(frame[["row_id", "status", "finished_at"]])),
    )
    board = whole if chosen.over is None else whole.along(chosen.over)
    problems = (*store.problems(), *unreadable)
    if whole.groups and not board.groups:
        others = dict.fromkeys(f"--over {each.axis}" for each in whole.across if each.axis)
        more = " or ".join([*others, f"fedbench sweep --grid {AXES[str(chosen.over)]}"])
        alone = f"no method has results in two settings that differ in {chosen.over} alone"
        return Ranking(board, problems, f"{alone}; try {more}")
    if not board.groups:
        nothing = f"no line has {min_seeds} seeds that measured {board.metric} or diverged"
        if min_seeds == 1:
            nothing = why_empty(made, dataset=chosen.dataset, grid=chosen.grid)
            if held := sorted({*every.purpose} - {*made.purpose}):
                nothing += f"; it has runs for {', '.join(held)}: add --purpose all"
        return Ranking(board, problems, nothing)
    return Ranking(board, problems)


@grouped
def report(
    file: Path | str = "report.html",
    store: Store | Path | str | None = None,
    *,
    chosen: Chosen,
    data_dir: Path | str | None = None,
    images: bool = True,
    tell: Callable[[str], None] = lambda _: None,
) -> Report:
    """Write one self-contained HTML page about a store: charts, tables, studies, published numbers.

    Args:
        file: ends in .html; a report that it holds is replaced, anything else is not.
        store: see `open_store`.
        chosen: what it is of.
        data_dir: data caches that the labels of clients are read from; see `load_dataset`.
        images: show a training and a test image of each class where a data cache is at hand.
        tell: is called with a line about what is done next.

    Raises:
        ConfigError: for a file of another ending, or one that is no report or cannot be written.
        UnknownNameError: for an unknown grid.
        StoreError: for a store that is not there or cannot be read, or one without such runs.

    >>> from fedbench.bench.testing import demo_store, new_folder
    >>> folder = new_folder()
    >>> report(f"{folder}/results.html", demo_store(), images=False).num_rows
    1
    """
    from fedbench.bench.results.report.content import content

    file, store = user_path(file), open_store(store).require()
    if file.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"a report is a web page: give a name that ends in .html (got {file})")
    if file.is_file() and REPORT not in file.read_bytes():
        raise ConfigError(f"{file} exists and is no report; give the report another name")
    frame = _narrowed(_for_purpose(store.frame(), chosen), store, chosen)
    of = grid, dataset = chosen.grid, chosen.dataset
    if frame.empty and any(of):
        raise StoreError(why_empty(store.frame(), dataset=dataset, grid=grid))
    title = " · ".join(filter(None, ("fedbench", store.root.resolve().name, *of)))
    data_dir = None if data_dir is None else Path(data_dir)
    named = named_by_content(frame)
    shown = content(store, named, data_dir=data_dir, title=title, show_images=images, tell=tell)
    return write_page(file, shown, len(frame))


def _for_purpose(frame: "pd.DataFrame", chosen: Chosen) -> "pd.DataFrame":
    """Return the runs that were made for a purpose."""
    one_of("purpose", PURPOSES)(chosen.purpose)
    return frame if chosen.purpose == "all" else frame[frame.purpose == chosen.purpose]


def _narrowed(frame: "pd.DataFrame", store: Store, chosen: Chosen) -> "pd.DataFrame":
    """Return the runs on a data set and of a grid."""
    if chosen.dataset is not None:
        frame = on_dataset(frame, chosen.dataset)
    if chosen.grid is not None:
        frame = frame[frame.row_id.isin(_cells_of(store.rows(), chosen.grid))]
    return frame


def _cells_of(rows: Sequence[Row], grid: str) -> frozenset[str]:
    """Return the rows of a grid; only this needs the methods, and with them torch."""
    named = frozenset(row.row_id for row in rows if row.grid == grid)
    if named and grid not in installed("grids"):  # of a file, which need not be here
        _log.warning("grid %s: only runs of its sweep; its file adds cells run otherwise", grid)
        return named
    from fedbench.bench.tuning.grid import cells_of

    return cells_of(rows, grid)
