"""Figures of finished runs: their content and their files."""

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from fedbench.bench.data.partition import make_test_partition
from fedbench.bench.evaluation.features import extract
from fedbench.bench.evaluation.probes import class_angles
from fedbench.bench.execution.export import load_run
from fedbench.bench.execution.figures import (
    Numbers,
    client_maps,
    draw_angles,
    draw_maps,
    draw_neighbours,
    figures,
    measure,
    project,
)
from fedbench.bench.execution.run import run
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.checksums import parse_json
from fedbench.bench.system.seeding import generator
from fedbench.bench.testing import tiny_config


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def ids(store: Store) -> dict[str, str]:
    """Ids of one run of each kind: shared, personal and pooled encoders."""
    values = {
        "data__test_subset": 100,
        "federation__num_rounds": 1,
        "evaluation__num_clients": 3,
        "evaluation__protocols": ("angles",),
    }
    return {
        spec: run(tiny_config(spec, **values), store=store, workers=1).row.row_id
        for spec in ("simclr", "pfedae", "central-ae")
    }


@pytest.fixture(scope="module")
def found(store: Store, ids: dict[str, str]) -> Numbers:
    return measure(load_run(store, ids["pfedae"]))


def texts(picture: bytes) -> set[str]:
    elements = ElementTree.fromstring(picture).iter()
    return {"".join(element.itertext()).strip() for element in elements}


def test_angles_are_those_of_every_evaluated_client(
    store: Store, ids: dict[str, str], found: Numbers
) -> None:
    opened = load_run(store, ids["pfedae"])
    assert len(found["clients"]) == 3
    dataset, net, expected = opened.setup.dataset, opened.binding.net, list[torch.Tensor]()
    for k in found["clients"]:
        opened.select(k)
        features = extract(
            lambda x: opened.setup.method.encode(net, x), dataset.test_images, device="cpu"
        )
        expected.append(class_angles(features, dataset.test_labels, 10))
    plain = found["angles"]["plain"]
    assert sum(plain["counts"]) == sum(found["angles"]["centred"]["counts"]) == 3 * 45
    assert plain["mean"] == pytest.approx(float(torch.cat(expected).mean()))
    assert plain["median"] == pytest.approx(float(np.median(torch.cat(expected))))
    assert found["title"] == f"pfedae, client {found['clients'][0]}"
    assert np.array(found["map"]["points"]).shape == (100, 2)
    assert np.isfinite(found["map"]["points"]).all()


def test_maps_of_clients_show_their_own_images(store: Store, ids: dict[str, str]) -> None:
    opened = load_run(store, ids["pfedae"])
    truth = opened.setup.dataset.test_labels
    shares = make_test_partition(
        truth, opened.setup.client_partition, opened.setup.dataset.train_labels, 0
    )
    maps = client_maps(opened)
    assert len(maps) == 3
    for found in maps:
        client = int(found["title"].rpartition(" ")[2])
        own = truth[shares.client(client).astype(np.int64)]
        assert found["map"]["labels"] == own.tolist()
        assert np.array(found["map"]["points"]).shape == (len(own), 2)
        assert "E = " in found["setting"]


def test_a_long_setting_fits_above_its_map(found: Numbers) -> None:
    setting = "cross-device-cpu, dirichlet-balanced, alpha 0.1, 1000 clients, E = 10, seed 10"
    for number in (1, 2):
        figure = draw_maps([{**found, "setting": setting}] * number)
        figure.draw_without_rendering()
        places = [axis.title.get_window_extent() for axis in figure.axes]
        assert min(place.x0 for place in places) >= 0
        assert max(place.x1 for place in places) <= figure.bbox.width


def test_neighbours_are_the_nearest_by_cosine(store: Store, ids: dict[str, str]) -> None:
    opened = load_run(store, ids["simclr"])
    images = opened.setup.dataset.test_images
    features = extract(lambda x: opened.binding.net(x, "encoder"), images, device="cpu").numpy()
    found = measure(opened)["neighbours"]
    assert sorted(opened.setup.dataset.test_labels[line[0]] for line in found) == [*range(10)]
    for asked, *near in found:
        lengths = np.linalg.norm(features, axis=1) * np.linalg.norm(features[asked])
        cosines = features @ features[asked] / lengths
        expected = [index for index in np.argsort(-cosines) if index != asked][:5]
        np.testing.assert_allclose(cosines[near], cosines[expected], rtol=1e-5)


def test_neighbours_are_drawn_below_their_image() -> None:
    images = np.zeros((2, 3, 1, 4, 4), np.uint8)
    images[1, 2] = 200  # the second image's second neighbour: the lower right corner
    figure = draw_neighbours([{"title": "simclr", "setting": "demo"}], [images])
    (pixels,) = (image.get_array() for image in figure.axes[0].images)
    assert pixels is not None
    assert pixels.shape == (3 * 6, 2 * 6, 3)  # with a border of one pixel
    assert (pixels[13:17, 7:11] == 200).all()
    assert (pixels == 200).sum() == 4 * 4 * 3


def test_maps_keep_neighbours_together() -> None:
    """With three far clusters the nearest neighbour on the map is always of the same cluster."""
    labels = np.arange(3).repeat(20)
    centres = torch.eye(3).repeat_interleave(20, dim=0) * 50
    points = project(centres + torch.randn(60, 3, generator=generator(0, "x")), 0)
    distances = np.linalg.norm(points[:, None] - points[None], axis=2) + 1e9 * np.eye(60)
    assert (labels[distances.argmin(axis=1)] == labels).all()
    assert np.array_equal(project(torch.ones(9, 3), 0), np.zeros((9, 2)))  # collapsed


def test_the_files(store: Store, ids: dict[str, str], found: Numbers, tmp_path: Path) -> None:
    made = figures(list(ids.values()), tmp_path / "out", store=store)
    names = [file.name for file in made.files]
    drawn = ("angles", "tsne", "neighbours")
    assert names == [*(f"{n}.{form}" for n in drawn for form in ("png", "svg")), "geometry.json"]
    for file in made.files:
        if file.suffix == ".png":
            image = np.asarray(Image.open(file).convert("RGB"))
            assert min(image.shape[:2]) > 500
            assert len(np.unique(image.reshape(-1, 3), axis=0)) > 10
    shown = texts((tmp_path / "out" / "tsne.svg").read_bytes())
    assert {"simclr", "central-ae", made.runs[1]["title"], "class", "9"} <= shown
    record = json.loads((tmp_path / "out" / "geometry.json").read_text())[1]
    assert record["clients"] == made.runs[1]["clients"]
    assert sum(record["angles"]["plain"]["counts"]) == 3 * 45
    row = store.row(ids["pfedae"])
    assert row is not None
    metrics = row.further
    for name, kind in (("angle", "plain"), ("angle_centred", "centred")):  # of all pairs together
        for which in ("mean", "median"):
            drawn = record["angles"][kind][which]
            assert drawn == pytest.approx(metrics[f"{name}_{which}"], rel=1e-6)
    assert len(record["map"]["points"]) == len(record["map"]["labels"]) == 100
    assert "map" not in made.as_dict()["runs"][1]
    stored = parse_json((store.cell_dir(ids["pfedae"]) / "geometry.json").read_text())
    assert stored == record
    assert record == json.loads(json.dumps(found))  # measured again: the same bits
    again = [*draw_angles(made.runs).write(tmp_path / "a"), *draw_maps(made.runs).write(tmp_path)]
    assert len(record["neighbours"]) == 10
    for file, other in zip(made.files, again, strict=False):
        assert file.read_bytes() == other.read_bytes()
