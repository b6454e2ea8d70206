"""Files that name the client of each image, and mistakes in them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedbench
from fedbench import split_data
from fedbench.bench.data.datasets import load_dataset
from fedbench.bench.data.reading import Reading
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.system.errors import ConfigError
from tests.bench.data.files import refused
from tests.bench.data.sources.test_layouts import COUNT, both, config, folders, one_csv

CLIENTS = [i % 4 for i in range(COUNT)]
BY_CLIENT = {str(k): [i for i, client in enumerate(CLIENTS) if client == k] for k in range(4)}


@pytest.mark.parametrize("form", ["list", "lists", "object", "parquet", "parquet with splits"])
def test_a_partition_file_names_the_client_of_each_image(form: str, tmp_path: Path) -> None:
    file = tmp_path / ("clients.parquet" if form.startswith("parquet") else "clients.json")
    if form == "parquet":
        pq.write_table(pa.table({"client": CLIENTS}), file)
    elif form == "parquet with splits":
        splits = {"split": ["test", *["train"] * COUNT], "client": [None, *CLIENTS]}
        pq.write_table(pa.table(splits), file)
    else:
        file.write_text(
            json.dumps({"list": CLIENTS, "lists": [*BY_CLIENT.values()]}.get(form, BY_CLIENT))
        )
    given = config(both(tmp_path / "set"), partition="file", partition_file=str(file))
    experiment = Experiment(given)
    dataset, partition = experiment.dataset, experiment.partition
    pixels = dataset.train_images[:, 0, 0, 0]
    assert [sorted(pixels[partition.client(k)].tolist()) for k in range(4)] == [*BY_CLIENT.values()]
    few = config(given.data.name, partition="file", partition_file=str(file), num_clients=3)
    with pytest.raises(ConfigError, match=r"names 4; set data\.num_clients=4"):
        _ = Experiment(few).on(dataset).partition


def test_a_written_partition_is_read_again(tmp_path: Path) -> None:
    """Images that are held out have no client; pixels are the places in the source."""
    name, file = both(tmp_path / "set"), tmp_path / "clients.parquet"
    settings = {"data.name": name, "data.partition": "iid", "data.num_clients": 3}
    made = fedbench.partition("simclr", set={**settings, "data.held_out": 0.25}, out=file).partition
    assert made.num_unused > 0
    again = Experiment(config(name, partition="file", partition_file=str(file), num_clients=3))
    assert again.partition.hash == made.hash
    pixels = again.dataset.train_images[:, 0, 0, 0]
    column = pq.read_table(file)["client"].to_pylist()
    for k in range(3):
        held = sorted(pixels[made.client(k)].tolist())
        assert held == [place for place, client in enumerate(column) if client == k]
    assert column.count(-1) == made.num_unused
    few = {**settings, "data.train_subset": 30}
    subset = fedbench.partition("simclr", set=few, out=file).partition
    assert (subset.num_examples, subset.num_unused) == (30, 0)
    again = Experiment(config(name, partition="file", partition_file=str(file), num_clients=3))
    assert again.partition.sizes.tolist() == subset.sizes.tolist()
    with pytest.raises(ConfigError, match=r"as \.parquet \(got .*clients\.txt"):
        fedbench.partition("simclr", set=settings, out=tmp_path / "clients.txt")


def test_another_partition_file_is_another_revision(tmp_path: Path) -> None:
    file, name = tmp_path / "clients.json", both(tmp_path / "set")
    given = config(name, partition="file", partition_file=str(file))
    file.write_text(json.dumps(CLIENTS))

    def revision() -> str:
        return Experiment(given).dataset.revision

    first = revision()
    file.write_text(json.dumps(BY_CLIENT))  # the same clients in another form
    assert revision() == first
    file.write_text(json.dumps(CLIENTS[::-1]))
    assert revision() != first
    file.unlink()
    why = r"clients\.json cannot be read \(No such file or directory\)$"
    refused(name, why, reading=Reading(partition_file=file))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (CLIENTS[1:], "47 images"),
        ([*CLIENTS[1:], -2], "client -2"),
        ([c * 2 for c in CLIENTS], "client 2"),
        ([*CLIENTS[1:], 1.5], "entry 47"),
        ({**BY_CLIENT, "3": [3, 7]}, "image 11 has 0 clients"),
        ({**BY_CLIENT, "4": [5]}, "image 5 has 2 clients"),
        ({**BY_CLIENT, "4": [48]}, "48"),
        ({"me": [*range(COUNT)]}, "'me'"),
        (7, "list of clients"),
        (pa.table({"owner": CLIENTS}), "owner"),
        (pa.table({key: [] for key in ("split", "file", "row")}), r"found: split, file, row\)"),
        (pa.table({"client": [*CLIENTS[1:], None]}), "image 47"),
        (pa.table({"client": map(str, CLIENTS)}), "client"),
        ("no JSON", "JSON|char"),
        (None, r"clients\.txt .*must end in"),
    ],
)
def test_a_partition_file_with_mistakes(content: Any, named: str, tmp_path: Path) -> None:
    file = tmp_path / "clients.json"
    if isinstance(content, pa.Table):
        pq.write_table(content, file := file.with_suffix(".parquet"))
    elif content is None:
        (file := file.with_suffix(".txt")).touch()
    else:
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    name, why = both(tmp_path / "set"), rf"data\.partition_file: .*{named}"
    refused(name, why, reading=Reading(partition_file=file))


def test_the_split_of_a_source_makes_a_partition_file(tmp_path: Path) -> None:
    name = one_csv(tmp_path / "set")
    split = split_data(name)
    dataset = load_dataset(name)
    assert split["row"].tolist() == list(range(COUNT))  # which is each image's shade
    for part, pixels in (("train", dataset.train_images), ("test", dataset.test_images)):
        assert sorted(split.loc[split["split"] == part, "row"]) == sorted(pixels[:, 0, 0, 0])
    split["client"] = [row // 12 for row in split["row"]]
    tests = split.index[split["split"] == "test"]
    split.loc[tests, "client"] = None
    shuffled = split.drop(tests[:1]).sample(frac=1, random_state=0)  # each row names its image
    shuffled.to_csv(file := tmp_path / "clients.csv", index=False)
    given = config(name, partition="file", partition_file=str(file))
    dataset = Experiment(given).dataset
    assert dataset.train_clients is not None
    assert dataset.train_clients.tolist() == (dataset.train_images[:, 0, 0, 0] // 12).tolist()
    split = split_data(name := folders(tmp_path / "folders"))  # where an image has no row
    split["client"] = split.index % 2
    split.to_csv(file, index=False)
    given = config(name, partition="file", partition_file=str(file), num_clients=2)
    train = split.loc[split["split"] == "train", "client"]
    assert Experiment(given).partition.sizes.tolist() == train.value_counts()[[0, 1]].tolist()
    digits = split_data("digits")
    assert sorted(digits["row"]) == list(range(1797))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            lambda split: split.replace({"split": {"test": "train"}}),
            r"train\.csv row \d+ is in the other split",
        ),
        (lambda split: split[split["split"] == "train"][1:], r"train\.csv row \d+ has no row"),
        (lambda split: split.iloc[[0, 0, *range(1, COUNT)]], r"train\.csv row 0 has two"),
        (lambda split: split.drop(columns="split"), "split, file and row"),
        (lambda split: split.assign(file="elsewhere/train.csv"), r"image train\.csv row 0 is not"),
    ],
)
def test_a_partition_file_of_other_images_is_refused(
    change: Callable[[Any], Any], named: str, tmp_path: Path
) -> None:
    split = split_data(name := one_csv(tmp_path / "set"))
    changed = change(split.assign(client=0))
    changed.to_csv(file := tmp_path / "clients.csv", index=False)
    why = rf"data\.partition_file: .*{named}"
    refused(name, why, reading=Reading(partition_file=file))
