"""Searches replayed on a table: exact expectations, rungs, samplers, and what is refused."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedbench
from fedbench.bench.config import RunConfig
from fedbench.bench.results.search_table import SETTINGS, TABLE, search_table
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.schema import table_bytes
from fedbench.bench.results.store.store import open_store
from fedbench.bench.system.errors import ConfigError, StoreError, UnknownNameError
from fedbench.bench.terminal.show_tuning import show_replay
from fedbench.bench.tuning.replay.search import Space
from fedbench.bench.tuning.suggester import Suggester

RESULTS = Path(__file__).parents[3] / "leaderboards" / "results"
COUNT, SEEDS, ROUNDS = 12, (0, 1), (1, 3, 12)


def rates(count: int = COUNT) -> list[float]:
    return [float(f"{0.001 * 300 ** (i / (count - 1)):.4g}") for i in range(count)]


RATES = rates()

Value = Callable[[int, int, int], float | None]
"""(configuration, seed, round) -> a score."""
Make = Callable[..., Path]


@pytest.fixture(scope="module")
def base() -> Row:
    """Return any row, for the columns that do not matter here."""
    return open_store(RESULTS).rows()[0]


@pytest.fixture
def table(base: Row, tmp_path: Path) -> Make:
    """Return a function that writes a table of `COUNT` rates and of two seeds."""

    def make(
        score: Value,
        accuracy: Value = lambda i, seed, done: 0.2 + 0.02 * i,
        *,
        alphas: tuple[float, ...] = (0.1,),
        skip: frozenset[tuple[int, int]] = frozenset(),
        count: int = COUNT,
    ) -> Path:
        runs = []
        for alpha, (i, rate), seed in itertools.product(alphas, enumerate(rates(count)), SEEDS):
            if (i, seed) in skip:
                continue
            config = RunConfig.model_validate(
                {
                    "seed": seed,
                    "client": {"lr": rate, "local_epochs": 1 + i % 2},
                    "data": {"alpha": alpha},
                    "federation": {"num_rounds": ROUNDS[-1]},
                }
            )
            final = score(i, seed, ROUNDS[-1])
            row = base.model_copy(
                update={
                    "row_id": f"{alpha}-{i}-{seed}",
                    "config_json": config.model_dump_json(),
                    "method": "simclr",
                    "seed": seed,
                    "status": "diverged" if final is None else "ok",
                    "linear_acc": None if final is None else accuracy(i, seed, ROUNDS[-1]),
                    "untrained_linear_acc": 0.15,
                    "objective": final,
                    "metrics_json": json.dumps(
                        {
                            "rho": 0.5,
                            "untrained_rho": 0.6,
                            "sep": final,
                            "untrained_sep": 0.1,
                            "untrained_participation_ratio": 10.0,
                            "participation_ratio": 9.0,
                        }
                    ),
                }
            )
            curve = [
                {
                    "round_index": done - 1,
                    "loss": 1.0,
                    "num_steps": 10,
                    **({"metrics.objective": value} if measured and value is not None else {}),
                }
                for done in range(1, ROUNDS[-1] + 1)
                for measured in [done in ROUNDS]
                for value in [score(i, seed, done) if measured else None]
            ]
            runs.append((row, curve))
        file = tmp_path / "a table.parquet"
        file.write_bytes(table_bytes(search_table(runs, "1")))
        return file

    return make


def test_a_random_search_loses_what_a_random_subset_loses(table: Make) -> None:
    """The best of b of n by a perfect score has rank r with probability C(n-r, b-1) / C(n, b)."""
    file = table(lambda i, seed, done: 0.01 * i)
    for trials in (1, 4, COUNT):
        weights = [
            math.comb(COUNT - rank, trials - 1) / math.comb(COUNT, trials)
            for rank in range(1, COUNT + 1)
        ]
        lost = sum(weight * 0.02 * rank for rank, weight in enumerate(weights))
        found = fedbench.replay(
            "simclr", file, sampler="random", trials=trials, searches=150, objective="align-unif"
        )
        square = sum(weight * (0.02 * rank) ** 2 for rank, weight in enumerate(weights))
        error = math.sqrt((square - lost**2) / 150)
        assert found.tasks[0].regret == pytest.approx(lost, abs=4 * error + 1e-12)
        assert found.tasks[0].share == 1
        if trials == 1:  # nine of ten random ones lose at most that of the tenth of the eleven
            assert found.tasks[0].regret_90 == pytest.approx(0.02 * 10, abs=0.021)


def test_a_search_is_judged_by_the_seeds_that_did_not_score_it(
    table: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each seed's score prefers what is best by its own noise; the other seed has other noise."""
    noise = np.random.default_rng(0).normal(size=(COUNT, 2))
    file = table(
        lambda i, seed, done: noise[i, seed], lambda i, seed, done: 0.3 + noise[i, seed] / 50
    )
    (task,) = fedbench.replay("simclr", file, sampler="grid", trials=COUNT, searches=2).tasks
    picks = noise.argmax(axis=0)
    lost = [noise[:, 1].max() - noise[picks[0], 1], noise[:, 0].max() - noise[picks[1], 0]]
    assert task.regret == pytest.approx(np.mean(lost) / 50)
    assert task.judged_apart
    assert {pick["params"]["client.lr"] for pick in task.picks} == {RATES[i] for i in picks}
    found = fedbench.replay(
        "simclr", file, sampler="grid", trials=COUNT, searches=2, seeds_per_trial=2
    )
    (task,) = found.tasks
    assert (task.regret, task.judged_apart) == (0, False)  # those of the score judge it
    show_replay(found)
    assert "judged by the seeds that scored" in capsys.readouterr().out
    assert task.noise == pytest.approx(noise.std(axis=1, ddof=1).__pow__(2).mean() ** 0.5 / 50)


