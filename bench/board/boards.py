"""Functions that read a store: the ranking and the page. They load no torch, but for `grid`."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.bench.config.yaml_files import installed
from fedbench.bench.results.chance import marks
from fedbench.bench.results.leaderboard.curves import load_curves
from fedbench.bench.results.leaderboard.data_names import named_by_content, on_dataset
from fedbench.bench.results.leaderboard.formats import Ranking
from fedbench.bench.results.leaderboard.leaderboard import leaderboard as rank
from fedbench.bench.results.leaderboard.leaderboard import why_empty
from fedbench.bench.results.leaderboard.studies import spent
from fedbench.bench.results.purposes import PURPOSES
from fedbench.bench.results.report.page import Report, write_page
from fedbench.bench.results.store.frame import lines
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import REPRODUCTIONS, Store, open_store
from fedbench.bench.system.errors import ConfigError, StoreError, UnknownNameError
from fedbench.bench.system.files import user_path

if TYPE_CHECKING:
    import pandas as pd

_log = logging.getLogger(__name__)


def leaderboard(
    store: Store | Path | str | None = None,
    *,
    grid: str | None = None,
    dataset: str | None = None,
    preset: str | None = None,
    methods: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    purpose: str = "evaluation",
    metric: str = "linear_acc",
    published: bool = True,
    reach: float | None = None,
    min_seeds: int = 1,
) -> Ranking:
    """Rank the runs of a store.

    Args:
        store: see `open_store`.
        grid: only cells of this grid (a name, or a YAML file).
        dataset: only runs on this data set.
        preset: only runs that started from this preset.
        methods: only runs of these specs, which are ranked among themselves.
        columns: of tables and CSV, by heading or by name in JSON; None = all.
        purpose: only runs that were made for it, one of `PURPOSES`; `all` = every run.
        metric: column or further metric to rank by, or `knn`, `linear`, `linear-paper`.
        published: look up the published numbers.
        reach: k-NN accuracy in [0, 1]; adds the rounds and bytes until it is reached, and the mean
            over the rounds. Needs `evaluation.every` for more than one value per run.
        min_seeds: leave out entries with fewer seeds that measured the metric or diverged.

    Raises:
        ConfigError: for a `reach` that is no fraction, or a `min_seeds` below 1.
        UnknownNameError: for an unknown grid, metric, column or data set, or a preset or method of
            no run.
        StoreError: for a store that is not there or cannot be read.

    >>> from fedbench.bench.testing import demo_store
    >>> leaderboard(demo_store()).to_frame()[["rank", "method", "n_seeds"]].values.tolist()
    [[1, 'simclr', 1]]
    """
    if reach is not None and not 0 <= reach <= 1:
        raise ConfigError(f"--reach must be a fraction in [0, 1], such as 0.6 (got {reach:g})")
    if min_seeds < 1:
        raise ConfigError(f"--min-seeds must be at least 1 (got {min_seeds})")
    store = open_store(store).require()
    frame = store.frame()
    for column, wanted in (("preset", preset and [preset]), ("method", methods)):
        if wanted is not None and not frame.empty:
            for name in wanted:
                if name not in (held := sorted(frame[column].unique())):
                    raise UnknownNameError(column, name, held, "; known = in the store")
            frame = frame[frame[column].isin(wanted)]
    everything, frame = frame, for_purpose(frame, purpose)
    row_ids = None if grid is None else _cells_of(store.rows(), grid)
    curves, unreadable = (None, []) if reach is None else load_curves(store, frame)
    people: dict[str, int] | None = None
    records: Mapping[str, Any] = {}
    if (store.root / REPRODUCTIONS).is_dir():
        from fedbench.bench.board.reproductions import reproductions  # which loads torch

        records = reproductions(store)
        people = {run_id: record.count for run_id, record in records.items()}
    board = rank(
        frame,
        row_ids=row_ids,
        dataset=dataset,
        metric=metric,
        min_seeds=min_seeds,
        columns=columns,
        published=published,
        studies=spent(store, frame.study_id.dropna().unique()),
        curves=curves,
        reach=reach,
        marks=marks(store, lines(frame[["row_id", "status", "finished_at"]])),
        reproduced=people,
    )
    problems = (*store.problems(), *unreadable)
    if not board.groups:
        nothing = f"no line has {min_seeds} seeds that measured {board.metric} or diverged"
        if min_seeds == 1:
            nothing = why_empty(frame, dataset=dataset, grid=grid)
            if held := sorted({*everything.purpose} - {*frame.purpose}):
                nothing += f"; it has runs for {', '.join(held)}: add --purpose all"
        return Ranking(board, problems, nothing)
    shown = {run_id for entry in board.entries for run_id in entry.run_ids}
    found = tuple(asdict(record) for run_id, record in records.items() if run_id in shown)
    return Ranking(board, problems, reproductions=found)


def for_purpose(frame: "pd.DataFrame", purpose: str) -> "pd.DataFrame":
    """Return the runs that were made for a purpose; `all` = every run."""
    if purpose not in (known := (*PURPOSES, "all")):
        raise UnknownNameError("purpose", purpose, known)
    return frame if purpose == "all" else frame[frame.purpose == purpose]


def report(
    file: Path | str,
    store: Store | Path | str | None = None,
    *,
    grid: str | None = None,
    dataset: str | None = None,
    purpose: str = "evaluation",
    data_dir: Path | str | None = None,
    images: bool = True,
    tell: Callable[[str], None] = lambda _: None,
) -> Report:
    """Write one self-contained HTML page about a store: charts, tables, studies, published numbers.

    Args:
        file: ends in .html; replaced if it exists.
        store: see `open_store`.
        grid: only cells of this grid (a name, or a YAML file).
        dataset: only runs on this data set.
        purpose: only runs that were made for it, as in `leaderboard`.
        data_dir: data caches that the labels of clients are read from; see `load_dataset`.
        images: show a training and a test image of each class where a data cache is at hand.
        tell: is called with a line about what is done next.

    Raises:
        ConfigError: for a file of another ending, or one that cannot be written.
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
    frame = for_purpose(store.frame(), purpose)
    if grid is not None:
        frame = frame[frame.row_id.isin(_cells_of(store.rows(), grid))]
    if dataset is not None:
        frame = on_dataset(frame, dataset)
    if frame.empty and (grid or dataset):
        raise StoreError(why_empty(store.frame(), dataset=dataset, grid=grid))
    title = " · ".join(filter(None, ("fedbench", store.root.resolve().name, grid, dataset)))
    data_dir = None if data_dir is None else Path(data_dir)
    named = named_by_content(frame)
    shown = content(store, named, data_dir=data_dir, title=title, show_images=images, tell=tell)
    return write_page(file, shown, len(frame))


def _cells_of(rows: Sequence[Row], grid: str) -> frozenset[str]:
    """Return the rows of a grid; only this needs the methods, and with them torch."""
    named = frozenset(row.row_id for row in rows if row.grid == grid)
    if named and grid not in installed("grids"):  # of a file, which need not be here
        _log.warning("grid %s: only runs of its sweep; its file adds cells run otherwise", grid)
        return named
    from fedbench.bench.tuning.grid import cells_of

    return cells_of(rows, grid)
