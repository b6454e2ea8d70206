"""Complete, valid rows for tests that differ only in the given fields."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fedbench.bench.config import RunConfig
from fedbench.bench.config.dotted import unflatten
from fedbench.bench.method.ids import config_id, row_id
from fedbench.bench.results.leaderboard.leaderboard import Leaderboard, leaderboard
from fedbench.bench.results.store.frame import FURTHER, frame_of
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.schema import decode_table, read_table
from fedbench.bench.results.store.store import Store


def build_row(config: RunConfig | None = None, **fields: Any) -> Row:
    """Row of `config` with `fields` replaced."""
    config = config or RunConfig()
    revision = fields.pop("dataset_revision", "revision")
    base: dict[str, Any] = {
        "row_id": row_id(config, revision),
        "config_id": config_id(config, revision),
        "benchmark_version": "1",
        "status": "ok",
        "preset": "mine",
        "dataset": config.data.name,
        "dataset_revision": revision,
        "partition": config.data.partition,
        "alpha": config.data.alpha,
        "num_clients": config.data.num_clients,
        "participation": config.federation.participation,
        "num_rounds": config.federation.num_rounds,
        "local_epochs": config.client.local_epochs,
        "partition_hash": "hash",
        "method": config.spec,
        "backbone": config.model.backbone,
        "norm": config.model.norm,
        "settings": config.model_dump(mode="json"),
        "seed": config.seed,
        "started_at": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        "finished_at": datetime(2026, 1, 2, 3, 5, 5, tzinfo=UTC),
        "package_version": "0.1.0",
    }
    return Row(**(base | fields))


def run_of(spec: str = "simclr", seed: int = 0, **given: Any) -> Row:
    """Row of a run with some settings and fields, as `client__lr=0.1, linear_acc=0.5`."""
    settings = {name.replace("__", "."): v for name, v in given.items() if "__" in name}
    config = RunConfig.model_validate(unflatten({"spec": spec, "seed": seed, **settings}))
    return build_row(config, **{name: v for name, v in given.items() if "__" not in name})


def seeds_of(values: Mapping[str, Iterable[float]], alpha: float = 0.1, **given: Any) -> list[Row]:
    """Rows of methods, one per seed, of their values of `linear_acc`."""
    return [
        run_of(spec, seed, data__alpha=alpha, linear_acc=value, **given)
        for spec, of_spec in values.items()
        for seed, value in enumerate(of_spec)
    ]


def rank(rows: Iterable[Row], **options: Any) -> Leaderboard:
    """Leaderboard of some rows."""
    return leaderboard(frame_of([*rows]), **options)


def rows_in(board: Path) -> list[Row]:
    """Return the rows in a `leaderboard.parquet`."""
    return decode_table(read_table(board.read_bytes()).drop_columns(FURTHER.names), Row)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "a störe" / "with spaces")
