"""The card of the committed results, and the ranks that proposed ones change."""

import hashlib
import subprocess
import sys
from pathlib import Path

import markdown_it
import pytest

from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.schema import to_columns
from fedbench.bench.results.store.store import Store
from fedbench.leaderboards import card
from fedbench.leaderboards.changes import Change, changes, changes_text
from fedbench.leaderboards.pack import packs, write

from .conftest import Run


def test_the_card_is_of_the_rows() -> None:
    """`python leaderboards/card.py` writes it again."""
    for name, content in card.files().items():
        assert (card.FOLDER / name).read_bytes() == content, name


@pytest.fixture
def store(honest: tuple[Run, ...], tmp_path: Path) -> Store:
    store = Store(tmp_path)
    for entry in honest:
        store.write_row(entry.row)
        store.write_curve(entry.row.row_id, entry.points)
    return store


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # in mlcroissant
def test_croissant_describes_what_can_be_read(store: Store) -> None:
    import mlcroissant

    rows, (packed, schema) = store.rows(), packs(store)
    write(store.root, {**packed, **card.describe(rows, schema)})
    dataset = mlcroissant.Dataset(jsonld=str(store.root / "croissant.json"))
    assert dataset.metadata.issues.report() == ""
    records = list(dataset.records("runs"))
    assert [record["runs/row_id"].decode() for record in records] == [row.row_id for row in rows]
    assert records[0]["runs/metric.linear_acc"] == pytest.approx(rows[0].linear_acc)
    columns = {column for row in rows for column in to_columns(row)}
    assert {name.partition("/")[2] for name in records[0]} == {*columns, "curve_json"}


def test_names_of_strangers_are_text(store: Store) -> None:
    """Neither a terminal nor a browser takes a name for a command."""
    method, dataset = "\x1b[31m<script>alert(1)</script>\u202e", "x\n# y|z"
    row = store.rows()[0].model_copy(update={"method": method, "dataset": dataset})
    described = card.describe([row], packs(store)[1])
    for content in described.values():
        text = content.decode()
        assert text.replace("\n", "").isprintable()
        assert "\n# y" not in text
    html = markdown_it.MarkdownIt("commonmark").enable("table")
    shown = html.render(described["README.md"].decode())
    assert "<script>" not in shown
    assert "<td>x\\n# y|z</td>" in shown


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


def test_changes_are_printed() -> None:
    place = str(card.FOLDER)
    command = [sys.executable, "-m", "fedbench.leaderboards.changes", place, place]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "No rank has changed." in said
    change = Change("board", "byol", "client.lr=0.1", None, 2, "3 rows added")
    assert "| byol (client.lr=0.1) | – | 2 | 3 rows added |" in changes_text([change])
