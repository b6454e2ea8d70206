import csv
import io
import math
from typing import Any

import pytest

from fedbench.bench.results.leaderboard.columns import cells, mean_text, number
from fedbench.bench.results.leaderboard.formats import (
    UNEQUAL_BUDGETS,
    Ranking,
    tables,
    to_csv,
    to_latex,
    to_markdown,
)
from fedbench.bench.results.leaderboard.leaderboard import Leaderboard
from fedbench.bench.results.leaderboard.seeds import Spent
from fedbench.bench.system.errors import UnknownNameError
from fedbench.bench.terminal.show_results import show_leaderboard
from tests.bench.results.conftest import rank, run_of, seeds_of


@pytest.fixture
def board() -> Leaderboard:
    accuracies = {"simclr": (0.390, 0.394, 0.398), "simclr+uv": (0.40, 0.41), "byol": (0.2,)}
    fields = {"untrained_linear_acc": 0.35, "objective": 0.81234, "wall_seconds": 45.0}
    sent = {"bytes_up": 1_500_000, "bytes_down": 500_000}
    return rank(
        row for alpha in (0.1, 10.0) for row in seeds_of(accuracies, alpha, **fields, **sent)
    )


def test_cells_for_people(board: Leaderboard) -> None:
    shown = {entry.method: cells(entry) for entry in board.groups[0].entries}
    # std 0.4 points, t(0.975, 2) = 4.303: half = 4.303 * 0.4 / sqrt(3) = 0.99
    assert shown["simclr"]["linear %"] == "39.4 ± 1.0"
    assert shown["simclr+uv"]["linear %"] == "40.5 (40.0, 41.0)"
    assert shown["byol"]["linear %"] == "20.0"
    assert shown["simclr"]["gain"] == "+4.4"
    assert (shown["simclr"]["MB up"], shown["simclr"]["MB down"]) == ("1.5", "0.5")
    assert shown["simclr"]["% / GB"] == "19,700"  # 39.4 % for 2 MB
    assert shown["simclr"]["minutes"] == "0.8"
    assert shown["simclr"]["objective"] == "0.812"
    assert shown["simclr"]["notes"] == ""
    assert shown["byol"]["notes"] == "not above its start, descriptive"


def test_a_line_without_spread_has_no_interval() -> None:
    """Of lines that are all of one value, and of one beside another that varies."""
    for other in ([1.0, 1.0, 1.0], [0.5, 0.6, 0.7]):
        entries = rank(seeds_of({"simclr": [1.0] * 3, "byol": other})).entries
        (line,) = (entry for entry in entries if entry.method == "simclr")
        assert cells(line)["linear %"] == "100.0"
        assert cells(line)["notes"] == "no spread"


def test_decimals_do_not_hang_on_the_last_bits_of_a_mean() -> None:
    values = [0.3055, math.nextafter(0.3055, 0), math.nextafter(0.3055, 1)]
    assert {number(value, percent=True) for value in values} == {"30.6"}
    assert {mean_text(value, 0.01, percent=True) for value in values} == {"30.6 ± 1.0"}
    assert mean_text(0.3055, 0.0004, percent=True) == "30.55 ± 0.04"


@pytest.mark.parametrize(("spread", "note"), [(0.41, ""), (0.39, "shrunk, ")])
def test_contracted_projections_are_noted(spread: float, note: str) -> None:
    figures = {"projection_std_ratio": spread, "untrained_projection_std_ratio": 0.8}
    (entry,) = rank([run_of(linear_acc=0.4, further=figures)]).entries
    assert cells(entry)["notes"] == f"{note}descriptive"


@pytest.mark.parametrize(("exponent", "unmoved"), [(-25, True), (-23, False)])
def test_a_movement_below_a_bit_of_single_precision_is_none(exponent: int, unmoved: bool) -> None:
    assert run_of(further={"relative_movement": 2.0**exponent}).unmoved is unmoved


