"""Labels are matched by name over the files of a set, or refused, naming both sides."""

from pathlib import Path
from typing import Any

import pytest

from fedbench.bench.data.datasets import load_dataset
from tests.bench.data.files import refused, shade, table, write_hub
from tests.bench.data.sources.test_layouts import folders

SHADES = {"cat": 20, "dog": 120, "fox": 220}


def write(root: Path, **files: tuple[list[str], Any]) -> str:
    """Write images, dark for cat, bright for fox; labels are names, or a function of the word."""
    kind: Any
    for file, (words, kind) in files.items():
        names = kind if isinstance(kind, list) else None
        labels = [names.index(word) if names else kind(word) for word in words]
        images = [shade(SHADES[word] + i) for i, word in enumerate(words)]
        write_hub(root, **{file: table([*images], labels, names=names)})
    return f"hub:{root}"


CAT_DOG = ["cat", "dog"] * 4
ALL = ["cat", "dog", "fox"] * 4


def number(word: str) -> int:
    return [*SHADES].index(word)


@pytest.mark.parametrize(
    "files",
    [
        {"train": (CAT_DOG, ["cat", "dog"]), "test": (CAT_DOG, ["dog", "cat"])},
        {
            "train_0": (CAT_DOG, ["dog", "cat"]),
            "train_1": (CAT_DOG, ["cat", "dog"]),
            "test": (CAT_DOG, ["cat", "dog"]),
        },
        {"train": (ALL, ["cat", "dog", "fox"]), "test": (["fox", "cat"], ["cat", "fox"])},
        {"train_0": (CAT_DOG, ["cat", "dog"]), "train_1": (ALL, [*SHADES]), "test": (ALL, str)},
        {"train": (CAT_DOG, ["cat", "dog"]), "test": (CAT_DOG, [*SHADES])},  # fox has no image
        {"train": (ALL, str), "test": (ALL, ["dog", "fox", "cat"])},
        {"train": (ALL, lambda word: f" {word}"), "test": (ALL, str)},
    ],
)
def test_names_decide(files: dict[str, Any], tmp_path: Path) -> None:
    dataset = load_dataset(write(tmp_path / "set", **files))
    for images, labels in (
        (dataset.train_images, dataset.train_labels),
        (dataset.test_images, dataset.test_labels),
    ):
        shown = [dataset.class_names[label] for label in labels]
        assert shown == [
            next(w for w, shade in SHADES.items() if shade <= image[0, 0, 0] < shade + 100)
            for image in images
        ]
    used = {word for words, _ in files.values() for word in words}
    assert {*dataset.class_names} == used


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"train": (CAT_DOG, ["cat", "dog"]), "test": (ALL, [*SHADES])}, "'fox'"),
        ({"train": (ALL, [*SHADES]), "test": (ALL, number)}, r"test\.parquet.*train\.parquet"),
        ({"train": (ALL, number), "test": (ALL, str)}, r"train\.parquet.*test\.parquet"),
        ({"train_0": (ALL, number), "train_1": (ALL, lambda w: str(number(w)))}, "train_1"),
        ({"train": (ALL, str), "test": (ALL, str.title)}, r"'Cat' \(nearest: 'cat'\)"),
        (
            {"train": (ALL, lambda w: str(number(w))), "test": (ALL, lambda w: f"0{number(w)}")},
            "'00'.*'01'.*'02'",
        ),
        ({"train": (CAT_DOG, number), "test": (ALL, number)}, "'2'"),
    ],
)
def test_sides_that_do_not_fit(files: dict[str, Any], named: str, tmp_path: Path) -> None:
    refused(write(tmp_path / "set", **files), named)


def test_letters_and_consistent_names_may_differ_in_case(tmp_path: Path) -> None:
    letters = {"cat": "a", "dog": "A", "fox": "b"}
    for split in ("train", "test"):
        write(tmp_path / "letters", **{split: (ALL, letters.__getitem__)})
        write(tmp_path / "words", **{split: (ALL, {**letters, "cat": "bb", "fox": "Bb"}.get)})
    for name, classes in (("letters", ("A", "a", "b")), ("words", ("A", "Bb", "bb"))):
        assert load_dataset(f"hub:{tmp_path / name}").class_names == classes


def test_empty_text_is_no_label(tmp_path: Path) -> None:
    """0 % of a class is lost: two of three images have no label, and the third keeps its own."""
    empty = {"cat": "", "dog": " ", "fox": "fox"}
    name = write(tmp_path / "set", train=(ALL, empty.get), test=(["fox"], str))
    dataset = load_dataset(name)
    assert (dataset.class_names, int((dataset.train_labels < 0).sum())) == (("fox",), 8)


def test_letters_of_two_forms_are_one_class(tmp_path: Path) -> None:
    """An archive made on a Mac has é as two characters, others as one."""
    folders(tmp_path / "set", "train", 2)
    name = folders(tmp_path / "set", "test", 2, first=100)
    for split, word in (("train", "caf\u00e9"), ("test", "cafe\u0301")):
        (tmp_path / "set" / split / "cat").rename(tmp_path / "set" / split / word)
    assert "caf\u00e9" in load_dataset(name).class_names
    (tmp_path / "set/train/cafe\u0301").mkdir()
    refused(name, "NFC and NFD")


def test_folders_whose_names_differ_in_case(tmp_path: Path) -> None:
    name = folders(tmp_path / "set", "train")
    (tmp_path / "set/train/cat").rename(tmp_path / "set/train/Dog")
    refused(name, "'Dog' and 'dog'")
