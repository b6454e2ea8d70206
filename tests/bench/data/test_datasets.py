"""Data sets by name: layouts, contents, names by content, messages."""

import hashlib
import pickle
import shutil
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from torchvision.datasets import CIFAR10, ImageFolder

from fedbench.bench.data import datasets
from fedbench.bench.data.datasets import content_names, load_dataset, prepare, reopen
from fedbench.bench.data.known import REVISIONS
from fedbench.bench.data.sources.base import SOURCES, with_kind
from fedbench.bench.data.sources.built_in import FASHION_SMALL
from fedbench.bench.system.errors import ConfigError, DataError, UnknownNameError
from tests.bench.data.files import encoded, refused, table, write_hub, write_idx

RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (24, 5, 6, 3), dtype=np.uint8)  # (N, H, W, 3)
GREY = COLOUR[..., 0]
LABELS = [i % 3 for i in range(24)]


def in_order(images: npt.NDArray[np.uint8], labels: Any) -> tuple[npt.NDArray[np.uint8], list[int]]:
    """Images (N, C, H, W) and labels as a cache holds them: by SHA-256 of shape, label, pixels."""

    def key(index: int) -> bytes:
        head = f"{list(images.shape[1:])} {labels[index]} ".encode()
        return hashlib.sha256(head + images[index].tobytes()).digest()

    order = sorted(range(len(images)), key=key)
    return images[order], [int(labels[index]) for index in order]


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """16 training images in two shards and 8 test images, in colour."""
    folder, images = tmp_path / "ein Ordner ü", [encoded(x) for x in COLOUR]
    parts = {"train-00000-of-00002": (0, 10), "train-00001-of-00002": (10, 16), "test-0": (16, 24)}
    files = {f"data/{n}": table([*images[a:b]], LABELS[a:b]) for n, (a, b) in parts.items()}
    write_hub(folder, **files)
    return folder


def test_digits(tmp_path: Path) -> None:
    dataset = load_dataset("digits", tmp_path)
    bunch = load_digits()
    seen = [0] * 10
    train: list[int] = []
    test: list[int] = []
    for index, label in enumerate(bunch.target):
        seen[label] += 1
        (test if seen[label] % 3 == 0 else train).append(index)
    assert (len(train), len(test)) == (1201, 596)
    for images, labels, chosen in (
        (dataset.train_images, dataset.train_labels, train),
        (dataset.test_images, dataset.test_labels, test),
    ):
        assert isinstance(images, np.memmap)
        assert not images.flags.writeable
        assert not labels.flags.writeable
        pixels = np.rint(bunch.images[chosen] * 255 / 16).astype(np.uint8)[:, None]
        expected, expected_labels = in_order(pixels, bunch.target[chosen])
        assert labels.tolist() == expected_labels
        np.testing.assert_array_equal(images, expected)
    assert dataset.image_shape == (1, 8, 8)
    assert dataset.num_classes == 10
    assert load_dataset("digits", tmp_path).revision == dataset.revision
    # The same bytes on every machine: results that name this revision stay comparable.
    assert dataset.revision.startswith("59139dbe5d0ee688")


def test_fashion_small(tmp_path: Path) -> None:
    """Means of four pixels keep the mean, 0.2860 of all training images as published."""
    dataset = load_dataset("fashion-small", tmp_path)
    assert np.bincount(dataset.train_labels).tolist() == [150] * 10
    assert np.bincount(dataset.test_labels).tolist() == [100] * 10
    assert dataset.image_shape == (1, 14, 14)
    assert dataset.class_names[9] == "Ankle boot"
    assert dataset.train_images.mean() / 255 == pytest.approx(0.2860, abs=0.002)
    assert REVISIONS[dataset.revision] == "fashion-small"
    assert "Zalando" in FASHION_SMALL.with_suffix(".LICENSE").read_text("utf-8")


