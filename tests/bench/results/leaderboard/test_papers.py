from __future__ import annotations

from pathlib import Path

from fedbench.bench.results.leaderboard.published import paper_cells, paper_ranks
from fedbench.bench.results.store.row import PaperCell

FOLDER = Path(__file__).resolve().parents[4] / "leaderboards" / "papers"


def find(source: str, **fields: str) -> list[PaperCell]:
    return [
        cell
        for cell in paper_cells()
        if cell.source == source and all(getattr(cell, k) == v for k, v in fields.items())
    ]


def test_every_table_is_whole() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == {cell.source for cell in paper_cells()}


def test_numbers_are_the_printed_ones() -> None:
    for cell in paper_cells():
        scale = 100 if cell.unit == "fraction" else 1
        assert cell.value == float(cell.printed) / scale
        assert cell.unit != "fraction" or 0 <= cell.value <= 1
        assert (cell.spread is None) == (cell.spread_kind is None)


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
