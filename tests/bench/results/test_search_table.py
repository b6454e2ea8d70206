"""Tables to search in: lines of runs and measured rounds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from fedbench.bench.config import RunConfig
from fedbench.bench.results.search_table import SETTINGS, search_table
from fedbench.bench.results.store.row import Row
from fedbench.bench.system.errors import ConfigError

from .conftest import MakeRow

Points = Sequence[Mapping[str, Any]]


def points(*measured: int, rounds: int = 3) -> Points:
    return [
        {
            "round_index": i,
            "loss": 3.0 - i,
            "num_steps": 10 * (i + 1),
            "bytes_up": 5,
            "bytes_down": 7,
            "seconds": 0.5,
            **(
                {"metrics.sep": 0.1 * (i + 1), "metrics.alpha_req": None}
                if i + 1 in measured
                else {}
            ),
        }
        for i in range(rounds)
    ]


def run(
    make_row: MakeRow, *measured: int, seed: int = 0, status: str = "ok", **sections: Any
) -> tuple[Row, Points]:
    config = RunConfig.model_validate({"seed": seed, "federation": {"num_rounds": 3}, **sections})
    row = make_row(
        config,
        status=status,
        linear_acc=0.4 if status == "ok" else None,
        untrained_linear_acc=0.2,
        metrics_json='{"sep": 0.9, "untrained_sep": 0.05}',
    )
    return row, points(*measured, rounds=3 if status == "ok" else 2)


def lines(*runs: tuple[Row, Points]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in line.items() if value is not None}
        for line in search_table(runs, "1").to_pylist()
    ]


def test_a_run_has_a_line_before_training_one_per_measured_round_and_one_at_its_end(
    make_row: MakeRow,
) -> None:
    found = lines(run(make_row, 1), run(make_row, 1, client={"lr": 0.5}))
    keys = ("round", "sep", "num_steps", "bytes_up", "bytes_down", "seconds", "client.lr")
    assert [tuple(line[key] for key in keys) for line in found if line["client.lr"] == 0.5] == [
        (0, 0.05, 0, 0, 0, 0.0, 0.5),
        (1, 0.1, 10, 5, 7, 0.5, 0.5),
        (3, 0.9, 60, 15, 21, 1.5, 0.5),
    ]
    assert [line.get("linear_acc") for line in found[:3]] == [0.2, None, 0.4]
    assert found[1]["final_loss"] == 3.0  # of the line's round


def test_columns_are_what_a_method_varies_and_the_rest_is_in_the_metadata(
    make_row: MakeRow,
) -> None:
    other = run(make_row, client={"lr": 0.5, "momentum": 0.1})
    methods = [
        run(make_row),
        run(make_row, client={"lr": 0.2}),
        (other[0].model_copy(update={"method": "byol"}), other[1]),
    ]
    table = search_table(methods, "1")
    assert [name for name in table.column_names if "." in name] == ["client.lr"]
    fixed = json.loads(table.schema.metadata[SETTINGS.encode()])
    assert fixed["byol"]["client.momentum"] == 0.1
    assert fixed["simclr"]["client.momentum"] == 0.9
    assert "client.lr" not in fixed["byol"]


def test_of_runs_trained_alike_the_one_measured_most_is_taken(make_row: MakeRow) -> None:
    often = run(make_row, 1, 2, evaluation={"every": 1})
    found = lines(run(make_row), often, run(make_row, client={"lr": 0.5}))
    assert [line["round"] for line in found if line["row_id"] == often[0].row_id] == [0, 1, 2, 3]
    assert len({line["row_id"] for line in found}) == 2


def test_a_run_that_diverged_ends_where_it_was_measured_last(make_row: MakeRow) -> None:
    found = lines(run(make_row, 1), run(make_row, 1, client={"lr": 9.0}, status="diverged"))
    assert [line["round"] for line in found if line["status"] == "diverged"] == [0, 1]


@pytest.mark.parametrize(
    ("what", "other"),
    [
        ("evaluation.objective_temperature", {"evaluation": {"objective_temperature": 0.5}}),
        ("dataset_revision", {"client": {"lr": 0.5}}),
    ],
)
def test_runs_that_cannot_be_compared_make_no_table(
    make_row: MakeRow, what: str, other: dict[str, Any]
) -> None:
    second, curve = run(make_row, seed=1, **other)
    if what == "dataset_revision":
        second = second.model_copy(update={"dataset_revision": "0" * 64})
    with pytest.raises(ConfigError, match=what):
        search_table([run(make_row), (second, curve)], "1")


def test_no_finished_run_is_no_table(make_row: MakeRow) -> None:
    failed = run(make_row)[0].model_copy(update={"status": "error"})
    with pytest.raises(ConfigError, match="no finished run"):
        search_table([(failed, [])], "1")
