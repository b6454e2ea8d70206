"""Runs measured in several ways are one entry, and each metric keeps one meaning."""

from copy import deepcopy
from datetime import timedelta
from typing import Any

import pytest

from fedbench.bench.config import BENCHMARK_VERSION, RunConfig
from fedbench.bench.method.ids import config_id
from fedbench.bench.results.leaderboard.columns import cells
from fedbench.bench.results.leaderboard.curves import Curve, Evaluated
from fedbench.bench.results.leaderboard.formats import UNEVEN_CURVES, group_table, to_csv
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.settings import evaluation_of
from tests.bench.results.conftest import rank, run_of


def later(row: Row, minutes: int) -> Row:
    return row.model_copy(update={"finished_at": row.finished_at + timedelta(minutes=minutes)})


def only_line(rows: list[Row], **options: Any) -> Any:
    (entry,) = rank(rows, **options).entries
    return entry


def measured_three_ways() -> list[Row]:
    """Three seeds, of which the first two were measured with more protocols, the last two more."""
    values = [0.30, 0.32, 0.34]
    fields: list[dict[str, Any]] = [{"linear_acc": v, "knn_acc": v} for v in values]
    rows = [run_of(seed=s, **of) for s, of in enumerate(fields)]
    for s, of in enumerate(fields[:2]):
        metrics = {"mlp_acc": values[s] + 0.1}
        protocols = ["knn", "linear", "mlp"]
        row = run_of(seed=s, evaluation__protocols=protocols, further=metrics, **of)
        rows.append(later(row, 5))
    for s in (1, 2):
        row = run_of(seed=s, evaluation__every=1, evaluation__untrained=False, **fields[s])
        rows.append(later(row, 9))
    return rows


def test_other_protocols_make_no_other_method() -> None:
    rows = measured_three_ways()
    entry = only_line(rows)
    assert (entry.method, entry.variant, entry.n_seeds, entry.seeds) == ("simclr", "", 3, (0, 1, 2))
    assert entry.mean == pytest.approx(0.32)
    assert entry.knn_acc_mean == pytest.approx(0.32)
    assert entry.run_ids == tuple(row.row_id for row in rows[:3])
    now = run_of(linear_acc=0.3, benchmark_version=BENCHMARK_VERSION)
    assert only_line([now]).config_id == now.config_id == config_id(RunConfig(), "revision")
    assert (entry.num_replicas, entry.replica_spread) == (0, None)
    assert "replica" not in cells(entry)["notes"]
    mlp = only_line(rows, metric="mlp")
    assert mlp.values == pytest.approx((0.4, 0.42))
    assert mlp.seeds == (0, 1)
    assert mlp.run_ids == tuple(row.row_id for row in rows[3:5])


def test_a_setting_of_one_metric_divides_that_metric_alone() -> None:
    rows = [
        run_of("simclr", linear_acc=0.5, knn_acc=0.4),
        run_of("byol", linear_acc=0.6, knn_acc=0.3),
        run_of("simsiam", evaluation__knn_neighbours=5, linear_acc=0.7, knn_acc=0.9),
    ]
    (linear,) = rank(rows).groups
    assert [entry.method for entry in linear.entries] == ["simsiam", "byol", "simclr"]
    assert [entry.knn_acc_mean for entry in linear.entries] == [None, 0.3, 0.4]
    knn = rank(rows, metric="knn").groups
    assert [[entry.method for entry in group.entries] for group in knn] == [
        ["simsiam"],
        ["simclr", "byol"],
    ]
    assert "knn neighbours 5" in knn[0].title


def test_the_number_of_evaluated_clients_counts_where_encoders_differ() -> None:
    """`objective_std` is over clients' encoders; of 8 clients, 10 and 20 at most are all."""

    def run(spec: str, num: int, **further: float) -> Row:
        fields = {"linear_acc": 0.5, "objective": 0.1, "further": further}
        return run_of(spec, num, evaluation__num_clients=num, **fields)

    few = run("pfedae", 2, objective_std=0.1)
    many = [run("pfedae", n, objective_std=0.1) for n in (10, 20)]
    shared = [run("simclr", n) for n in (2, 10)]
    groups = rank([few, *many, *shared]).groups
    assert [[(entry.method, entry.n_seeds) for entry in group.entries] for group in groups] == [
        [("pfedae", 1)],
        [("pfedae", 2), ("simclr", 2)],
    ]
    (alone,) = rank(shared).groups
    assert "evaluation.num_clients" not in alone.keys
    board = rank([few, *many, *shared])
    assert {entry.class_id for entry in board.entries} == {group.class_id for group in board.groups}


def test_replicas_are_stated_and_the_first_counts() -> None:
    """Of one seed 95.2 and 96.1, of another 90.0 and 90.4: the spread is 0.9."""
    first = [run_of(seed=s, linear_acc=v) for s, v in enumerate([0.952, 0.900])]
    second = [
        later(row, 1).model_copy(update={"linear_acc": v})
        for row, v in zip(first, [0.961, 0.904], strict=True)
    ]
    for rows in ([*first, *second], [*second, *first]):
        entry = only_line(rows)
        assert entry.values == (0.952, 0.900)
        assert entry.num_replicas == 2
        assert entry.replica_spread == pytest.approx(0.009)
    assert "2 replicas, spread 0.9" in cells(entry)["notes"]
    record = rank([*first, *second]).to_dict()["rows"][0]
    assert (record["num_replicas"], record["n_seeds"]) == (2, 2)
    assert "num_replicas" in to_csv(rank(first)).splitlines()[0]