def test_halving_finds_the_best_where_the_order_is_that_of_the_end(table: Make) -> None:
    file = table(lambda i, seed, done: 0.01 * i + 0.001 * done)
    found = fedbench.replay(
        "simclr", file, sampler="random", trials=COUNT, searches=10, fidelity="halving"
    )
    fidelity = found.tasks[0].fidelity
    assert fidelity is not None
    assert fidelity["rounds"] == [3, 12]  # 12 trials allow two rungs
    assert found.tasks[0].regret == 0
    # 12 trials for 3 rounds and 3 of them for 9 more, of 12 x 12.
    assert found.tasks[0].share == pytest.approx((12 * 3 + 3 * 9) / 144)


def test_halving_loses_what_begins_slowly(table: Make) -> None:
    """The order at the first rung is the reverse of that at the end, and its scores are higher."""
    file = table(lambda i, seed, done: 0.01 * (i if done == ROUNDS[-1] else 20 - i))
    (task,) = fedbench.replay(
        "simclr", file, sampler="grid", trials=COUNT, searches=2, fidelity="halving"
    ).tasks
    assert task.picks[0]["params"]["client.lr"] == RATES[2]  # the best of the three slowest
    assert task.regret == pytest.approx(0.02 * (COUNT - 1 - 2))


@pytest.mark.parametrize("sampler", ["tpe", "sobol", "random"])
def test_searches_repeat_and_take_no_configuration_twice(
    table: Make, sampler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = table(lambda i, seed, done: -abs(i - 7.0))
    told: list[float | None] = []
    tell = Suggester.tell

    def watch(self: Suggester, number: int, value: float | None, rounds: int | None = None) -> None:
        told.append(value)
        tell(self, number, value, rounds)

    monkeypatch.setattr(Suggester, "tell", watch)
    arguments: dict[str, Any] = {"sampler": sampler, "trials": COUNT, "searches": 1, "seed": 5}
    once = fedbench.replay("simclr", file, **arguments)
    assert sorted(filter(None, told)) == sorted(filter(None, (-abs(i - 7.0) for i in range(COUNT))))
    assert fedbench.replay("simclr", file, **arguments) == once
    assert once.tasks[0].picks[0]["params"]["client.lr"] == RATES[7]


def test_tpe_learns_from_what_the_table_answered(table: Make) -> None:
    """Half of its trials are random."""
    file = table(
        lambda i, seed, done: -abs(i - 40.0),
        lambda i, seed, done: 0.9 - 0.01 * abs(i - 40),
        count=60,
    )
    regret = {
        sampler: fedbench.replay("simclr", file, sampler=sampler, trials=16, searches=20)
        .tasks[0]
        .regret
        for sampler in ("tpe", "random")
    }
    assert regret["tpe"] < regret["random"]


def test_suggestions_are_replaced_by_the_nearest_configuration() -> None:
    configurations = [{"client.lr": rate, "kind": kind} for rate in (0.01, 1.0) for kind in "ab"]
    space = Space(configurations)
    unused = np.zeros(4, dtype=bool)
    assert space.nearest({"client.lr": 0.09, "kind": "b"}, unused) == 1  # nearer by its logarithm
    assert space.nearest({"client.lr": 0.2, "kind": "a"}, unused) == 2
    assert space.nearest({"client.lr": 0.09, "kind": "b"}, np.array([0, 1, 0, 0], bool)) == 3
    # A factor of 100 is a distance of 1, as is another kind: 0.5 is nearer to 1.0, b.
    assert space.nearest({"client.lr": 0.5, "kind": "b"}, np.array([0, 1, 0, 1], bool)) == 2


def test_what_diverged_is_never_picked_and_counts_as_untrained(table: Make) -> None:
    file = table(lambda i, seed, done: None if i > 3 else 0.01 * i)
    (task,) = fedbench.replay("simclr", file, sampler="grid", trials=COUNT, searches=2).tasks
    assert task.picks[0]["params"]["client.lr"] == RATES[3]
    (first,) = fedbench.replay("simclr", file, sampler="random", trials=1, searches=60).tasks
    nothing = [pick for pick in first.picks if pick["params"] is None]
    assert nothing
    assert first.accuracy < task.accuracy


def test_a_gate_refuses_what_learnt_nothing(table: Make) -> None:
    """The untrained encoders have a SEP of 0.1."""
    file = table(lambda i, seed, done: 0.09)
    (task,) = fedbench.replay(
        "simclr", file, sampler="grid", trials=COUNT, searches=2, objective="align-unif+gate"
    ).tasks
    assert [pick["params"] for pick in task.picks] == [None]
    assert task.accuracy == 0.15


def test_tasks_are_searched_apart(table: Make) -> None:
    file = table(lambda i, seed, done: 0.01 * i, alphas=(0.1, 100.0), skip=frozenset({(2, 1)}))
    found = fedbench.replay("simclr", file, trials=4, searches=2, sampler="random")
    assert [task.settings for task in found.tasks] == [{"data.alpha": 0.1}, {"data.alpha": 100.0}]
    assert [(task.configurations, task.left_out) for task in found.tasks] == [(COUNT - 1, 1)] * 2
    (one,) = fedbench.replay(
        "simclr", file, trials=4, searches=2, sampler="random", set={"data.alpha": 100}
    ).tasks
    assert (one.settings, one.regret) == ({}, found.tasks[1].regret)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"spec": "simsiam"}, UnknownNameError, "known: simclr"),
        ({"sampler": "cmaes"}, UnknownNameError, "sampler for a table"),
        ({"trials": COUNT + 1}, ConfigError, f"--trials {COUNT + 1}: the table has {COUNT}"),
        ({"trials": 4, "seeds_per_trial": 3}, ConfigError, "the table has 2 seeds"),
        ({"set": {"data.alpha": 7}}, ConfigError, "data.alpha=7: the table has 0.1"),
        ({"set": {"client.lr2": 7}}, UnknownNameError, "client.lr"),
        ({"objective": "rankme"}, ConfigError, "no column rankme"),
        ({"trials": 12, "fidelity": "halving", "eta": 2}, ConfigError, "the table has 1, 3, 12"),
        ({"searches": 0}, ConfigError, "--searches: must be at least 1"),
        ({"fidelity": "hyperband", "batch_size": 2}, ConfigError, "has brackets of its own"),
    ],
)
def test_what_a_table_cannot_answer_is_refused(
    table: Make, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    file = table(lambda i, seed, done: 0.01 * i)
    with pytest.raises(error, match=text):
        fedbench.replay(**{"spec": "simclr", "table": file, "trials": 4, **arguments})


def test_a_score_that_the_first_run_lacks_can_be_searched_by(table: Make) -> None:
    """SEP is undefined for the first configurations; they have no score."""
    file = table(lambda i, seed, done: 0.01 * i)
    lines = pq.read_table(file)
    sep = [None if s is not None and s < 0.05 else s for s in lines.column("sep").to_pylist()]
    position = lines.column_names.index("sep")
    lines = lines.set_column(position, lines.schema.field("sep"), pa.array(sep, pa.float64()))
    file.write_bytes(table_bytes(lines))
    (task,) = fedbench.replay(
        "simclr", file, sampler="grid", trials=COUNT, searches=2, objective="sep"
    ).tasks
    assert task.regret == 0
    (task,) = fedbench.replay(
        "simclr", file, sampler="grid", trials=2, searches=2, objective="sep"
    ).tasks
    assert [pick["params"] for pick in task.picks] == [None]


def _with(column: str, value: Any, kind: pa.DataType | None = None) -> Callable[..., pa.Table]:
    """Return a change of a table: another value in a column of its last line."""

    def change(lines: pa.Table) -> pa.Table:
        position = lines.column_names.index(column)
        field = lines.schema.field(column)
        values = [*lines.column(column).to_pylist()[:-1], value]
        field = field if kind is None else field.with_type(kind)
        return lines.set_column(position, field, pa.array(values, field.type))

    return change


def _described(**values: Any) -> Callable[[pa.Table], pa.Table]:
    """Return a change of a table: another description in its metadata."""

    def change(lines: pa.Table) -> pa.Table:
        about = json.loads(lines.schema.metadata[TABLE.encode()])
        return lines.replace_schema_metadata(
            {**lines.schema.metadata, TABLE.encode(): json.dumps({**about, **values})}
        )

    return change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda lines: pa.concat_tables([lines, lines.slice(0, 1)]), "the same settings and seed"),
        (_with("seed", None), "seed is None"),
        (_with("seconds", math.inf), "seconds is inf"),
        (_with("status", "fine"), "status 'fine', not ok or diverged"),
        (_with("round", -1), "round -1"),
        (_with("method", "byol"), "its lines differ in method"),
        (_with("row_id", "other"), "run other: it has no line for round 0"),
        (_with("client.lr", math.nan), "client.lr is nan"),
        (_with("linear_acc", 43.0), r"linear_acc is 43.0, not in \[0, 1\]"),
        (_with("round", 3, pa.int64()), "no column 'round' of type int32"),
        (_described(format=2), "a table of format 2"),
        (_described(settings=["client.lr", "rho.x"]), "the setting 'rho.x'"),
        (_described(settings=3), "cannot be read as a table"),
        (lambda lines: lines.append_column("sep", lines.column("sep")), "two columns of one name"),
        (lambda lines: lines.replace_schema_metadata({TABLE: "{"}), "cannot be read as a table"),
        (
            lambda lines: lines.replace_schema_metadata(
                {**lines.schema.metadata, SETTINGS.encode(): "[1]"}
            ),
            "cannot be read as a table",
        ),
        (lambda lines: lines.replace_schema_metadata({}), "no table to search in"),
    ],
)
def test_a_strangers_table_is_checked(
    table: Make, change: Callable[[pa.Table], pa.Table], text: str
) -> None:
    file = table(lambda i, seed, done: 0.01 * i)
    file.write_bytes(table_bytes(change(pq.read_table(file))))
    with pytest.raises(StoreError, match=text):
        fedbench.replay("simclr", file)


