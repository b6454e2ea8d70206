"""What a store holds already, as functions. The rest is in `fedbench.bench.api`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedbench.bench.api import as_path, open_store
from fedbench.bench.errors import ConfigError, StoreError
from fedbench.bench.records import Ranking, Report

if TYPE_CHECKING:
    from fedbench.bench.execute import OnRound
    from fedbench.bench.export import Exported
    from fedbench.bench.reproduce import Reproduction
    from fedbench.bench.results.merge import Merged
    from fedbench.bench.results.store import Store
    from fedbench.bench.results.studies import Studies


def leaderboard(
    store: Store | Path | str | None = None,
    *,
    grid: str | None = None,
    dataset: str | None = None,
    metric: str = "linear_acc",
    published: bool = True,
    reach: float | None = None,
) -> Ranking:
    """Rank what a store holds.

    Args:
        store: see `open_store`; one without runs gives an empty ranking, which says why.
        grid: only cells of this grid (a name, or a YAML file).
        dataset: only runs on this data set.
        metric: column or further metric to rank by; `knn`, `linear`, `linear-paper` are understood.
        published: look up the published numbers.
        reach: k-NN accuracy in [0, 1]; adds the rounds and bytes to get there, and the mean over
            the rounds. Says most with `evaluation.every`.

    Raises:
        ConfigError: for a `reach` that is no fraction.
        UnknownNameError: for an unknown grid, metric or data set.
        StoreError: for a store that is not there or cannot be read.
    """
    from fedbench.bench.results.curves import load_curves
    from fedbench.bench.results.leaderboard import leaderboard as rank
    from fedbench.bench.tuning.membership import cells_of
    from fedbench.bench.tuning.tuned import spent

    if reach is not None and not 0 <= reach <= 1:
        raise ConfigError(f"--reach must be a fraction in [0, 1], such as 0.6 (got {reach:g})")
    opened = open_store(store)
    rows = opened.rows()
    chosen = None if grid is None else cells_of(rows, grid)
    curves, unreadable = (None, []) if reach is None else load_curves(opened, rows)
    board = rank(
        rows,
        row_ids=chosen,
        dataset=dataset,
        metric=metric,
        published=published,
        studies=spent(opened, {row.study_id for row in rows if row.study_id}),
        curves=curves,
        reach=reach,
    )
    problems = (*opened.problems(), *unreadable)
    if board.groups:
        return Ranking(board, problems)
    if not opened.root.exists():
        raise StoreError(
            f"there is no store at {str(opened.root)!r}; name another with --store, or fill this"
            f" one: `fedbench run simclr --store {shlex.quote(str(opened.root))}`"
        )
    from fedbench.bench.data.datasets import KNOWN
    from fedbench.bench.results.misses import explain

    why = explain(rows, KNOWN, dataset=dataset, grid=grid)
    return Ranking(board, problems, why)


def report(
    file: Path | str,
    store: Store | Path | str | None = None,
    *,
    grid: str | None = None,
    dataset: str | None = None,
) -> Report:
    """Write one self-contained HTML page about a store: tables, charts, studies, published numbers.

    Args:
        file: ends in .html; replaced if it exists.
        store: see `open_store`.
        grid: only cells of this grid (a name, or a YAML file).
        dataset: only runs on this data set.

    Raises:
        ConfigError: for a file of another ending, or one that cannot be written.
        UnknownNameError: for an unknown grid.
        StoreError: for a store that is not there or cannot be read.
    """
    from fedbench.bench.report.content import content
    from fedbench.bench.report.geometry import geometries
    from fedbench.bench.report.page import write_page
    from fedbench.bench.results.curves import load_curves
    from fedbench.bench.results.lookup import existing
    from fedbench.bench.results.published import dataset_name
    from fedbench.bench.results.studies import study_views
    from fedbench.bench.tuning.membership import cells_of
    from fedbench.bench.tuning.tuned import spent

    opened, path = existing(open_store(store)), Path(file).expanduser()
    rows = opened.rows()
    if grid is not None:
        chosen = cells_of(rows, grid)
        rows = [row for row in rows if row.row_id in chosen]
    if dataset is not None:
        rows = [row for row in rows if dataset_name(row.dataset) == dataset_name(dataset)]
        if not rows:
            from fedbench.bench.data.datasets import KNOWN
            from fedbench.bench.results.misses import explain

            raise StoreError(explain(opened.rows(), KNOWN, dataset=dataset, grid=None))
    curves, unreadable = load_curves(opened, rows)
    geometry, torn = geometries(opened, rows)
    studies, problems = study_views(opened), (*opened.problems(), *unreadable, *torn)
    shown = " · ".join(filter(None, ("fedbench", opened.root.resolve().name, grid, dataset)))
    costs = spent(opened, {row.study_id for row in rows if row.study_id})
    shown_data = content(
        rows, curves, studies, problems, spent=costs, geometry=geometry, title=shown
    )
    write_page(shown_data, path)
    return Report(path, len(rows), len(studies), path.stat().st_size, problems)


def studies(store: Store | Path | str | None = None) -> Studies:
    """The tuning studies of a store: trials, cost, and how well the objective foretold.

    Args:
        store: see `open_store`.

    Returns:
        The studies that can be read; `problems` names the files that cannot.

    Raises:
        StoreError: for a store that is not there or cannot be read.
    """
    from fedbench.bench.results.lookup import existing
    from fedbench.bench.results.studies import Studies, study_views

    opened = existing(open_store(store))
    return Studies(study_views(opened), opened.problems())


def merge(
    sources: Sequence[Store | Path | str],
    store: Store | Path | str | None = None,
    *,
    dry_run: bool = False,
) -> Merged:
    """Bring the rows, curves, checkpoints and studies of other stores into one.

    Args:
        sources: stores, which stay as they are.
        store: see `open_store`; gets what it does not have.
        dry_run: compare and count only.

    Raises:
        StoreError: for a source that is not there, or stores that contradict each other; then
            nothing is written.
    """
    from fedbench.bench.results.merge import merge as merge_stores

    return merge_stores(open_store(store), list(map(open_store, sources)), dry_run=dry_run)


def reproduce(
    run_id: str,
    store: Store | Path | str | None = None,
    *,
    data_name: str | None = None,
    keep: Store | Path | str | None = None,
    data_dir: Path | str | None = None,
    workers: int | None = None,
    device: str = "auto",
    on_round: OnRound | None = None,
) -> Reproduction:
    """Run a stored row again from itself, in another store, and compare every bit of it.

    Args:
        run_id: its row id, or an unambiguous beginning of it, at least 4 characters.
        store: see `open_store`; nothing is written there.
        data_name: where the data lies, if not where it lay when the row was made.
        keep: store for the new run; None = a temporary one.
        data_dir: cache of data sets; None = the default one.
        workers: processes that train clients; None = physical cores, or one per GPU.
        device: `auto`, `cpu` or `cuda`.
        on_round: called after every round with its record and the number of rounds.

    Raises:
        StoreError: no such row, or one that cannot be reproduced here.
        FedbenchError: for data or device problems.
    """
    from fedbench.bench.reproduce import reproduce as run_again

    return run_again(
        open_store(store),
        run_id,
        data_name=data_name,
        keep=None if keep is None else open_store(keep),
        data_dir=as_path(data_dir),
        workers=workers,
        device=device,
        on_round=on_round,
    )


def export_encoder(
    run_id: str,
    file: Path | str,
    *,
    store: Store | Path | str | None = None,
    data_dir: Path | str | None = None,
) -> Exported:
    """Write a run's encoder as `.safetensors`, with a JSON card beside it.

    Raises:
        StoreError: if the store has no such run, or no checkpoint of it.
        DataError: for a file name of another ending.
    """
    from fedbench.bench.export import export_encoder as export

    return export(open_store(store), run_id, Path(file), data_dir=as_path(data_dir))
