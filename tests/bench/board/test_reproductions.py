"""What counts as a reproduction by another person, computed again from each record."""

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from fedbench.bench.board.boards import leaderboard
from fedbench.bench.board.bundle import Person, Run, pack
from fedbench.bench.board.reproductions import record_reproduction, reproductions
from fedbench.bench.board.verify import BundleVerification, chosen, verify_bundle
from fedbench.bench.board.whole import verify
from fedbench.bench.execution.compare import Reproduction
from fedbench.bench.execution.run import reproduce, run
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.schema import encode
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.checksums import json_with_checksum, parse_json
from fedbench.bench.testing import tiny_config

from .conftest import elsewhere

ADA, EVE, MIA = (Person(name) for name in ("Ada", "Eve", "Mia"))
PLACE: dict[str, Any] = {"workers": 1, "device": "cpu"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Bundle of a run by Ada, and the board that took it after Ben had run it again."""
    folder = tmp_path_factory.mktemp("reproductions")
    store = Store(folder / "store")
    row = run(tiny_config("simclr"), store=store, **PLACE).row
    known = row.model_copy(update={"git_sha": None})
    pack([Run(known, tuple(store.curve(row.row_id)))], ADA, folder / "bundle")
    board = folder / "board"
    seen: list[str] = []

    def watch(run_id: str) -> Any:
        return nullcontext(lambda *_: seen.append(run_id))

    given = {**PLACE, "on_rerun": watch}
    result = verify_bundle(folder / "bundle", board, rerun=1, add_to=board, by="Ben", **given)
    assert seen == [row.row_id] * row.num_rounds
    assert [again.verdict for again in result.reruns] == ["same bits"]
    assert result.added_to == str(board)
    return folder / "bundle", board


@pytest.fixture
def board(made: tuple[Path, Path], tmp_path: Path) -> Store:
    return Store(shutil.copytree(made[1], tmp_path / "board"))


@pytest.fixture(scope="module")
def again(made: tuple[Path, Path]) -> Reproduction:
    """Repetition of the run, once for all tests."""
    store = Store(made[1])
    return reproduce(store.rows()[0].row_id, store, **PLACE)


def only(board: Store) -> tuple[int, list[str]]:
    """Return the count and the reasons against records of the only row."""
    (row,) = reproductions(board).values()
    return row.count, sorted(record.reason for record in row.records if record.reason)


def edit(board: Store, **content: Any) -> None:
    """Change the only record, and give it a new checksum."""
    (file,) = board.root.glob("reproductions/*/*.json")
    file.write_text(json_with_checksum(parse_json(file.read_text()) | content))


def row_of(board: Store, **columns: Any) -> dict[str, Any]:
    (file,) = board.root.glob("reproductions/*/*.json")
    row: dict[str, Any] = parse_json(file.read_text())["row"]
    return row | columns


def test_other_people_count(board: Store, again: Reproduction) -> None:
    assert only(board) == (1, [])
    for who in (EVE, MIA):
        record_reproduction(board, again, who)
    assert only(board) == (3, [])
    ranking = leaderboard(board).as_dict()
    assert [row["reproduced"] for row in ranking["rows"]] == [3]
    (shown,) = ranking["reproductions"]
    assert [person["name"] for person in shown["submitted_by"]] == ["Ada"]
    assert {record["by"]["name"] for record in shown["records"]} == {"Ben", "Eve", "Mia"}
    assert verify(board).ok


def test_a_line_counts_as_its_least_reproduced_seed(board: Store) -> None:
    other = run(tiny_config("simclr", seed=1), store=board, **PLACE)
    assert [row["reproduced"] for row in leaderboard(board).as_dict()["rows"]] == [0]
    assert other.run_id not in reproductions(board)


def test_who_submitted_a_row_and_who_counts_already_add_nothing(
    board: Store, again: Reproduction
) -> None:
    record_reproduction(board, again, ADA)
    record_reproduction(board, again, Person("  ben "))
    count, reasons = only(board)
    assert (count, len(reasons)) == (1, 2)


def changed(**columns: Any) -> Callable[[Store], dict[str, Any]]:
    return lambda board: {"row": row_of(board, **columns)}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (changed(knn_acc=0.99), "platform"),
        (changed(knn_acc=7.0), "knn_acc"),
        (changed(measured_from="0" * 20), "0" * 20),
        (lambda board: {"row": board.rows()[0].model_dump(mode="json")}, "not a repetition"),
        (lambda _: {"by": None}, "by"),
        (lambda _: {"by": 3}, "by"),
        (lambda _: {"claimed": "01234567"}, "no row"),
        (lambda _: {"row": 1}, "row"),
    ],
)
def test_a_record_is_compared_again(
    board: Store, content: Callable[[Store], dict[str, Any]], named: str
) -> None:
    edit(board, **content(board))
    count, (reason,) = only(board)
    assert count == 0
    assert named in reason


def test_a_row_of_another_version_has_no_reproductions(board: Store) -> None:
    """Its configuration is not taken: the board is ranked all the same."""
    (row,) = board.rows()
    foreign = {**row.settings, "client": {**row.settings["client"], "gone": 1}}
    (file,) = board.root.glob("rows/*.parquet")
    file.write_bytes(encode([row.model_copy(update={"settings": foreign})], Row))
    count, (reason,) = only(board)
    assert count == 0
    assert "client.gone" in reason


def test_altered_files_count_nothing(board: Store) -> None:
    (file,) = board.root.glob("reproductions/*/*.json")
    text = file.read_text()
    file.write_text(text.replace('"Ben"', '"Mia"'))
    assert only(board)[0] == 0
    file.write_text(text)
    (manifest,) = board.root.glob("submissions/*.json")
    manifest.write_text(manifest.read_text().replace('"Ada"', '"Mia"'))
    assert only(board)[0] == 0  # nobody knows who submitted what
    assert {damage.kind for damage in verify(board).damaged} == {"submissions"}


def checked(folder: Path, entry: Run, rerun: int) -> BundleVerification:
    """Check a forged row by Eve, and add it to a new board if nothing speaks against it."""
    if not (folder / "bundle").exists():
        pack([entry], EVE, folder / "bundle")
    board = folder / "board"
    return verify_bundle(
        folder / "bundle", board, rerun=rerun, add_to=board, by="Ben" if rerun else None, **PLACE
    )


def more_right(made: tuple[Path, Path], images: int) -> tuple[Run, Row]:
    """Return the row with so many more of its 40 test images right, and the true one."""
    store = Store(made[0])
    (row,) = store.rows()
    right = round((row.knn_acc or 0) * 40) + images
    better = row.model_copy(update={"knn_acc": right / 40})
    return Run(better, tuple(store.curve(row.row_id))), row


def test_a_rerun_finds_numbers_that_agree_with_each_other(
    made: tuple[Path, Path], tmp_path: Path
) -> None:
    """One more test image right: no check without a run can tell."""
    forged, row = more_right(made, 1)
    result = checked(tmp_path, forged, rerun=1)
    assert (result.problems, result.ok, result.added_to) == ((), False, None)
    (difference,) = result.reruns[0].differences
    assert difference.name == "knn_acc"
    assert (difference.first, difference.second) == (forged.row.knn_acc, row.knn_acc)
    assert not (tmp_path / "board").exists()
    assert checked(tmp_path, forged, rerun=0).ok


def test_ten_points_more_under_the_record_of_another_platform(
    made: tuple[Path, Path], tmp_path: Path
) -> None:
    """On 40 test images such a row may be true: it counts as no reproduction, and has its limit."""
    forged, _ = more_right(made, 4)
    result = checked(tmp_path, elsewhere(forged), rerun=1)
    (again,) = result.reruns
    assert (result.problems, again.verdict) == ((), "cannot tell")
    assert again.limit is not None
    assert again.limit > 0.1
    assert reproductions(Store(tmp_path / "board")) == {}


def test_rows_to_repeat_follow_from_the_bundle() -> None:
    rows = [f"{number:020x}" for number in range(20)]
    assert chosen("a" * 64, rows, 3) == chosen("a" * 64, rows[::-1], 3) != chosen("b" * 64, rows, 3)