def curve(rounds: list[int], accuracies: list[float]) -> Curve:
    pairs = zip(rounds, accuracies, strict=True)
    return tuple(Evaluated(done, done, {"knn_acc": accuracy}) for done, accuracy in pairs)


def test_areas_are_over_the_same_rounds() -> None:
    """Of 0, 4 and the end all but one have an accuracy; 0.5 at 4 of 8 gives (0.2 + 0.4) / 2."""
    rows = {spec: run_of(spec, linear_acc=0.5) for spec in ("a", "b", "later", "c")}
    curves = {
        rows["a"].row_id: curve([0, 2, 4, 8], [0.0, 0.9, 0.4, 0.4]),
        rows["b"].row_id: curve([0, 4, 8], [0.0, 0.4, 0.4]),
        rows["later"].row_id: curve([0, 4, 9], [0.0, 0.4, 0.4]),  # with a preparatory round
        rows["c"].row_id: curve([0, 8], [0.0, 0.8]),
    }
    board = rank(rows.values(), curves=curves, reach=0.3)
    lines = {entry.method: entry for entry in board.entries}
    assert lines["a"].area == lines["b"].area == pytest.approx(0.5 * 0.2 + 0.5 * 0.4)
    assert lines["later"].area == pytest.approx((4 * 0.2 + 5 * 0.4) / 9)
    assert (lines["c"].area, lines["c"].rounds_to_reach, lines["c"].num_reached) == (None,) * 3
    assert lines["a"].rounds_to_reach == 4  # round 2 is one that the others lack
    assert group_table(board.groups[0]).footer == UNEVEN_CURVES
    only_ends = {rows["c"].row_id: curves[rows["c"].row_id]}
    alone = rank([rows["c"]], curves=only_ends)
    assert alone.entries[0].area == pytest.approx(0.4)
    assert group_table(alone.groups[0]).footer == ""


def test_values_that_a_rule_scales_split_no_entry() -> None:
    """Two variants of a method at two shares; at the half, learning rates are times sqrt(1/2)."""
    rows = []
    for share, factor in ((1.0, 1.0), (0.5, 0.5**0.5)):
        for lr, accuracy in ((0.1, 0.5), (0.2, 0.6)):
            settings: dict[str, Any] = {
                "client__lr": lr * factor,
                "federation__participation": share,
            }
            scaled = {} if factor == 1 else {"client.lr": lr}
            rows.append(run_of(**settings, linear_acc=accuracy - share / 10, scaled=scaled))
    (comparison,) = rank(rows).across
    assert comparison.axis == "participation"
    low, high = sorted(entry.means for entry in comparison.entries)
    assert low == pytest.approx((0.45, 0.4))
    assert high == pytest.approx((0.55, 0.5))
    plain = run_of(client__lr=0.1, federation__participation=0.5, linear_acc=0.7)
    labels = [e.label for e in rank([*rows, plain]).groups[0].entries]
    assert len(labels) == len({*labels}) == 3  # no rule has scaled the rate of the third
    unrecorded = [row.model_copy(update={"scaled": {}}) for row in rows]
    split = rank(unrecorded)
    assert len({entry.label for entry in split.entries}) == 4
    assert split.across == ()  # no entry is in two cells


def test_settings_of_a_metric_that_was_not_measured_set_nothing_apart() -> None:
    """One entry, measured by an MLP of 2 epochs; its other run only names the default 100."""
    short: dict[str, Any] = {"evaluation__protocols": ["mlp"], "evaluation__mlp_epochs": 2}
    rows = [
        run_of(linear_acc=0.5),
        run_of(**short, linear_acc=0.5, further={"mlp_acc": 0.6}),
        run_of("byol", linear_acc=0.4),
    ]
    (group,) = rank(rows, metric="mlp").groups
    assert [(entry.method, entry.mean, entry.rank) for entry in group.entries] == [
        ("simclr", 0.6, 1),
        ("byol", None, None),
    ]


@pytest.mark.parametrize("field", ["objective_noise", "objective_clients"])
def test_rows_from_before_there_was_a_field(field: str) -> None:
    """They rank with rows in which it is null, by a metric that it would change."""
    new, noisy = (
        run_of("simclr", seed, further={"global_sep": 0.5}, **{f"evaluation__{field}": z})
        for seed, z in enumerate((None, 2))
    )
    old = run_of("byol", 2, further={"global_sep": 0.4})
    config = deepcopy(old.settings)
    del config["evaluation"][field]
    old = old.model_copy(update={"settings": config})
    assert evaluation_of(old) == evaluation_of(new)
    groups = rank([new, noisy, old], metric="global_sep").groups
    assert sorted(len(group.entries) for group in groups) == [1, 2]


def test_of_several_runs_of_a_seed_one_counts() -> None:
    """The first that has the metric; a seed whose first run diverged stays diverged."""
    first = run_of(knn_acc=0.2, wall_seconds=600.0)
    rows = [first, later(first.model_copy(update={"linear_acc": 0.5, "wall_seconds": 60.0}), 1)]
    rows[1] = rows[1].model_copy(update={"knn_acc": 0.8})
    rows.append(run_of(seed=1, linear_acc=0.7, knn_acc=0.4, wall_seconds=60.0))
    entry = only_line(rows)
    assert entry.values == (0.5, 0.7)
    assert entry.minutes == 1.0  # of the runs that measured the metric
    assert entry.knn_acc_mean == pytest.approx(0.3)  # 0.2 and 0.4, not 0.8
    gone = run_of(seed=2, status="diverged")
    back = later(run_of(seed=2, linear_acc=0.9), 1)
    entry = only_line([*rows, gone, back])
    assert (entry.values, entry.num_diverged, entry.n_seeds) == ((0.5, 0.7), 1, 2)
