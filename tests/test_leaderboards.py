"""Statements of leaderboards/README.md, its tables of runs, and the encoders that ship."""

import contextlib
import io
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fedbench
from fedbench.bench.config import ClientConfig, RunConfig
from fedbench.bench.evaluation.probes import knn_accuracy
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.nn.weights import shipped_encoders
from fedbench.bench.results.leaderboard.published import paper_cells
from fedbench.bench.results.store.store import Store
from fedbench.leaderboards import encoders
from tests.bench.results.conftest import build_row
from tests.test_readme import blocks

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "leaderboards" / "README.md").read_text(encoding="utf-8")


def test_counts() -> None:
    cells = paper_cells()
    counts = {
        p: sum(cell.paper == p for cell in cells) for p in dict.fromkeys(c.paper for c in cells)
    }
    assert f"({len(cells)} of them)" in TEXT
    shown = [int(number) for number in re.findall(r"\| (\d+) \|", TEXT)]
    papers = ("orchestra", "mi", "pfedae", "ssd", "l-dawa", "fedmar", "fedx")
    assert shown == [counts[paper] for paper in papers]


def test_any_tool_reads_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("duckdb", "polars"):
        pytest.importorskip(name, reason="the dev extra has it")
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / "leaderboards")
    for seed, rate, accuracy in ((0, 0.25, 0.25), (1, 0.25, 0.75), (0, 1.5, 0.125)):
        config = RunConfig(seed=seed, client=ClientConfig(lr=rate))
        store.write_row(build_row(config, linear_acc=accuracy))
    store.refresh()
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(block, {})
    for of, mean in (("0.25", "0.5"), ("1.5", "0.125")):
        assert len(re.findall(rf"\b{of}0*\b\D+{mean}0*\b", out.getvalue())) == 3


SELECTION = ROOT / "leaderboards" / "selection" / "packed" / "runs-1.parquet"
TABLE = ROOT / "leaderboards" / "tables" / "selection" / "selection.parquet"
COUNT = 24  # configurations of a method


def test_the_shipped_table_has_the_results_of_the_shipped_rows() -> None:
    lines, rows = pd.read_parquet(TABLE), pd.read_parquet(SELECTION).set_index("row_id")
    final = lines[lines["round"] == 12].set_index("row_id")["linear_acc"]
    assert len(final) > 300
    assert final.to_dict() == rows["metric.linear_acc"].loc[final.index].to_dict()


def test_the_page_on_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its search picks the best of twelve different configurations by the score."""
    (block,) = blocks("python", (ROOT / "leaderboards" / "tables" / "README.md").read_text("utf-8"))
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    exec(compile(block, "README.md", "exec"), names)
    study, table = names["study"], names["table"]
    assert table.shape == (COUNT, 3 * 2 * 4)  # scores, seeds, rounds
    scored = [trial for trial in study.trials if trial.value is not None]
    assert len({tuple(trial.params.items()) for trial in scored}) == 12
    picked = max(scored, key=lambda trial: trial.value)
    accuracy = table["linear_acc", 1, 12]
    expected = accuracy.max() - accuracy[tuple(picked.params.values())]
    assert names["lost"] == pytest.approx(expected)


SOURCE = os.environ.get("FEDBENCH_CIFAR10", "")
NAMES = sorted(shipped_encoders())


def test_the_list_is_that_of_the_cards() -> None:
    assert (encoders.FOLDER / "README.md").read_text(encoding="utf-8") == encoders.table()


@pytest.mark.parametrize("name", NAMES)
def test_an_encoder_is_that_of_its_row(name: str) -> None:
    encoder = fedbench.load_encoder(name)
    row = fedbench.open_store(ROOT / "leaderboards" / "results").find(encoder.card["run_id"])
    assert name == f"{row.method}@{row.preset.removesuffix('-2026-11')}"
    assert encoder.card["metrics"] == {
        "objective": row.objective,
        "knn_acc": row.knn_acc,
        "linear_acc": row.linear_acc,
    }
    features = encoder(torch.zeros(2, *encoder.card["image_shape"], dtype=torch.uint8))
    assert features.shape == (2, encoder.card["feature_dim"])
    assert shipped_encoders()[name].stat().st_size < 1_000_000


@pytest.mark.extended
@pytest.mark.skipif(not SOURCE, reason="FEDBENCH_CIFAR10 names a source of it, such as hub:DIR")
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_an_encoder_has_the_accuracy_of_its_card(name: str) -> None:
    encoder = fedbench.load_encoder(name)
    config = RunConfig.model_validate(encoder.card["config"])
    config = config.model_copy(update={"data": config.data.model_copy(update={"name": SOURCE})})
    dataset = Experiment(config).dataset
    train, test = (
        torch.cat(
            [encoder(torch.from_numpy(np.array(part))) for part in np.array_split(images, 50)]
        )
        for images in (dataset.train_images, dataset.test_images)
    )
    accuracy = knn_accuracy(
        train,
        dataset.train_labels,
        test,
        dataset.test_labels,
        num_classes=dataset.num_classes,
        neighbours=config.evaluation.knn_neighbours,
        temperature=config.evaluation.knn_temperature,
    )
    assert abs(accuracy - encoder.card["metrics"]["knn_acc"]) < 0.001  # another numeric platform
