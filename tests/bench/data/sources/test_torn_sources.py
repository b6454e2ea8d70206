"""Messages for damaged or unsuitable Parquet and image folders."""

import math
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from fedbench.bench.data import datasets
from fedbench.bench.data.cache import CacheWriter, ensure
from fedbench.bench.data.datasets import load_dataset
from fedbench.bench.data.sources import base, torchvision_sets
from fedbench.bench.system.errors import DataError, PluginError
from tests.bench.data.files import encoded, refused, table, write_hub, write_idx


def png(side: int = 4, mode: str = "L") -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (side, side), dtype=np.uint8)
    return encoded(Image.fromarray(pixels).convert(mode))


GOOD = png()
TORN = GOOD[: len(GOOD) // 2]
FLIPPED = GOOD[:45] + bytes([GOOD[45] ^ 0xFF]) + GOOD[46:]  # inside the compressed pixels


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (table([GOOD, GOOD, b"no image"], [0, 1, 2]), r"train-0\.parquet, row 2: "),
        (table([GOOD, TORN], [0, 1]), r"train-0\.parquet, row 1: "),
        (table([GOOD, FLIPPED], [0, 1]), r"train-0\.parquet, row 1: "),
        (table([GOOD, None], [0, 1]), "row 1: "),
        (table([GOOD, GOOD], [0, -2]), r"row 1: label -2"),
        (table([GOOD, GOOD], [0, 2**40]), "row 1: label 1099511627776"),
        (table([GOOD, png(7)], [0, 1]), r"4x4.*7x7"),
        (table([png(mode="I;16")], [0]), "row 0: .*I;16"),
        (table([], pa.array([], pa.int64())), "train split"),
        (table([GOOD], [0.5]), "label: double"),
        (pa.table({"picture": [1], "label": [1]}), r"img or image"),
    ],
)
def test_hub_content(train: pa.Table, message: str, tmp_path: Path) -> None:
    test = table([GOOD], [0])
    refused(write_hub(tmp_path, **{"train-0": train, "test-0": test}), message)
    assert not [f for f in (tmp_path / "data").iterdir() if f.suffix != ".lock"]


def test_label_beyond_the_named_classes(tmp_path: Path) -> None:
    train, test = (table([GOOD], [number], names=["a", "b"]) for number in (1, 2))
    refused(write_hub(tmp_path, train=train, test=test), r"test\.parquet, row 0: label 2")