def test_accuracy_on_clients_own_images_stands_beside_the_global_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two seeds have means of 0.6 and 0.7 over clients, with deviations of 0.02 and 0.04."""
    rows = []
    for seed, mean, sd in ((0, 0.6, 0.02), (1, 0.7, 0.04)):
        local = {"mlp_local_acc": mean, "mlp_local_acc_std": sd}
        further = {"mlp_acc": 0.5, "untrained_mlp_acc": 0.4, **local}
        rows.append(run_of("simclr", seed, linear_acc=0.3, further=further))
    board = rank(rows, metric="mlp")
    (entry,) = board.entries
    assert (entry.local_acc_mean, entry.local_acc_std) == pytest.approx((0.65, 0.03))
    assert entry.gain == pytest.approx(0.1)  # before training the metric is in the same place
    assert cells(entry)["MLP %"] == "50.0 (50.0, 50.0)"
    assert cells(entry)["local %"] == "65.0 (sd 3.0)"
    local_is = "local: on each client's own test images"
    show_leaderboard(Ranking(board, ()), "table")
    assert local_is in capsys.readouterr().out
    assert local_is in to_markdown(board)
    assert local_is in to_latex(board).partition(r"\end{tabular}")[2]  # below, in no caption
    (local_line,) = rank(rows, metric="mlp-local").entries
    assert cells(local_line)["local %"] == ""  # it is the column that is ranked by
    assert cells(rank(rows).entries[0])["local %"] == ""


def test_the_tuning_budget_of_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    studies = {"simclr": "s-24", "byol": "b-4", "simsiam": "gone", "supervised": None}
    rows = [
        run_of(spec, linear_acc=0.4, tuned=study is not None, study_id=study)
        for spec, study in studies.items()
    ]

    def board(budgets: dict[str, int]) -> Leaderboard:
        return rank(rows, studies={name: Spent(n, "digits") for name, n in budgets.items()})

    unequal = board({"s-24": 24, "b-4": 4})
    assert {entry.method: cells(entry)["notes"] for entry in unequal.entries} == {
        "simclr": "tuned in 24 runs, descriptive",
        "byol": "tuned in 4 runs, descriptive",
        "simsiam": "tuned elsewhere, descriptive",
        "supervised": "descriptive",
    }
    show_leaderboard(Ranking(unequal, ()), "table")
    for text in (to_markdown(unequal), to_latex(unequal), capsys.readouterr().out):
        assert "tuned with different budgets" in " ".join(text.split())
    assert UNEQUAL_BUDGETS not in tables(board({"s-24": 24, "b-4": 24, "gone": 24}))[0].footer


def test_csv_is_unrounded_and_whole(board: Leaderboard) -> None:
    records = list(csv.DictReader(io.StringIO(to_csv(board))))
    assert len(records) == 6
    assert float(records[1]["mean"]) == board.entries[1].mean
    assert records[1]["seeds"] == "0 1 2"
    assert records[1]["run_ids"].split() == list(board.entries[1].run_ids)
    assert records[1]["published"] == records[1]["published_source"] == ""
    assert to_csv(rank([])).startswith("rank,method")


def test_bold_is_explained_where_something_is_bold() -> None:
    rows = seeds_of({"a": (0.50, 0.51, 0.52), "b": (0.40, 0.41, 0.42)})
    whole, chosen = rank(rows), rank(rows, columns=["linear", "seeds"])
    for form in (to_latex, to_markdown):
        assert "bold: lines with a star" in form(whole)
        assert "bold: the best, or not significantly different" in form(chosen)
        assert "bold" not in form(rank(rows[:1])).replace("textbf", "")


def test_a_latex_table_over_an_axis_has_a_heading_over_its_values_and_raised_letters() -> None:
    values = {"a": (0.49, 0.5, 0.51), "b": (0.19, 0.2, 0.21)}
    rows = [row for alpha in (0.1, 1.0) for row in seeds_of(values, alpha)]
    lone = run_of("b", data__alpha=10.0, linear_acc=0.3)
    text = to_latex(rank([*rows, lone]).along("alpha"))
    assert r"\multicolumn{3}{c}{linear~\% at alpha}" in text
    assert r"\cmidrule(lr){2-4}" in text
    half = "2.5"  # t(0.975, 2) = 4.303 times 1 / sqrt(3)
    best = rf"\textbf{{50.0 $\pm$ {half}\textsuperscript{{a}}}}"
    assert rf"a & {best} & {best} & --" in text
    assert rf"b & 20.0 $\pm$ {half}\textsuperscript{{b}} & " in text


def test_chosen_columns_in_tables_and_csv(board: Leaderboard) -> None:
    """By heading or by name; one without a heading goes by its name."""
    rows = [row for alpha in (0.1, 1.0) for row in seeds_of({"byol": (0.25, 0.5)}, alpha)]
    chosen = rank(rows, columns=["std", "linear %", "num_failed", "values"])
    header = ("rank", "method", "std", "linear %", "num_failed", "values")
    first = tables(chosen)[0]
    assert (tuple(first.header), first.rows[0][2:]) == (
        header,
        ["0.1768", "37.5 (25.0, 50.0)", "0", "0.25 0.5"],
    )
    header_line, *lines = to_csv(chosen).splitlines()
    assert header_line == "group,label,rank,method,std,mean,num_failed,values"
    ends = f"byol,1,byol,{0.125 * 2**0.5!r},0.375,0,0.25 0.5"  # half of 0.25, times sqrt(2)
    assert all(line.endswith(ends) for line in lines)
    assert len({*lines}) == 2  # told apart by their settings
    assert list(chosen.to_dict()["rows"][0]) == header_line.split(",")
    assert rank([], columns=["gain"]).columns != board.columns
    with pytest.raises(UnknownNameError, match="gain"):
        rank(rows, columns=["gian"])


def test_a_board_of_two_seeds_says_that_nothing_is_tested() -> None:
    two, one = (rank(seeds_of({"a": (0.5, 0.4)[:n], "b": (0.3, 0.2)[:n]})) for n in (2, 1))
    assert "3 seeds" in tables(two)[0].footer
    assert tables(one)[0].footer == ""


def test_names_of_strangers_are_text_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    """Methods of plugins: a formula, markup, control characters, a direction mark."""
    names = ("=1+1", "-2+3", "@x|<b>$y$`[z](u)", "[a]\x1b[31m\n# b%_{}\\", "*\u202egnp\t")
    rows = [
        run_of(
            client__lr=0.1 + index,
            method=name,
            linear_acc=0.5,
            untrained_linear_acc=0.75,
            objective=-0.25,
        )
        for index, name in enumerate(names)
    ]
    board = rank(rows)
    records = {record["method"]: record for record in csv.DictReader(io.StringIO(to_csv(board)))}
    assert {"'=1+1", "'-2+3", "'@x|<b>$y$`[z](u)", r"[a]\x1b[31m\n# b%_{}\\"[:-1]} <= {*records}
    assert r"*\u202egnp\t" in records
    assert float(records["'=1+1"]["gain"]) == -0.25  # a negative number is no formula
    assert float(records["'=1+1"]["objective_mean"]) == -0.25
    markdown = to_markdown(board)
    assert r"@x\|\<b>\$y\$\`\[z\](u)" in markdown
    assert r"\[a\]\\x1b\[31m\\n# b%_{}\\" in markdown
    latex = to_latex(board)
    assert r"@x\textbar{}\textless{}b\textgreater{}\$y\$\textasciigrave{}{[}z{]}(u)" in latex
    assert r"\textbackslash{}n\# b\%\_\{\}\textbackslash{}" in latex
    for form in ("table", "csv", "markdown", "latex", "json"):
        show_leaderboard(Ranking(board, ()), form)
        shown = capsys.readouterr().out
        assert not any(mark in shown for mark in "\x1b\t\r\u202e")


def test_nothing_is_gained_without_training() -> None:
    fields: dict[str, Any] = {"linear_acc": 0.5, "untrained_linear_acc": 0.25}
    rows = [run_of(federation__num_rounds=rounds, **fields) for rounds in (0, 1)]
    assert [rank([row]).entries[0].gain for row in rows] == [None, 0.25]
