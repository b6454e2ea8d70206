"""Figures of finished runs: their content and their files."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from fedbench.bench.evaluation.angles import class_angles
from fedbench.bench.evaluation.features import extract
from fedbench.bench.results.store.store import Store
from fedbench.bench.runs import figures as draw
from fedbench.bench.runs.figures import Geometry, figures, measure, project
from fedbench.bench.runs.load import load_run
from fedbench.bench.runs.run import run
from fedbench.bench.system.checksums import parse_json
from fedbench.bench.system.errors import ConfigError, StoreError
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


def texts(picture: bytes) -> set[str]:
    elements = ElementTree.fromstring(picture).iter()
    return {"".join(element.itertext()).strip() for element in elements}


def test_angles_are_those_of_every_evaluated_client(store: Store, ids: dict[str, str]) -> None:
    opened = load_run(store, ids["pfedae"])
    geometry = measure(opened, num_images=30)
    assert len(geometry.clients) == 3
    assert len(geometry.plain) == len(geometry.centred) == 3 * 45
    dataset, net = opened.setup.dataset, opened.binding.net
    for index, k in enumerate(geometry.clients):
        opened.select(k)
        features = extract(
            lambda x: opened.setup.method.encode(net, x), dataset.test_images, device="cpu"
        )
        expected = class_angles(features, dataset.test_labels, 10)
        torch.testing.assert_close(geometry.plain[45 * index : 45 * (index + 1)], expected)
    assert geometry.title == f"pfedae, client {geometry.clients[0]}"
    assert geometry.points.shape == (30, 2)
    assert np.isfinite(geometry.points).all()
    outsider = next(k for k in range(4) if k not in geometry.clients)
    other = measure(opened, num_images=30, client_id=outsider)
    assert other.title == f"pfedae, client {outsider}"
    torch.testing.assert_close(other.plain, geometry.plain)
    assert not np.allclose(other.points, geometry.points)


def test_maps_keep_neighbours_together() -> None:
    """With three far clusters the nearest neighbour on the map is always of the same cluster."""
    labels = np.arange(3).repeat(20)
    centres = torch.eye(3).repeat_interleave(20, dim=0) * 50
    points = project(centres + torch.randn(60, 3, generator=generator(0, "x")), 0)
    distances = np.linalg.norm(points[:, None] - points[None], axis=2) + 1e9 * np.eye(60)
    assert (labels[distances.argmin(axis=1)] == labels).all()
    assert np.array_equal(project(torch.ones(9, 3), 0), np.zeros((9, 2)))  # collapsed


def test_the_files(store: Store, ids: dict[str, str], tmp_path: Path) -> None:
    made = figures(list(ids.values()), tmp_path / "out", store=store, num_images=40)
    names = [file.name for file in made.files]
    assert names == ["angles.png", "angles.svg", "tsne.png", "tsne.svg", "geometry.json"]
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
    assert row.metrics_json is not None
    metrics = json.loads(row.metrics_json)
    for name, kind in (("angle", "plain"), ("angle_centred", "centred")):  # of all pairs together
        for which in ("mean", "median"):
            drawn = record["angles"][kind][which]
            assert drawn == pytest.approx(metrics[f"{name}_{which}"], rel=1e-6)
    assert len(record["map"]["points"]) == len(record["map"]["labels"]) == 40
    assert "map" not in made.as_dict()["runs"][1]
    stored = parse_json(
        (store.cell_dir(ids["pfedae"]) / "geometry.json").read_text(), required=True
    )
    assert stored == record
    again = figures(
        [ids["central-ae"]], tmp_path / "one", store=store, forms=("svg",), num_images=40
    )
    before = [file.read_bytes() for file in again.files]
    figures([ids["central-ae"]], tmp_path / "one", store=store, forms=("svg",), num_images=40)
    assert before == [file.read_bytes() for file in again.files]


def geometry(seed: int, **values: Any) -> Geometry:
    given: dict[str, Any] = {
        "run_id": str(seed),
        "title": "pfedae, client 2",
        "setting": f"demo, iid, 8 clients, seed {seed}",
        "clients": (2, 3),
        "plain": torch.tensor([10.0, 20.0]),
        "centred": torch.tensor([90.0, 91.0]),
        "points": np.arange(4.0).reshape(2, 2),
        "labels": np.arange(2),
        "class_names": ("a", "b"),
    }
    return Geometry(**{**given, **values})


@pytest.mark.parametrize("count", [1, 4, 25])
def test_pictures_of_many_runs_and_classes(count: int) -> None:
    many: dict[str, Any] = {
        "points": np.arange(2.0 * count).reshape(count, 2),
        "labels": np.arange(count),
        "class_names": tuple(f"class {k}" for k in range(count)),
    }
    runs = [geometry(index, **many) for index in range(min(count, 3))]
    runs.append(geometry(9, plain=torch.tensor([]), clients=(), setting="x", **many))
    for picture in (draw.angles, draw.maps):
        assert Image.open(io.BytesIO(picture(runs, "png"))).size[0] > 500


def test_errors(store: Store, ids: dict[str, str], tmp_path: Path) -> None:
    def refused(error: type[Exception], match: str, *run_ids: str, **rest: object) -> None:
        with pytest.raises(error, match=match):
            figures(run_ids, tmp_path / "none", store=store, **rest)  # type: ignore[arg-type]
        assert not (tmp_path / "none").exists()

    refused(StoreError, "no run 'f{20}' in store", "f" * 20)
    refused(ConfigError, "no run given")
    refused(ConfigError, "'pdf' is no form of a picture", ids["simclr"], forms=("pdf",))
    refused(ConfigError, r"--client: must be in 0..3 .*\(got 4\)", ids["pfedae"], client_id=4)
    refused(ConfigError, "has one encoder for all clients", ids["central-ae"], client_id=0)


def test_pictures_say_in_what_runs_differ() -> None:
    both, alone = [geometry(0), geometry(1)], [geometry(0)]
    histograms, maps = texts(draw.angles(both, "svg")), texts(draw.maps(both, "svg"))
    assert "demo, iid, 8 clients" in histograms & maps
    for shown in (histograms, maps):
        assert any("seed 0" in text for text in shown)
        assert any("seed 1" in text for text in shown)
    assert any(text.startswith("pfedae, 2 encoders, median 15°") for text in histograms)
    assert "demo, iid, 8 clients, seed 0" in texts(draw.maps(alone, "svg"))
