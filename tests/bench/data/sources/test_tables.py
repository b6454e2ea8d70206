"""CSV files, columns that say splits, tar shards: values as they are written, or a refusal."""

import base64
import json
import logging
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from fedbench.bench.data.datasets import load_dataset, prepare
from fedbench.bench.data.reading import PLAIN, Reading
from fedbench.bench.system.errors import ConfigError, DataError
from tests.bench.data.files import refused, shade, shades, write_hub, write_tar

COUNT = 36


def csv(root: Path, header: str, *rows: str, file: str = "labels.csv", first: int = 0) -> str:
    """Write 36 images i.png; the rows follow in turn, `{}` is the image."""
    root.mkdir(exist_ok=True)
    lines = [header]
    for i in range(first, first + COUNT):
        lines.append(rows[i % len(rows)].format(f"{i:03}.png"))
        (root / f"{i:03}.png").write_bytes(shade(i))
    (root / file).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"file:{root / file}"


def counts(name: str, reading: Reading = PLAIN) -> dict[str, Counter[str]]:
    """Return the images of each class, by split; "-" has those without a label."""
    dataset = load_dataset(name, reading=reading)
    names = {**dict(enumerate(dataset.class_names)), -1: "-"}
    labels = {"train": dataset.train_labels, "test": dataset.test_labels}
    return {split: Counter(names[c] for c in of.tolist()) for split, of in labels.items()}


def whole(name: str, reading: Reading = PLAIN) -> dict[str, int]:
    """Return the same over both splits."""
    return dict(sum(counts(name, reading).values(), Counter()))


@pytest.mark.parametrize(
    ("labels", "gives"),
    [
        ("NA DE ZA", {"NA": 12, "DE": 12, "ZA": 12}),
        ('"NA" "DE" "ZA"', {"NA": 12, "DE": 12, "ZA": 12}),
        ("null vector matrix", {"null": 12, "vector": 12, "matrix": 12}),
        ("nan naan roti", {"nan": 12, "naan": 12, "roti": 12}),
        ("None mild severe", {"None": 12, "mild": 12, "severe": 12}),
        ("true false true", {"true": 24, "false": 12}),
        ("007 008 009", {"007": 12, "008": 12, "009": 12}),
        ("01 1 x", {"01": 12, "1": 12, "x": 12}),
        ("0 1 2", {"0": 12, "1": 12, "2": 12}),
        ("2 -1 0 1", {"0": 9, "1": 9, "2": 9, "-": 9}),
        ("cat  dog", {"cat": 12, "dog": 12, "-": 12}),
        ("2020-01-01 2020-01-02", {"2020-01-01": 18, "2020-01-02": 18}),
        ("2020-01-01 1.2.3 1e", {"2020-01-01": 12, "1.2.3": 12, "1e": 12}),
    ],
)
def test_text_stays_text(labels: str, gives: dict[str, int], tmp_path: Path) -> None:
    blank = "" if '"' in labels else " "
    rows = [f"{{}},{blank}{label}" for label in labels.split(" ")]
    assert whole(csv(tmp_path / "set", "file_name,label", *rows)) == gives


@pytest.mark.parametrize(
    ("labels", "named"),
    [
        ("0.0 1.0 2.0", "label: double"),
        ("0.5 1.25 3", "label: double"),
        ("0 1 NA", "12 x 'NA'"),
        ("0.0 1.0 nan", "12 x 'nan'"),
        ("cat Cat dog", "'Cat' and 'cat'"),
        ("cat -1 dog", "'-1'"),
        ("1 2 3", r"csv: the largest label is 3.* \(0\)"),
        ("-1 1", "-1 is no label, and 18 images"),
    ],
)
def test_labels_that_could_mean_two_things(labels: str, named: str, tmp_path: Path) -> None:
    rows = [f"{{}},{label}" for label in labels.split()]
    refused(csv(tmp_path / "set", "file_name,label", *rows), named)


@pytest.mark.parametrize(
    ("header", "row", "gives"),
    [
        (",image,label", "7,{},0.0", "label: double"),
        ("Unnamed: 0,id,image,label", "7,8,{},", {"-": COUNT}),
        (",image,word", "7,{},a", {"a": COUNT}),
        (",image", "7,{}", {"-": COUNT}),  # a number for each row is no class
        ("image,site", "{},north", {"-": COUNT}),
        ("image,patientId", "{},7", {"-": COUNT}),
        ("image,caption,width", "{},a cat,32", {"-": COUNT}),
        ("image,word,site", "{},a,north", "word: string, site: string"),
        ("image,class_id", "{},north", {"north": COUNT}),
        ("image,labelText", "{},north", {"north": COUNT}),
    ],
)
def test_columns_that_are_no_labels(header: str, row: str, gives: Any, tmp_path: Path) -> None:
    name = csv(tmp_path / "set", header, row)
    if isinstance(gives, str):
        refused(name, gives)
        return
    assert whole(name) == gives


