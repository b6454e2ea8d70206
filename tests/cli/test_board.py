"""`merge`, `verify`, `compare` and boards as a user sees them, on rows of this project."""

import itertools
import shlex
from pathlib import Path
from typing import Any

import pytest

import fedbench
from fedbench.bench.config import RunConfig
from fedbench.bench.results.store.store import Store
from tests.bench.results.conftest import run_of

from .conftest import Call

RESULTS = Path(__file__).resolve().parents[2] / "leaderboards" / "results"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Store with two rows."""
    part, whole = Store(tmp_path_factory.mktemp("store")), Store(RESULTS)
    for row in [row for row in whole.rows() if row.method == "simclr"][:2]:
        part.write_row(row)
        part.write_curve(row.row_id, whole.curve(row.row_id))
    return part


@pytest.fixture
def ids(store: Store) -> list[str]:
    return [row.row_id for row in store.rows()]


def test_a_store_that_is_handed_over_is_checked(call: Call, store: Store, tmp_path: Path) -> None:
    """Damage is 5, a row that differs when run again 4, and a plugin that is not here neither."""
    board = tmp_path / "board"
    assert call("merge", store.root, "--store", board).code == 0
    assert call("verify", "--store", board, "--json").json["ok"]
    curve = next(board.glob("cells/*/curve.parquet"))
    curve.write_bytes(curve.read_bytes()[:-1])
    answer = call("verify", "--rerun", 1, "--store", board)
    assert (answer.code, curve.name in answer.out) == (5, True)


@pytest.mark.slow
def test_a_row_that_differs_when_run_again_has_an_exit_code(call: Call, tmp_path: Path) -> None:
    few = ("--set", "data.train_subset=80", "--set", "federation.num_rounds=1", "--workers", "1")
    assert call("run", "simclr", *few, "--store", tmp_path).code == 0
    (row,) = Store(tmp_path).rows()
    again = ("verify", "--rerun", 1, "--workers", "1", "--store", tmp_path)
    assert call(*again).code == 0
    (tmp_path / "rows" / f"{row.row_id}.parquet").unlink()
    Store(tmp_path).write_row(row.model_copy(update={"objective": 0.5}))
    answer = call(*again)
    assert (answer.code, "1 of 1 row run again gave other results" in answer.out) == (4, True)


def test_two_methods_of_one_table_are_proposed(call: Call, tmp_path: Path) -> None:
    rows = [("byol", 2), ("simsiam", 90), ("simclr", 10), ("spectral", 10)]
    for spec, clients in rows[:2]:
        Store(tmp_path).write_row(run_of(spec, data__num_clients=clients, linear_acc=0.5))
    alone = call("leaderboard", "--no-published", "--store", tmp_path).err
    assert "fedbench report" in alone
    for spec, clients in rows[2:]:
        Store(tmp_path).write_row(run_of(spec, data__num_clients=clients, linear_acc=0.5))
    proposed = shlex.split(call("leaderboard", "--store", tmp_path).err.splitlines()[-1])
    assert {*proposed[3:5]} == {"simclr", "spectral"}


def test_a_board_over_an_axis_has_the_rows_of_its_tables(call: Call, tmp_path: Path) -> None:
    """Two alphas, and a cell of other rounds beside them; no grid of participation was run."""
    cells: list[dict[str, Any]] = [
        {"data__alpha": 0.1},
        {"data__alpha": 1.0},
        {"federation__num_rounds": 3},
    ]
    for spec, given in itertools.product(("simclr", "byol"), cells):
        Store(tmp_path).write_row(run_of(spec, linear_acc=0.5, **given))
    words = ("leaderboard", "--store", tmp_path, "--over")
    found = call(*words, "alpha", "--json").json
    assert [each["axis"] for each in found["across"]] == ["alpha"]
    assert len(found["rows"]) == len(call(*words, "alpha", "--format", "csv").out.splitlines()) - 1
    assert {row["num_rounds"] for row in found["rows"]} == {RunConfig().federation.num_rounds}
    assert [row["rank"] for row in found["rows"]] == [1, 1] * 2
    ranking = fedbench.leaderboard(tmp_path, over="alpha")
    assert ranking.to_frame().run_ids.tolist() == [row["run_ids"] for row in found["rows"]]
    none = call(*words, "participation")
    assert (none.code, none.out) == (0, "")
    assert "--over alpha or fedbench sweep --grid participation" in none.err
    assert len(none.err.splitlines()) == 1
    with pytest.raises(fedbench.UnknownNameError):
        fedbench.leaderboard(tmp_path, over="beta")


@pytest.mark.slow
def test_nothing_contradicts_the_rows_of_this_project(call: Call) -> None:
    answer = call("verify", "--store", RESULTS)
    assert answer.code == 0, answer.out


def test_two_runs_and_two_methods_are_compared(call: Call, store: Store, ids: list[str]) -> None:
    where = ("--store", store.root)
    runs = call("compare", ids[0][:8], ids[1][:8], *where, "--json").json
    assert runs["sentence"] in call("compare", *ids, *where).out
    assert call("compare", "simclr", "byol", *where).code == 2  # the store has no byol
    laptop = ("--preset", "laptop", "--dataset", "cifar10", "--store", RESULTS)
    methods = call("compare", "simclr", "byol", *laptop, "--json").json
    assert [each["seeds"] for each in methods["settings"]] == [[5, 5]] * 3
    answer = call("compare", "simclr", "byol", *laptop)
    assert answer.out.splitlines()[-1] == methods["sentence"]
    advice = call("leaderboard", "--methods", "byol,simclr", *laptop).err.splitlines()[-1]
    assert "fedbench compare simclr byol --dataset=cifar10 --preset=laptop --store" in advice