def _damage_pages(root: Path) -> None:
    file = root / "train-0.parquet"
    data = bytearray(file.read_bytes())
    data[4:60] = b"\xff" * 56
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root: os.truncate(root / "train-0.parquet", 50), r"train-0\.parquet"),
        (_damage_pages, r"train-0\.parquet"),
        (lambda root: (root / "train-0.parquet").unlink(), "found: test"),
        (lambda root: [f.unlink() for f in root.iterdir()], r"no train-\*\.parquet"),
        (lambda root: os.mkfifo(root / "test-1.parquet"), r"test-1\.parquet is a pipe"),
        (
            lambda root: (root / "train-0.parquet").rename(root / "train-00001-of-00002.parquet"),
            r"train-00001-of-00002\.parquet",
        ),
    ],
)
def test_hub_files(change: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    content = table([GOOD] * 50, [0] * 50)
    name = write_hub(tmp_path / "hub", **{"train-0": content, "test-0": content})
    change(tmp_path / "hub")
    refused(name, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root: (root / "train/\udcff").mkdir(), "not UTF-8 text"),
        (lambda root: (root / "train/a/1.png").write_bytes(TORN), r"1\.png: "),
        (lambda root: (root / "train/a/1.png").write_bytes(png(9)), "4x4.*9x9"),
        (lambda root: (root / "train/a/1.png").symlink_to("gone"), r"is not there \(.*1\.png\)$"),
        (lambda root: os.mkfifo(root / "train/a/pipe.png"), r"a/pipe\.png is a pipe"),
        (lambda root: os.mkfifo(root / "test/a/pipe.PNG"), r"a/pipe\.PNG is a pipe"),
        (lambda root: (root / "train/a/again").symlink_to("."), "train/a/again"),
        (lambda root: (root / "train/a/again").symlink_to("../../.."), "train/a/again"),
    ],
)
def test_folders(change: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    root = tmp_path / "pictures"
    for split in ("train", "test"):
        (root / split / "a").mkdir(parents=True)
        (root / split / "a" / "0.png").write_bytes(GOOD)
    change(root)
    refused(f"folder:{root}", message)


def test_links_to_other_folders_are_followed(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    for name in ("train/a", "train/b", "test/a", "test/b"):
        (folder / name).mkdir(parents=True)
        (folder / name / "x.png").write_bytes(GOOD)
    (tmp_path / "more").mkdir()
    (tmp_path / "more/y.png").write_bytes(GOOD)
    (folder / "train/a/more").symlink_to(tmp_path / "more")
    (folder / "train/b/more").symlink_to(tmp_path / "more")
    dataset = load_dataset(f"folder:{folder}")
    assert sorted(dataset.train_labels) == [0, 0, 1, 1]


def test_a_huge_image_is_named_with_its_row(tmp_path: Path) -> None:
    huge = encoded(Image.new("1", (10_000, 10_000)))  # Pillow warns above 89 Mpixels
    train = table([GOOD, GOOD, huge, GOOD], [0, 1, 0, 1])
    name = write_hub(tmp_path, train=train, test=table([GOOD], [0]))
    refused(name, r"train\.parquet, row 2: ")


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Make `mine` a data set of a plugin; the test puts its `images` and `labels`."""
    put: dict[str, Any] = {}

    class Plugin:
        key = "mine"

        def identity(self) -> str:
            return str(put["images"].shape)

        def require(self) -> None:
            pass

        def write(self, writer: CacheWriter, _: object) -> tuple[str, ...]:
            for split in put.get("splits", ("train", "test")):
                writer.put(f"{split}_images", put["images"])
                writer.put(f"{split}_labels", np.array(put["labels"]))
            return ("a", "b")

    entry = base.Entry(partial(base.PluginSource.make, lambda _: Plugin()))
    monkeypatch.setattr(datasets, "entry_of", lambda name: entry)
    return put


@pytest.mark.parametrize(
    ("labels", "shape", "dtype", "named"),
    [
        ([0, 2], (2, 1, 2, 2), "u1", "mine"),
        ([0, -2], (2, 1, 2, 2), "u1", "mine"),
        ([0], (2, 1, 2, 2), "u1", "mine"),
        ([0, 1], (2, 2), "u1", "mine"),
        ([0, 1], (2, 1, 0, 2), "u1", r"images are uint8\[2, 0, 2\]"),
        ([0, 1], (2, 1, 2, 2), "i8", r"train_images: int64\[2, 1, 2, 2\] does not fit"),
    ],
)
def test_a_plugin_whose_arrays_do_not_belong_together(
    labels: list[int], shape: tuple[int, ...], dtype: str, named: str, plugin: dict[str, Any]
) -> None:
    plugin |= {"images": np.zeros(shape, dtype), "labels": labels}
    refused("mine", named)


def test_a_plugin_that_breaks_its_contract(plugin: dict[str, Any]) -> None:
    plugin |= {"images": np.zeros((2, 1, 2, 2), np.uint8), "labels": [0, 1], "splits": ("train",)}
    with pytest.raises(PluginError, match="has not put 'test_images'"):
        load_dataset("mine")
    with pytest.raises(PluginError, match="key must be that"):
        load_dataset("yours")


def test_a_plugin_puts_channels_first_or_last(plugin: dict[str, Any]) -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 3, 4, 5), dtype=np.uint8)
    for put in (images, images.transpose(0, 2, 3, 1)):
        plugin |= {"images": put, "labels": np.arange(6) % 2}
        read = load_dataset("mine").train_images
        assert {image.tobytes() for image in read} == {image.tobytes() for image in images}
        assert read.shape == images.shape


def test_a_file_that_a_plugin_does_not_find_is_named(tmp_path: Path) -> None:
    def write(writer: CacheWriter) -> tuple[str, ...]:
        (tmp_path / "raw" / "mine" / "images.bin").read_bytes()
        return ()

    with pytest.raises(DataError, match=r"images\.bin"):
        ensure(tmp_path / "mine", "mine", "1", write)


def test_altered_files_of_a_known_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's Fashion-MNIST with ten images is not Fashion-MNIST, also the second time."""
    for name in ("train", "t10k"):
        for kind, shape in (("images-idx3", (10, 4, 4)), ("labels-idx1", (10,))):
            values = np.arange(math.prod(shape), dtype=np.uint8).reshape(shape) % 10
            write_idx(tmp_path / f"{name}-{kind}-ubyte.gz", values)
    images = tmp_path / "train-images-idx3-ubyte.gz"
    monkeypatch.setitem(torchvision_sets.DEBIAN, "fashion-mnist", images)
    for _ in range(2):
        refused("fashion-mnist", "fashion-mnist")
    revision = load_dataset(f"file:{images}").revision
    monkeypatch.setattr(datasets, "REVISIONS", {revision: "fashion-mnist"})
    assert load_dataset("fashion-mnist").class_names[9] == "Ankle boot"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder:{}/set.zip", "unpack it, and name the folder"),
        ("file:{}/set.zip", "unpack a .zip"),
        ("folder:{}/set.csv", "one file is file:"),
    ],
)
def test_what_is_of_another_kind(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "set.csv").write_text("file_name,label\n")
    shutil.make_archive(str(tmp_path / "set"), "zip", tmp_path, "set.csv")
    refused(name.format(tmp_path), message)


def test_folders_inside_class_folders_are_said(tmp_path: Path) -> None:
    for inner in ("animals/cat", "animals/dog", "vehicles/car"):
        for split in ("train", "test"):
            file = tmp_path / "set" / split / inner / "0.png"
            file.parent.mkdir(parents=True)
            file.write_bytes(GOOD)
    prepared = datasets.prepare(f"folder:{tmp_path}/set")
    (said,) = prepared.read_as or ()
    assert "3 (animals/cat, animals/dog, vehicles/car)" in said
