"""A foreign objective and a foreign probe have heading, direction and class by declaring them."""

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from pydantic import ValidationError

import fedbench
from fedbench.bench.config import EvaluationConfig, RunConfig, schema
from fedbench.bench.evaluation import catalogue, metrics, protocols
from fedbench.bench.evaluation.catalogue import needed
from fedbench.bench.evaluation.metrics import Metric, heading, main_metrics
from fedbench.bench.evaluation.objectives import scores
from fedbench.bench.evaluation.objectives.base import Objective, Pairs, Sums, score_of_sums
from fedbench.bench.evaluation.objectives.names import SHIPPED
from fedbench.bench.evaluation.objectives.scores import RankMe
from fedbench.bench.evaluation.protocols import Probe
from fedbench.bench.results.leaderboard.formats import tables
from fedbench.bench.results.report.content import content
from fedbench.bench.results.store.store import Store
from fedbench.bench.system import plugins
from fedbench.bench.system.errors import PluginWarning
from fedbench.bench.testing import tiny_config, tiny_setup
from tests.bench.results.conftest import build_row, rank
from tests.specs import measured


class Point(EntryPoint):
    """An entry point of a package that need not be installed."""

    targets: ClassVar[dict[str, Any]] = {}

    def load(self) -> Any:
        return self.targets[self.name]


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Install an objective or a probe for the test."""

    def install(group: str, name: str, target: Any) -> None:
        monkeypatch.setitem(Point.targets, name, target)
        points = EntryPoints([Point(name, "elsewhere:target", group)])
        for module in (plugins, schema, catalogue):
            monkeypatch.setattr(module, "entry_points", points.select)

    monkeypatch.setattr(metrics, "_KNOWN", dict(metrics._KNOWN))
    for cached in (scores.objectives, protocols.probes):
        cached.cache_clear()
    yield install
    for cached in (scores.objectives, protocols.probes):
        cached.cache_clear()


class Disagreement(Objective):
    """Mean cosine distance of an image and its view."""

    name, formula, source, statistics = "disagreement", "1 - mean s", "a test", (Pairs(),)
    metric = score_of_sums("disagreement", "objective_view", better="lower")

    def combine(self, sums: Sums) -> float:
        return float(1 - sums["pairs"][1] / sums["pairs"][0])


def test_a_foreign_objective_has_heading_direction_and_class(foreign: Callable[..., None]) -> None:
    foreign("fedbench.objectives", "disagreement", Disagreement)
    config = tiny_config("simclr", evaluation__objectives=["disagreement"])
    assert 0 < measured(tiny_setup(config))["disagreement"] < 2
    values = {("simclr", "simclr-o"): 0.2, ("byol", "simclr-o"): 0.1, ("ssd", "byol"): 0.3}
    rows = [
        build_row(
            RunConfig(spec=spec, evaluation=EvaluationConfig(objective_view=view)),
            further={"disagreement": value},
        )
        for (spec, view), value in values.items()
    ]
    board = rank(rows, metric="disagreement")
    found = [[entry.method for entry in group.entries] for group in board.groups]
    assert sorted(found) == [["byol", "simclr"], ["ssd"]]


def test_a_foreign_probe_has_heading_direction_and_class(foreign: Callable[..., None]) -> None:
    metric = Metric(
        "centroid_acc", "centroid %", "fraction", reads=metrics.PROBES, needs_labels=True
    )

    def measure(encoded: Any, _: Any) -> dict[str, float]:
        labels = torch.from_numpy(np.array(encoded.train_labels))
        means = torch.stack([encoded.train[labels == c].mean(dim=0) for c in labels.unique()])
        nearest = labels.unique()[torch.cdist(encoded.test, means).argmin(dim=1)]
        truth = torch.from_numpy(np.array(encoded.setup.dataset.test_labels))
        return {metric.name: (nearest == truth).double().mean().item()}

    with pytest.raises(ValidationError, match="centroid"):
        EvaluationConfig.model_validate({"protocols": ["centroid"]})
    foreign("fedbench.probes", "centroid", Probe(("centroid",), measure, (metric,)))
    config = tiny_config("simclr", evaluation__protocols=["knn", "centroid"])
    found = measured(tiny_setup(config), config.evaluation.protocols)
    assert found["centroid_acc"] > 0
    assert main_metrics(found) == ["objective", "knn_acc", "centroid_acc"]
    assert heading("centroid_acc") == "centroid %"
    assert needed("untrained_centroid_acc").reads == metrics.PROBES


@pytest.mark.parametrize("shipped", [True, False])
def test_a_probe_declares_a_score_once(
    foreign: Callable[..., None], store: Store, monkeypatch: pytest.MonkeyPatch, shipped: bool
) -> None:
    """Board, JSON, report and `verify` know it, of a plugin and of fedbench alike."""
    metric = Metric("nmi", "NMI", better="lower", reads=metrics.PROBES, needs_labels=True)
    probe = Probe(("nmi",), lambda encoded, _: {"nmi": 0.5}, (metric,))
    if shipped:
        monkeypatch.setattr(protocols, "SHIPPED", (*protocols.SHIPPED, probe))
    else:
        foreign("fedbench.probes", "nmi", probe)
    for spec, value in (("simclr", 0.25), ("byol", 0.5)):
        store.write_row(build_row(RunConfig(spec=spec), further={"nmi": value}))
    ranking = fedbench.leaderboard(store, metric="nmi")
    assert [row["method"] for row in ranking.as_dict()["rows"]] == ["simclr", "byol"]
    assert [table.header[2] for table in tables(ranking.board)] == ["NMI"]
    shown = content(store, store.frame(), data_dir=None, title="")
    assert {"name": "nmi", "title": "NMI", "percent": False} in shown["metrics"]
    assert fedbench.verify(store).ok


@pytest.mark.parametrize(
    ("group", "target", "named"),
    [
        ("objectives", dict, "Objective"),
        ("objectives", RankMe, "'rankme'"),
        ("probes", Probe(("knn",), lambda *_: {}), "Probe of the protocol 'count'"),
    ],
)
def test_what_is_none_or_takes_a_name_is_left_out(
    foreign: Callable[..., None], group: str, target: Any, named: str
) -> None:
    foreign(f"fedbench.{group}", "count", target)
    with pytest.warns(PluginWarning, match=named):
        found = scores.objectives() if group == "objectives" else protocols.probes()
    assert len(found) == len(SHIPPED if group == "objectives" else protocols.SHIPPED)
