from __future__ import annotations

from collections import Counter
from pathlib import Path

from fedbench.bench.results.leaderboard.published import (
    class_id,
    paper_cells,
    paper_ranks,
)
from fedbench.bench.results.store.row import PaperCell

FOLDER = Path(__file__).resolve().parents[4] / "leaderboards" / "papers"
COUNTS = {
    "orchestra_table1": 84,
    "orchestra_table2": 16,
    "orchestra_table4": 20,
    "orchestra_table5": 84,
    "orchestra_table6": 6,
    "orchestra_table7": 5,
    "mi_table1": 42,
    "mi_table2": 42,
    "mi_table3": 24,
    "mi_table4": 21,
    "mi_table5": 33,
    "mi_table6": 27,
    "mi_table7": 21,
    "pfedae_table4_1": 74,
    "l_dawa_cifar100": 18,
    "l_dawa_tinyimagenet": 6,
    "l_dawa_supervised": 12,
    "ssd_main": 25,
    "ssd_ablation": 17,
    "ssd_transfer": 4,
    "fedmar_table1": 36,
    "fedmar_table2": 24,
    "fedmar_table7": 6,
    "fedmar_tables7_8": 6,
    "fedx_abstract": 2,
}


def find(source: str, **fields: str) -> list[PaperCell]:
    return [
        cell
        for cell in paper_cells()
        if cell.source == source and all(getattr(cell, k) == v for k, v in fields.items())
    ]


def test_every_table_is_whole() -> None:
    assert Counter(cell.source for cell in paper_cells()) == COUNTS
    assert {path.stem for path in FOLDER.iterdir()} == set(COUNTS)


def test_numbers_are_the_printed_ones() -> None:
    for cell in paper_cells():
        scale = 100 if cell.unit == "fraction" else 1
        assert cell.value == float(cell.printed) / scale
        assert cell.unit != "fraction" or 0 <= cell.value <= 1
        assert (cell.spread is None) == (cell.spread_kind is None)


def test_tables_one_and_five_agree() -> None:
    key = ("dataset", "setting", "method", "metric", "value")

    def values(source: str) -> set[tuple[object, ...]]:
        return {(*(getattr(c, name) for name in key), class_id(c)) for c in find(source)}

    assert values("orchestra_table1") == values("orchestra_table5")


def test_ranks_stay_within_a_table_and_class() -> None:
    cells = find("orchestra_table5", dataset="CIFAR-10", setting="cross_device", metric="linear")
    order = sorted(zip(paper_ranks(cells), (c.method for c in cells), strict=True))
    assert [rank for rank, _ in order] == [1, 2, 3, 4, 5, 6, 7]
    # Table 1: FedAvg (sup) 71.72 is above Orchestra's 71.58.
    assert {method for _, method in order[:2]} == {"Orchestra", "FedAvg (sup)"}
    whole = list(paper_cells())
    alone = {id(c): r for c, r in zip(cells, paper_ranks(cells), strict=True)}
    assert all(alone.get(id(c), r) == r for c, r in zip(whole, paper_ranks(whole), strict=True))
    assert {r for c, r in zip(whole, paper_ranks(whole), strict=True) if c.unit == "classes"} == {
        None
    }
