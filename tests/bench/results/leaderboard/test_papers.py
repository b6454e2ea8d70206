from pathlib import Path

from fedbench.bench.results.leaderboard.published import paper_cells

FOLDER = Path(__file__).resolve().parents[4] / "leaderboards" / "papers"


def test_every_paper_has_a_file() -> None:
    tables = {path.stem for path in FOLDER.glob("*.parquet")}
    assert tables == {cell.paper for cell in paper_cells()}


def test_numbers_are_the_printed_ones() -> None:
    for cell in paper_cells():
        scale = 100 if cell.unit == "fraction" else 1
        assert cell.value == float(cell.printed) / scale
        assert cell.unit != "fraction" or 0 <= cell.value <= 1
        assert (cell.spread is None) == (cell.spread_kind is None)