def test_a_class_called_as_nothing_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        load_dataset(csv(tmp_path / "set", "image,label", "{},NA", "{},DE"))
    assert "'NA' is a class, of 18 images" in caplog.text


def test_the_hint_of_excel_names_no_column(tmp_path: Path) -> None:
    name = csv(tmp_path / "set", "sep=;\nfile_name;label", "{};a", "{};b")
    assert whole(name) == {"a": 18, "b": 18}


def test_names_of_files_and_clients_are_text(tmp_path: Path) -> None:
    root = tmp_path / "set"
    root.mkdir()
    lines = ["file,label,site"]
    for i in range(COUNT):
        (root / f"{i:05}").write_bytes(shade(i))
        lines.append(f"{i:05},{i % 2},{('01', '1', '001')[i % 3]}")
    (root / "labels.csv").write_text("\n".join(lines))
    dataset = load_dataset(f"file:{root}/labels.csv", reading=Reading(natural_column="site"))
    assert dataset.train_clients is not None
    pixels = dataset.train_images[:, 0, 0, 0]
    order = [1, 2, 0]  # 001, 01, 1 as text
    assert dataset.train_clients.tolist() == [order[pixel % 3] for pixel in pixels]
    for reading in (PLAIN, Reading(natural_column="site")):
        gives = whole(f"file:{root}/labels.csv", reading)
        assert gives == {"0": 18, "1": 18}


SPLIT = {"train": {"a": 12, "b": 12}, "test": {"a": 6, "b": 6}}
COLUMNS = [
    ("split", "train train test"),
    ("Usage", "Training Training PublicTest"),
    ("is_test", "0 0 1"),
    ("is_train", "True True False"),
    ("is_valid", "no no yes"),
    ("isTrainingImage", "1 1 0"),
    ("test_mask", "False False True"),
    ("set", "train-set train-set test-set"),
    ("subset", "TRAIN TRAIN Validation"),
    ("fold", "train-1 train-2 test"),
    ("purpose", "train train test"),  # a name that promises nothing
    ("split,is_val", "train,0 train,0 val,1"),
    ("is_train,is_test", "1,0 1,0 0,1"),
]


@pytest.mark.parametrize(("column", "values"), COLUMNS)
def test_columns_say_the_split(column: str, values: str, tmp_path: Path) -> None:
    rows = [f"{{}},{label},{v}" for v in values.split() for label in "ab"]
    name = csv(tmp_path / "set", f"file_name,label,{column}", *rows)
    assert counts(name) == SPLIT
    pixels = load_dataset(name).test_images[:, 0, 0, 0]
    assert {pixel % 6 for pixel in pixels} == {4, 5}  # rows 4 and 5 of each six say test
    content: dict[str, Any] = {
        key: [row.split(",")[i] for row in values.split() for _ in "ab"] * 6
        for i, key in enumerate(column.split(","))
    }
    if column == "is_test":
        content = {key: [value == "1" for value in of] for key, of in content.items()}
    write_hub(tmp_path / "hub", all=shades(["a", "b"] * 18, "word", **content))
    for source in ("hub:", "file:"):
        path = tmp_path / "hub" if source == "hub:" else tmp_path / "hub" / "all.parquet"
        assert counts(f"{source}{path}") == SPLIT


@pytest.mark.parametrize(
    ("column", "values", "named"),
    [
        ("split", "a b c", "'split' has the values 'a', 'b', 'c'"),
        ("split", "0 1 2", "'split' has the values 0, 1, 2"),
        ("subset", "train restval test", "'restval'"),
        ("group", "tr tr te", "'group' has the values 'te', 'tr'"),
        ("group", "train train holdout", "'holdout'"),
        ("split", "train test ", "'split' is None"),
        ("split,is_test", "train,1 test,1 train,0", "row 0: 'split' says train and 'is_test'"),
        ("is_val,is_test", "1,1 0,0 0,1", "row 0"),
        ("is_train,is_test", "1,0 0,0 0,1", "row 1: none of is_train, is_test is set"),
        ("split", "train-test train test", "two splits"),
        ("split", "test test test", "no training images"),
    ],
)
def test_columns_that_do_not_say_it(column: str, values: str, named: str, tmp_path: Path) -> None:
    rows = [f"{{}},{i % 2},{v}" for i, v in enumerate(values.split(" "))]
    refused(csv(tmp_path / "set", f"file_name,label,{column}", *rows), named)


