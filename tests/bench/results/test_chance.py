"""A run is marked where a term of its loss ends within a tenth of chance."""

import math
from typing import Any

import pytest

from fedbench.bench.config import RunConfig
from fedbench.bench.experiment.resolve import resolve
from fedbench.bench.results import chance
from fedbench.bench.results.chance import Marks, marks, terms_at_chance
from fedbench.bench.results.leaderboard.formats import tables
from fedbench.bench.results.leaderboard.leaderboard import leaderboard
from fedbench.bench.results.listing import runs
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.checksums import json_with_checksum
from fedbench.bench.system.errors import PluginWarning
from fedbench.bench.terminal.show_runs import show_listing
from fedbench.methods.aligned import Aligned
from tests.bench.results.conftest import build_row, rank


def config_of(spec: str, **given: Any) -> RunConfig:
    values = {key.replace("__", "."): value for key, value in given.items()}
    return resolve(spec, preset="laptop", set=values, environ={}).config


def curve(**ends: float) -> list[dict[str, Any]]:
    """Return a run that began elsewhere and whose last five rounds have these means."""
    start = dict.fromkeys(ends, -9.0)
    near = [{name: end + shift for name, end in ends.items()} for shift in (-0.2, 0, 0, 0, 0.2)]
    return [
        {"round_index": at}
        | {name if name == "loss" else f"parts.{name}": value for name, value in point.items()}
        for at, point in enumerate((start, start, *near))
    ]


@pytest.mark.parametrize(
    ("clusters", "rotation", "found"),
    [
        (3.33, 1.394, ("clusters", "rotation")),  # the committed rows of 2026-11
        (3.0, 1.1, ()),  # the pilot of long training
        (3.11, 1.24, ()),
        (3.13, 1.24, ("clusters",)),
        (3.11, 1.26, ("rotation",)),
        (4.5, 1.0, ("clusters",)),  # worse than chance
    ],
)
def test_orchestras_terms(clusters: float, rotation: float, found: tuple[str, ...]) -> None:
    ended = curve(loss=clusters + rotation, clusters=clusters, rotation=rotation)
    assert terms_at_chance(config_of("orchestra"), ended) == found


def test_totals_negative_losses_and_terms_of_addons() -> None:
    simclr, spectral = config_of("simclr"), config_of("spectral")
    chance_of = math.log(63)  # batches of 32
    assert terms_at_chance(simclr, curve(loss=0.91 * chance_of)) == ("loss",)
    assert terms_at_chance(simclr, curve(loss=0.89 * chance_of)) == ()
    assert terms_at_chance(spectral, curve(loss=-1.09)) == ("loss",)  # a tenth below -1
    assert terms_at_chance(spectral, curve(loss=-1.11)) == ()
    verified = config_of("simclr+uv")
    assert terms_at_chance(verified, curve(loss=7.2, uv=3.4)) == ("loss - uv",)
    assert terms_at_chance(verified, curve(loss=6.2, uv=3.4)) == ()
    assert terms_at_chance(config_of("byol"), curve(loss=-0.01, spread=0.9)) == ()


def filled(store: Store) -> Store:
    for seed, loss in ((0, 4.1), (1, 2.0)):
        row = build_row(config_of("simclr", seed=seed), linear_acc=0.4)
        store.write_row(row)
        store.write_curve(row.row_id, curve(loss=loss))
    aligned = build_row(config_of("aligned"), linear_acc=0.5)
    store.write_row(aligned)
    store.write_curve(aligned.row_id, curve(loss=-2.6, uniformity=-3.8))
    return store


def test_marks_are_derived_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = filled(store).rows()
    by_id = marks(store, rows)
    found = sorted((row.method, row.seed, by_id[row.row_id]) for row in rows)
    assert [mark for _, _, mark in found] == [Marks((), True), Marks(("loss",)), Marks()]
    file = store.root / "at-chance.json"
    with monkeypatch.context() as patch:
        patch.setattr(chance, "_derive", lambda *_: pytest.fail("derived again"))
        assert marks(Store(store.root), rows) == by_id
    whole = file.read_text(encoding="utf-8")
    for damage in (
        whole[:50],
        "[]",
        whole.replace('["loss"]', "[]"),
        json_with_checksum({"version": 0}),
    ):
        file.write_text(damage, encoding="utf-8")
        assert marks(store, rows) == by_id
        assert file.read_text(encoding="utf-8") == whole
    # A row that ended at another time is another run.
    later = [
        row.model_copy(update={"finished_at": row.finished_at.replace(year=2031)}) for row in rows
    ]
    assert marks(store, later) == by_id
    assert file.read_text(encoding="utf-8") != whole
    file.unlink()
    monkeypatch.setattr(Aligned, "chance", lambda *_: 1 / 0)  # a plugin's mistake
    with pytest.warns(PluginWarning, match="zero"):
        assert len(marks(store, rows)) == 2


def test_rows_without_a_mark(store: Store) -> None:
    plugin = build_row(config_of("simclr")).model_copy(update={"method": "gone"})
    plugin = plugin.model_copy(update={"settings": {**plugin.settings, "spec": "gone"}})
    diverged = build_row(config_of("simclr", seed=1), status="diverged")
    assert marks(store, [plugin, diverged]) == {}
    assert not store.root.exists()


def test_the_board_and_the_list_of_runs_show_them(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = filled(store).rows()
    show_listing(runs(store))
    head, *lines = capsys.readouterr().out.splitlines()[1:]
    assert head.endswith("  notes")
    assert sum(line.endswith("  loss hardly fell: loss") for line in lines) == 1
    board = leaderboard(store.frame(), marks=marks(store, rows), published=False)
    assert {line.method: line.notes for line in board.entries} == {
        "aligned": ("minimises the objective", "descriptive"),
        "simclr": ("1 of 2 at chance (loss)", "descriptive"),
    }
    (table,) = tables(board)  # a number for each sentence below
    assert dict(zip(table.header, zip(*table.rows, strict=True), strict=True))["notes"] == (
        "1, 2",
        "3, 2",
    )
    assert len(table.footnotes) == 3
    records = {row["method"]: row for row in board.to_dict()["rows"]}
    assert records["simclr"]["at_chance"] == ["loss"]
    assert records["aligned"]["minimises_objective"]
    assert leaderboard(store.frame(), published=False).entries[0].at_chance == ()


def test_counts_of_runs_in_notes() -> None:
    """Two of three runs at chance; a collapse says it all."""
    figures = {"projection_std_ratio": 0.1, "untrained_projection_std_ratio": 0.8}
    fields: dict[str, Any] = {"collapsed": True, "further": figures}
    rows = [build_row(RunConfig(seed=s), linear_acc=0.5 + s / 10, **fields) for s in range(3)]
    ids = [row.row_id for row in rows]
    found = dict.fromkeys(ids[:2], Marks(("loss",)))
    board = rank(rows, marks=found)
    (entry,), (table,) = board.entries, tables(board)
    assert entry.notes == ("collapsed", "2 of 3 at chance (loss)")
    assert table.footer == ""  # the first line has three seeds
