"""Printed numbers stand beside rows of exactly their setting, and beside no other."""

import json
from copy import deepcopy
from datetime import timedelta
from typing import Any

import pytest

from fedbench.bench.config import BENCHMARK_VERSION
from fedbench.bench.config.dotted import flatten, unflatten
from fedbench.bench.experiment.fields import Fields, flat_config
from fedbench.bench.experiment.resolve import resolve
from fedbench.bench.results.leaderboard.columns import cells
from fedbench.bench.results.leaderboard.published import paper_cells, published_number
from fedbench.bench.results.store.row import PaperCell, Row
from fedbench.leaderboards import fields
from tests.bench.results.conftest import build_row, rank

SOURCE, CACHED = "orchestra_table5", "published with a 50-epoch probe, ours with cached features"

DATASETS = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100", "TinyImageNet": "tiny-imagenet"}
METRICS = {
    "linear": "linear_paper_acc",
    "linear_cached": "linear_acc",
    "finetune_1pct": "finetune_1pct_acc",
    "finetune_10pct": "finetune_10pct_acc",
    "linear_probe_all_client_labels": "linear_acc",
    "linear_probe_10pct_client_labels": "linear_acc",
    "linear_global_acc": "mlp_acc",
    "10pct_global_acc": "mlp_10pct_acc",
    "1pct_global_acc": "mlp_1pct_acc",
    "linear_local_acc": "mlp_local_acc",
    "10pct_local_acc": "mlp_10pct_local_acc",
    "1pct_local_acc": "mlp_1pct_local_acc",
    "linear_unstated_acc": "mlp_acc",
    "10pct_unstated_acc": "mlp_10pct_acc",
    "1pct_unstated_acc": "mlp_1pct_acc",
}
"""Columns of the tables and what measures the same here."""

MATCHED = [  # the tables that have accuracies; Orchestra's table 4 counts classes
    "orchestra_table1",
    "orchestra_table2",
    "orchestra_table5",
    "orchestra_table6",
    "orchestra_table7",
    *(f"mi_table{n}" for n in range(1, 8)),
    "pfedae_table4_1",
    "ssd_main",
    "ssd_ablation",
]


ORCHESTRAS: list[tuple[dict[str, Any], float | None]] = [  # its variants, compared with their own
    ({}, 0.7158),  # table 5, and 7 as K-anonymity
    ({"representations": "memory"}, 0.7195),
    ({"representations": "private", "epsilon": 0.8, "delta": 1e-3}, 0.6946),
    ({"representations": "private", "epsilon": 10.0, "delta": 1e-3}, 0.6963),
    ({"representations": "private", "epsilon": 1.0, "delta": 1e-5}, None),
    ({"num_global_clusters": 8}, 0.7025),  # table 2
    ({"num_global_clusters": 8, "num_local_clusters": 4}, None),
    ({"degeneracy": False}, 0.5662),  # table 6
    ({"degeneracy": False, "target": False}, None),
]


def preset_of(cell: PaperCell) -> str:
    if cell.paper == "mi":
        return "mi-semi" if cell.metric.startswith("linear_probe_10pct") else "mi"
    tuned = "-finetune" if cell.paper == "orchestra" and cell.metric.startswith("finetune") else ""
    return "pfedae" if cell.paper == "pfedae" else cell.setting.replace("_", "-") + tuned


def row_of(preset: str, spec: str = "simclr", **given: Any) -> Row:
    """Return a row of a preset with dotted fields changed; `__` stands for the dot."""
    values = {"data.name": "cifar10"} | {k.replace("__", "."): v for k, v in given.items()}
    return build_row(resolve(spec, preset=preset, set=values, environ={}).config, preset=preset)


def changed(row: Row, name: str, value: Any) -> Row:
    """Return the row with one field of its configuration replaced, whatever its type."""
    settings = flatten(row.settings)
    assert name in settings
    return row.model_copy(update={"settings": unflatten(settings | {name: value})})