@pytest.mark.parametrize(
    ("column", "values", "asked"),
    [
        ("partition", "0 1 2", "2"),
        ("fold", "1 2 3", "3"),
        ("train", "1 1 0", "0"),
        ("split", "a b c", "c"),
        ("hour", "8 9 10", "10"),
    ],
)
def test_the_user_names_the_rows_of_test_images(
    column: str, values: str, asked: str, tmp_path: Path
) -> None:
    rows = [f"{{}},{label},{v}" for v in values.split() for label in "ab"]
    file = csv(tmp_path / "set", f"file_name,label,{column}", *rows)
    of_rows = [v if v.isalpha() else int(v) for v in values.split() for _ in "ab"] * 6
    columns: dict[str, Any] = {column: of_rows}
    hub = write_hub(tmp_path / "hub", all=shades(["a", "b"] * 18, **columns))
    for name in (file, hub, f"file:{tmp_path}/hub/all.parquet"):
        if column != "hour":
            refused(name, f"{column!r}.*data.test_rows={column}=VALUE")
        for wrong, why in ((f"{column}=x", "no row of"), ("place=1", "has no column 'place'")):
            refused(name, why, reading=Reading(test_rows=wrong))
        reading = Reading(test_rows=f"{column}={asked}")
        assert counts(name, reading) == SPLIT
        none = whole(name, Reading(test_rows="none"))
        assert none == {"a": 18, "b": 18}


@pytest.mark.parametrize(
    ("column", "values"),
    [("split,fold", "train,1 train,2 test,1"), ("folder,Set", "1,train 2,train 3,test")],
)
def test_columns_beside_those_that_say_the_split(column: str, values: str, tmp_path: Path) -> None:
    rows = [f"{{}},{label},{v}" for v in values.split() for label in "ab"]
    name = csv(tmp_path / "set", f"file_name,label,{column}", *rows)
    assert counts(name) == SPLIT


def test_a_column_of_other_words_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = csv(tmp_path / "set", "file,label,phase", "{},a,solid", "{},b,liquid")
    with caplog.at_level(logging.WARNING):
        assert whole(name) == {"a": 18, "b": 18}
    assert "'phase' ('liquid', 'solid') says no split and is not used" in caplog.text


def test_the_folders_of_files_say_the_split(tmp_path: Path) -> None:
    rows = [f"{folder}/{{}},{label}" for folder in ("Train", "Train", "a/val") for label in "ab"]
    name = csv(tmp_path, "file,label", *rows)
    for file in tmp_path.glob("*.png"):
        folder = tmp_path / ("a/val" if int(file.stem) % 6 > 3 else "Train")
        folder.mkdir(parents=True, exist_ok=True)
        file.rename(folder / file.name)
    assert counts(name) == SPLIT


def test_rows_must_be_of_the_split_of_their_file(tmp_path: Path) -> None:
    csv(tmp_path / "set", "file_name,label,split", "{},a,train", file="Train.csv")
    csv(tmp_path / "set", "file_name,label,split", "{},a,dev", file="Test.csv", first=40)
    content = shades([0] * 4, split=["train"] * 4)
    hub = write_hub(tmp_path / "hub", train=content, test=content)
    for name in (f"file:{tmp_path}/set/Train.csv", hub):
        refused(name, r"[Tt]est\.\w+, row 0: 'split' is '(dev|train)'.*test")


@pytest.mark.parametrize(
    ("train", "other", "test"),
    [
        ("Train.csv", "Test.csv", True),
        ("mnist-TRAINING.csv", "mnist-testing.csv", True),
        ("train_labels.csv", "val_labels.csv", True),
        ("train.csv", "testing2.csv", False),
        ("labels.csv", "test.csv", False),
        ("train/metadata.csv", "Test/metadata.csv", True),
        ("Train/train.csv", "eval/eval.csv", True),
        ("a/metadata.csv", "b/metadata.csv", False),
    ],
)
def test_the_file_beside_it(train: str, other: str, test: bool, tmp_path: Path) -> None:
    names = []
    for file, first in ((other, COUNT), (train, 0)):
        place = tmp_path / "set" / file
        place.parent.mkdir(parents=True, exist_ok=True)
        row = "file_name,label", "{},a", "{},b"
        names.append(csv(place.parent, *row, file=place.name, first=first))
    sizes = [sum(of.values()) for of in counts(names[1]).values()]
    assert sizes == [COUNT, COUNT] if test else sum(sizes) == COUNT


