import random
from typing import Any

import pytest

from fedbench.bench.config.presets import read_preset
from fedbench.bench.results.leaderboard.columns import cells
from fedbench.bench.results.leaderboard.data_names import on_dataset
from fedbench.bench.results.leaderboard.formats import tables
from fedbench.bench.results.store.frame import frame_of
from fedbench.bench.results.store.row import Row
from fedbench.bench.system.errors import UnknownNameError
from tests.bench.results.conftest import rank, run_of, seeds_of

ACCURACIES = {"simclr": [0.30, 0.32, 0.34], "simclr+uv": [0.40, 0.40, 0.43], "byol": [0.2, 0.2]}


@pytest.fixture
def rows() -> list[Row]:
    """Rows of three methods at two alphas, with simple costs and untrained values."""
    return [
        run_of(
            spec,
            seed,
            data__alpha=alpha,
            linear_acc=accuracy + (0.1 if alpha == 1.0 else 0.0),
            untrained_linear_acc=0.25 + seed / 100,
            objective=0.8,
            bytes_up=1_500_000,
            bytes_down=500_000,
            wall_seconds=30.0 * (1 + seed),
            grid="heterogeneity" if alpha == 0.1 else None,
        )
        for alpha in (1.0, 0.1)
        for spec, accuracies in ACCURACIES.items()
        for seed, accuracy in enumerate(accuracies)
    ]


def demo(**more: Any) -> Row:
    """Row of a run with the values of preset demo, but for some."""
    settings = read_preset("demo").settings("simclr", {})
    values = {name.replace(".", "__"): value for name, value in settings.items() if "." in name}
    return run_of(**{"preset": "demo", "linear_acc": 0.5, **values, **more})


def only(lines: tuple[Any, ...], method: str) -> Any:
    (entry,) = [entry for entry in lines if entry.method == method]
    return entry


def test_ranks_within_each_alpha(rows: list[Row]) -> None:
    board = rank(rows)
    assert [group.title for group in board.groups] == [
        "digits · preset mine · alpha 0.1",
        "digits · preset mine · alpha 1",
    ]
    for group in board.groups:
        ranked = [(entry.rank, entry.method) for entry in group.entries]
        assert ranked == [(1, "simclr+uv"), (2, "simclr"), (3, "byol")]


def test_a_line_sums_up_its_seeds(rows: list[Row]) -> None:
    entry = only(rank(rows).groups[0].entries, "simclr")
    assert entry.mean == pytest.approx(0.32)
    assert entry.std == pytest.approx(0.02)
    # t(0.975, 2) = 4.302653; half = 4.302653 * 0.02 / sqrt(3)
    assert entry.ci95_high == pytest.approx(0.32 + 0.0496828, abs=1e-6)
    assert (entry.n_seeds, entry.seeds) == (3, (0, 1, 2))
    assert entry.untrained_mean == pytest.approx(0.26)
    assert entry.gain == pytest.approx(0.06)
    assert entry.mb_up_down == pytest.approx(2.0)
    assert entry.mb_up == pytest.approx(1.5)
    assert entry.mb_down == pytest.approx(0.5)
    assert entry.per_gb == pytest.approx(0.32 / 0.002)
    assert entry.minutes == pytest.approx(1.0)  # (30 + 60 + 90) / 3 s
    assert entry.objective_mean == pytest.approx(0.8)
    assert (entry.published, entry.difference) == (None, None)
    cuda = [row.model_copy(update={"device": "cuda:0"} if row.seed == 0 else {}) for row in rows]
    assert only(rank(cuda).groups[0].entries, "simclr").minutes == pytest.approx(1.25)
    taken = [r.model_copy(update={"measured_from": "a" * 20, "train_seconds": 60.0}) for r in rows]
    assert only(rank(taken).groups[0].entries, "simclr").minutes == pytest.approx(2.0)
    assert only(rank(rows).groups[0].entries, "byol").ci95_low is None


def test_the_order_of_rows_does_not_matter(rows: list[Row]) -> None:
    shuffled = list(rows)
    random.Random(0).shuffle(shuffled)
    assert rank(shuffled).to_dict() == rank(rows).to_dict()


