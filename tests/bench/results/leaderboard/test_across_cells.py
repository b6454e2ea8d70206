"""The best set of a class, methods over several classes, and statistics of curves."""

import math
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from fedbench.bench.results.leaderboard.across_cells import cliques
from fedbench.bench.results.leaderboard.curves import (
    Evaluated,
    area,
    curve_of,
    load_curves,
    over_rounds,
    reached,
)
from fedbench.bench.results.leaderboard.formats import across_table, tables, to_latex
from fedbench.bench.results.report.charts import curves_of
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from tests.bench.results.conftest import build_row, rank, run_of, seeds_of

ALPHAS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)


def grid() -> list[Row]:
    """a > b > c at six alphas, a rising by 2 points per tenfold; d at half of them."""
    means = {
        "a": [0.50 + 0.02 * i for i in range(6)],
        "b": [0.40] * 6,
        "c": [0.30, 0.30, 0.25, 0.30, 0.30, 0.30],
        "d": [0.9, 0.9, 0.9],
    }
    return [
        row
        for spec, values in means.items()
        for alpha, value in zip(ALPHAS, values, strict=False)
        for row in seeds_of({spec: [value]}, alpha)
    ]


def test_methods_over_alpha() -> None:
    (comparison,) = rank(grid()).across
    assert (comparison.axis, comparison.values, comparison.num_common) == ("alpha", ALPHAS, 6)
    entries = {entry.method: entry for entry in comparison.entries}
    a, c, d = entries["a"], entries["c"], entries["d"]
    assert (a.worst, a.coverage, a.mean_rank) == (0.5, 1.0, 1.0)
    assert a.slope == pytest.approx(0.02)
    assert entries["b"].slope == pytest.approx(0)
    assert (c.worst, c.mean_rank) == (0.25, 3.0)
    assert (d.mean_rank, d.best) == (None, None)
    assert d.coverage == 1 / 2
    # Six tasks that all agree on three methods: chi² = 12 * 6 / (3 * 4) * (1 + 4 + 9) - 3*6*4 = 12.
    assert comparison.friedman_p == pytest.approx(stats.chi2.sf(12, 2))
    # q(0.05, 3) = 2.343 (Demšar 2006, table 5); CD = 2.343 * sqrt(3 * 4 / (6 * 6)) = 1.353.
    assert comparison.critical_difference == pytest.approx(1.353, abs=1e-3)
    assert (a.best, entries["b"].best, c.best) == (True, True, False)
    table = across_table(comparison)
    assert list(table.rows[0]) == [
        "a", "50.0", "52.0", "54.0", "56.0", "58.0", "60.0",
        "50.0", "+2.0", "6/6", "1.00", "*",
    ]  # fmt: skip
    assert "Friedman p = 0.0025, Nemenyi critical difference 1.35" in table.footer
    assert "t test" not in to_latex(rank(grid()))  # which a star of mean ranks does not mean


def test_six_cells_and_five_percent_are_needed_to_tell_ranks_apart() -> None:
    """Sums of ranks 8, 11, 17: chi² = 12 / (6 * 3 * 4) * 474 - 3 * 6 * 4 = 7, p = exp(-7 / 2)."""

    def compared(*orders: str) -> Any:
        rows = [
            row
            for alpha, order in zip(ALPHAS, orders, strict=False)
            for place, spec in enumerate(order)
            for row in seeds_of({spec: [0.5 - place / 10]}, alpha)
        ]
        return rank(rows).across[0]

    found = compared("abc", "abc", "abc", "bac", "bac", "acb")
    assert found.friedman_p == pytest.approx(math.exp(-3.5))  # 0.0302
    assert found.critical_difference == pytest.approx(1.353, abs=1e-3)
    alike = compared(*["abc", "bca", "cab"] * 2)
    assert (alike.friedman_p, alike.critical_difference) == (pytest.approx(1), None)
    assert across_table(alike).footer.endswith("no method can be told from another")
    five = compared(*["abc"] * 5)
    assert [entry.mean_rank for entry in five.entries] == [1, 2, 3]
    assert (five.friedman_p, five.critical_difference) == (None, None)


