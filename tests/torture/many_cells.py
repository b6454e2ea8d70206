"""Measure the time and memory that the driver needs for each of a thousand trivial cells.

Run by hand; pytest does not collect it:

    python tests/torture/many_cells.py FOLDER [CELLS [AT_A_TIME]]

Prints one JSON line per figure. On a shared machine times are upper bounds; `cpu` is the driver's.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from fedbench import leaderboard
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.schema import encode
from fedbench.bench.results.store.store import Store
from fedbench.bench.tuning.grid import Grid
from fedbench.bench.tuning.sweep import SweepResult, sweep

TRIVIAL = {
    "data.train_subset": 20,
    "data.test_subset": 10,
    "data.num_clients": 2,
    "federation.num_rounds": 0,
    "model.width": 2,
    "evaluation.protocols": [],
    "evaluation.objective_max_examples": 2,
    "evaluation.untrained": False,
}
ROWS = 10_000


def main(folder: str, cells: str = "1000", at_a_time: str = "2") -> None:
    """Sweep, sweep again, rank; then rank many synthetic rows."""
    count, width = int(cells), int(at_a_time)
    store = Store(Path(folder) / "cells")
    driver = psutil.Process()
    memory: list[float] = []
    ended: list[float] = []

    def watch(event: Any) -> None:
        if hasattr(event, "seconds"):
            ended.append(time.monotonic())
            if len(ended) % 50 == 0:
                memory.append(driver.memory_info().rss / 1e6)

    def once() -> SweepResult:
        rates = tuple(round(0.001 * (1 + index), 6) for index in range(count // 4))
        grid = Grid(
            grid="many",
            description="for this script",
            axes={"client.lr": rates},
            methods=("supervised",),
            seeds=(0, 1, 2, 3),
        )
        return sweep(grid, store=store, set=TRIVIAL, concurrency=width, on_progress=watch)

    cpu, began = sum(driver.cpu_times()[:2]), time.monotonic()
    first = once()
    wall, cpu = time.monotonic() - began, sum(driver.cpu_times()[:2]) - cpu
    rows = store.rows()
    work = sum(row.wall_seconds or 0.0 for row in rows)
    half = len(ended) // 2
    gaps = [(ended[half] - ended[0]) / half, (ended[-1] - ended[half]) / (len(ended) - half - 1)]
    say("cells", planned=first.planned, done=first.done, failed=first.failed, wall=wall)
    say("a cell", work_ms=1e3 * work / count, wall_ms=1e3 * wall * width / count)
    say("between ends", first_half_ms=1e3 * gaps[0], second_half_ms=1e3 * gaps[1])
    say("driver", cpu_ms_per_cell=1e3 * cpu / count, memory_mb=memory)

    began, cpu = time.monotonic(), sum(driver.cpu_times()[:2])
    again = once()
    cpu = sum(driver.cpu_times()[:2]) - cpu
    say("nothing left", skipped=again.skipped, wall=time.monotonic() - began, cpu=cpu)

    many = Path(folder) / "rows"
    synthetic(rows, many)
    began, cpu = time.monotonic(), sum(driver.cpu_times()[:2])
    board = leaderboard(many, metric="objective").board
    cpu = sum(driver.cpu_times()[:2]) - cpu
    say("ranked", rows=ROWS, entries=len(board.entries), wall=time.monotonic() - began, cpu=cpu)


def synthetic(rows: list[Row], folder: Path) -> None:
    """Write `ROWS` row files made from the existing rows."""
    (folder / "rows").mkdir(parents=True, exist_ok=True)
    for index in range(ROWS):
        row = rows[index % len(rows)]
        name = f"{index:020x}"
        changed = row.model_copy(update={"row_id": name, "config_id": f"{index // 5:020x}"})
        (folder / "rows" / f"{name}.parquet").write_bytes(encode([changed], Row))


def say(name: str, **figures: Any) -> None:
    """Print one line of JSON."""
    short = {key: round(v, 3) if isinstance(v, float) else v for key, v in figures.items()}
    print(json.dumps({"figure": name, **short}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
