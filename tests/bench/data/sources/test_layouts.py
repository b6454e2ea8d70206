"""Layouts of folders and Parquet files that people have, and what each gives."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedbench.bench.data.datasets import load_dataset
from fedbench.bench.system.errors import DataError

COUNT = 48
LABELS = [i % 3 for i in range(COUNT)]
WORDS = ["cat", "bird", "dog"]


def png(number: int) -> bytes:
    pixels = np.full((4, 4), number, dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def table(labels: list[Any], column: str = "label", first: int = 0, **more: list[Any]) -> pa.Table:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = [{"bytes": png(first + i), "path": None} for i in range(len(labels))]
    return pa.table({"image": pa.array(images, kind), column: pa.array(labels), **more})


def write(root: Path, **splits: pa.Table) -> str:
    root.mkdir(exist_ok=True)
    for name, content in splits.items():
        pq.write_table(content, root / f"{name}-00000-of-00001.parquet")
    return f"hub:{root}"


def folders(root: Path, split: str = "", count: int = 16, first: int = 0) -> str:
    for number, word in enumerate(WORDS):
        place = root / split / word
        place.mkdir(parents=True)
        for i in range(count):
            (place / f"{i}.png").write_bytes(png(first + number * count + i))
    return f"folder:{root}"


@pytest.mark.parametrize("test", ["test", "validation", "valid", "val", "dev"])
def test_names_of_the_test_split(test: str, tmp_path: Path) -> None:
    name = write(tmp_path / "set", train=table(LABELS), **{test: table([2, 1, 0], first=100)})
    dataset = load_dataset(name, tmp_path / "data")
    assert (len(dataset.train_labels), sorted(dataset.test_labels)) == (COUNT, [0, 1, 2])


@pytest.mark.parametrize("column", ["label", "labels", "fine_label", "character"])
def test_names_of_the_label_column(column: str, tmp_path: Path) -> None:
    """A column of another name is taken if no other can be meant."""
    name = write(tmp_path / "set", train=table(LABELS, column), test=table([0, 1, 2], column))
    assert load_dataset(name, tmp_path / "data").num_classes == 3


def test_two_columns_that_could_be_labels_are_refused(tmp_path: Path) -> None:
    train = table(LABELS, "character", writer=list(range(COUNT)))
    name = write(tmp_path / "set", train=train, test=table([0]))
    with pytest.raises(
        DataError,
        match=r"the only other one.*, or data\.label_column=NAME\); found:.*writer",
    ):
        load_dataset(name, tmp_path / "data")


@pytest.mark.parametrize("form", ["text", "dictionary", "list"])
def test_labels_as_text_and_lists(form: str, tmp_path: Path) -> None:
    """Text is numbered in its order, over both splits together."""
    words: list[Any] = [WORDS[label] for label in LABELS]
    later: list[Any] = ["ape", "cat"]  # a class that only the test split has
    if form == "list":
        words, later = [[w] for w in words], [[w] for w in later]
    train, test = table(words), table(later, first=100)
    if form == "dictionary":
        train = train.set_column(1, "label", train["label"].dictionary_encode())
        test = test.set_column(1, "label", test["label"].dictionary_encode())
    dataset = load_dataset(write(tmp_path / "set", train=train, test=test), tmp_path / "data")
    assert dataset.class_names == ("ape", "bird", "cat", "dog")
    by_pixel = {
        int(i[0, 0, 0]): int(n)
        for i, n in zip(dataset.train_images, dataset.train_labels, strict=True)
    }
    assert [by_pixel[i] for i in range(3)] == [2, 1, 3]


def test_integers_in_lists(tmp_path: Path) -> None:
    name = write(tmp_path / "set", train=table([[n] for n in LABELS]), test=table([[0], [1]]))
    assert load_dataset(name, tmp_path / "data").num_classes == 3


def test_names_of_classes_from_the_hub(tmp_path: Path) -> None:
    content = table(LABELS)
    features = {"info": {"features": {"label": {"names": WORDS}}}}
    train = content.replace_schema_metadata({"huggingface": json.dumps(features)})
    dataset = load_dataset(write(tmp_path / "set", train=train, test=table([0])), tmp_path / "data")
    assert dataset.class_names == tuple(WORDS)


def test_without_a_test_split_the_content_holds_images_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The same images in another order and as a folder have the same test images."""
    with caplog.at_level(logging.WARNING):
        first = load_dataset(write(tmp_path / "a", train=table(LABELS)), tmp_path / "data")
    assert "no test split: one image of 6, by its content" in caplog.text
    assert len(first.train_labels) + len(first.test_labels) == COUNT
    assert 0 < len(first.test_labels) < COUNT // 3
    order = list(range(COUNT))[::-1]
    again = load_dataset(write(tmp_path / "b", train=table(LABELS).take(order)), tmp_path / "data")
    assert again.revision == first.revision
    one = load_dataset(folders(tmp_path / "c"), tmp_path / "data")
    two = load_dataset(folders(tmp_path / "d", "train"), tmp_path / "data")
    assert one.revision == two.revision
    held = {int(image[0, 0, 0]) for image in first.test_images}
    assert {int(image[0, 0, 0]) for image in one.test_images} == held


def test_a_folder_with_a_valid_split(tmp_path: Path) -> None:
    folders(tmp_path / "set", "train")
    name = folders(tmp_path / "set", "valid", 2, first=100)
    dataset = load_dataset(name, tmp_path / "data")
    assert (len(dataset.train_labels), len(dataset.test_labels)) == (48, 6)
