"""Probes on other data sets: values, names, identity, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedbench
from fedbench.bench.data.datasets import load_dataset
from fedbench.bench.evaluation.probes import Splits, cautions
from fedbench.bench.evaluation.transfer import with_revisions, with_transfer
from fedbench.bench.method.ids import row_id
from fedbench.bench.system.errors import ConfigError, DataError, UnknownNameError
from fedbench.bench.terminal.show_runs import show_result
from fedbench.bench.testing import tiny_config, tiny_setup
from tests.specs import setup_of

SMALL = {
    "federation.num_rounds": 1,
    "data.num_clients": 2,
    "data.train_subset": 64,
    "data.test_subset": 32,
    "evaluation.protocols": ["knn", "linear", "few-shot"],
}


HALVES = np.arange(40) % 2


FEW = (np.arange(40) >= 37).astype(np.int64)  # 3 of 40


def saved(path: Path, shape: tuple[int, ...], labels: Any = HALVES) -> str:
    """Write images of two classes, bright and dark, (40, H, W[, C]), for both splits."""
    rng = np.random.default_rng(0)
    shades = labels.reshape(-1, *[1] * len(shape)) * 150
    images = (shades + rng.integers(0, 100, (40, *shape))).astype(np.uint8)
    halves: dict[str, Any] = {"train_images": images, "train_labels": labels, "test_images": images}
    np.savez(path, allow_pickle=False, **halves, test_labels=labels)
    return f"npz:{path}"


def test_on_the_runs_own_data_they_are_the_runs_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = saved(tmp_path / "shades.npz", (12, 12))
    values = {**SMALL, "evaluation.transfer": [other, "digits"]}
    monkeypatch.setenv("FEDBENCH_DATA_DIR", str(tmp_path / "other"))
    places = {"store": tmp_path / "store", "data_dir": tmp_path / "data"}
    result = fedbench.run("simclr", set=values, workers=1, **places)
    assert not (tmp_path / "other").exists()
    metrics = result.row.metrics
    for name in ("knn_acc", "linear_acc", "few_shot_5_acc", "few_shot_5_half", "linear_train_acc"):
        assert metrics[f"transfer_digits_{name}"] == metrics[name]
        assert metrics[f"untrained_transfer_digits_{name}"] == metrics[f"untrained_{name}"]
    assert metrics["transfer_npz_shades_npz_linear_acc"] > 0.9  # bright or dark is easy to see
    show_result(result)
    shown = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line}
    probes = {"knn_acc", "linear_acc", *(f"few_shot_{shots}_acc" for shots in (1, 5, 10))}
    prefix = "transfer_digits_"
    assert {name[len(prefix) :] for name in shown if name.startswith(prefix)} == probes


def test_the_id_depends_on_contents_not_on_names(tmp_path: Path) -> None:
    here, there = (saved(tmp_path / name, (12, 12)) for name in ("a.npz", "b.npz"))
    config = tiny_config("simclr", data__train_subset=64)

    def of(*names: str) -> str:
        evaluation = config.evaluation.model_copy(update={"transfer": names})
        found, _ = with_revisions(config.model_copy(update={"evaluation": evaluation}), None)
        return row_id(found, "0")

    assert of(here) == of(there) == of(here, there)
    assert len({of(), of(here), of("digits"), of(here, "digits")}) == 4
    assert of(here, "digits") == of("digits", here)
    assert of() == row_id(config, "0")
    (tmp_path / "more").mkdir()
    with pytest.raises(ConfigError):  # their metrics would have one name
        of(here, saved(tmp_path / "more" / "a.npz", (8, 8)))


def test_gray_images_get_the_channels_of_the_encoder(tmp_path: Path) -> None:
    name = saved(tmp_path / "gray.npz", (12, 12))
    dataset = load_dataset(name)
    splits = Splits(dataset, dataset.train_images, np.arange(40), 3, torch.device("cpu"))
    assert splits.train.shape == (40, 3, 12, 12)
    assert (np.asarray(splits.test) == np.asarray(dataset.test_images)).all()


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"evaluation.transfer": ["digitz"]}, UnknownNameError),
        ({"evaluation.transfer": ["digits"], "evaluation.protocols": ["angles"]}, ConfigError),
        ({"evaluation.transfer": ["npz:nowhere.npz"]}, DataError),
    ],
)
def test_refused_before_a_run(changed: dict[str, Any], expected: type, tmp_path: Path) -> None:
    with pytest.raises(expected):
        fedbench.run("simclr", set={**SMALL, **changed}, store=tmp_path / "store")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(("shape", "backbone"), [((8, 8, 3), "resnet8"), ((12, 12), "cct-4-3x2")])
def test_images_that_the_encoder_cannot_take_are_refused(
    shape: tuple[int, ...], backbone: str, tmp_path: Path
) -> None:
    name = saved(tmp_path / "other.npz", shape)
    setup = tiny_setup(
        tiny_config("simclr", model__backbone=backbone, evaluation__transfer=(name,))
    )
    with pytest.raises(ConfigError, match="transfer"):
        with_transfer(setup, setup.make_net(), None)


def test_other_content_than_in_the_run_is_refused(tmp_path: Path) -> None:
    name = saved(tmp_path / "other.npz", (12, 12))
    setup = setup_of("simclr", evaluation__transfer=(f"{name}@{'0' * 64}",))
    with pytest.raises(DataError):
        with_transfer(setup, setup.make_net(), None)


def test_a_set_without_labels_is_refused(tmp_path: Path) -> None:
    name = saved(tmp_path / "none.npz", (12, 12), labels=np.full(40, -1))
    with pytest.raises(ConfigError, match="label"):
        with_revisions(tiny_config("simclr", evaluation__transfer=(name,)), None)


def test_an_uneven_set_is_named_and_has_balanced_accuracies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a set with 37 of 40 images of one class, whether it is the run's own or another one."""
    few, even = saved(tmp_path / "few.npz", (12, 12), FEW), saved(tmp_path / "even.npz", (12, 12))
    monkeypatch.setenv("FEDBENCH_DATA_DIR", str(tmp_path / "data"))
    changed = {"data.train_subset": None, "data.test_subset": None, "data.partition": "iid"}
    names = [
        f"{at}balanced_{probe}_acc" for at in ("", "untrained_") for probe in ("knn", "linear")
    ]
    for own, other, at in ((few, even, ""), (even, few, "transfer_npz_few_npz_")):
        caplog.clear()
        values = {**SMALL, **changed, "data.name": own, "evaluation.transfer": [other]}
        store = tmp_path / f"store{at}"
        metrics = fedbench.run("simclr", set=values, workers=1, store=store).row.metrics
        assert caplog.text.count("92 % of the test images are of class '0'") == 1
        wanted = {name.replace("balanced", f"{at}balanced") for name in names}
        assert {name for name in metrics if "balanced" in name} == wanted
        assert {name: metrics[name] for name in metrics if "majority" in name} == {
            f"{at}majority_acc": 37 / 40
        }
        notes = fedbench.leaderboard(store).to_frame().notes[0]
        assert ("largest class 92.5 %" in notes) == (own == few)


@pytest.mark.parametrize(
    ("protocols", "expected"),
    [
        (["knn"], []),
        (
            ["linear", "few-shot"],
            [
                "few_shot_5_acc and few_shot_10_acc: 1 of 2 classes have fewer images to learn"
                " from, the smallest 3",
                "linear_2.5pct_acc: learns from 2 images in place of 1, one for each class",
            ],
        ),
    ],
)
def test_metrics_that_learn_from_other_images_than_their_names_say(
    protocols: list[str], expected: list[str], tmp_path: Path
) -> None:
    dataset = load_dataset(saved(tmp_path / "few.npz", (12, 12), FEW), tmp_path)
    config = tiny_config(
        "simclr", evaluation__protocols=protocols, evaluation__probe_fractions=(1.0, 0.5, 0.025)
    )
    assert [*cautions(config, dataset)] == expected
