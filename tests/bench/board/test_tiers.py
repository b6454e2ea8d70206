"""Tiers: what counts as a reproduction by another person, computed again from each record."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedbench.bench.api.boards import leaderboard
from fedbench.bench.board.bundle import Entry
from fedbench.bench.board.people import Person
from fedbench.bench.board.submit import pack
from fedbench.bench.board.tiers import record_reproduction, tiers
from fedbench.bench.board.verify import chosen, verify_bundle
from fedbench.bench.results.store.merge import merge
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.runs.reproduce import Reproduction, reproduce
from fedbench.bench.runs.run import run
from fedbench.bench.runs.verify import verify
from fedbench.bench.system.errors import ConfigError, StoreError
from fedbench.bench.system.sealed_json import seal, unseal
from fedbench.bench.testing import tiny_config

from .conftest import Honest, elsewhere

ADA, BEN, EVE, MIA = (Person(name) for name in ("Ada", "Ben", "Eve", "Mia"))


@pytest.fixture(scope="module")
def made(honest: Honest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Bundle of a run by Ada, and the board that took it after Ben had run it again."""
    folder = tmp_path_factory.mktemp("tiers")
    store = Store(folder / "store")
    row = run(tiny_config("simclr"), store=store, workers=1, device="cpu").row
    known = row.model_copy(update={"git_sha": honest.entries[0].row.git_sha})
    pack([Entry(known, tuple(store.curve(row.row_id)))], ADA, folder / "bundle")
    result = verify_bundle(
        folder / "bundle",
        folder / "board",
        rerun=1,
        add_to=folder / "board",
        checkout=honest.checkout,
        workers=1,
        device="cpu",
        by="Ben",
    )
    assert [again.verdict for again in result.reruns] == ["same bits"]
    assert result.added_to == str(folder / "board")
    return folder / "bundle", folder / "board"


@pytest.fixture
def board(made: tuple[Path, Path], tmp_path: Path) -> Store:
    return Store(shutil.copytree(made[1], tmp_path / "board"))


@pytest.fixture(scope="module")
def again(made: tuple[Path, Path]) -> Reproduction:
    """Repetition of the run, once for all tests."""
    store = Store(made[1])
    return reproduce(store.rows()[0].row_id, store, workers=1, device="cpu")


def only(board: Store) -> tuple[str, int, list[str]]:
    """Return tier, count and reasons against records of the only row."""
    (tier,) = tiers(board).values()
    return tier.name, tier.count, sorted(record.reason for record in tier.records if record.reason)


def edit(board: Store, **content: Any) -> None:
    """Change the only record, and seal it again."""
    (file,) = board.root.glob("reproductions/*/*.json")
    file.write_text(seal(unseal(file.read_text()) | content))


def row_of(board: Store, **columns: Any) -> dict[str, Any]:
    (file,) = board.root.glob("reproductions/*/*.json")
    row: dict[str, Any] = unseal(file.read_text())["row"]
    return row | columns


def test_a_store_without_records_has_no_tiers(board: Store) -> None:
    shutil.rmtree(board.root / "reproductions")
    assert tiers(board) == {}
    assert "tier" not in leaderboard(board).as_dict()["rows"][0]


def test_three_other_people_make_three_times(board: Store, again: Reproduction) -> None:
    assert only(board) == ("reproduced once", 1, [])
    for who in (EVE, MIA):
        record_reproduction(board, again, who)
    assert only(board) == ("reproduced three times", 3, [])
    ranking = leaderboard(board).as_dict()
    assert [row["tier"] for row in ranking["rows"]] == ["reproduced three times"]
    (shown,) = ranking["reproductions"]
    assert [person["name"] for person in shown["submitted_by"]] == ["Ada"]
    assert {record["by"]["name"] for record in shown["records"]} == {"Ben", "Eve", "Mia"}
    assert verify(board).ok


def test_a_line_has_the_tier_of_its_least_checked_seed(board: Store, honest: Honest) -> None:
    """A second seed that nobody has repeated makes the line a claim."""
    other = run(tiny_config("simclr", seed=1), store=board, workers=1, device="cpu")
    assert [row["tier"] for row in leaderboard(board).as_dict()["rows"]] == ["claimed"]
    assert other.run_id not in tiers(board)


def test_who_submitted_a_row_and_who_counts_already_add_nothing(
    board: Store, again: Reproduction
) -> None:
    record_reproduction(board, again, ADA)
    record_reproduction(board, again, Person("  ben "))
    assert only(board) == (
        "reproduced once",
        1,
        [
            "by a person or a key that counts already",
            "by who submitted the row, or with the same key",
        ],
    )


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"knn_acc": 0.99}, "the numeric platform is not known to be another one"),
        ({"seed": 5}, "seed is 5, but its configuration gives 0"),
        ({"platform": "arm64"}, "platform is 'arm64'"),
        ({"knn_acc": 7.0}, "no row: Input should be less than or equal to 1"),
    ],
)
def test_a_record_is_compared_again(board: Store, columns: dict[str, Any], reason: str) -> None:
    edit(board, row=row_of(board, **columns))
    name, count, (found,) = only(board)
    assert (name, count) == ("claimed", 0)
    assert reason in found


