"""Layouts of files that people have, and what each gives: the table in docs/data.md."""

import gzip
import json
import logging
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedbench.bench.config import DataConfig, RunConfig
from fedbench.bench.data.datasets import Dataset, load_dataset, prepare
from fedbench.bench.data.partition import summary
from fedbench.bench.data.reading import PLAIN, Reading
from fedbench.bench.data.sources import parquet_rows
from fedbench.bench.data.sources.torchvision_sets import TorchvisionSet
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.training.setup import Setup
from tests.bench.data.files import (
    refused,
    shade,
    shades,
    write_hub,
    write_idx,
    write_images,
    write_tar,
)
from tests.specs import rewrite

COUNT = 48
LABELS = [i % 3 for i in range(COUNT)]
TEST = [0, 1, 2, 0, 1, 2]
HIDDEN_HALF = [(-1, None)[i // 2 % 2] if i % 2 else i % 3 for i in range(COUNT)]
WORDS = ["cat", "bird", "dog"]
MEDMNIST = ("train_images", "train_labels", "test_images", "test_labels")
KERAS = ("x_train", "y_train", "x_test", "y_test")


def write(root: Path, **splits: pa.Table) -> str:
    return write_hub(root, **{f"{name}-00000-of-00001": each for name, each in splits.items()})


def both(
    root: Path, change: Callable[[Any], Any] = int, column: str = "label", test: str = "test"
) -> str:
    """Write training and test images, with each label as `change` makes it."""
    train = shades([change(label) for label in LABELS], column)
    later = shades([change(label) for label in TEST], column, 100)
    return write(root, **{"train": train, test: later})


def with_writers(root: Path) -> str:
    writers = [f"w{i // 12}" for i in range(COUNT)]  # 4 of 12 images
    train = shades(LABELS, "character", writer=writers)
    return write(root, train=train, test=shades(TEST, "character", 100, writer=writers[:6]))


def converted(root: Path) -> str:
    return write_hub(root, **{"train/0000": shades(LABELS), "test/0000": shades(TEST, first=100)})


def changed(root: Path, change: Callable[[pa.Table], pa.Table]) -> str:
    return write(root, train=change(shades(LABELS)), test=change(shades(TEST, first=100)))


def of_bytes(content: pa.Table) -> pa.Table:
    images = content["image"].combine_chunks().field("bytes")
    return content.set_column(0, "img", images)


def of_dictionary(content: pa.Table) -> pa.Table:
    words = pa.array([WORDS[label] for label in content["label"].to_pylist()])
    return content.set_column(1, "label", words.dictionary_encode())


def of_views(content: pa.Table) -> pa.Table:
    words = pa.array([WORDS[label] for label in content["label"].to_pylist()], pa.string_view())
    images = content["image"].combine_chunks().field("bytes").cast(pa.binary_view())
    return pa.table({"image": images, "label": words})


def of_two_sizes(content: pa.Table) -> pa.Table:
    images = [shade(i, 4 + i % 2 * 4) for i in range(len(content))]
    return content.set_column(0, "image", pa.array(images))


def saved(root: Path, **splits: pa.Table) -> str:
    """Write sets with `save_to_disk` of the `datasets` library; a single split has no name."""
    import datasets  # half a second, which only this file's process should pay

    sets = {name: datasets.Dataset(content) for name, content in splits.items()}
    whole = datasets.DatasetDict(sets) if len(sets) > 1 else sets["train"]
    whole.save_to_disk(root)
    # As `map` of a set that was read from there does.
    for folder in [root / name for name in splits] if len(sets) > 1 else [root]:
        shutil.copy(next(folder.glob("*.arrow")), folder / "cache-0123456789abcdef.arrow")
    return f"hub:{root}"


def folders(root: Path, split: str = "", count: int = 16, first: int = 0) -> str:
    for number, word in enumerate(WORDS):
        write_images(root / split / word, count, first + number * count)
    return f"folder:{root}"


def split_folders(root: Path, test: str, unlabelled: int = 0) -> str:
    folders(root, "train", (COUNT - unlabelled) // 3)
    if unlabelled:
        write_images(root / "unlabelled", unlabelled, 200)
    return folders(root, test, 2, first=100)


def flat(root: Path) -> str:
    write_images(root, COUNT, 0)
    return f"folder:{root}"


def npy(folder: Path) -> str:
    file = folder.with_suffix(".npy")
    np.save(file, np.zeros((6, 4, 4), np.uint8))
    return f"file:{file}"


def npz(file: Path, names: tuple[str, ...], dtype: type = np.uint8) -> str:
    pixels = np.arange(COUNT + 6, dtype=np.uint8)[:, None, None].repeat(4, 1).repeat(4, 2)
    labels = np.array([*LABELS, *TEST])[:, None]
    parts = [pixels[:COUNT].astype(dtype), labels[:COUNT], pixels[COUNT:], labels[COUNT:]]
    arrays: dict[str, Any] = dict(zip(names, parts, strict=True))
    np.savez(file, **arrays)
    return f"file:{file}"


def shards(root: Path, kind: str, train: str = "train", test: str | None = "test") -> str:
    """Write WebDataset shards, whose labels are in files of this kind."""
    for name, labels, first in ((train, LABELS, 0), (test, TEST, 100)):
        members = {}
        for i, label in enumerate(labels if name else ()):
            record = json.dumps({"label": WORDS[label], "writer": f"w{i // 12}"})
            texts = {"cls": f"{label}\n", "txt": f"{WORDS[label]}\n", "json": record}
            members[f"{name}/{i:04}.png"] = shade(first + i)
            members[f"{name}/{i:04}.{kind}"] = texts[kind].encode()
        if members:
            write_tar(root / f"{name}-000000.tar", members)
    return f"webdataset:{root}"


def one_csv(root: Path, *, packed: bool = False, test: bool = False, labelled: bool = True) -> str:
    """Write pixels as CSV, into train.csv and perhaps test.csv beside it."""
    root.mkdir()
    for name, labels, first in (("train", LABELS, 0), ("test", TEST, 100))[: 1 + test]:
        lines = ["label," * labelled + ",".join(f"pixel{i}" for i in range(16))]
        for i, label in enumerate(labels):
            lines.append(f"{label}," * labelled + ",".join([str(first + i)] * 16))
        text = "\n".join(lines).encode()
        (root / f"{name}.csv").write_bytes(gzip.compress(text) if packed else text)
    return f"file:{root / 'train.csv'}"


def csv_of_files(root: Path) -> str:
    write_images(root / "pictures", COUNT, 0)
    lines = [f"pictures/{i}.png;{WORDS[label]};w{i // 12}" for i, label in enumerate(LABELS)]
    (root / "any.name").write_text("\n".join(["file_name;label;writer1", *lines]))
    return f"file:{root / 'any.name'}"


def one_parquet(root: Path, *, packed: bool = False) -> str:
    root.mkdir()
    pq.write_table(shades([WORDS[label] for label in LABELS]), root / "any.name")
    if packed:
        (root / "any.name").write_bytes(gzip.compress((root / "any.name").read_bytes()))
    return f"file:{root / 'any.name'}"


def idx(root: Path, names: tuple[str, ...] = ("train", "t10k")) -> str:
    for name, labels, first in zip(names, (LABELS, TEST), (0, 100), strict=False):
        pixels = np.arange(first, first + len(labels), dtype=np.uint8).repeat(16)
        write_idx(root / f"{name}-images-idx3-ubyte.gz", pixels.reshape(-1, 4, 4))
        write_idx(root / f"{name}-labels-idx1-ubyte.gz", np.array(labels, np.uint8))
    return f"file:{root / names[0]}-images-idx3-ubyte.gz"


def changed_file(name: str, change: Callable[[Path], object]) -> str:
    change(Path(name.removeprefix("file:")))
    return name


def without_names(file: Path) -> None:
    file.write_text(file.read_text().partition("\n")[2])


def without_labels(file: Path) -> None:
    (file.parent / file.name.replace("images-idx3", "labels-idx1")).unlink()


def cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


NATURAL = "several other columns, `data.label_column=character`"
BUILD: dict[str, Callable[[Path], str]] = {
    **{
        f"`hub:` `train-*.parquet` and `{name}-*.parquet`": partial(both, test=name)
        for name in ("test", "validation", "valid", "val", "dev")
    },
    "`hub:` `train/0000.parquet` and `test/0000.parquet`": converted,
    "`hub:` `train-*.parquet` alone": lambda p: write(p, train=shades(LABELS)),
    "`hub:` images as plain bytes": lambda p: changed(p, of_bytes),
    "`hub:` a label column `labels`, `fine_label`, `class` or `target`": lambda p: both(
        p, column="fine_label"
    ),
    "`hub:` one other column, such as `character`": lambda p: both(p, column="character"),
    "`hub:` several other columns": with_writers,
    f"`hub:` {NATURAL}": with_writers,
    "`hub:` labels as text": lambda p: both(p, WORDS.__getitem__),
    "`hub:` labels as dictionaries of text": lambda p: changed(p, of_dictionary),
    "`hub:` labels in lists": lambda p: both(p, lambda label: [label]),
    "`hub:` labels with gaps and without names": lambda p: both(p, lambda label: 2 * label),
    "`hub:` labels −1 or null in training images": lambda p: write(
        p, train=shades(HIDDEN_HALF), test=shades(TEST, first=100)
    ),
    "`hub:` labels −1 or null in test images": lambda p: write(
        p, train=shades(LABELS), test=shades([0, None, -1], first=100)
    ),
    "`hub:` `unlabeled-*.parquet` beside them": lambda p: write(
        p,
        train=shades(LABELS[:24]),
        test=shades(TEST, first=100),
        unlabeled=shades(LABELS[24:], first=200),
    ),
    "`hub:` no label column": lambda p: changed(p, lambda content: content.select(["image"])),
    "`hub:` images of several sizes": lambda p: changed(p, of_two_sizes),
    "`hub:` images of several sizes, `data.image_size=4`": lambda p: changed(p, of_two_sizes),
    "`hub:` splits that `save_to_disk` wrote": lambda p: saved(
        p, train=shades(LABELS), test=shades(TEST, first=100)
    ),
    "`hub:` one set that `save_to_disk` wrote": lambda p: saved(p, train=shades(LABELS)),
    "`hf:OWNER/NAME`": lambda _: "hf:owner/name",
    "`folder:` `train/CLASS/` and `test/CLASS/`": lambda p: split_folders(p, "test"),
    "`folder:` `train/CLASS/` and `valid/CLASS/`": lambda p: split_folders(p, "valid"),
    "`folder:` `CLASS/`": folders,
    "`folder:` `train/CLASS/`, `test/CLASS/` and `unlabelled/`": lambda p: split_folders(
        p, "test", 24
    ),
    "`folder:` images without class folders": flat,
    f"`file:` `.npz` of MedMNIST's {', '.join(f'`{n}`' for n in MEDMNIST)}": lambda p: npz(
        p.with_suffix(".npz"), MEDMNIST
    ),
    "`file:` `.npz` of Keras's `x_train`, `y_train`, `x_test`, `y_test`": lambda p: npz(
        p.with_suffix(".npz"), KERAS
    ),
    "`file:` `.npz` of pickled arrays": lambda p: npz(p.with_suffix(".npz"), KERAS, object),
    "`file:` `.npy`, one array": npy,
    "`file:` CSV of image files and labels as text": csv_of_files,
    "`file:` CSV of pixels, `.gz`": lambda p: one_csv(p, packed=True),
    "`file:` CSV of pixels, `train.csv` and `test.csv`": lambda p: one_csv(p, test=True),
    "`file:` CSV of pixels without a label column": lambda p: one_csv(p, labelled=False),
    "`file:` CSV without names of columns": lambda p: changed_file(one_csv(p), without_names),
    "`file:` Parquet, any name": one_parquet,
    "`file:` Parquet, `.gz`": lambda p: one_parquet(p, packed=True),
    "`file:` IDX `train-images-idx3-ubyte.gz` and the three files beside it": idx,
    "`file:` IDX images without labels beside them": lambda p: changed_file(idx(p), without_labels),
    "`file:` a `.gz` that is cut off": lambda p: changed_file(idx(p), cut_off),
    "`webdataset:` `train-*.tar` and `test-*.tar` with `.cls`": lambda p: shards(p, "cls"),
    "`webdataset:` labels as text in `.txt`": lambda p: shards(p, "txt"),
    "`webdataset:` labels in `.json`": lambda p: shards(p, "json"),
    "`webdataset:` shards without a split in their names": lambda p: shards(
        p, "cls", train="shard", test=None
    ),
}
OPTIONS = {
    f"`hub:` {NATURAL}": Reading(label_column="character"),
    "`hub:` images of several sizes, `data.image_size=4`": Reading(image_size=4),
}
REFUSED = {
    "`hub:` several other columns": r"data\.label_column=NAME\); found: .*character.*writer",
    "`hub:` labels in lists": "label: list",
    "`hub:` labels with gaps and without names": "label is 4",
    "`hub:` labels −1 or null in test images": "2 of 3 test images",
    "`hub:` images of several sizes": "data.image_size",
    "`file:` `.npz` of pickled arrays": "set.npz",
    "`file:` `.npy`, one array": r"save them by numpy\.savez\('images\.npz', train_images=…",
    "`file:` CSV without names of columns": r"train\.csv: the first line names its columns",
    "`file:` IDX images without labels beside them": "train-images-idx3-ubyte.gz",
    "`file:` a `.gz` that is cut off": "train-images-idx3-ubyte.gz",
}


def rows_of_the_page() -> list[tuple[str, str]]:
    page = Path(__file__).parents[4] / "docs" / "data.md"
    part = page.read_text(encoding="utf-8").split("| layout | gives |\n|---|---|\n")[1]
    return re.findall(r"^\| (.+) \| (.+) \|$", part.split("\n\n")[0], re.MULTILINE)


def numbers(dataset: Dataset) -> tuple[int, int, int, int]:
    train = dataset.train_labels
    hidden = int((train < 0).sum())
    return len(train), len(dataset.test_labels), dataset.num_classes, hidden


def test_the_page_lists_these_layouts() -> None:
    assert [layout for layout, _ in rows_of_the_page()] == list(BUILD)
    assert {layout for layout, gives in rows_of_the_page() if gives == "refused"} == set(REFUSED)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Answer for the Hub, at the call that leaves fedbench."""
    import datasets
    import huggingface_hub

    calls: list[Any] = []

    def load(name: str, subset: str | None, *, revision: str | None) -> dict[str, Any]:
        switches = datasets.config.HF_HUB_OFFLINE, huggingface_hub.constants.HF_HUB_OFFLINE
        calls.append((name, subset, revision, *switches))
        splits = {"train": shades(LABELS), "test": shades(TEST, first=100)}
        return {split: datasets.Dataset(content) for split, content in splits.items()}

    monkeypatch.setattr(datasets, "load_dataset", load)
    return calls


@pytest.mark.parametrize(("layout", "gives"), rows_of_the_page())
def test_a_layout_gives_what_the_page_says(
    layout: str, gives: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if "hf:" in layout:
        request.getfixturevalue("hub")
    name, reading = BUILD[layout](tmp_path / "set"), OPTIONS.get(layout, PLAIN)
    if gives == "refused":
        refused(name, REFUSED[layout], reading=reading)
        return
    dataset = load_dataset(name, reading=reading)
    train, test, classes, hidden = numbers(dataset)
    assert dataset.image_shape == (1, 4, 4)
    if gives == "one image of six held out":
        assert (train + test, classes, hidden) == (COUNT, 3, 0)
        assert 0 < test < COUNT // 3
    elif gives == "images without labels":
        assert (train + test, classes, hidden) in {(COUNT, 0, train), (COUNT + 6, 0, train)}
        assert (dataset.test_labels < 0).all()
    else:
        some = {"both splits": 0, "both splits, some images unlabelled": COUNT // 2}
        assert (train, test, classes, hidden) == (COUNT, 6, 3, some[gives])


def test_the_library_is_kept_from_the_network(hub: list[Any], tmp_path: Path) -> None:
    from datasets import config

    load_dataset("hf:owner/name/small@v1", tmp_path)
    load_dataset("hf:owner/name/small@v1", tmp_path)  # from fedbench's own cache
    assert hub == [("owner/name", "small", "v1", True, True)]
    assert not config.HF_HUB_OFFLINE
    with pytest.raises(ConfigError, match="hf:OWNER/NAME"):
        load_dataset("hf:name", tmp_path)


@pytest.mark.parametrize("set_by_user", [False, True])
def test_who_prepares_allows_the_network_unless_hf_hub_offline_is_set(
    hub: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_by_user: bool
) -> None:
    import datasets
    import huggingface_hub

    for place in (datasets.config, huggingface_hub.constants):
        monkeypatch.setattr(place, "HF_HUB_OFFLINE", set_by_user)
    prepare("hf:owner/name", tmp_path)
    assert hub == [("owner/name", None, None, set_by_user, set_by_user)]


def test_other_types_of_bytes_and_text(tmp_path: Path) -> None:
    dataset = load_dataset(changed(tmp_path / "set", of_views))
    assert (numbers(dataset), dataset.class_names) == ((COUNT, 6, 3, 0), ("bird", "cat", "dog"))


def test_the_library_names_the_classes_of_its_numbers(tmp_path: Path) -> None:
    train, test = shades(LABELS, names=WORDS), shades(TEST, first=100, names=WORDS)
    dataset = load_dataset(saved(tmp_path / "set", train=train, test=test))
    assert dataset.class_names == tuple(WORDS)


def test_text_is_numbered_over_both_splits(tmp_path: Path) -> None:
    train = shades([WORDS[label] for label in LABELS])
    name = write(tmp_path / "set", train=train, test=shades(["dog", "cat"], first=100))
    dataset = load_dataset(name)
    assert dataset.class_names == ("bird", "cat", "dog")
    pairs = zip(dataset.train_images[:, 0, 0, 0].tolist(), dataset.train_labels, strict=True)
    by_pixel = dict(pairs)
    assert [by_pixel[i] for i in range(3)] == [1, 0, 2]


def test_without_a_test_split_the_content_holds_images_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The same images in another order and as a folder have the same test images."""
    with caplog.at_level(logging.WARNING):
        first = load_dataset(write(tmp_path / "a", train=shades(LABELS)))
    assert "no test split" in caplog.text
    order = list(range(COUNT))[::-1]
    again = load_dataset(write(tmp_path / "b", train=shades(LABELS).take(order)))
    assert again.revision == first.revision
    one = load_dataset(folders(tmp_path / "c"))
    two = load_dataset(folders(tmp_path / "d", "train"))
    assert one.revision == two.revision
    refused(write(tmp_path / "f", train=shades([0])), "of 1 images, .*none is for test")
    held = {int(image[0, 0, 0]) for image in first.test_images}
    assert {int(image[0, 0, 0]) for image in one.test_images} == held
    # Of a set with some labels only labelled images are held out.
    part = load_dataset(write(tmp_path / "e", train=shades(HIDDEN_HALF)))
    kept = {int(image[0, 0, 0]) for image in part.test_images}
    assert kept == {number for number in held if number % 2 == 0}


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    name = with_writers(tmp_path / "set")
    for reading, text in (
        (Reading(label_column="lable"), r"data\.label_column=lable: .* found: image: .*character"),
        (Reading(label_column="image"), r"data\.label_column=image: .* no such column of integers"),
        (
            Reading(label_column="character", natural_column="author"),
            r"data\.natural_column=author: .* found: image: .*writer",
        ),
    ):
        refused(name, text, reading=reading)
    for reading in (Reading(label_column="x"), Reading(natural_column="x")):
        with pytest.raises(ConfigError, match=r"digits.*hub:"):
            load_dataset("digits", reading=reading)


def config(name: str, **data: Any) -> RunConfig:
    return RunConfig(data=DataConfig.model_validate({"name": name, "num_clients": 4, **data}))


@pytest.mark.parametrize("kind", ["hub", "webdataset"])
def test_natural_clients_are_the_values_of_a_column(kind: str, tmp_path: Path) -> None:
    data: dict[str, Any] = {"partition": "natural", "natural_column": "writer"}
    if kind == "hub":
        name = with_writers(tmp_path / "set")
        data["label_column"] = "character"
    else:
        name = shards(tmp_path / "set", "json")
    experiment = Experiment(config(name, **data))
    dataset, partition = experiment.dataset, experiment.partition
    pixels = dataset.train_images[:, 0, 0, 0]
    shares = [sorted(pixels[partition.client(k)].tolist()) for k in range(4)]
    assert shares == [list(range(12 * k, 12 * k + 12)) for k in range(4)]
    fewer = Experiment(config(name, **{**data, "num_clients": 3})).on(dataset).partition
    assert sorted(fewer.sizes.tolist()) == [12, 12, 24]
    more = Experiment(config(name, **{**data, "num_clients": 5})).on(dataset)
    with pytest.raises(ConfigError, match=r"num_clients=5.*writer"):
        _ = more.partition
    plain = load_dataset(name, reading=Reading(data.get("label_column")))
    assert dataset.whole == plain.revision != dataset.revision  # its clients are part of it
    with pytest.raises(ValueError, match="natural"):
        config(name, partition="natural")


def test_columns_named_as_fields_of_a_json_are_columns(tmp_path: Path) -> None:
    splits = pa.array(["train" if i < 40 else "test" for i in range(COUNT)])
    table = shades(LABELS, "json.label").append_column("json.split", splits)
    assert numbers(load_dataset(write(tmp_path / "set", train=table))) == (40, 8, 3, 0)


def test_images_without_labels_are_trained_on_and_not_probed(tmp_path: Path) -> None:
    name = write(tmp_path / "set", train=shades(HIDDEN_HALF), test=shades(TEST, first=100))
    by_label = Experiment(config(name))
    with pytest.raises(ConfigError, match="24 of 48"):
        _ = by_label.partition
    dataset = by_label.dataset
    iid = Experiment(config(name, partition="iid")).on(dataset)
    partition, setup = iid.partition, iid.setup
    assert len(partition.indices) == COUNT
    assert len(setup.probed) == COUNT // 2
    assert (dataset.train_labels[setup.probed] >= 0).all()
    assert partition.class_counts(dataset.train_labels).sum() == COUNT // 2
    assert summary(partition, dataset.train_labels)["num_unlabelled"] == COUNT // 2
    some = Experiment(config(name, partition="iid", label_fraction=0.5)).on(dataset).setup
    assert 0 < (some.known_labels >= 0).sum() < COUNT // 2


def test_stl10_has_its_unlabelled_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With torchvision's parts by name, as `STL10(split=...)` gives them."""
    labels = {"train": [0, 9], "unlabeled": [-1, -1, -1], "test": [9]}

    def part(_: TorchvisionSet, split: str) -> SimpleNamespace:
        pixels = np.full((len(labels[split]), 3, 96, 96), len(split), np.uint8)
        return SimpleNamespace(data=pixels, labels=labels[split], classes=list("abcdefghij"))

    monkeypatch.setattr(TorchvisionSet, "_open", part)
    (tmp_path / "raw").mkdir()
    assert numbers(load_dataset("stl10", tmp_path)) == (5, 1, 10, 3)


def test_a_set_without_labels_can_be_trained_on_but_not_measured(tmp_path: Path) -> None:
    iid = config(flat(tmp_path / "set"), partition="iid")
    dataset = Experiment(iid).dataset

    def setup(**values: Any) -> Setup:
        return Experiment(iid.model_copy(update=values)).on(dataset).setup

    with pytest.raises(ConfigError, match=r"set evaluation\.protocols=\[\]"):
        setup()
    for spec in ("supervised", "semifed"):
        with pytest.raises(ConfigError, match=f"'{spec}'"):
            setup(spec=spec)
    unmeasured = iid.evaluation.model_copy(update={"protocols": ()})
    assert not setup(evaluation=unmeasured).spec.labelled


def test_resizing_is_antialiased_and_keeps_the_centre(tmp_path: Path) -> None:
    """Columns of 0 and 255 by turns become grey, not stripes; the ends of a long image go."""
    place = tmp_path / "set"
    stripes = np.zeros((8, 16), np.uint8)
    stripes[:, 4:12:2] = 255  # in the middle square; the rest is black
    for split in ("train", "test"):
        (place / split / "a").mkdir(parents=True)
        Image.fromarray(stripes).save(place / split / "a" / "0.png")
    reading = Reading(image_size=2)
    dataset = load_dataset(f"folder:{place}", reading=reading)
    pixels = dataset.train_images[0, 0].astype(int)
    assert pixels.shape == (2, 2)
    assert np.abs(pixels - 127.5).max() < 30
    digits = load_dataset("digits", reading=Reading(image_size=4))
    assert (digits.image_shape, digits.name) == ((1, 4, 4), "raw:digits")
    same = load_dataset("digits", reading=Reading(image_size=8))
    assert same.name == "digits"


def test_one_file_is_the_same_set_in_every_form(tmp_path: Path) -> None:
    """Pixels of a CSV and of IDX files, and the files that a CSV names and a Parquet file has."""
    packed = tmp_path / "packed.npz.gz"
    packed.write_bytes(
        gzip.compress(Path(npz(tmp_path / "x.npz", KERAS).removeprefix("file:")).read_bytes())
    )
    both_splits = idx(tmp_path / "idx"), one_csv(tmp_path / "csv", test=True)
    held_out = one_csv(tmp_path / "alone"), idx(tmp_path / "one", ("mine",))
    files = csv_of_files(tmp_path / "named"), one_parquet(tmp_path / "parquet")
    for names in (both_splits, held_out, files):
        revisions = {load_dataset(name).revision for name in names}
        assert len(revisions) == 1
    one, two = (load_dataset(f"npz:{file}") for file in (packed, tmp_path / "x.npz"))
    assert one.revision == two.revision
    rewrite(tmp_path / "named" / "pictures" / "0.png", shade(250))
    assert load_dataset(files[0]).revision not in revisions  # it was read again


def test_grey_arrays_beside_coloured_ones(tmp_path: Path) -> None:
    grey, labels = np.arange(64, dtype=np.uint8).reshape(4, 4, 4), np.arange(4) % 2
    colour = np.stack([grey, grey, grey + 1], axis=3)
    for axis in (1, 3):  # channels first, and last
        test = np.moveaxis(colour, 3, axis)
        np.savez(tmp_path / "a.npz", x_train=grey, y_train=labels, x_test=test, y_test=labels)
        dataset = load_dataset(f"file:{tmp_path}/a.npz")
        assert np.ptp(dataset.train_images, axis=1).max() == 0
        assert np.ptp(dataset.test_images, axis=1).min() == 1


def test_a_packed_file_is_unpacked_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python sets aside what a read asks for, and no memory holds all that is allowed here."""
    monkeypatch.setattr(parquet_rows, "RATIO", 1 << 40)
    dataset = load_dataset(one_csv(tmp_path / "set", packed=True, test=True))
    assert numbers(dataset) == (COUNT, 6, 3, 0)


@pytest.mark.parametrize(
    "content",
    [
        "label,p0,p1,p2,p3\n0,1,2,3,256\n",
        "label,p0,p1,p2,p3\n0,1,2,3,\n",
        "label,p0,p1,p2,p3\n0,1,2,3\n",
        "label,p0,p1,p2,p3,p4\n0,1,2,3,4,5\n",
        "label,name\n0,a\n",
        "image,label\nnowhere.png,0\n",
        "image,label\n,0\n",
        "",
        "\0\0\x08\x03" + "\0\0\0\x09" * 3,
        "\0\1\2",
    ],
)
def test_what_is_no_file_of_images(content: str, tmp_path: Path) -> None:
    for name in ("images.x", "labels.x"):
        (tmp_path / name).write_bytes(content.encode("latin-1"))
    refused(f"file:{tmp_path}/images.x", str(tmp_path))
