"""One cell inside a trial process: lock, execute, report. Nothing here knows studies or grids."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedbench.bench.config import RunConfig
from fedbench.bench.errors import FedbenchError, ResourceError, StoreError
from fedbench.bench.execute import Origin, Place, execute
from fedbench.bench.facts import facts
from fedbench.bench.files import atomic_write_text
from fedbench.bench.history import RoundRecord
from fedbench.bench.results.row import Row
from fedbench.bench.results.store import Store

REPORT_SECONDS = 1.0
"""Least time between two reports of one cell; they never influence its result."""
COLLAPSED_ROUNDS = 3
"""With `stop_collapsed`, a run ends after this many collapsed rounds in a row."""
_POLL_SECONDS = 0.2

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class CellJob:
    """One run to be executed by a trial process, complete in itself.

    Attributes:
        cell: name of its folder and lock below the store's `cells/`.
        row_id: identity of the run.
        label: what people call it.
        config: what to run.
        origin: for the record.
        store: root of the store.
        data_dir: cache of data sets; None = the default one.
        device: `cpu` or `cuda`.
        shared: other processes may be after the same row: look into the store before executing.
        stop_collapsed: end the run early when its encoder has collapsed.
        wait_seconds: how long to wait for the lock before reporting that the cell is busy.
    """

    cell: str
    row_id: str
    label: str
    config: RunConfig
    origin: Origin
    store: Path
    data_dir: Path | None = None
    device: str = "cpu"
    shared: bool = True
    stop_collapsed: bool = False
    wait_seconds: float = 0.0

    def dumps(self) -> str:
        """As JSON, for the way to the trial process."""
        record = asdict(replace(self, config=RunConfig()))
        return json.dumps({**record, "config": self.config.model_dump(mode="json")}, default=str)

    @classmethod
    def loads(cls, text: str) -> CellJob:
        """The inverse of `dumps`."""
        record = json.loads(text)
        record["config"] = RunConfig.model_validate(record["config"])
        record["origin"] = Origin(**record["origin"])
        record["store"] = Path(record["store"])
        record["data_dir"] = None if record["data_dir"] is None else Path(record["data_dir"])
        return cls(**record)


@dataclass(frozen=True)
class Outcome:
    """How a cell ended.

    Attributes:
        job: the cell.
        status: `ok`, `diverged`, `error`, `stopped`, or `elsewhere` if another process ran it.
        row: its row; None for `error` and `stopped`, until a row is made for the error.
        error: what went wrong, in one line.
        seconds: wall time.
        bytes: sent by clients and server together.
    """

    job: CellJob
    status: str
    row: Row | None = None
    error: str | None = None
    seconds: float = 0.0
    bytes: int = 0

    @property
    def objective(self) -> float | None:
        """The label-free score; that of a collapsed encoder is 0 by definition."""
        if self.status == "stopped":
            return 0.0
        return self.row.objective if self.row is not None else None

    @classmethod
    def of(cls, job: CellJob, message: Mapping[str, Any]) -> Outcome:
        """From the last report of a trial process.

        Raises:
            StoreError, ResourceError: when the process found that nothing can be run here.
        """
        status = message["status"]
        if status == "abort":
            kind = StoreError if message["kind"] == "StoreError" else ResourceError
            raise kind(message["error"])
        row = Row.model_validate_json(message["row"]) if message.get("row") else None
        cost = (row.bytes_up or 0) + (row.bytes_down or 0) if row else message.get("bytes", 0)
        return cls(job, status, row, message.get("error"), message.get("seconds", 0.0), cost)


class _Stopped(Exception):  # noqa: N818
    """The stop rule of a run has been met."""


def train(config: dict[str, Any]) -> None:
    """The function that Ray Tune runs: one cell, given as JSON under `job`."""
    import ray
    from ray import tune

    job = CellJob.loads(config["job"])
    granted = "cuda" if ray.get_gpu_ids() else "cpu"
    # The last report is made inside the lock: Tune lets it return only after the driver has
    # written the row, so nobody can find the cell free and its row missing.
    work(replace(job, device=granted), tune.report)


def work(job: CellJob, report: Report) -> None:
    """Execute a cell under its lock; every report is a dict with `status`.

    Statuses: `running` after some rounds, then one of `ok diverged error stopped elsewhere`;
    `busy` if another process holds the cell, `abort` if nothing can be run here at all.
    """
    began = time.monotonic()
    try:
        store = Store(job.store)
        while True:
            with store.lock(job.cell) as mine:
                if mine:
                    report(_perform(job, store, report, began))
                    return
            if time.monotonic() - began >= job.wait_seconds:
                break
            time.sleep(_POLL_SECONDS)
        report({"status": "busy"})
    except (StoreError, ResourceError) as err:
        report(_abort(err))


def _abort(err: FedbenchError) -> dict[str, Any]:
    return {"status": "abort", "kind": type(err).__name__, "error": _one_line(err)}


def _perform(job: CellJob, store: Store, report: Report, began: float) -> dict[str, Any]:
    if job.shared:
        stored = store.finished(job.row_id)
        if stored is not None:
            return {"status": "elsewhere", "row": stored.model_dump_json()}
    folder = store.cell_dir(job.cell)
    reported = began

    def on_round(record: RoundRecord, total: int) -> None:
        nonlocal reported
        if job.stop_collapsed:
            _check_collapse(folder)
        if time.monotonic() - reported >= REPORT_SECONDS:
            reported = time.monotonic()
            report(
                {
                    "status": "running",
                    "round": record.round_index + 1,
                    "total": total,
                    "loss": record.loss,
                    "collapsed": record.collapsed,
                }
            )

    try:
        if job.stop_collapsed:
            _check_collapse(folder)  # the process before us may have died on meeting the rule
        row = execute(job.config, job.origin, Place(folder, job.data_dir, 1, job.device), on_round)
    except _Stopped:
        cost = sum(record["bytes_up"] + record["bytes_down"] for record in _history(folder))
        return {"status": "stopped", "bytes": cost, "seconds": time.monotonic() - began}
    except (StoreError, ResourceError) as err:
        return _abort(err)
    except Exception as err:
        with suppress(StoreError):  # the one-line message is what counts
            atomic_write_text(folder / "error.txt", traceback.format_exc())
        return {"status": "error", "error": _one_line(err), "seconds": time.monotonic() - began}
    return {"status": row.status, "row": row.model_dump_json(), "seconds": row.wall_seconds}


def _check_collapse(folder: Path) -> None:
    """Ends the run if its history, up to the first place where that holds, has collapsed.

    The history may be a round ahead of the checkpoint; rounds give the same bits when done again,
    so that the decision does not depend on where a run was interrupted.
    """
    in_a_row = 0
    for record in _history(folder):
        in_a_row = in_a_row + 1 if record["collapsed"] else 0
        if in_a_row == COLLAPSED_ROUNDS:
            raise _Stopped


def _history(folder: Path) -> list[dict[str, Any]]:
    """The rounds on file; a torn last line is left out."""
    path = folder / "history.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def _one_line(err: BaseException) -> str:
    text = " ".join(str(err).split())
    return text if isinstance(err, FedbenchError) else f"{type(err).__name__}: {text}".rstrip(": ")


def error_row(job: CellJob, message: str, dataset_revision: str, started_at: datetime) -> Row:
    """The row of a cell that could not be executed; its partition is not known."""
    known = facts(
        job.config, dataset_revision, "", job.origin, started_at=started_at, device=job.device
    )
    return Row(
        **known, status="error", error=message or "unknown error", finished_at=datetime.now(UTC)
    )