def test_means_have_their_intervals_and_the_letters_of_their_cell() -> None:
    values = {"a": (0.49, 0.5, 0.51), "b": (0.39, 0.4, 0.41)}
    (comparison,) = rank([*seeds_of(values), *seeds_of(values, 1.0)]).across
    # t(0.975, 2) = 4.303 times 0.01 / sqrt(3)
    half = pytest.approx(0.0248, abs=1e-4)
    assert [entry.halves for entry in comparison.entries] == [(half, half)] * 2
    assert [entry.ties for entry in comparison.entries] == [("a", "a"), ("b", "b")]
    assert across_table(comparison).rows[0][1] == "50.0 ± 2.5 a"


def spread(**means: float) -> dict[str, tuple[float, ...]]:
    """Three seeds around each mean, with a deviation of a point."""
    return {spec: (mean - 0.01, mean, mean + 0.01) for spec, mean in means.items()}


def test_bold_in_a_column_are_those_with_the_letter_of_its_best_if_any_has_another() -> None:
    """At 0.1 nothing is told apart; at 1 c is, at 10 c has one seed."""
    values = {0.1: spread(a=0.5, b=0.5, c=0.5), 1.0: spread(a=0.5, b=0.502, c=0.3)}
    values[10.0] = {**spread(a=0.5, b=0.5), "c": (0.1,)}
    (comparison,) = rank(row for alpha, of in values.items() for row in seeds_of(of, alpha)).across
    table = across_table(comparison)
    assert {(table.rows[i][0], table.header[j]) for i, j in table.best_cells} == {
        ("a", "1"),
        ("b", "1"),
    }
    assert [entry.seeds for entry in comparison.entries if entry.method == "c"] == [(3, 3, 1)]


def test_a_board_over_an_axis_has_its_tables_alone() -> None:
    """Over alpha there are two families, of two numbers of rounds; an iid cell is in neither."""
    rows = [
        run_of(
            spec,
            data__alpha=alpha,
            federation__num_rounds=rounds,
            client__lr=0.1 * rounds,
            linear_acc=0.5,
        )
        for spec in ("a", "b")
        for rounds in (1, 2)
        for alpha in (0.1, 1.0)
    ]
    board = rank([*rows, run_of("a", data__partition="iid", linear_acc=0.9)])
    over = board.along("alpha")
    assert (len(board.groups), len(tables(board))) == (5, 8)  # with two tables, and all cells
    assert [each.axis for each in over.across] == ["alpha", "alpha"]
    assert [group.title for group in over.groups] == [group.title for group in board.groups[:4]]
    assert [row[0] for table in tables(over) for row in table.rows] == ["a", "b"] * 2
    assert {row["alpha"] for row in over.to_dict()["rows"]} == {0.1, 1.0}
    assert to_latex(over).count(r"\begin{table}") == 2
    assert board.along("participation").groups == ()


def test_cliques_join_ranks_within_the_critical_difference() -> None:
    (comparison,) = rank(grid()).across
    assert comparison.cliques == ((0, 1), (1, 2))  # ranks 1, 2 and 3, and a difference of 1.353
    assert cliques([1.0, 2.0, 2.5, 4.0], 1.2) == ((0, 1), (1, 2))
    assert cliques([1.0, 1.5, 2.0, 4.0], 1.2) == ((0, 2),)
    assert cliques([1.0, 3.0], 1.2) == ()


@pytest.mark.parametrize("survivors", [0, 1])
def test_divergence_is_the_worst_of_a_cell(survivors: int) -> None:
    def gone(row: Row) -> bool:
        return (row.method, row.alpha, row.seed >= survivors) == ("a", 0.1, True)

    # Where a seed survives, its value is the highest of the cell.
    values = {"a": [0.9, 0.9], "b": [0.5, 0.5], "c": [0.4, 0.4]}
    rows = [
        row.model_copy(update={"status": "diverged", "linear_acc": None}) if gone(row) else row
        for row in (*seeds_of(values), *seeds_of(values, 1.0))
    ]
    (comparison,) = rank(rows).across
    assert comparison.num_common == 2
    # a: last of three, then first; b: first, then second; c: second, then last.
    ranks = {entry.method: entry.mean_rank for entry in comparison.entries}
    assert ranks == {"a": 2.0, "b": 1.5, "c": 2.5}
    (a,) = (entry for entry in comparison.entries if entry.method == "a")
    assert (a.means, a.diverged, a.worst) == ((None, 0.9), (True, False), None)
    assert a.coverage == 1.0
    (shown,) = (row for row in across_table(comparison).rows if row[0] == "a")
    assert list(shown) == ["a", "diverged", "90.0", "diverged", "", "2.00"]