def test_the_row_itself_is_no_repetition(board: Store) -> None:
    (row,) = board.rows()
    edit(board, row=row.model_dump(mode="json"))
    assert only(board) == ("claimed", 0, ["it is the row itself, not a repetition"])


def test_a_record_without_a_name_or_of_another_row(board: Store) -> None:
    whole = unseal(next(board.root.glob("reproductions/*/*.json")).read_text())
    edit(board, by=None)
    assert only(board)[2] == ["nobody is named"]
    edit(board, by=whole["by"], claimed="01234567")
    assert only(board)[2] == ["the store has not the row that it is of"]


def test_altered_files_count_nothing(board: Store) -> None:
    (file,) = board.root.glob("reproductions/*/*.json")
    text = file.read_text()
    file.write_text(text.replace('"Ben"', '"Mia"'))
    assert only(board)[2] == ["its checksum does not fit its content"]
    file.write_text(text)
    (manifest,) = board.root.glob("submissions/*.json")
    manifest.write_text(manifest.read_text().replace('"Ada"', '"Mia"'))
    assert only(board)[0] == "claimed"
    assert {damage.kind for damage in verify(board).damaged} == {"submissions"}


def test_signatures_tie_names_to_keys(board: Store, again: Reproduction, tmp_path: Path) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("needs ssh-keygen, which comes with OpenSSH")
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    shutil.rmtree(board.root / "reproductions")
    record_reproduction(board, again, EVE, key)
    record_reproduction(board, again, MIA, key)
    assert only(board) == ("reproduced once", 1, ["by a person or a key that counts already"])
    (tier,) = tiers(board).values()
    assert all(str(record.key).startswith("SHA256:") for record in tier.records)
    for signature in board.root.glob("reproductions/*/*.sig"):
        signature.write_text(signature.read_text().replace("A", "B", 5))
    assert ["does not sign" in reason for reason in only(board)[2]] == [True, True]
    with pytest.raises(ConfigError, match="stored without a signature"):
        record_reproduction(board, again, BEN, tmp_path / "none")


def test_merging_takes_records_along(board: Store, tmp_path: Path) -> None:
    merge([board], tmp_path / "other")
    assert only(Store(tmp_path / "other")) == only(board) == ("reproduced once", 1, [])


def test_what_was_not_reproduced_is_not_recorded(board: Store, again: Reproduction) -> None:
    with pytest.raises(StoreError, match="was not reproduced"):
        record_reproduction(board, replace(again, verdict="different"), EVE)


def test_a_rerun_finds_numbers_that_agree_with_each_other(
    made: tuple[Path, Path], honest: Honest, tmp_path: Path
) -> None:
    """One more test image right: no check without a run can tell."""
    store = Store(made[0])
    (row,) = store.rows()
    better = Row(**(dict(row) | {"knn_acc": round((row.knn_acc or 0) * 40 + 1) / 40}))
    pack([Entry(better, tuple(store.curve(row.row_id)))], EVE, tmp_path / "bundle")

    def checked(rerun: int) -> Any:
        return verify_bundle(
            tmp_path / "bundle",
            tmp_path / "none",
            rerun=rerun,
            add_to=tmp_path / "board",
            checkout=honest.checkout,
            workers=1,
            device="cpu",
        )

    result = checked(rerun=1)
    assert (result.problems, result.ok, result.added_to) == ((), False, None)
    assert [str(d) for d in result.reruns[0].differences] == [
        f"knn_acc {better.knn_acc} and {row.knn_acc}"
    ]
    assert not (tmp_path / "board").exists()
    assert checked(rerun=0).ok


def test_ten_points_more_under_the_record_of_another_platform(
    made: tuple[Path, Path], honest: Honest, tmp_path: Path
) -> None:
    """On 40 test images such a row may be true: nobody has reproduced it, and the limit is told."""
    store = Store(made[0])
    (row,) = store.rows()
    entry = elsewhere(Entry(row, tuple(store.curve(row.row_id))))
    better = Row(**(dict(entry.row) | {"knn_acc": round((row.knn_acc or 0) * 40 + 4) / 40}))
    pack([Entry(better, entry.points)], EVE, tmp_path / "bundle")
    result = verify_bundle(
        tmp_path / "bundle",
        tmp_path / "board",
        rerun=1,
        add_to=tmp_path / "board",
        checkout=honest.checkout,
        workers=1,
        device="cpu",
        by="Ben",
    )
    (again,) = result.reruns
    assert (result.problems, again.verdict) == ((), "cannot tell")
    assert again.limit is not None
    assert again.limit > 0.1
    assert tiers(Store(tmp_path / "board")) == {}


def test_rows_to_repeat_follow_from_the_bundle() -> None:
    rows = [f"{number:020x}" for number in range(20)]
    first, second = chosen("a" * 64, rows, 3), chosen("b" * 64, rows, 3)
    assert first == chosen("a" * 64, rows[::-1], 3)
    assert first != second
    assert chosen("a" * 64, rows, 99)[:3] == first
    assert json.dumps(chosen("a" * 64, rows, 0)) == "[]"
