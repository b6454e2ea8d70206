"""Releases: written, described, fetched, read as a store; ranks that change between two."""

import functools
import hashlib
import http.server
import logging
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import markdown_it
import pandas as pd
import pyarrow as pa
import pytest

import fedbench
from fedbench.bench.board.release import Change, changes, changes_text, release
from fedbench.bench.results.store.released import RELEASE
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.schema import table_bytes, to_columns
from fedbench.bench.results.store.store import Store, open_store
from fedbench.bench.system.errors import ConfigError, StoreError
from fedbench.leaderboards import card

from .conftest import Run


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDBENCH_DATA_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def board(honest: tuple[Run, ...], tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Three runs with their curves, and a replica of the first."""
    store = Store(tmp_path_factory.mktemp("böard"))
    for entry in honest:
        store.write_row(entry.row)
        store.write_curve(entry.row.row_id, entry.points)
    first, points = honest[0].row, honest[0].points
    other = first.model_copy(update={"linear_acc": 0.5, "platform": "another"})
    store.write_replica(other)
    store.write_curve(store.key(other), points[:2])
    return store


@pytest.fixture(scope="module")
def released(board: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release") / "new"
    result = release(folder, board, version="2026.11")
    assert sorted(path.name for path in folder.iterdir()) == list(result.files)
    assert (result.num_rows, result.methods) == (4, ("simclr",))
    return folder


def test_a_release_reads_as_the_store_that_it_is_of(
    released: Path, board: Store, tmp_path: Path
) -> None:
    store = open_store(released / RELEASE)
    assert store.rows() == board.rows()
    assert store.problems() == []
    for row in board.rows():
        assert store.curve(store.key(row)) == board.curve(board.key(row))
    assert len(store.replicas(board.rows()[0].row_id)) == 2
    assert open_store(released).rows() == store.rows()  # the folder
    both = tmp_path / "both"
    shutil.copytree(board.root, both)
    shutil.copyfile(released / RELEASE, both / RELEASE)
    assert open_store(both).root == both  # a store that holds a release is a store
    frame = pd.read_parquet(released / RELEASE)  # without fedbench
    assert frame["metric.linear_acc"].tolist() == [row.linear_acc for row in board.rows()]


def test_equal_stores_give_equal_bytes(released: Path, tmp_path: Path) -> None:
    """Also from the release itself."""
    release(tmp_path / "again", released / RELEASE, version="2026.11")
    for file in released.iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes(), file.name


def test_sums_are_of_the_files(released: Path) -> None:
    lines = (released / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert sums.keys() == {file.name for file in released.iterdir()} - {"SHA256SUMS"}
    for name, digest in sums.items():
        assert hashlib.sha256((released / name).read_bytes()).hexdigest() == digest


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # in mlcroissant
def test_croissant_describes_what_can_be_read(released: Path, board: Store) -> None:
    import mlcroissant

    dataset = mlcroissant.Dataset(jsonld=str(released / "croissant.json"))
    assert dataset.metadata.issues.report() == ""
    records = list(dataset.records("runs"))
    assert [record["runs/row_id"].decode() for record in records] == [
        row.row_id for row in board.rows()
    ]
    assert records[0]["runs/metric.linear_acc"] == pytest.approx(board.rows()[0].linear_acc)
    columns = {column for row in board.rows() for column in to_columns(row)}
    assert {name.partition("/")[2] for name in records[0]} == {*columns, "curve_json"}


def test_names_of_strangers_are_text(board: Store, tmp_path: Path) -> None:
    """Neither a terminal nor a browser takes a name for a command."""
    store = Store(tmp_path / "store")
    method, dataset = "\x1b[31m<script>alert(1)</script>\u202e", "x\n# y|z"
    named = {"method": method, "dataset": dataset}
    store.write_row(board.rows()[0].model_copy(update=named))
    release(tmp_path / "out", store, version="1")
    for file in ("README.md", "croissant.json", "CITATION.cff"):
        text = (tmp_path / "out" / file).read_text()
        assert text.replace("\n", "").isprintable()
        assert "\n# y" not in text
    html = (
        markdown_it.MarkdownIt("commonmark")
        .enable("table")
        .render((tmp_path / "out" / "README.md").read_text())
    )
    assert "<script>" not in html
    assert "<td>x\\n# y|z</td>" in html


def test_nothing_is_written_to_a_release(released: Path, tmp_path: Path) -> None:
    small = {"federation.num_rounds": 1, "data.train_subset": 80}
    with pytest.raises(StoreError, match="fedbench merge"):
        fedbench.run("simclr", set=small, store=released)
    merged = fedbench.merge([released / RELEASE], tmp_path / "mine")
    assert (merged.rows_added, merged.replicas_added) == (3, 1)


def test_what_is_no_release(released: Path, board: Store, tmp_path: Path, cache: Path) -> None:
    with pytest.raises(StoreError, match=r"gone\.parquet"):
        open_store(tmp_path / "gone.parquet")
    (row, *_) = sorted((board.root / "rows").iterdir())
    with pytest.raises(StoreError, match="curve_json"):
        open_store(row)
    for curve, why in ((None, "no column curve_json"), ("[1]", "no list of rounds")):
        table = pa.table({"row_id": ["a"], "curve_json": pa.array([curve], pa.string())})
        (tmp_path / "other.parquet").write_bytes(table_bytes(table))
        with pytest.raises(StoreError, match=why):
            open_store(tmp_path / "other.parquet")
    assert not list(cache.glob("releases/*"))
    torn = tmp_path / RELEASE
    torn.write_bytes((released / RELEASE).read_bytes()[:-9])
    with pytest.raises(StoreError, match=RELEASE):
        open_store(torn)
    (tmp_path / "SHA256SUMS").write_text((released / "SHA256SUMS").read_text())
    with pytest.raises(StoreError, match="SHA256SUMS"):
        open_store(torn)


def test_what_cannot_be_released(board: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="too long"):
        release(tmp_path / ("x" * 300), board, version="1")
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path))):
        release(tmp_path / "a", Store(tmp_path), version="1")
    with pytest.raises(ConfigError, match=r"--version.*'\.\./x'"):
        release(tmp_path / "a", board, version="../x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ConfigError, match="full"):
        release(tmp_path / "full", board, version="1")
    assert not (tmp_path / "a").exists()


@pytest.fixture
def address(released: Path, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Address of a server, and its folder."""
    place = tmp_path / "server"
    place.mkdir()
    (place / RELEASE).write_bytes((released / RELEASE).read_bytes())
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(place))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/{RELEASE}", place
        server.shutdown()