def test_a_method_without_a_finished_run_has_no_mean_rank() -> None:
    values = {"a": [0.9], "b": [0.5], "c": [0.4]}
    rows = [
        row.model_copy(update={"status": "diverged", "linear_acc": None})
        if row.method == "a"
        else row
        for row in (*seeds_of(values), *seeds_of(values, 1.0))
    ]
    (comparison,) = rank(rows).across
    ranks = {entry.method: entry.mean_rank for entry in comparison.entries}
    assert ranks == {"a": None, "b": 1.0, "c": 2.0}
    assert comparison.entries[-1].diverged == (True, True)


def test_untrained_encoders_have_no_cell_among_trained_ones() -> None:
    """Else the start of `a` would be one of its cells, beside methods without such a run."""
    untrained = run_of("a", federation__num_rounds=0, linear_acc=0.3)
    iid = [run_of(spec, data__partition="iid", linear_acc=0.9) for spec in "ab"]
    rows = [*seeds_of({"a": [0.8], "b": [0.7]}), *iid, untrained]
    (comparison,) = rank(rows).across
    assert (comparison.axis, len(comparison.values)) == (None, 2)
    means = {entry.method: sorted(entry.means) for entry in comparison.entries}
    assert means == {"a": [0.8, 0.9], "b": [0.7, 0.9]}


def test_all_cells_are_ranked_or_not_listed() -> None:
    """Cells of unlike budgets have no common worst, and an order by names looks like a ranking."""
    long = [run_of(spec, federation__num_rounds=9, linear_acc=0.8) for spec in "ab"]
    iid = [run_of("a", data__partition="iid", linear_acc=0.9), run_of("b", linear_acc=0.4)]
    (whole,) = rank([*long, run_of("a", linear_acc=0.5), *iid]).across
    assert [(entry.method, entry.worst) for entry in whole.entries] == [("a", None), ("b", None)]
    shown = across_table(whole)
    assert shown.title.startswith("mean ranks over all cells")
    assert shown.header == ["method", "cells", "mean rank"]
    # One cell of both is left, and nothing to rank them by.
    assert rank([*long, run_of("a", linear_acc=0.5), iid[0]]).across == ()


@pytest.mark.parametrize(
    "given",
    [
        {"status": "error", "error": "died"},
        {"knn_acc": 0.2},
        {"linear_acc": 0.5, "selection": "oracle"},
    ],
)
def test_cells_without_a_ranked_line_are_not_compared(given: dict[str, Any]) -> None:
    assert rank(run_of(data__alpha=alpha, **given) for alpha in (0.1, 1.0)).across == ()


def test_lower_is_better_for_the_loss() -> None:
    rows = [
        run_of(spec, data__alpha=alpha, final_loss=loss)
        for spec, losses in {"a": (1.0, 2.0), "b": (3.0, 4.0)}.items()
        for alpha, loss in zip((0.1, 1.0), losses, strict=True)
    ]
    (comparison,) = rank(rows, metric="final_loss").across
    assert [(e.method, e.worst, e.mean_rank) for e in comparison.entries] == [
        ("a", 2.0, 1.0),
        ("b", 4.0, 2.0),
    ]


def test_axes_are_kept_apart_and_followers_follow() -> None:
    rows = [
        run_of(
            spec,
            data__alpha=alpha,
            data__num_clients=clients,
            client__local_epochs=clients // 4,
            linear_acc=0.5 - 0.1 * index,
        )
        for index, spec in enumerate("ab")
        for alpha, clients in ((0.1, 4), (1.0, 4), (1.0, 8), (1.0, 16))
    ]
    comparisons = {comparison.axis: comparison for comparison in rank(rows).across}
    assert {axis: len(comparison.values) for axis, comparison in comparisons.items()} == {
        "alpha": 2,
        "num_clients": 3,
        None: 4,
    }
    assert comparisons["num_clients"].values == (4, 8, 16)


