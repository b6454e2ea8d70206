"""Names of data sets by their content."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedbench.bench.data import datasets
from fedbench.bench.data.datasets import content_names, load_dataset, prepare
from fedbench.bench.data.known import REVISIONS
from fedbench.bench.data.sources.base import SOURCES
from fedbench.bench.system.errors import DataError


def write_folder(root: Path, shade: int = 0, *, turned: bool = False) -> Path:
    """Write 12 training and 4 test images in 2 classes; `turned` reverses the files."""
    rng = np.random.default_rng(0)
    for split, number in (("train", 6), ("test", 2)):
        for name in "ab":
            for index in range(number):
                pixels = rng.integers(shade, 200, (4, 4, 3), dtype=np.uint8)
                place = number - index if turned else index
                file = root / split / name / f"{place}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(file)
    return root


def know(monkeypatch: pytest.MonkeyPatch, **names: str) -> None:
    """Add revisions by name to the table."""
    table = {**REVISIONS, **{revision: name for name, revision in names.items()}}
    monkeypatch.setattr(datasets, "REVISIONS", table)


def test_every_entry_is_a_revision_of_a_listed_set() -> None:
    assert set(REVISIONS.values()) <= SOURCES.keys()
    assert all(len(revision) == 64 and int(revision, 16) for revision in REVISIONS)


def test_content_and_not_the_folder_gives_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    first = write_folder(tmp_path / "cifar100x")
    second = write_folder(tmp_path / "snapshot123", turned=True)
    other = write_folder(tmp_path / "cifar100", shade=100)
    one, two = (load_dataset(f"folder:{path}", data) for path in (first, second))
    assert one.revision == two.revision
    np.testing.assert_array_equal(one.train_images, two.train_images)
    assert (one.name, two.name) == ("folder:cifar100x", "folder:snapshot123")
    know(monkeypatch, cifar100=one.revision)
    names = [load_dataset(f"folder:{path}", data).name for path in (first, second, other)]
    assert names == ["cifar100", "cifar100", "folder:cifar100"]
    part = load_dataset(f"folder:{second}", data, train_subset=4, test_subset=2)
    assert (part.name, part.whole) == ("cifar100", one.revision)


def test_subsets_do_not_depend_on_the_source(tmp_path: Path) -> None:
    parts = [
        load_dataset(f"folder:{folder}", tmp_path / "data", train_subset=5, test_subset=2)
        for folder in (
            write_folder(tmp_path / "one"),
            write_folder(tmp_path / "two", turned=True),
        )
    ]
    assert parts[0].revision == parts[1].revision
    assert parts[0].path != parts[1].path


def test_names_are_looked_up_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, folder = tmp_path / "data", write_folder(tmp_path / "cifar100")
    name, look_up = f"folder:{folder}", content_names(data)
    assert look_up("cifar100") == "cifar100"  # is a name already
    assert not data.exists()
    assert look_up(name) == "folder:cifar100"
    know(monkeypatch, cifar100=prepare(name, data).sha256)
    assert look_up(name) == "folder:cifar100"
    shutil.rmtree(folder)  # the cache is all that is left
    assert content_names(data)(name) == "cifar100"
    with pytest.raises(DataError, match="nowhere"):
        look_up(f"hub:{tmp_path}/nowhere")
