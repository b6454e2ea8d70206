"""The registry of metrics: headings, and the settings that give values their meaning."""

import pytest

from fedbench.bench.config import EvaluationConfig
from fedbench.bench.evaluation import metrics
from fedbench.bench.evaluation.catalogue import load, needed
from fedbench.bench.evaluation.metrics import accuracy, register
from fedbench.bench.results.store.row import METRICS
from fedbench.bench.system.errors import ConfigError, PluginError

SCORED = "objective_on objective_max_examples objective_clients num_clients"
WHEN = {"protocols", "probe_fractions", "objectives", "every", "rounds", "untrained", "online"}


@pytest.mark.parametrize(
    ("metric", "fields"),
    [
        ("knn_acc", "knn_neighbours knn_temperature labels_from num_clients"),
        ("target_knn_acc", "knn_neighbours knn_temperature labels_from num_clients"),
        ("linear_acc", "linear_l2 labels_from num_clients"),
        ("untrained_linear_acc", "linear_l2 labels_from num_clients"),
        ("linear_10pct_train_acc", "linear_l2 labels_from num_clients"),
        ("target_linear_0.1pct_acc", "linear_l2 labels_from num_clients"),
        ("linear_local_acc_std", "linear_l2 labels_from num_clients"),
        ("linear_paper_acc", "labels_from num_clients"),
        ("finetune_1pct_acc", "labels_from num_clients"),
        ("mlp_1pct_local_acc", "mlp_hidden_dim mlp_epochs mlp_lr labels_from num_clients"),
        ("align", f"objective_view {SCORED}"),
        ("unif", f"objective_temperature {SCORED}"),
        ("projection_std_ratio", "num_clients"),
        ("angle_centred_median", "num_clients"),
        ("relative_movement", ""),
        ("final_loss", ""),
    ],
)
def test_fields_that_change_the_meaning_of_a_metric(metric: str, fields: str) -> None:
    assert {*needed(metric).reads} == {*fields.split()}


@pytest.mark.parametrize(
    ("metric", "worse", "better"), [("rankme", 4, 5), ("sigreg", 2, 1), ("alpha_req", 0.5, 1.25)]
)
def test_of_a_score_more_is_better(metric: str, worse: float, better: float) -> None:
    assert needed(metric).score(worse) < needed(metric).score(better)


def test_every_field_of_the_evaluation_is_read_or_says_when() -> None:
    load()
    read = {field for metric in metrics._KNOWN.values() for field in metric.reads}
    for variant in ("transfer_digits_knn_acc", "unseen_linear_acc"):
        read |= {*needed(variant).reads}
    assert read | WHEN == {*EvaluationConfig.model_fields}
    assert not read & WHEN


def test_columns_of_rows_are_known_without_torch_and_foreign_names_to_nobody() -> None:
    assert {"objective", "untrained_knn_acc", "final_loss"} <= {*METRICS}
    with pytest.raises(ConfigError, match="a_metric_of_a_plugin"):
        needed("a_metric_of_a_plugin")
    with pytest.raises(PluginError, match="knn_acc"):
        register(accuracy("knn_acc", "another"))