def test_a_data_set_has_the_rows_on_its_images_under_any_name(rows: list[Row]) -> None:
    def on(dataset: str, *more: Row) -> int:
        return len(on_dataset(frame_of([*rows, *more]), dataset))

    known = run_of(data__name="hub:/some/folder", dataset="cifar10", dataset_revision="c" * 16)
    for asked in ("CIFAR-10", "cifar10", "hub:/some/folder", "hub:folder"):
        assert on(asked, known) == 1
    # A folder of that name says nothing about its content.
    label = run_of(data__name="hub:/far/cifar10", dataset="hub:cifar10", dataset_revision="d" * 16)
    assert (on("cifar10", label), on("hub:cifar10", label), on("svhn")) == (0, 1, 0)
    photos = run_of(
        data__name="folder:/far/photos", dataset="folder:photos", dataset_revision="e" * 16
    )
    assert [on(name, photos) for name in ("photos", "./photos", "photo")] == [1, 1, 0]
    assert rank([]).to_dict() == {"metric": "linear_acc", "rows": []}


def test_only_equal_settings_are_ranked_together() -> None:
    others: list[dict[str, Any]] = [
        {},
        {"data__num_clients": 9},
        {"data__legacy": True},
        {"evaluation__linear_l2": 1e-3},
        {"dataset_revision": "fedcba9876543210"},
    ]
    board = rank(run_of(linear_acc=0.5, **other) for other in others)
    assert len(board.groups) == 5
    assert all(entry.rank == 1 for entry in board.entries)
    titles = " / ".join(group.title for group in board.groups)
    assert "9 clients" in titles
    assert "legacy true" in titles
    assert "revision fedcba98" in titles
    assert "resnet" not in titles


def test_a_title_names_what_differs_from_the_preset() -> None:
    """Of a single class, too; the method's preset counts, with its rules and what it extends."""
    for more, words in ({}, ""), ({"federation__num_rounds": 1}, " · 1 round"):
        (group,) = rank([demo(**more)]).groups
        assert group.title == f"digits · preset demo · alpha 0.1{words}"


def test_values_unlike_the_preset_are_noted_and_keep_lines_apart() -> None:
    """Nothing is said against the preset's own, tuned, or scaled values."""
    own = {"client__lr": 0.5, "method__temperature": 0.7}
    for row, said in (
        (demo(), ()),
        (demo(**own), ("client.lr=0.5", "method.temperature=0.7")),
        (demo(client__lr=0.5, scaled={"client.lr": 0.03}), ()),
    ):
        (line,) = rank([row]).entries
        assert (line.label, line.unlike_preset) == ("simclr", said)
        assert any("preset" in note for note in line.notes) == bool(said)
    (tuned,) = rank([demo(**own, tuned=True)]).entries
    assert not any("preset" in note for note in tuned.notes)
    board = rank([demo(), demo(data__alpha=1.0, client__lr=0.5)])
    assert [line.label for line in board.entries] == ["simclr (lr=0.03)", "simclr (lr=0.5)"]
    assert not any("preset" in note for line in board.entries for note in line.notes)
    assert board.across == ()  # no line has both cells


def test_titles_name_what_one_class_alone_has() -> None:
    """A setting that this version does not know sets classes apart; its absence has no name."""
    row = run_of(linear_acc=0.5)
    settings = {**row.settings, "data": {**row.settings["data"], "of_old": 7}}
    board = rank([row, row.model_copy(update={"settings": settings})])
    assert {group.title.partition("alpha 0.1")[2] for group in board.groups} == {"", " · of old 7"}


def test_lines_of_too_few_seeds_are_left_out_but_not_for_divergence() -> None:
    rows = [
        *seeds_of({"three": [0.4] * 3, "two": [0.6] * 2, "mixed": [0.5] * 2}),
        run_of("mixed", 2, status="diverged"),
        *(run_of("broken", seed, status="error", error="died") for seed in range(3)),
    ]
    lines = rank(rows, min_seeds=3).entries
    assert [(entry.rank, entry.method) for entry in lines] == [(1, "three"), (2, "mixed")]
    assert rank(rows, min_seeds=4).groups == ()


def test_labels_leave_out_what_most_lines_of_a_method_share() -> None:
    """Of five configurations four have lr 0.1, four weight decay 0; at momentum two have each."""
    base = {"client__lr": 0.1, "client__weight_decay": 0.0, "client__momentum": 0.0}
    changes: list[dict[str, Any]] = [
        {"client__momentum": 0.5},
        {"client__momentum": 0.9},
        {"client__lr": 0.01},
        {},
        {"client__weight_decay": 0.1, "client__momentum": 0.9},
    ]
    board = rank(
        run_of(**{**base, **change}, linear_acc=0.5 - i / 10) for i, change in enumerate(changes)
    )
    (group,) = board.groups
    assert [entry.label for entry in group.entries] == [
        "simclr (momentum=0.5)",
        "simclr (momentum=0.9)",
        "simclr (lr=0.01, momentum=0)",
        "simclr (momentum=0)",
        "simclr (momentum=0.9, weight_decay=0.1)",
    ]
    assert {entry.left_out for entry in group.entries} == {("lr=0.1", "weight_decay=0")}
    footer = "simclr has lr=0.1, weight_decay=0 unless stated otherwise"
    assert [table.footer for table in tables(board)] == [footer]
    assert group.entries[0].variant == "client.lr=0.1, client.momentum=0.5, client.weight_decay=0"


