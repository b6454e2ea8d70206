"""Caches that are torn, altered, stale, read-only, built by many processes or killed."""

import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fedbench.bench.data.cache import (
    CacheWriter,
    ensure,
    open_cache,
    read_meta,
    stamp_of,
    write_meta,
)
from fedbench.bench.data.datasets import load_dataset, prepare
from fedbench.bench.data.partition import make_partition
from fedbench.bench.data.rotated import rotated_images
from fedbench.bench.system.errors import DataError
from fedbench.bench.testing import tiny_config
from tests.bench.data.files import refused, shade
from tests.specs import flip, rewrite

FILES = ("train_images.npy", "train_labels.npy", "test_images.npy", "test_labels.npy", "meta.json")


def write(
    writer: CacheWriter,
    value: int = 7,
    shape: tuple[int, ...] = (4, 1, 2, 2),
    classes: tuple[str, ...] = ("a", "b"),
) -> tuple[str, ...]:
    for split in ("train", "test"):
        writer.put(f"{split}_images", np.full(shape, value, dtype=np.uint8))
        writer.put(f"{split}_labels", np.array([0, 1, 0, 1], dtype=np.int64))
    return classes


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize("seed", [1, 2])
def test_the_order_of_a_source_does_not_matter(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 2, (1200, 1, 2, 2), dtype=np.uint8)  # three blocks, many equal images
    labels = rng.integers(0, 3, 1200)
    order = np.random.default_rng(seed).permutation(1200)

    def written(order: npt.NDArray[np.int64]) -> Callable[[CacheWriter], tuple[str, ...]]:
        def write(writer: CacheWriter) -> tuple[str, ...]:
            for split in ("train", "test"):
                writer.put(f"{split}_images", images[order])
                writer.put(f"{split}_labels", labels[order])
            return ("a", "b", "c")

        return write

    first = ensure(tmp_path / "first", "set", "1", written(np.arange(1200)))
    second = ensure(tmp_path / "second", "set", "1", written(order))
    assert first.revision == second.revision
    for name, array in first.arrays.items():
        np.testing.assert_array_equal(array, second.arrays[name])
    pairs = {(i.tobytes(), int(y)) for i, y in zip(images, labels, strict=True)}
    kept = zip(first.arrays["train_images"], first.arrays["train_labels"], strict=True)
    assert {(image.tobytes(), int(label)) for image, label in kept} == pairs
    assert not np.array_equal(first.arrays["train_labels"], labels)


def never(_: CacheWriter) -> tuple[str, ...]:
    raise AssertionError("the cache must not be built again")


def _flip_and_hide(file: Path) -> None:
    before = file.stat()
    flip(file, -2)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def _truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 3)


