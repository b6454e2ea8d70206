"""Rows of a store, chosen by what is remembered of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.bench.config.dotted import flatten
from fedbench.bench.results.chance import NO_MARKS, Marks, marks
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store, open_store
from fedbench.bench.system.arguments import one_of
from fedbench.bench.system.errors import UnknownNameError
from fedbench.bench.system.records import Records

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = {
    "method", "preset", "dataset", "alpha", "num_clients", "num_rounds", "seed",
    "status", "error", "objective", "knn_acc", "linear_acc", "untrained_linear_acc", "grid",
    "study_id", "started_at", "finished_at", "platform",
}  # fmt: skip


@dataclass(frozen=True, repr=False)
class Listing:
    """Some rows of a store, newest first; replicas of one run share its row id."""

    rows: tuple[Row, ...]
    marks: tuple[Marks, ...]
    total: int  # of rows that fit, with those beyond the limit
    problems: tuple[str, ...] = ()  # files of the store that could not be read

    def __repr__(self) -> str:
        return f"<{len(self.rows)} of {self.total} runs>"

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def to_frame(self) -> "pd.DataFrame":
        """Return a line for each row, with the values of `--json`."""
        return Records(self.as_dict()["runs"]).to_frame()

    def _repr_html_(self) -> str:
        return Records(self.as_dict()["runs"])._repr_html_()

    def as_dict(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        shown = [
            {"run_id": row.row_id}
            | row.model_dump(mode="json", include=_SHOWN)
            | {"start": row.start, "at_chance": list(mark.at_chance), "code": row.code}
            for row, mark in zip(self.rows, self.marks, strict=True)
        ]
        return {"total": self.total, "runs": shown}


def runs(
    store: Store | Path | str | None = None,
    *,
    method: str | None = None,
    dataset: str | None = None,
    preset: str | None = None,
    status: str | None = None,
    where: Mapping[str, Any] | None = None,
    limit: int | None = None,
) -> Listing:
    """List rows of a store, newest first.

    Args:
        store: see `open_store`.
        method: only rows of this spec.
        dataset: only rows on this data set, by the name of its content or folder.
        preset: only rows that started from this preset.
        status: `ok`, `error` or `diverged`.
        where: dotted names of the configuration, or columns, and the values that rows have there.
        limit: at most this many.

    Raises:
        UnknownNameError: for a method, data set, preset, status or key that no row has.
        StoreError: for a store that is not there.

    >>> from fedbench.bench.testing import demo_store
    >>> [row.method for row in runs(demo_store(), status="ok").rows]
    ['simclr']
    """
    store = open_store(store).require()
    given = {"method": method, "dataset": dataset, "preset": preset, "status": status}
    columns, rows_at = store.columns("finished_at", *given)
    finished = columns["finished_at"]
    places = sorted(range(len(finished)), key=finished.__getitem__, reverse=True)
    for column, value in given.items() if places else ():
        if value is not None:
            held, wanted = {*columns[column]}, {value}
            if column == "dataset" and ":" not in value:
                from fedbench.bench.results.leaderboard.data_names import meant  # loads pandas

                wanted = meant(value, held) or wanted
            if not wanted <= held:
                one_of(f"{column} of a stored run", held)(value)
            places = [place for place in places if columns[column][place] in wanted]
    if where and finished:
        values = [_values(row) for row in rows_at(range(len(finished)))]
        places = [place for place in places if where.items() <= values[place].items()]
        known = {name for row in values for name in row} if not places else {*where}
        for name in sorted(where.keys() - known):  # a slip; that no row has a value is an answer
            raise UnknownNameError("key or column of --where", name, known)
    shown = rows_at(places[:limit])
    marked = marks(store, shown)
    return Listing(
        tuple(shown),
        tuple(marked.get(row.row_id, NO_MARKS) for row in shown),
        len(places),
        tuple(store.problems()),
    )


def _values(row: Row) -> dict[str, Any]:
    """Return the columns of a row, and the values of its configuration by dotted name."""
    return {**dict(row), **flatten(row.settings)}