def test_hub_gives_the_pixels_that_were_written(hub: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    prepare(f"hub:{hub}", tmp_path, progress=lambda *c: calls.append(c))
    dataset = load_dataset(f"hub:{hub}", tmp_path)
    for split, part in (("train", slice(0, 16)), ("test", slice(16, 24))):
        images, labels = in_order(COLOUR[part].transpose(0, 3, 1, 2), LABELS[part])
        np.testing.assert_array_equal(getattr(dataset, f"{split}_images"), images)
        assert getattr(dataset, f"{split}_labels").tolist() == labels
    assert dataset.class_names == ("0", "1", "2")
    assert dataset.image_shape == (3, 5, 6)
    assert calls == [(16, 24), (24, 24)]


def test_names_of_classes_and_grey_among_coloured_images(tmp_path: Path) -> None:
    folder, names = tmp_path / "named", ["ant", "bee", "cat", "never seen"]
    # One grey image among coloured ones becomes RGB with equal channels.
    train, opaque = map(encoded, (GREY[0], COLOUR[1])), Image.fromarray(COLOUR[2]).convert("RGBA")
    test = table([encoded(opaque)], [1], names=names)
    name = write_hub(folder, train=table([*train], [0, 1], names=names), test=test)
    dataset = load_dataset(name, tmp_path)
    assert dataset.class_names == tuple(names)
    as_colour = np.stack([GREY[0]] * 3)
    assert any((image == as_colour).all() for image in dataset.train_images)
    np.testing.assert_array_equal(dataset.test_images[0], COLOUR[2].transpose(2, 0, 1))


def test_folder_agrees_with_torchvision(tmp_path: Path) -> None:
    root = tmp_path / "pictures"
    for index, pixels in enumerate(COLOUR):
        split, name = ("train", "val")[index >= 18], ("b", "A", "c")[LABELS[index]]
        file = root / split / name / f"deep{index % 2}" / f"{index}.PNG"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encoded(pixels))
    (root / "train/.hidden").mkdir()
    dataset = load_dataset(f"folder:{root}", tmp_path / "data")
    for split, images, labels in (
        ("val", dataset.test_images, dataset.test_labels),
        ("train", dataset.train_images, dataset.train_labels),
    ):
        if split == "train":
            (root / "train/.hidden").rmdir()
        reference = ImageFolder(str(root / split))
        assert dataset.class_names == tuple(reference.classes) == ("A", "b", "c")
        pixels = np.stack([np.asarray(image).transpose(2, 0, 1) for image, _ in reference])
        expected, expected_labels = in_order(pixels, reference.targets)
        assert labels.tolist() == expected_labels
        np.testing.assert_array_equal(images, expected)


def test_raw_files_that_are_there_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = RNG.integers(0, 256, (12, 28, 28), dtype=np.uint8)
    labels = np.arange(12, dtype=np.uint8) % 10
    for prefix, part in (("train", slice(0, 10)), ("t10k", slice(10, 12))):
        raw = tmp_path / "raw/MNIST/raw"
        write_idx(raw / f"{prefix}-images-idx3-ubyte", images[part])
        write_idx(raw / f"{prefix}-labels-idx1-ubyte", labels[part])
    prepared = prepare("mnist", tmp_path)
    dataset = load_dataset("mnist", tmp_path)
    assert (prepared.num_train, prepared.num_test) == (10, 2)
    assert (prepared.sha256, prepared.path) == (dataset.revision, dataset.path)
    np.testing.assert_array_equal(dataset.train_images, in_order(images[:10, None], labels[:10])[0])
    assert sorted(dataset.test_labels) == [0, 1]
    # Twelve images that lie where MNIST should be are not MNIST.
    assert dataset.name == prepared.name == "raw:mnist"

    pixels = RNG.integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)
    for names in (CIFAR10.train_list, CIFAR10.test_list):
        batch = {"data": pixels.reshape(4, -1), "labels": [0, 1, 9, 2]}
        file = tmp_path / "raw/cifar-10-batches-py" / names[0][0]
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(pickle.dumps(batch))
    meta = {"label_names": [f"class {c}" for c in range(10)]}
    (tmp_path / "raw/cifar-10-batches-py/batches.meta").write_bytes(pickle.dumps(meta))
    monkeypatch.setattr(datasets, "REVISIONS", {})
    monkeypatch.setattr(CIFAR10, "train_list", [["data_batch_1", None]])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", None]])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": None})
    dataset = load_dataset("cifar10", tmp_path)
    np.testing.assert_array_equal(dataset.train_images, in_order(pixels, [0, 1, 9, 2])[0])
    assert dataset.class_names[9] == "class 9"


def test_missing_set_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused("cifar10", r"run: fedbench data prepare cifar10 --data-dir '.*a b'$", tmp_path / "a b")
    monkeypatch.setenv("FEDBENCH_DATA_DIR", str(tmp_path / "none"))
    refused("svhn", r"run: fedbench data prepare svhn$")
    refused("svhn", r"no cache of data sets at '.{200}': File name too long", Path("x" * 5000))
    assert not list(tmp_path.iterdir())

    (tmp_path / "raw").mkdir()
    refused("cifar10", "no intact files of it", tmp_path)

    def refuse(*args: object, **kwargs: object) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    for name in ("cifar10", "mnist", "stl10", "svhn"):
        with pytest.raises(DataError, match=r"raw.*hub:PATH") as caught:
            prepare(name, tmp_path)
        assert caught.value.exit_code == 5
        assert not (tmp_path / name).exists()
    assert capsys.readouterr().out == ""


def test_default_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDBENCH_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load_dataset("digits").path == tmp_path / "fedbench/digits"