def test_an_accuracy_that_is_not_finite_is_missing(table: Make) -> None:
    file = table(lambda i, seed, done: 0.01 * i)
    file.write_bytes(table_bytes(_with("linear_acc", math.nan)(pq.read_table(file))))
    assert fedbench.replay("simclr", file, trials=2).tasks[0].metric == "knn_acc"


def test_a_table_that_pandas_wrote_again_is_read(table: Make) -> None:
    file = table(lambda i, seed, done: 0.01 * i)
    before = fedbench.replay("simclr", file, searches=2)
    lines = pq.read_table(file)
    kinds = [
        field.with_type(pa.large_string()) if field.type == pa.string() else field
        for field in lines.schema
    ]
    pq.write_table(lines.cast(pa.schema(kinds, metadata=lines.schema.metadata)), file)
    assert fedbench.replay("simclr", file, searches=2) == before


def test_seeds_are_those_of_the_most_configurations(table: Make) -> None:
    """One configuration has both seeds, the others one of them."""
    few = frozenset((i, 1) for i in range(1, COUNT))
    (task,) = fedbench.replay("simclr", table(lambda i, seed, done: 0.01 * i, skip=few)).tasks
    assert (task.configurations, task.seeds, task.left_out) == (COUNT, (0,), 0)
    assert task.trials == COUNT  # fewer than the default
    assert task.noise is None


