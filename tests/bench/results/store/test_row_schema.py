import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from fedbench.bench.results.store.row import SCHEMA_VERSION, Row
from fedbench.bench.results.store.schema import (
    ROW_SCHEMA,
    TRIAL_SCHEMA,
    decode,
    encode,
    read_table,
    table_bytes,
)
from fedbench.bench.system.errors import StoreError
from tests.bench.results.conftest import build_row

# What version 5 is, written out by hand: `!` marks columns that are never null. A change here is a
# change of every store on earth: add columns with null or a default, and raise SCHEMA_VERSION.
GOLDEN_ROW = """
row_id string ! | config_id string ! | training_id string | measured_from string
schema_version int32 ! number | benchmark_version string !
status string ! | error string
preset string ! | dataset string ! | dataset_revision string ! | partition string ! | alpha double
num_clients int32 ! count | participation double ! fraction | num_rounds int32 ! count
local_epochs int32 ! count | partition_hash string !
method string ! | backbone string ! | norm string ! | num_parameters int64 parameters
config_json string json | tuned bool ! | study_id string | selection string !
purpose string !
seed int32 ! number
metric.objective double score | metric.align double score | metric.unif double score
metric.knn_acc double fraction | metric.linear_acc double fraction
metric.linear_paper_acc double fraction
metric.untrained_objective double score | metric.untrained_knn_acc double fraction
metric.untrained_linear_acc double fraction
metric.std_ratio double score | metric.collapsed bool | metric.effective_rank double score
metric.final_loss double score | metrics_json string json
cost.wall_seconds double s | cost.train_seconds double s | cost.bytes_up int64 bytes
cost.bytes_down int64 bytes | cost.peak_memory_bytes int64 bytes | cost.rounds_done int32 count
cost.resumes int32 count
traffic_json string json | revealing_messages int32 count | smallest_group int32 count
secure_sum bool | epsilon double | delta double | epsilon_of string | privacy_json string json
started_at timestamp[us, tz=UTC] ! | finished_at timestamp[us, tz=UTC] ! | git_sha string
package_version string ! | env_json string json | hardware string | device string
platform string | platform_json string json | argv string
grid string | scaled_json string json
"""
GOLDEN_TRIAL = """
study_id string ! | number int32 ! number | schema_version int32 ! number | status string !
seeds list<element: int32> ! number | params_json string ! json | objective double score
watched_json string ! json | seconds double s | error string | extra_json string ! json
"""


def spelled(schema: pa.Schema) -> list[str]:
    lines = []
    for field in schema:
        unit = (field.metadata or {}).get(b"unit", b"").decode()
        kind = str(field.type).replace("list<item:", "list<element:")
        parts = [field.name, kind, "" if field.nullable else "!", unit]
        lines.append(" ".join(part for part in parts if part))
    return lines


def golden(text: str) -> list[str]:
    return [part.strip() for line in text.strip().splitlines() for part in line.split("|")]


def test_the_schema_is_the_golden_one() -> None:
    assert SCHEMA_VERSION == 5
    assert spelled(ROW_SCHEMA) == golden(GOLDEN_ROW)
    assert spelled(TRIAL_SCHEMA) == golden(GOLDEN_TRIAL)


def test_a_row_survives_the_round_trip_to_the_microsecond() -> None:
    row = build_row(
        linear_acc=1 / 3, bytes_up=2**40, tuned=True, study_id="ü s", final_loss=-1e-300
    )
    (back,) = decode(encode([row], Row), Row)
    assert back == row
    assert back.started_at.microsecond == 678901
    assert encode([row], Row) == encode([back], Row)


def test_times_are_stored_in_utc() -> None:
    east = datetime(2026, 1, 2, 3, tzinfo=timezone(timedelta(hours=2)))
    assert build_row(started_at=east).started_at == datetime(2026, 1, 2, 1, tzinfo=UTC)
    with pytest.raises(ValidationError, match="started_at"):
        build_row(started_at=datetime(2026, 1, 2))


@pytest.mark.parametrize(
    ("column", "fields"),
    [
        ("objective", {"objective": math.nan}),
        ("final_loss", {"final_loss": math.inf}),
        ("linear_acc", {"linear_acc": 34.7}),
        ("num_rounds", {"num_rounds": 1.5}),
        ("num_rounds", {"num_rounds": "3"}),
        ("n_clients", {"n_clients": 3}),
        ("status", {"status": "timeout"}),
        ("knn_acc", {"status": "diverged", "knn_acc": 0.1}),
        ("error", {"status": "error"}),
        ("error", {"error": "out of memory"}),
        ("row_id", {"row_id": "../../etc"}),
    ],
)
def test_a_row_refuses(column: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=column):
        build_row(**fields)


def test_columns_an_older_version_lacked_are_null() -> None:
    row = build_row(linear_acc=0.5, resumes=2, grid="g")
    old = read_table(encode([row], Row)).drop_columns(["cost.resumes", "grid"])
    (back,) = decode(table_bytes(old), Row)
    assert (back.linear_acc, back.resumes, back.grid) == (0.5, None, None)


def test_a_newer_or_foreign_file_is_refused_not_truncated() -> None:
    table = read_table(encode([build_row()], Row))
    more = table.append_column("future", pa.array([1.0]))
    with pytest.raises(StoreError, match="future"):
        decode(table_bytes(more), Row)
    index = table.schema.names.index("schema_version")
    newer = more.set_column(index, "schema_version", pa.array([6], pa.int32()))
    with pytest.raises(StoreError, match="schema 6"):
        decode(table_bytes(newer), Row)
    at = table.schema.names.index("started_at")
    endless = table.set_column(at, "started_at", pa.array([2**62], pa.timestamp("us", tz="UTC")))
    with pytest.raises(StoreError, match="values cannot be read"):
        decode(table_bytes(endless), Row)
    with pytest.raises(StoreError, match="config_id"):
        decode(table_bytes(table.select(["row_id"])), Row)
