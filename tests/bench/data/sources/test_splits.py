"""Splits that names of folders, files and columns say; what could be a split or a class."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fedbench.bench.data.datasets import load_dataset
from fedbench.bench.data.sources.splits import is_split_name, split_of, template
from fedbench.bench.system.errors import DataError
from tests.bench.data.files import folder, refused, shades, write_hub

BOTH = (12, 6)
ONE = (18, 0)


@pytest.mark.parametrize(
    ("split", "names"),
    [
        ("train", "train Training TRAIN seg_train train1 trainA X_train trainset mnist-train-0"),
        ("test", "test Testing TEST PublicTest data_test t10k-images test-00000-of-00001-7f0de"),
        ("validation", "val VALID validation dev eval Evaluation val2017"),
        ("unlabelled", "unlabelled Unlabeled unsupervised train_unlabelled"),
        (None, "trains contest testudo latest devil values medieval 0000 extra"),
    ],
)
def test_words_that_say_a_split(split: str | None, names: str) -> None:
    assert {split_of(name) for name in names.split()} == {split}


def test_a_name_with_two_splits_says_none() -> None:
    for name in ("train-test", "dev_test", "TrainTest"):
        with pytest.raises(DataError, match=name):
            split_of(name)
    assert all(map(is_split_name, ("Train", "test_2", "Test Set")))
    assert not is_split_name("bullet_train")
    assert template("Mnist-TRAIN.csv") == template("mnist-testing.csv") != template("mnist.csv")


def sizes(name: str) -> tuple[int, int, tuple[str, ...], int]:
    """Return the images of a set as (training, test), its classes, and how many have no label."""
    dataset = load_dataset(name)
    labels = dataset.train_labels.tolist() + dataset.test_labels.tolist()
    train = len(dataset.train_labels)
    return train, len(labels) - train, dataset.class_names, labels.count(-1)


def of(*splits: str, classes: Iterable[str] = "abc") -> dict[str, int]:
    """Return 4 training and 2 test images of each class, in folders of these names."""
    return {f"{s}.{c}": n for s, n in zip(splits, (4, 2), strict=True) for c in classes}


ABC = ("a", "b", "c")


@pytest.mark.parametrize(
    ("places", "gives"),
    [
        *[
            (of(*splits.split()), (12, 6, ABC, 0))
            for splits in (
                "Training Testing",
                "seg_train.seg_train seg_test.seg_test",
                "images.train images.test",
                "x.data.train x.data.dev",
                "train.images test.images",
                "data_train data_valid",
                "training_set.training_set test_set.test_set",
                "train_test_data.train train_test_data.test",
            )
        ],
        ({**of("train", "test"), "val.a": 3}, (12, 6, ABC, 0)),  # test goes before val
        ({**of("train", "test"), "Unlabeled": 3}, (15, 6, ABC, 3)),
        ({**of("train", "test"), "notes": 0}, (12, 6, ABC, 0)),
        (of("train", "test", classes=("bus", "train")), (8, 4, ("bus", "train"), 0)),
        (of("train", "test", classes=("a", "unlabelled")), (8, 4, ("a", "unlabelled"), 0)),
        (of("train", "test", classes=("a.x", "b.x")), (8, 4, ("a", "b"), 0)),
        ({"images": 18}, (18, 18, (), 18)),
        ({"train.images": 8, "test.images": 4}, (8, 4, (), 12)),
        ({"unlabelled": 18}, (18, 18, (), 18)),
        ({"archive.a": 9, "archive.b": 9}, (18, 18, ("a", "b"), 0)),
        ({"bullet_train": 9, "bus": 9, "car": 9}, (27, 27, ("bullet_train", "bus", "car"), 0)),
        ({"a.x": 9, "b.y": 9}, (18, 18, ("a", "b"), 0)),
    ],
)
def test_folders(places: dict[str, int], gives: tuple[Any, ...], tmp_path: Path) -> None:
    train, test, classes, hidden = sizes(folder(tmp_path / "set", **places))
    if gives[0] == gives[1]:  # held out of one folder by content
        train = test = train + test
    assert (train, test, classes, hidden) == gives


@pytest.mark.parametrize(
    ("places", "named"),
    [
        ({"bus": 4, "car": 4, "train": 4}, r"train may say a split.*bus, car.*train/"),
        ({"blood": 4, "swab": 4, "test": 4}, r"test may say.*blood, swab"),
        ({"cat": 4, "dog": 4, "unlabelled": 4}, r"unlabelled may say.*cat, dog"),
        ({"dev": 4, "ops": 4, "val": 4}, r"dev, val may say.*ops"),
        ({**of("train", "holdout")}, r"train may say.*holdout"),
        ({**of("train", "test"), "extra": 3}, "extra"),
        ({**of("train", "test"), "train2.a": 3}, "train and train2"),
        ({**of("train", "test"), "Test.a": 3}, "Test and test"),
        (of("mine", "yours"), r"mine, yours.*\(a, b, c\)"),
        ({"a.train": 4, "a.test": 2, "b.train": 4, "b.test": 2}, r"a, b .*test, train"),
        ({"test.a": 4, "val.a": 4}, "no train/"),
        ({"train.a": 4, "test.A": 2}, r"A \(nearest: 'a'\)"),
        ({"train.a": 4, "train.b": 4, "test": 4}, "4 images in no class folder"),
        ({"train.a": 4, "train.b": 4, "test": 0}, "test"),
        ({"train.a": 4, "train.unlabelled": 4, "test.a": 4}, "train/unlabelled"),
        ({"train_test.a": 4, "b": 4}, "two splits"),
        ({"": 0}, r"train/.*test/"),
        ({"b": 0}, "set has no images of b"),
        ({"train.a": 1, "train.b": 0, "test.a": 1}, "train has no images of b"),
        ({"train.a": 1, "test.a": 1, "test.z": 0}, ": z"),
        ({"train.a": 1, "test.a": 0}, "test has no images"),
        ({"bullet_train": 4, "bus": 4}, "bus"),
        ({"train_station": 4, "test_tube": 4}, "may be classes, or splits"),
    ],
)
def test_folders_that_could_mean_two_things(
    places: dict[str, int], named: str, tmp_path: Path
) -> None:
    refused(folder(tmp_path / "set", **places), named)


@pytest.mark.parametrize(
    "names",
    [
        "mnist-train mnist-test",
        "mnist-train-00000-of-00001 mnist-test-00000-of-00001",
        "Train/0000 Test/0000",
        "data_train data_test",
        "train/train-0 test/test-0",
        "data/TRAIN/part/0 data/VAL/part/0",
    ],
)
def test_parquet_files(names: str, tmp_path: Path) -> None:
    for name, count, first in zip(names.split(), (12, 6), (0, 100), strict=True):
        write_hub(tmp_path / "set", **{name: shades([i % 3 for i in range(count)], first=first)})
    assert sizes(f"hub:{tmp_path / 'set'}")[:2] == BOTH


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("train holdout", r"holdout\.parquet"),
        ("train/0 test/0 more/0", r"more/0\.parquet"),
        ("train-test 0", "train-test"),
        ("mnist_tr mnist_te", "mnist_te"),
        ("a/train a/test b/train b/test", "several data sets"),
        ("train/a/0 train/b/0 test/a/0 test/b/0", "several data sets"),
    ],
)
def test_parquet_files_of_no_known_split(names: str, message: str, tmp_path: Path) -> None:
    for name in names.split():
        write_hub(tmp_path / "set", **{name: shades([0, 1, 2])})
    refused(f"hub:{tmp_path / 'set'}", message)
