"""TinyImageNet's folder layout, made small."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedbench.bench.data.datasets import dataset_records, load_dataset, prepare
from tests.bench.data.files import refused

WNIDS = ["n09", "n02", "n05"]  # not sorted, as in the original


def save(path: Path, value: int, *, grey: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shade = np.full((64, 64), value, np.uint8)
    Image.fromarray(shade if grey else np.stack([shade] * 3, axis=2)).save(path, quality=95)


def tiny(root: Path) -> Path:
    """Three classes of two training images; four validation images, one of them grey."""
    folder = root / "tiny-imagenet-200"
    for c, wnid in enumerate(WNIDS):
        for i in range(2):
            save(folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", 50 * c + 10 * i)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t62\t62\n")
    lines = []
    for i, wnid in enumerate(["n05", "n09", "n02", "n05"]):
        save(folder / "val" / "images" / f"val_{i}.JPEG", 200 + i, grey=i == 2)
        lines.append(f"val_{i}.JPEG\t{wnid}\t0\t32\t44\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    (folder / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    (folder / "words.txt").write_text("n02\ta thing\n")
    save(folder / "test" / "images" / "test_0.JPEG", 1)
    return folder


def test_layout(tmp_path: Path) -> None:
    dataset = load_dataset(f"tiny-imagenet:{tiny(tmp_path)}")
    assert dataset.image_shape == (3, 64, 64)
    assert dataset.class_names == ("n02", "n05", "n09")
    # Class n02 was made second: its images have shades 50 and 60.
    for images, labels, expected in (
        (
            dataset.train_images,
            dataset.train_labels,
            [(0, 50), (0, 60), (1, 100), (1, 110), (2, 0), (2, 10)],
        ),
        (dataset.test_images, dataset.test_labels, [(0, 202), (1, 200), (1, 203), (2, 201)]),
    ):
        shades = images.mean(axis=(1, 2, 3))
        pairs = sorted(zip(labels.tolist(), shades.tolist(), strict=True))
        np.testing.assert_allclose(pairs, expected, atol=0.5)
    # Three classes are not the whole TinyImageNet.
    assert dataset.name == "tiny-imagenet:tiny-imagenet-200"


def test_without_a_path_it_lies_in_the_data_folder(tmp_path: Path) -> None:
    refused("tiny-imagenet", r"not in '.*raw/tiny-imagenet-200'.*unzip tiny.*-d .*raw", tmp_path)

    def record() -> dict[str, object]:
        (record,) = [r for r in dataset_records(tmp_path) if r["name"] == "tiny-imagenet"]
        return record

    assert record()["cached"] is False
    assert str(record()["get"]).startswith("get http")
    tiny(tmp_path / "raw")
    done = prepare("tiny-imagenet", tmp_path)
    assert (done.num_train, done.num_test) == (6, 4)
    assert record()["cached"] is True
    shutil.rmtree(tmp_path / "raw")  # the cache is enough
    assert load_dataset("tiny-imagenet", tmp_path).revision == done.sha256


def edit(name: str, text: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).write_text(text)

    return apply


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "wnids.txt").unlink(), "wnids.txt"),
        (lambda f: shutil.rmtree(f / "val" / "images"), "val/images"),
        (lambda f: shutil.rmtree(f / "train" / "n05"), "n05"),
        (lambda f: (f / "val/images/val_1.JPEG").unlink(), "val_1.JPEG"),
        (edit("val/val_annotations.txt", "val_0.JPEG\tn7\t0\n"), "line 1: class 'n7'"),
        (edit("wnids.txt", "n02\nn02\n"), "wnids.txt"),
    ],
)
def test_spoilt_folders(spoil: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    folder = tiny(tmp_path)
    spoil(folder)
    refused(f"tiny-imagenet:{folder}", message)