def test_values_tuned_for_each_class_are_one_name() -> None:
    settings = ((0.1, 0.3), (1.0, 0.03))
    board = rank(run_of(data__alpha=a, client__lr=lr, linear_acc=0.5) for a, lr in settings)
    assert [(entry.label, entry.left_out) for entry in board.entries] == [("simclr", ())] * 2
    assert [entry.label for entry in board.across[0].entries] == ["simclr"]


def test_runs_that_were_not_compiled_as_asked_have_a_board_of_their_own() -> None:
    off = ("", "", "compiled passes: no compiler", "fused SGD: weights differ")
    rows = [
        run_of(seed=s, client__compile=True, linear_acc=0.5, environment={"switched_off": what})
        for s, what in enumerate(off)
    ]
    board = rank([*rows, run_of(linear_acc=0.5)])
    assert sorted(len(entry.seeds) for entry in board.entries) == [1, 1, 3]


def test_diverged_lines_come_last_and_failed_runs_are_counted() -> None:
    made = [
        run_of("shaky", 0, linear_acc=0.9),
        run_of("shaky", 1, status="diverged"),
        run_of("dead", status="diverged"),
        run_of("good", 0, linear_acc=0.3),
        run_of("good", 1, status="error", error="worker died"),
        run_of("even", linear_acc=0.3),
        run_of("label-tuned", linear_acc=0.99, selection="oracle"),
        run_of("not-measured", knn_acc=0.5),
    ]
    lines = rank(made).entries
    assert [(entry.rank, entry.method) for entry in lines] == [
        (1, "even"),
        (1, "good"),
        (3, "shaky"),
        (None, "label-tuned"),
        (None, "not-measured"),
        (None, "dead"),
    ]
    assert only(lines, "good").num_failed == 1
    assert only(lines, "dead").num_diverged == 1
    assert only(lines, "dead").mean is None


def test_a_board_of_runs_none_of_which_has_finished() -> None:
    rows = [run_of("dead", status="diverged"), run_of("lost", status="error", error="died")]
    found = [(entry.method, entry.rank, entry.mean, entry.minutes) for entry in rank(rows).entries]
    assert found == [("lost", None, None, None), ("dead", None, None, None)]


def test_metrics_by_name() -> None:
    made = [
        run_of("a", knn_acc=0.2, final_loss=1.0, further={"mlp_acc": 0.7}),
        run_of("b", knn_acc=0.3, final_loss=2.0),
    ]
    assert rank(made, metric="knn").entries[0].method == "b"
    assert rank(made, metric="final_loss").entries[0].method == "a"
    assert rank(made, metric="mlp_acc").entries[0].mean == 0.7
    with pytest.raises(UnknownNameError, match="did you mean 'knn_acc'"):
        rank(made, metric="knn_accc")
    with pytest.raises(UnknownNameError, match="did you mean 'linear'"):
        rank(made, metric="linaer")


def test_a_line_promises_what_its_weakest_run_does() -> None:
    of = "an image, in centroids only"
    given = [("private", 5.0, 0), ("private", 6.5, 0), ("memory", None, 12), ("memory", None, 9)]
    rows = [
        run_of(
            "orchestra",
            seed,
            method__representations=what,
            linear_acc=0.3,
            epsilon=epsilon,
            delta=None if epsilon is None else 1e-3,
            epsilon_of=None if epsilon is None else of,
            revealing_messages=revealing,
        )
        for seed, (what, epsilon, revealing) in enumerate(given)
    ]
    lines = {entry.variant.partition("=")[2]: entry for entry in rank(rows).entries}
    assert (lines["private"].epsilon, lines["private"].epsilon_of) == (6.5, of)
    assert (lines["memory"].epsilon, lines["memory"].epsilon_of) == (None, None)
    assert [lines[name].revealing_messages for name in ("private", "memory")] == [0, 12]
    notes = {name: cells(entry)["notes"] for name, entry in lines.items()}
    assert notes["private"] == f"ε 6.5 for {of}, descriptive"
    assert notes["memory"] == "shows single images, descriptive"
    half = [rows[0], rows[1].model_copy(update={"epsilon": None, "epsilon_of": None})]
    assert rank(half).entries[0].epsilon is None
