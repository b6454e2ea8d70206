"""What `data prepare` counts in a data set, and its picture of the classes."""

import io
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedbench.bench.data.cache import Cache
from fedbench.bench.data.datasets import load_dataset, prepare
from fedbench.bench.data.preview import preview_png
from fedbench.bench.data.survey import Survey, survey
from fedbench.bench.system.errors import ConfigError


def cache_of(train: dict[int, int], test: dict[int, int], classes: int = 3) -> Cache:
    """A cache whose images of 2 x 2 have an upper row of a shade; `train` has shade -> label.

    Keys above 1,000 are the same shades again: 1,005 is a copy of 5. Shade 9 is one colour.
    """
    arrays: dict[str, Any] = {}
    for split, given in (("train", train), ("test", test)):
        images = np.full((len(given), 1, 2, 2), 9, np.uint8)
        images[:, 0, 0] = np.array([shade % 1000 for shade in given], np.uint8)[:, None]
        arrays |= {f"{split}_images": images, f"{split}_labels": np.array([*given.values()])}
    return Cache(Path(), {"class_names": ["a", "b", "c"][:classes]}, arrays)


CLEAN = Survey(
    classes=[
        {"name": "a", "train": 2, "test": 1},
        {"name": "b", "train": 1, "test": 1},
        {"name": "c", "train": 1, "test": 0},
    ],
    unlabelled={"train": 0, "test": 0},
    image_shape=(1, 2, 2),
    num_distinct=6,
    copies={"train": 0, "test": 0},
    test_in_train=0,
    two_labels=0,
    one_colour=0,
)
TRAIN, TEST = {1: 0, 2: 0, 3: 1, 4: 2}, {5: 0, 6: 1}
COPIED = {"classes": [{"name": "a", "train": 2, "test": 2}, *CLEAN.classes[1:]], "num_distinct": 6}


@pytest.mark.parametrize(
    ("train", "test", "changes"),
    [
        (TRAIN, TEST, {}),
        # Image 1 is a test image, too; with another label it has two.
        (TRAIN, {**TEST, 1: 0}, {**COPIED, "test_in_train": 1}),
        (TRAIN, {5: 0, 6: 1, 3: 0}, {**COPIED, "test_in_train": 1, "two_labels": 1}),
        # Image 5 is twice in test.
        (TRAIN, {**TEST, 1005: 0}, {**COPIED, "copies": {"train": 0, "test": 1}}),
        # An image without a label has no other label.
        (
            {**TRAIN, 1001: -1},
            TEST,
            {"unlabelled": {"train": 1, "test": 0}, "copies": {"train": 1, "test": 0}},
        ),
        ({1: 0, 2: 0, 3: 1, 9: 2}, TEST, {"one_colour": 1}),
    ],
)
def test_counts(train: dict[int, int], test: dict[int, int], changes: dict[str, object]) -> None:
    cache = cache_of(train, test)
    found = survey(cache.arrays, cache.meta["class_names"])
    assert found == replace(CLEAN, **changes)  # type: ignore[arg-type]
    spoken = {"test_in_train", "two_labels", "copies", "one_colour"} & changes.keys()
    assert len(found.cautions()) == len(spoken) + 1
    assert found.cautions()[0].endswith("test: c")  # has no test image


def test_images_that_are_all_equal_are_one_caution() -> None:
    cache = cache_of({1: 0, 1001: 1}, {1: 2})
    found = survey(cache.arrays, cache.meta["class_names"])
    assert (found.num_distinct, found.test_in_train, found.two_labels) == (1, 1, 1)
    (caution,) = found.cautions()
    assert "all 3 images are equal" in caution
    unlabelled = cache_of({1: -1, 2: -1}, {3: -1}, classes=0)
    assert survey(unlabelled.arrays, []).unlabelled == {"train": 2, "test": 1}


def leak(root: Path) -> str:
    """Write two classes of two images that are training and test images alike."""
    for split in ("train", "test"):
        for label, name in enumerate("ab"):
            (root / split / name).mkdir(parents=True)
            for i in range(2):
                shade = np.arange(4, dtype=np.uint8).reshape(2, 2) + 10 * (2 * label + i)
                Image.fromarray(shade).save(root / split / name / f"{i}.png")
    return f"folder:{root}"


def test_cautions_are_kept_with_the_set_and_said_whenever_it_is_prepared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name, data = leak(tmp_path / "set"), tmp_path / "data"
    said = "4 of 4 test images are training images, too"
    for size in (None, 2):
        (caution,) = load_dataset(name, data, train_subset=size, test_subset=size).cautions
        assert caution.startswith(f"folder:set: {said}")
    for times in (1, 2):
        with caplog.at_level(logging.WARNING):
            prepare(name, data)
        assert caplog.text.count(said) == times
    found = prepare(name, data, preview=tmp_path / "new" / "see.png").as_dict()
    assert found["sizes"] == {"2x2": 8}
    assert (found["num_train"], found["num_test"], found["num_distinct"]) == (4, 4, 4)
    with Image.open(tmp_path / "new" / "see.png") as picture:
        assert picture.format == "PNG"
    with pytest.raises(ConfigError, match=r"\.png"):
        prepare(name, data, preview=tmp_path / "see.jpg")


@pytest.mark.parametrize("side", [2, 300])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_preview_has_both_splits_of_each_class(side: int, channels: int) -> None:
    """Each image has a shade of its own; text has some of them in a few pixels."""
    arrays: dict[str, Any] = {}
    for number, (split, labels) in enumerate((("train", [0, 1, -1]), ("test", [1, 0]))):
        shades = np.array([100 + 10 * label + number for label in labels], np.uint8)
        shape = (len(labels), channels, side, side)
        arrays[f"{split}_images"] = np.broadcast_to(shades[:, None, None, None], shape).copy()
        arrays[f"{split}_labels"] = np.array(labels)
    names = ["a" * 99, "猫", "c"]
    sheet = np.asarray(Image.open(io.BytesIO(preview_png(arrays, names))).convert("L"))
    at = {shade: np.median(np.argwhere(sheet == shade), 0) for shade in (100, 101, 110, 111, 90)}
    rows, columns = ({shade: int(place[i]) // 4 for shade, place in at.items()} for i in (0, 1))
    assert columns[100] == columns[101] < columns[110] == columns[111] < columns[90]
    assert rows[100] == rows[110] == rows[90] < rows[101] == rows[111]
    few = Image.open(io.BytesIO(preview_png(arrays, names, 1)))
    assert few.width < sheet.shape[1]