def test_a_file_of_another_name_beside_it(tmp_path: Path) -> None:
    for file in ("Test/labels.csv", "train/metadata.csv"):
        folder, _, file_name = file.partition("/")
        name = csv(tmp_path / folder, "file_name,label", "{},a", file=file_name)
    refused(name, r"Test/labels\.csv may have the test images")


def test_what_was_read_is_said(tmp_path: Path) -> None:
    csv(tmp_path / "set", "file_name,target,label,age", "{},a,b,7", file="train.csv")
    name = csv(tmp_path / "set", "file_name,label", "{},b", file="val.csv", first=100)
    prepared = prepare(name.replace("val", "train"))
    assert prepared.read_as == [
        "labels: column 'label'; not read: target, age",
        "labels: column 'label'",
        f"test images: {tmp_path}/set/val.csv",
    ]
    refused(name.replace("val", "test"), "does not exist")
    (tmp_path / "set/val.csv").rename(tmp_path / "set/test.csv")
    refused(name.replace("val", "test"), r"name file:\S*train\.csv")


def test_validation_rows_are_counted(tmp_path: Path) -> None:
    rows = [f"{{}},a,{split}" for split in ("train", "test", "valid")]
    name = csv(tmp_path / "set", "file_name,label,data set", *rows)
    (left_out,) = prepare(name).left_out or ()
    assert (left_out["count"], "validation" in left_out["why"]) == (COUNT // 3, True)


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("{}x.png", "36 of 36 images .* row 0: .000x.png. is not there; paths begin at"),
        ("{}", "write the ending, as in 000.png"),
        (".\\{}.png", r"write / in place of"),
        ("link.png", "link.png' is a link to nothing"),
    ],
)
def test_images_that_are_not_there(path: str, named: str, tmp_path: Path) -> None:
    name = csv(tmp_path / "set", "file_name,label", "{},a")
    (tmp_path / "set/link.png").symlink_to("gone")
    rows = [f"{path.format(f'{i:03}')},a" for i in range(COUNT)]
    (tmp_path / "set/labels.csv").write_text("\n".join(["file_name,label", *rows, ""]))
    refused(name, named)


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
@pytest.mark.parametrize("header", ["file_name,label", "file_name,Größe"])
def test_text_in_another_encoding(header: str, encoding: str, tmp_path: Path) -> None:
    name = csv(tmp_path / "set", header, "{},Äpfel")
    file = tmp_path / "set/labels.csv"
    file.write_bytes(file.read_text("utf-8").encode(encoding))
    refused(name, "UTF-8")


def test_two_files_of_test_images_beside_it(tmp_path: Path) -> None:
    for file in ("testing.csv", "Test.csv", "train.csv"):
        name = csv(tmp_path / "set", "file_name,label", "{},a", file=file)
    refused(name, r"Test\.csv, \S*testing\.csv")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (json.dumps({"users": ["f0"], "user_data": {"f0": {"x": [[0.5]]}}}), "JSON.*natural"),
        ("[1, 2]", "JSON"),
        (base64.b64encode(bytes(range(256)) * 500).decode() + "\n", "171|names no columns"),
        (json.dumps({"image": "a" * 140_000}), "JSON"),
        ('file_name,"label\n' + "a" * 140_000 + "\n", "x"),
        ("file_name,label,label\na.png,x,y\n", "several columns have the name label"),
    ],
)
def test_what_is_no_table(content: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(content)
    with pytest.raises(DataError, match=named) as caught:
        load_dataset(f"file:{tmp_path}/x")
    assert len(str(caught.value)) < 1000
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("names", "named"),
    [
        (["v1.2_{}.png", "v1.2_{}.cls"], r"v1\.2_00\.png.*first dot"),
        (["a{}_x.{}.png", "a{}_x.{}.cls"], "first dot"),
        (["{}.png", "{}.cls=cat"], r"00\.cls is 'cat'"),
        (["{}.png", "{}.cls", "{}b.jpg", "{}b.cls"], r"\.cls and \.png, \.cls and \.jpg"),
        (["{}_x5.0.png", "{}_x5.0.cls"], ""),  # all alike
        (["{}.png", "{}.cls"], ""),
    ],
)
def test_names_in_tar_shards(names: list[str], named: str, tmp_path: Path) -> None:
    root = tmp_path / "set"
    members = {}
    for i in range(12):
        for name in names:
            name, _, text = name.format(f"{i:02}", i).partition("=")
            label = (text or str(i % 2)).encode()
            members[name] = label if name.endswith("cls") else shade(i)
    for split in ("train", "test"):
        write_tar(root / f"{split}.tar", members)
    if not named:
        assert counts(f"webdataset:{root}")["test"] == {"0": 6, "1": 6}
        return
    refused(f"webdataset:{root}", named)