def another(value: Any) -> Any:
    """Return a value of the same type that no table has."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value * 2 + 0.37
    return {"str": "another", "NoneType": 7, "list": []}[type(value).__name__]


def setting(cell: PaperCell) -> Row:
    """Return a row of exactly the setting of a printed number."""
    assert cell.spec is not None
    assert cell.fixed_json is not None
    fixed = {
        name: value[0] if isinstance(value, list) else value
        for name, value in json.loads(cell.fixed_json).items()
    }
    given = {"data.name": DATASETS[cell.dataset], **fixed}
    config = resolve(cell.spec, preset=preset_of(cell), set=given, environ={}).config
    return build_row(config, preset=preset_of(cell))


def lines(source: str) -> list[PaperCell]:
    """Return one number of every entry of a table, and of every preset that it is of."""
    cells = [cell for cell in paper_cells() if cell.source == source and cell.spec is not None]
    keyed = {(c.dataset, preset_of(c), c.setting, c.method): c for c in reversed(cells)}
    return list(keyed.values())


def test_a_cell_with_its_spread() -> None:
    # A setting is known by its fields, whatever preset a run started from.
    row = row_of("cross-device").model_copy(update={"preset": "custom"})
    number = published_number(row, "linear_paper_acc")
    # Table 5, f-SimCLR, CIFAR-10, cross-device: 58.36 ± 0.19 over 3 seeds.
    assert number is not None
    assert (number.value, number.spread, number.n_seeds) == (58.36 / 100, 0.19 / 100, 3)
    assert (number.spread_kind, number.note) == ("standard deviation", "")
    assert (number.source, number.setting) == (SOURCE, "cross_device")
    cached = published_number(row, "linear_acc")
    assert cached is not None
    assert (cached.value, cached.note) == (58.36 / 100, CACHED)
    assert published_number(row, "knn_acc") is None


def test_the_number_stands_beside_a_run_that_measured_it() -> None:
    """Of two runs of a training only the later measured the metric, with a probe of its own."""
    papers = row_of("pfedae", "pfedae", evaluation__protocols=["knn"])
    probe: dict[str, Any] = {"evaluation__protocols": ["mlp"], "evaluation__mlp_epochs": 1}
    other = row_of("pfedae", "pfedae", **probe)
    value = {"status": "ok", "further": {"mlp_acc": 0.7}}
    later = {"finished_at": papers.finished_at + timedelta(hours=1)}
    (entry,) = rank([papers, other.model_copy(update=value | later)], metric="mlp_acc").entries
    assert (entry.mean, entry.published) == (0.7, None)
    assert published_number(papers, "mlp_acc") is not None  # which must not be shown there


def test_a_row_without_a_fixed_field_has_no_number() -> None:
    row = row_of("cross-device")
    config = deepcopy(row.settings)
    del config["model"]["init"]  # rows of version 3 do not have it; they began with other weights
    old = row.model_copy(update={"settings": config})
    assert published_number(old, "linear_paper_acc") is None
    now = old.model_copy(update={"benchmark_version": BENCHMARK_VERSION})  # with its default
    assert published_number(now, "linear_paper_acc") is not None


@pytest.mark.parametrize("source", MATCHED)
def test_one_field_at_a_time(source: str) -> None:
    assert lines(source)
    for cell in lines(source):
        row, metric = setting(cell), METRICS[cell.metric]
        number = published_number(row, metric)
        assert number is not None, cell
        assert number.value == cell.value
        assert cell.fixed_json is not None
        assert cell.open_json is not None
        fixed, left = {*json.loads(cell.fixed_json)}, {*json.loads(cell.open_json)}
        assert not fixed & left
        # A new field fails here until leaderboards/fields.yaml says what the papers fix of it.
        assert fixed | left | {"data.name"} == {*Fields.of(row.method).infos}
        values = flat_config(resolve(row.method, preset=row.preset, environ={}).config)
        assert {*values} - {"data.name"} == fixed | left
        config = {**values, **json.loads(cell.fixed_json)}
        for name in fixed | left:
            value = config[name]
            value = value[0] if name in fixed and isinstance(value, list) else value
            other = published_number(changed(row, name, another(value)), metric)
            shown = other is not None and other.value == cell.value
            assert shown == (name in left), (cell.method, name)
        elsewhere = row.model_copy(update={"dataset": "svhn"})
        assert published_number(elsewhere, metric) is None


@pytest.mark.parametrize(
    ("preset", "spec", "given", "metric", "value"),
    [
        ("mi", "simclr", {}, "linear_acc", 0.794),  # M table 1
        ("mi", "simclr", {"data__name": "tiny-imagenet"}, "linear_acc", 0.333),  # table 4
        ("mi-semi", "semifed+uv", {}, "linear_acc", 0.767),  # table 5
        ("pfedae", "pfedae", {}, "mlp_acc", 0.8238),
        ("pfedae", "pfedae", {}, "mlp_local_acc", 0.8316),
        ("pfedae", "pfedae", {"data__partition": "dirichlet"}, "mlp_acc", 0.8238),
        ("cross-device-finetune", "orchestra", {}, "finetune_1pct_acc", 0.6033),
        ("cross-device-finetune", "orchestra", {}, "linear_paper_acc", None),
        ("cross-device", "orchestra", {}, "finetune_1pct_acc", None),
        ("after-silo", "ssd", {}, "linear_acc", 0.8132),
        ("after-device", "ssd", {"data__name": "cifar100"}, "linear_acc", 0.4521),
        ("after-silo", "ssd", {"method__separation": 0.0}, "linear_acc", 0.8074),
        *(
            ("cross-device", "orchestra", {f"method__{k}": v for k, v in sent.items()},
             "linear_paper_acc", value)
            for sent, value in ORCHESTRAS
        ),
    ],
)  # fmt: skip
def test_printed_values(
    preset: str, spec: str, given: dict[str, Any], metric: str, value: float | None
) -> None:
    number = published_number(row_of(preset, spec, **given), metric)
    assert (None if number is None else number.value) == pytest.approx(value)


def test_the_line_has_the_difference() -> None:
    rows = [row_of("cross-device").model_copy(update={"linear_acc": 0.6})]
    board = rank(rows)
    (entry,), (record,) = board.entries, board.to_dict()["rows"]
    assert entry.difference == pytest.approx(0.6 - 0.5836)
    assert cells(entry)["published"] == "58.4 (+1.6)"
    assert (record["published"]["source"], record["published"]["note"]) == (SOURCE, CACHED)
    assert rank(rows, published=False).entries[0].published is None


def test_numbers_are_the_printed_ones() -> None:
    for cell in paper_cells():
        scale = 100 if cell.unit == "fraction" else 1
        assert cell.value == float(cell.printed) / scale
        assert cell.unit != "fraction" or 0 <= cell.value <= 1
        assert (cell.spread is None) == (cell.spread_kind is None)


def test_tables_are_up_to_date() -> None:
    """`python leaderboards/fields.py` writes them again."""
    assert {path.stem for path, _ in fields.tables()} == {cell.paper for cell in paper_cells()}
    for path, content in fields.tables():
        assert path.read_bytes() == content, path.name