def test_an_address_is_read_and_checked(
    address: tuple[str, Path],
    released: Path,
    board: Store,
    caplog: pytest.LogCaptureFixture,
) -> None:
    url, place = address
    with caplog.at_level(logging.WARNING):
        assert open_store(Path(url)).rows() == board.rows()  # as the option gives it
    assert "SHA256SUMS" in caplog.text
    caplog.clear()
    sums = (released / "SHA256SUMS").read_text()
    (place / "SHA256SUMS").write_text(sums)
    with caplog.at_level(logging.WARNING):
        assert open_store(url).rows() == board.rows()
    assert caplog.text == ""
    (place / "SHA256SUMS").write_text(f"{'0' * 64}  {RELEASE}\n")
    with pytest.raises(StoreError, match="SHA256SUMS"):
        open_store(url)
    with pytest.raises(StoreError, match=r"other\.parquet"):
        open_store(url.replace(RELEASE, "other.parquet"))
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:1"):
        open_store("http://127.0.0.1:1/x.parquet")


def of(rows: list[Row], method: str, accuracy: float, **more: object) -> list[Row]:
    """The same runs by another method, with another accuracy."""
    made = []
    for row in rows:
        run, configuration = (
            hashlib.sha256(text.encode()).hexdigest()[:20]
            for text in (f"{method} {row.seed} {more}", method)
        )
        values = {"method": method, "linear_acc": accuracy, **more}
        values |= {"row_id": run, "config_id": configuration}
        config = row.config.model_copy(update={"spec": method})
        made.append(row.model_copy(update={**values, "settings": config.model_dump(mode="json")}))
    return made


def test_ranks_that_change_have_a_cause(honest: tuple[Run, ...]) -> None:
    rows = [entry.row for entry in honest]
    a, b = of(rows, "byol", 0.3), of(rows, "simclr", 0.5)
    c = of(rows, "ssd", 0.4, further={"objective_std": 0.1})  # the class of a and b joins its
    assert changes(a + b, b + a) == ()
    grown = changes(a + b, a + b + c)
    assert [(x.method, x.before, x.after, x.cause) for x in grown] == [
        ("ssd", None, 2, "3 rows added"),
        ("byol", 2, 3, "rows of others"),
    ]
    assert [(x.method, x.before, x.after, x.cause) for x in changes(a + b + c, a + b)] == [
        ("byol", 3, 2, "rows of others"),
        ("ssd", 2, None, "3 rows removed"),
    ]
    better = of(rows[:1], "byol", 1.0, seed=7) + of(rows[:1], "byol", 0.99, seed=8)
    (first, second) = changes(a + b, a + b + better)
    assert (first.method, first.cause) == ("byol", "2 rows added")
    assert (second.method, second.cause) == ("simclr", "rows of others")
    newer = [row.model_copy(update={"benchmark_version": "99"}) for row in a + b]
    assert [(x.before, x.after) for x in changes(a + b, newer)] == [
        (None, 1), (None, 2), (1, None), (2, None),  # of two boards
    ]  # fmt: skip
    assert [(x.before, x.after) for x in changes([], a + b)] == [(None, 1), (None, 2)]


def test_a_release_lists_changes_since_another(
    released: Path, board: Store, tmp_path: Path
) -> None:
    result = release(tmp_path / "same", board, version="2026.12", against=released / RELEASE)
    assert result.changes == ()
    assert "No rank has changed." in (tmp_path / "same" / "CHANGES.md").read_text()
    change = Change("board", "byol", "client.lr=0.1", None, 2, "3 rows added")
    text = changes_text([change], "old", "new")
    assert "| byol (client.lr=0.1) | – | 2 | 3 rows added |" in text


def test_the_shipped_card_is_of_the_shipped_rows() -> None:
    """`python leaderboards/card.py` writes it again."""
    for name, content in card.files().items():
        assert (card.FOLDER / name).read_bytes() == content, name