@pytest.mark.parametrize("kept", [0.5, 0.51, 1 - 1e-9])
def test_a_tar_shard_that_is_cut_off(kept: float, tmp_path: Path) -> None:
    """In the middle of an image, at the end of one, and before the end of the archive."""
    file = tmp_path / "set/train.tar"
    samples = ({f"{i:02}.png": shade(i), f"{i:02}.cls": b"0"} for i in range(12))
    write_tar(file, dict(chain.from_iterable(map(dict.items, samples))))
    whole_size = 24 * 1024  # a block for the head of each file, and one for its content
    file.write_bytes(file.read_bytes()[: int(kept * whole_size) // 256 * 256])
    refused(f"webdataset:{tmp_path}/set", "train.tar .*cut off")


@pytest.mark.parametrize(
    ("splits", "gives"),
    [
        ({"Train": 4, "testing": 2}, (4, 2)),
        ({"train": 4, "test": 2, "extra": 9}, (4, 2)),
        ({"train_r1": 4, "dev_r1": 2}, (4, 2)),
        ({"full": 40}, None),
        ({"train": 4, "extra": 2}, "extra"),
        (
            ConnectionError("no route"),
            r"hf:a/b cannot be loaded \(no route\); .* prepare hf:a/b",
        ),
        ("small, large", "hf:a/b/small"),
    ],
)
def test_splits_and_configurations_of_the_hub(
    splits: Any, gives: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    def load(*args: Any, **kwargs: Any) -> dict[str, Any]:
        if isinstance(splits, ConnectionError):
            raise splits
        if isinstance(splits, str):  # as the library says it
            listed = [*splits.split(", ")]
            raise ValueError(
                f"Config name is missing.\nPlease pick one among the available configs: {listed}"
            )
        return {
            name: datasets.Dataset(shades([i % 2 for i in range(count)], first=first))
            for first, (name, count) in zip((0, 50, 100), splits.items(), strict=False)
        }

    monkeypatch.setattr(datasets, "load_dataset", load)
    if isinstance(gives, str):
        with pytest.raises((DataError, ConfigError), match=gives):
            load_dataset("hf:a/b", tmp_path)
        return
    dataset = load_dataset("hf:a/b", tmp_path)
    sizes = len(dataset.train_labels), len(dataset.test_labels)
    assert sizes == gives if gives else sum(sizes) == 40


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    name = csv(tmp_path / "set", "file,label", "{},a", file="train.csv")
    plain, divided = shades([0] * 4), shades([0] * 4, split=["train", "test"] * 2)
    pq.write_table(plain, tmp_path / "set/test.csv")
    refused(name, r"train\.csv \(csv\) and .*test\.csv \(parquet\)")
    hub = write_hub(tmp_path / "one", a=divided, b=plain)
    refused(hub, r"a\.parquet says the split of each row, and .*b\.parquet has none")
    by_column = Reading(test_rows="split=test")
    hub = write_hub(tmp_path / "hub", train=divided, test=plain)
    refused(hub, "names of files in hub:hub say the splits", reading=by_column)
    np.savez(tmp_path / "a.npz", images=np.zeros(1))
    refused(f"file:{tmp_path}/a.npz", "no columns, and so no 'split'", reading=by_column)
    refused(f"file:{tmp_path}/a.npz", "needs train_images, .* found: images")


def test_pixels_of_colour_in_a_table(tmp_path: Path) -> None:
    lines = [",".join(map(str, range(i, i + 12))) for i in range(COUNT)]
    head = ",".join(f"p{i}" for i in range(12))
    (tmp_path / "a.csv").write_text("\n".join([head, *lines]))
    dataset = load_dataset(f"file:{tmp_path}/a.csv")
    assert dataset.image_shape == (3, 2, 2)
    (first,) = (x for x in (*dataset.train_images, *dataset.test_images) if x[0, 0, 0] == 0)
    assert first.transpose(1, 2, 0).ravel().tolist() == list(range(12))


def test_clients_of_two_kinds(tmp_path: Path) -> None:
    train = shades([0, 1], site=[1, 2])
    for sites, why in ((["1", "2"], "int, str"), (["1", None], "row 1: 'site' is None")):
        more = shades([0, 1], first=2, site=sites)
        hub = write_hub(tmp_path, train0=train, train1=more, test=shades([0]))
        refused(hub, why, reading=Reading(natural_column="site"))
