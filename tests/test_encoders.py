"""The encoders that come with fedbench, and the list of them."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import fedbench
from fedbench.bench.config import RunConfig
from fedbench.bench.evaluation.probes import knn_accuracy
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.nn.weights import shipped_encoders
from fedbench.leaderboards import encoders

ROOT = Path(__file__).resolve().parent.parent
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
