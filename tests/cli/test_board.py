"""`submit`, `verify BUNDLE` and `verify --claims` as a user sees them, on rows of this project."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fedbench.bench.results.store.store import Store

from .conftest import Answer

RESULTS = Path(__file__).resolve().parents[2] / "leaderboards" / "results"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Store with two rows, which name no commit: a checkout may lack the whole history."""
    part, whole = Store(tmp_path_factory.mktemp("store")), Store(RESULTS)
    for row in [row for row in whole.rows() if row.method == "simclr"][:2]:
        part.write_row(row.model_copy(update={"git_sha": None}))
        part.write_curve(row.row_id, whole.curve(row.row_id))
    return part


@pytest.fixture
def ids(store: Store) -> list[str]:
    return [row.row_id for row in store.rows()]


def test_from_a_store_to_a_board(
    call: Callable[..., Answer],
    store: Store,
    ids: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    who = ("--by", "Ada Lovelace", "--orcid", "0000-0002-1825-0097")
    packed = call("submit", ids[0], ids[1][:8], *who, "--store", store.root, "--json")
    assert packed.code == 0, packed.err
    (file,) = tmp_path.iterdir()
    assert packed.json["file"] == file.name == f"fedbench-{packed.json['id'][:10]}.zip"
    assert packed.json["commands"][1] == f"fedbench verify {file} --add-to leaderboards/results"
    assert "submitted by Ada Lovelace (0000-0002-1825-0097); licence CC0-1.0" in packed.out

    before = file.read_bytes()
    again = call("submit", "--all", *who, "--store", store.root, "--out", "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == before
    assert "git push" in again.out

    answer = call("verify", file, "--add-to", tmp_path / "board")
    assert answer.code == 0, answer.out
    assert "submitted by Ada Lovelace (0000-0002-1825-0097), not signed" in answer.out
    assert answer.out.splitlines()[-1].endswith("nothing contradicts it")
    assert [row.row_id for row in Store(tmp_path / "board").rows()] == ids
    assert len(list(tmp_path.glob("board/submissions/*.json"))) == 1
    claims = call("verify", "--claims", "--store", tmp_path / "board", "--json")
    assert (claims.code, claims.json["ok"], len(claims.json["rows"])) == (0, True, 2)
    assert call("verify", "--store", tmp_path / "board").code == 0


def test_a_refused_bundle_is_named_with_its_reason(
    call: Callable[..., Answer], store: Store, ids: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "bundle"
    assert call("submit", ids[0], "--store", store.root, "--out", folder).code == 0
    card = folder / "cards" / f"{ids[0]}.json"
    card.write_text(card.read_text().replace("simclr", "better"))
    answer = call("verify", folder, "--add-to", tmp_path / "board", "--rerun", 1)
    assert answer.code == 5
    assert f"run {ids[0][:8]}, files: cards/{ids[0]}.json is not the file whose" in answer.out
    assert answer.out.splitlines()[-1].endswith("refused, 1 contradiction")
    assert not (tmp_path / "board").exists()
    problem = call("verify", folder, "--json").json["problems"][0]
    assert (problem["row_id"], problem["check"]) == (ids[0], "files")


def test_runs_that_others_would_refuse_are_not_packed(
    call: Callable[..., Answer], store: Store, tmp_path: Path
) -> None:
    bad = Store(tmp_path / "store")
    row = store.rows()[0].model_copy(update={"git_sha": "0123456789ab-dirty"})
    bad.write_row(row)
    answer = call("submit", row.row_id, "--store", bad.root, "--out", tmp_path / "a.zip")
    assert answer.code == 5
    assert "has no curve, as trials of a study; it cannot be submitted" in answer.err
    bad.write_curve(row.row_id, store.curve(row.row_id))
    answer = call("submit", row.row_id, "--store", bad.root, "--out", tmp_path / "a.zip")
    assert answer.code == 5
    assert "code: its code is commit 0123456789ab with changes nobody has" in answer.err
    assert not (tmp_path / "a.zip").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("submit",), "name the runs to submit, or give --all"),
        (("submit", "01234567", "--orcid", "0000-0002-1825-0097"), "--orcid needs --by NAME"),
        (("verify", "--rerun", "1"), "--rerun needs a bundle"),
        (("verify", "b.zip", "--claims"), "--claims checks the store"),
        (("verify", "b.zip", "--by", "A"), "--by records rows that were run again"),
        (("reproduce", "01234567", "--sign", "key"), "--sign needs --by NAME"),
        (("reproduce", "01234567", "--by", "A", "--sign", "no"), "there is no key 'no'"),
        (("reproduce", "01234567", "--by", "A", "--orcid", "0000-0002-1825-0098"), "check digit"),
    ],
)
def test_wrong_use(
    refused: Callable[[tuple[str, ...], str], None],
    words: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    store: Store,
) -> None:
    monkeypatch.setenv("FEDBENCH_STORE", str(store.root))
    refused(words, message)


def test_what_is_no_bundle(call: Callable[..., Answer], tmp_path: Path) -> None:
    (tmp_path / "text.zip").write_text("no zip")
    (tmp_path / "folder").mkdir()
    for name, outside in (("up.zip", "../rows/x"), ("other.zip", "setup.py")):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(outside, "x")
    for name, message in (
        ("text.zip", "is no .zip that can be read"),
        ("folder", "is no bundle: it has no manifest.json"),
        ("absent.zip", "there is no bundle at"),
        ("up.zip", "which is no file of a bundle"),
        ("other.zip", "which is no file of a bundle"),
    ):
        answer = call("verify", tmp_path / name)
        assert (answer.code, answer.out) == (5, "")
        assert message in answer.err
        assert len(answer.err.splitlines()) == 1


def test_reproductions_show_in_tables(
    call: Callable[..., Answer], store: Store, tmp_path: Path
) -> None:
    """A record that does not count is named with its reason, and the line stays a claim."""
    copy = Store(shutil.copytree(store.root, tmp_path / "copy"))
    row_id = copy.rows()[0].row_id
    record = copy.root / "reproductions" / row_id / "0.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"by": None}))
    answer = call("leaderboard", "--store", copy.root)
    assert "a record by nobody named does not count, it has no checksum" in answer.out
    assert "claimed" in answer.out
    plain = call("leaderboard", "--store", store.root)
    assert "claimed" not in plain.out
    assert "reproductions" not in call("leaderboard", "--store", store.root, "--json").json


@pytest.mark.slow
def test_nothing_contradicts_the_rows_of_this_project(call: Callable[..., Answer]) -> None:
    """Every run and every bundle in leaderboards/results, whoever sent it."""
    answer = call("verify", "--claims", "--store", RESULTS)
    assert answer.code == 0, answer.out
    assert answer.out.splitlines()[-1].endswith("nothing contradicts it")
