"""Tables to search in: lines of runs and measured rounds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from fedbench.bench.config import RunConfig
from fedbench.bench.results.search_table import SETTINGS, TABLE, search_table
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


def test_rounds_of_preparation_are_no_rounds_of_the_table(make_row: MakeRow) -> None:
    """Orchestra's curve has one round more, and this one was measured too."""
    row, _ = run(make_row, client={"lr": 0.5}, spec="orchestra")
    found = lines((row, points(1, 2, 3, rounds=4)), run(make_row, 1, spec="orchestra"))
    # Of the second run nothing was recorded before its rounds.
    assert [line["round"] for line in found if line["row_id"] == row.row_id] == [0, 1, 2, 3]
    assert [line["round"] for line in found if line["row_id"] != row.row_id] == [0, 1, 3]
    diverged, _ = run(make_row, client={"lr": 9.0}, spec="orchestra", status="diverged")
    (_, last) = lines((diverged, points(1, 2, rounds=2)))
    assert (last["round"], last["sep"]) == (1, 0.2)


def test_a_run_without_records_of_its_rounds_is_refused(make_row: MakeRow) -> None:
    row, _ = run(make_row)
    with pytest.raises(ConfigError, match=f"run {row.row_id} has records of 0 of its 3 rounds"):
        search_table([(row, [])], "1")


def test_fields_that_only_some_runs_read_have_columns(make_row: MakeRow) -> None:
    """IID clients have no alpha, and most runs no precision and no clipping."""
    runs = [
        run(make_row, data={"partition": "iid"}),
        run(make_row, data={"partition": "dirichlet", "alpha": 0.3}),
        run(make_row, data={"partition": "iid"}, client={"precision": "bf16"}),
        run(make_row, data={"partition": "iid"}, privacy={"clip": 2.0}),
    ]
    table = search_table(runs, "1")
    assert {"data.alpha", "client.precision", "privacy.clip"} < {*table.column_names}
    assert sorted(filter(None, table.column("data.alpha").to_pylist())) == [0.3, 0.3]


def test_lines_are_in_the_order_of_values(make_row: MakeRow) -> None:
    rates = [2.0, 1e-05, 10.0, 0.1, 0.002]
    found = lines(*(run(make_row, client={"lr": rate}) for rate in rates))
    assert [line["client.lr"] for line in found if line["round"] == 3] == sorted(rates)


def test_runs_measured_again_give_one_consistent_table(make_row: MakeRow) -> None:
    """A grid was measured with 200 neighbours and then with 5, one cell with 200 alone."""
    first = [run(make_row, client={"lr": rate}) for rate in (0.1, 0.2, 0.3)]
    again = [
        run(make_row, client={"lr": rate}, evaluation={"knn_neighbours": 5}) for rate in (0.1, 0.2)
    ]
    table = search_table([*again, *first], "1")
    assert {*table.column("row_id").to_pylist()} == {row.row_id for row, _ in first}
    about = json.loads(table.schema.metadata[TABLE.encode()])
    assert about["measured_by"]["evaluation.knn_neighbours"] == 200
    assert about["settings"] == ["client.lr"]


def test_of_runs_with_equal_rounds_the_one_with_more_metrics_is_taken(make_row: MakeRow) -> None:
    runs = []
    for rate in (0.1, 0.2, 0.3):
        runs.append(run(make_row, client={"lr": rate}))
        row, curve = run(
            make_row, client={"lr": rate}, evaluation={"protocols": ["knn", "linear"], "every": 9}
        )
        runs.append((row.model_copy(update={"untrained_knn_acc": 0.3}), curve))
    begun = [line for line in lines(*runs) if line["round"] == 0]
    assert [line.get("knn_acc") for line in begun] == [0.3] * 3