def _append(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\0")


def _empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", [flip, _flip_and_hide, _truncate, _append, _empty, Path.unlink])
def test_damage_is_found_and_repaired(
    file: str, damage: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "set"
    before = ensure(path, "set", "1", write)
    damage(path / file)
    with pytest.raises(DataError, match=file.split(".", maxsplit=1)[0]):
        open_cache(path)
    with caplog.at_level(logging.WARNING):
        after = ensure(path, "set", "1", write)
    assert file in caplog.text
    assert after.revision == before.revision
    np.testing.assert_array_equal(after.arrays["test_images"], np.full((4, 1, 2, 2), 7))
    assert ensure(path, "set", "1", never).revision == before.revision
    assert names(tmp_path) == [".set.lock", "set"]  # no temporary folder stays


def test_files_that_were_only_touched_are_hashed_once(tmp_path: Path) -> None:
    path = tmp_path / "set"
    before = ensure(path, "set", "1", write)
    os.utime(path / FILES[0], ns=(1, 1))
    assert open_cache(path).revision == before.revision
    assert read_meta(path)["arrays"]["train_images"]["stamp"] == stamp_of(path / FILES[0])
    write_meta(path, {**before.meta, "format": 1})
    with pytest.raises(DataError, match="cache format 1, this fedbench reads 2"):
        open_cache(path)


def test_damaged_turned_images_are_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = load_dataset("digits", tmp_path, train_subset=40, test_subset=10)
    shift = tiny_config("simclr", data__partition="rotation").data
    turned = partial(rotated_images, data, make_partition(data.train_labels, 10, shift, 0))
    before = turned().copy()
    (file,) = data.path.glob("rotated-*")
    flip(file)
    np.testing.assert_array_equal(turned(), before)
    assert str(file) in caplog.text


def test_revision_sees_pixels_labels_shapes_classes_and_nothing_else(tmp_path: Path) -> None:
    def in_blocks(writer: CacheWriter) -> tuple[str, ...]:
        for split in ("train", "test"):
            blocks = (np.full((size, 1, 2, 2), 7, dtype=np.uint8) for size in (1, 3))
            writer.put_blocks(f"{split}_images", (4, 1, 2, 2), blocks)
            writer.put(f"{split}_labels", np.array([0, 1, 0, 1], dtype=np.int64))
        return ("a", "b")

    more: tuple[dict[str, Any], ...] = (
        {"classes": ("c", "d")}, {"shape": (4, 1, 1, 4)}, {"value": 8},
        {"classes": ("a", "b", "no image")},
    )  # fmt: skip
    changed: list[Callable[[CacheWriter], tuple[str, ...]]]
    changed = [partial(write, **given) for given in more]
    writes = (write, in_blocks, *changed)
    revisions = [ensure(tmp_path / str(i), "set", "1", w).revision for i, w in enumerate(writes)]
    assert revisions[0] == revisions[1] == revisions[2]
    assert len(set(revisions)) == 4


def test_a_changed_source_is_built_again(tmp_path: Path) -> None:
    root = tmp_path / "pictures"
    for split in ("train", "test"):
        (root / split / "a").mkdir(parents=True)
        for name in "01":
            (root / split / "a" / f"{name}.png").write_bytes(shade(0))
    first = load_dataset(f"folder:{root}", tmp_path / "data", train_subset=1)
    rewrite(root / "train/a/1.png", shade(9))
    second = load_dataset(f"folder:{root}", tmp_path / "data")
    assert sorted(second.train_images[:, 0, 0, 0]) == [0, 9]
    assert first.train_images.max() == 0
    rewrite(root / "train/a/0.png", shade(5))
    third = load_dataset(f"folder:{root}", tmp_path / "data", train_subset=1)
    assert third.path == first.path
    assert third.train_images.max() > 0  # the subset's cache followed
    assert first.train_images.max() == 0  # a map that is open stays as it was
    second = load_dataset(f"folder:{root}", tmp_path / "data")

    shutil.rmtree(root)
    assert load_dataset(f"folder:{root}", tmp_path / "data").revision == second.revision
    _truncate(second.path / "train_images.npy")
    refused(f"folder:{root}", "pictures", tmp_path / "data")


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def torn(writer: CacheWriter) -> tuple[str, ...]:
        writer.put_blocks("train_images", (4, 1, 2, 2), [np.zeros((3, 1, 2, 2), dtype=np.uint8)])
        return ()

    with pytest.raises(DataError, match="train_images: 4"):
        ensure(tmp_path / "set", "set", "1", torn)
    assert names(tmp_path) == [".set.lock"]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="--data-dir"):
        prepare("digits", tmp_path / "file")


BUILD = """
import sys, time
from pathlib import Path
import numpy as np
from fedbench.bench.data.cache import ensure

def write(writer):
    with open(sys.argv[2], "a") as log:
        log.write("built ")
    for split in ("train", "test"):
        writer.put(f"{split}_images", np.zeros((4, 1, 2, 2), np.uint8))
        time.sleep(float(sys.argv[3]))
        writer.put(f"{split}_labels", np.zeros(4, np.int64))
    return ("a",)

print(ensure(Path(sys.argv[1]), "set", "1", write).revision)
"""


def start_build(path: Path, log: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BUILD, str(path), str(log), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_that_come_together_build_once(tmp_path: Path) -> None:
    workers = [start_build(tmp_path / "set", tmp_path / "log", 0.3) for _ in range(3)]
    answers = {worker.communicate(timeout=60)[0] for worker in workers}
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    assert len(answers) == 1
    assert (tmp_path / "log").read_text() == "built "


def test_a_killed_build_is_swept_up(tmp_path: Path) -> None:
    data, log = tmp_path / "data", tmp_path / "log"
    worker = start_build(data / "set", log, 60)
    while not log.exists() and worker.poll() is None:
        time.sleep(0.01)
    worker.kill()
    worker.communicate(timeout=60)
    assert [name for name in names(data) if name.endswith(".tmp")]
    ensure(data / "set", "set", "1", write)
    assert names(data) == [".set.lock", "set"]