def test_a_task_with_one_configuration_has_nothing_to_search(table: Make) -> None:
    one = frozenset((i, seed) for i in range(1, COUNT) for seed in SEEDS)
    file = table(lambda i, seed, done: 0.01 * i, alphas=(0.1, 1.0), skip=one)
    with pytest.raises(ConfigError, match=r"data\.alpha=0\.1: it has one configuration"):
        fedbench.replay("simclr", file)


def test_a_setting_that_does_not_vary_within_a_task_is_not_searched(table: Make) -> None:
    """Without the second configuration all have one local epoch."""
    odd = frozenset((i, seed) for i in range(1, COUNT, 2) for seed in SEEDS)
    (task,) = fedbench.replay("simclr", table(lambda i, seed, done: 0.01 * i, skip=odd)).tasks
    assert {*task.picks[0]["params"]} == {"client.lr"}
    file = table(lambda i, seed, done: 0.01 * i, skip=odd - {(1, 0)})
    (task,) = fedbench.replay("simclr", file, sampler="sobol", searches=2).tasks
    assert (task.left_out, {*task.picks[0]["params"]}) == (1, {"client.lr"})


def test_hyperband_searches_its_brackets(table: Make) -> None:
    file = table(lambda i, seed, done: 0.01 * i)
    found = fedbench.replay(
        "simclr", file, fidelity="hyperband", sampler="random", trials=6, searches=4, rungs=2
    )
    fidelity = found.tasks[0].fidelity
    assert fidelity is not None
    assert fidelity["sizes"] == [4, 2]
    # Four trials for 3 rounds, one of them and two others for 12.
    assert found.tasks[0].share == pytest.approx((4 * 3 + 9 + 2 * 12) / (6 * 12))


def test_other_files_are_no_tables(table: Make, tmp_path: Path) -> None:
    file = table(lambda i, seed, done: 0.01 * i)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "torn").write_bytes(data)
    row = next((RESULTS / "rows").glob("*.parquet"))
    for other, text in (
        (tmp_path / "torn", "altered"),
        (row, "no table"),
        (tmp_path, "is a folder; name '.*a table.parquet'"),
        (tmp_path / "none", "there is no table at .*; name another with --table"),
        (tmp_path / ("x" * 300), "cannot read the table"),
    ):
        with pytest.raises(StoreError, match=text):
            fedbench.replay("simclr", other)