def test_a_control_without_epochs_is_on_no_axis_of_epochs() -> None:
    epochs = (0, 1, 2)
    rows = [run_of(s, client__local_epochs=n, linear_acc=0.5) for s in "ab" for n in epochs]
    found = {comparison.axis: comparison.values for comparison in rank(rows).across}
    assert found["local_epochs"] == (1, 2)


def run_row() -> Row:
    return run_of(
        federation__num_rounds=3,
        evaluation__rounds=(1,),
        linear_acc=0.9,
        knn_acc=0.7,
        untrained_knn_acc=0.3,
        bytes_up=400,
        bytes_down=400,
        rounds_done=4,
    )


POINTS = [
    {
        "round_index": i,
        "bytes_up": 100,
        "bytes_down": 100,
        "metrics.knn_acc": 0.5 if i == 1 else None,
        "drift.encoder.cosine": 0.6 if i == 2 else None,
        "simulated.seconds": 1800.0,
    }
    for i in range(4)
]


def test_curves() -> None:
    curve = curve_of(run_row(), POINTS)
    assert [tuple(e) for e in curve] == [
        (0, 0, {"knn_acc": 0.3}, None, 0.0),
        (2, 400, {"knn_acc": 0.5}, 1, 1.0),  # the first of four rounds prepares
        (3, 600, {"encoder.cosine": 0.6}, None, 1.5),
        (4, 800, {"knn_acc": 0.7, "linear_acc": 0.9}, None, 2.0),
    ]
    plain = (curve[0], Evaluated(1, 0, {"knn_acc": 0.5}), Evaluated(3, 0, {"knn_acc": 0.7}))
    areas = [area for area, *_ in over_rounds([[curve], [plain]], None)]
    assert areas == pytest.approx([0.5, (0.4 + 2 * 0.6) / 3])
    assert area(curve) == pytest.approx(0.5)
    assert reached(curve, 0.5) == reached(curve, 0.31) == curve[1]
    assert reached(curve, 0.71) is None
    assert area(curve_of(build_row(), [])) is None


def test_rounds_and_bytes_to_an_accuracy(store: Store) -> None:
    row = run_row()
    store.write_row(row)
    store.write_curve(row.row_id, POINTS)
    curves, _, problems = load_curves(store, store.frame())
    assert problems == []
    entry = rank(store.rows(), curves=curves, reach=0.5).entries[0]
    assert (entry.rounds_to_reach, entry.gb_to_reach, entry.num_reached) == (2, 4e-7, 1)
    assert entry.hours_to_reach == 1.0
    assert curves_of(rank(store.rows(), curves=curves).groups[0], curves).hours.max() == 2.0
    entry = rank(store.rows(), curves=curves, reach=0.8).entries[0]
    assert (entry.rounds_to_reach, entry.num_reached) == (None, 0)
    Path(store.cell_dir(row.row_id) / "curve.parquet").write_bytes(b"torn")
    *_, problems = load_curves(store, store.frame())
    assert "curve.parquet" in problems[0]


def test_all_cells_are_those_of_one_data_set() -> None:
    """Sets in two versions, with two alphas and two cohorts: no column mixes them.

    Two folders of one name are two data sets; a known name is one, whatever part of it is read.
    """
    sets = (("cifar10", "a"), ("cifar10", "b"), ("folder:photos", "c"), ("folder:photos", "d"))
    rows = [
        run_of(
            spec,
            data__name=name,
            data__alpha=alpha,
            federation__participation=share,
            dataset_revision=revision,
            benchmark_version=version,
            linear_acc=0.5 * alpha + 0.1 * share,
        )
        for version in ("4", "5")
        for spec in ("a", "b")
        for name, revision in sets
        for alpha in (0.1, 1.0)
        for share in (0.5, 1.0)
    ]
    board = rank(rows)
    keys = ("dataset_revision", "benchmark_version")
    data = {group.class_id: tuple(map(group.keys.get, keys)) for group in board.groups}
    whole = [comparison for comparison in board.across if comparison.axis is None]
    assert [{data[i] for i in comparison.class_ids} for comparison in whole] == [
        {("a", "4"), ("b", "4")},
        {("a", "5"), ("b", "5")},
        *({(revision, version)} for revision in "cd" for version in "45"),
    ]
    assert len({comparison.title for comparison in whole}) == 6
    assert [len(comparison.class_ids) for comparison in whole] == [8, 8, 4, 4, 4, 4]