def test_subsets(tmp_path: Path) -> None:
    whole = load_dataset("digits", tmp_path)
    part = load_dataset("digits", tmp_path, train_subset=100, test_subset=596)
    assert isinstance(part.train_images, np.memmap)
    assert (len(part.train_labels), len(part.test_labels)) == (100, 596)
    assert set(np.bincount(part.train_labels)) <= {9, 10, 11}
    pairs, known = (
        {
            (image.tobytes(), label)
            for image, label in zip(d.train_images, d.train_labels, strict=True)
        }
        for d in (part, whole)
    )
    assert pairs <= known
    assert part.revision != whole.revision
    assert part.revision == load_dataset("digits", tmp_path, train_subset=100).revision
    assert load_dataset("digits", tmp_path, train_subset=1201).path == whole.path
    with pytest.raises(ConfigError, match=r"train_subset.*1202.*1201"):
        load_dataset("digits", tmp_path, train_subset=1202)
    with pytest.raises(ConfigError, match=r"test_subset is 0.*1\.\.596"):
        load_dataset("digits", tmp_path, test_subset=0)


def test_a_cache_is_reopened_by_its_path(hub: Path, tmp_path: Path) -> None:
    dataset = load_dataset(f"hub:{hub}", tmp_path)
    again = reopen(dataset.path)
    assert isinstance(again.train_images, np.memmap)
    assert (again.name, again.revision) == (dataset.name, dataset.revision)
    with pytest.raises(DataError, match=str(dataset.path)):
        reopen(dataset.path, "another")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("cifar", UnknownNameError, "'cifar'.*'cifar10'.*hub:PATH"),
        ("hubb:x", UnknownNameError, "folder:PATH"),
        ("x" * 3000, UnknownNameError, "known"),
        ("tests/bench/data/views", ConfigError, "write folder:tests/bench/data/views or hub:"),
        (__file__, ConfigError, f"file:{__file__}"),
        ("hub:", ConfigError, "hub:PATH"),
        ("hub:nowhere", DataError, "nowhere"),
        ("folder:nowhere", DataError, "nowhere"),
        (f"hub:{__file__}", DataError, "test_datasets"),
    ],
)
def test_unknown_names_and_paths(
    name: str, error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        load_dataset(name, tmp_path / "data")
    assert not (tmp_path / "data").exists()


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
    part, same = (
        load_dataset(f"folder:{folder}", data, train_subset=4, test_subset=2)
        for folder in (first, second)
    )
    assert (part.name, part.whole) == ("cifar100", one.revision)
    assert part.revision == same.revision


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


def test_a_path_alone_shows_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = {
        "photos/a/1.JPG": "folder",
        "rows/data/train-0.parquet": "hub",
        "tars/0.tar": "webdataset",
    }
    for file in (*files, "both/1.png", "both/1.parquet", "none/a.txt", "digits/1.png", "all.csv"):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).touch()
    for file, kind in files.items():
        name = file.partition("/")[0]
        assert with_kind(name) == f"{kind}:{name}"
        assert with_kind(str(tmp_path / name)) == f"{kind}:{tmp_path / name}"
    assert with_kind("all.csv") == "file:all.csv"
    assert with_kind("./digits") == "folder:./digits"
    for name in ("digits", "hub:rows", "nosuch", "x" * 400):
        assert with_kind(name) == name
    for name, hint in (("both", "folder:both or hub:both"), ("none", "no images")):
        with pytest.raises(ConfigError, match=hint):
            with_kind(name)
    for name, hint in (("photo", "did you mean the folder 'photos'"), ("nosuch", "no file or")):
        with pytest.raises(UnknownNameError, match=hint):
            load_dataset(name, tmp_path / "data")


def test_a_known_set_is_found_wherever_it_was_prepared(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = prepare(f"hub:{hub}", tmp_path / "data")
    refused("cifar10", "fedbench data prepare cifar10", tmp_path / "data")

    def cached() -> list[str]:
        records = datasets.dataset_records(tmp_path / "data")
        return [record["name"] for record in records if record["cached"]]

    assert cached() == []
    know(monkeypatch, cifar10=made.sha256)
    assert cached() == ["cifar10"]
    found = load_dataset("cifar10", tmp_path / "data")
    assert (found.name, found.path, found.revision) == ("cifar10", made.path, made.sha256)
    monkeypatch.setattr(CIFAR10, "download", lambda _: pytest.fail("it was downloaded"))
    assert prepare("cifar10", tmp_path / "data").path == made.path
    whole = len(found.train_labels)
    assert len(load_dataset("cifar10", tmp_path / "data", train_subset=6).train_labels) == 6 < whole
    (made.path / "meta.json").write_text("{}")
    refused("cifar10", "fedbench data prepare cifar10", tmp_path / "data")
