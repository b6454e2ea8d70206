"""Angles between classes, t-SNE maps and nearest neighbours of finished runs, and their numbers."""

import json
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedbench.bench.data.datasets import Dataset
from fedbench.bench.data.labels import balanced_subset
from fedbench.bench.data.partition import make_test_partition
from fedbench.bench.evaluation.features import check_finite, extract
from fedbench.bench.evaluation.probes import class_angles
from fedbench.bench.evaluation.suite import evaluated_clients
from fedbench.bench.execution.export import TrainedRun, load_run
from fedbench.bench.execution.picture import Picture, colours
from fedbench.bench.method.blame import guarded
from fedbench.bench.results.store.replicas import replica_key
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store, open_store
from fedbench.bench.system.checksums import json_with_checksum
from fedbench.bench.system.errors import ConfigError, StoreError
from fedbench.bench.system.files import atomic_write_text, user_path
from fedbench.bench.system.seeding import single_thread

PERPLEXITY = 30.0
GEOMETRY = "geometry.json"
"""File of numbers: of several runs in the chosen folder, of one run in the run's folder."""

_MOST_IMAGES = 1000
_ASKED, _NEAREST = 10, 5  # images whose neighbours are shown, and how many of them
_MAPS_PER_ROW = 3
_TITLE_WIDTH = 48  # letters above a map
_LEGEND_CLASSES = 20  # beyond, colours cannot be told apart and names would fill the page
Numbers = dict[str, Any]  # numbers behind the pictures of one run: see `measure`


@dataclass(frozen=True)
class Figures:
    """Files that were written, and one record per run with what they show."""

    files: tuple[Path, ...]
    runs: tuple[Numbers, ...]

    def as_dict(self) -> dict[str, Any]:
        """The output of `fedbench figures --json`: the maps' points are in `geometry.json`."""
        runs = [{name: run[name] for name in run if name != "map"} for run in self.runs]
        return {"files": [str(file) for file in self.files], "runs": runs}


@guarded()
def figures(
    run_ids: Sequence[str],
    folder: Path | str = "figures",
    *,
    store: Store | Path | str | None = None,
    data_dir: Path | str | None = None,
) -> Figures:
    """Draw angles between classes, t-SNE maps and nearest neighbours of finished runs.

    Writes `angles`, `tsne` and `neighbours` as .png and .svg, and `geometry.json` with their
    numbers. Each run's numbers are written to its folder too, where `report` reads them.

    Args:
        run_ids: row ids, or unambiguous beginnings of them; runs stand side by side in this order.
        folder: created if it does not exist; files in it are replaced.
        store: see `open_store`.
        data_dir: cache of data sets; None = the default one.

    Raises:
        StoreError: for a run that the store does not have, or has no checkpoint of.
        ConfigError: without runs.

    >>> from fedbench.bench.testing import demo_store, new_folder
    >>> folder = new_folder()
    >>> drawn = figures([demo_store().rows()[0].row_id], folder, store=demo_store())
    >>> [file.name for file in drawn.files if file.suffix != ".svg"]
    ['angles.png', 'tsne.png', 'neighbours.png', 'geometry.json']
    """
    if not run_ids:
        raise ConfigError("no run given; `fedbench runs` lists run ids")
    store, folder = open_store(store), user_path(folder)
    rows = {replica_key(row): row for row in map(store.find, run_ids)}
    runs, images = list[Numbers](), list[NDArray[np.uint8]]()
    for name in rows:
        loaded = load_run(store, name, data_dir)
        runs.append(measure(loaded))
        images.append(loaded.setup.dataset.test_images[np.array(runs[-1]["neighbours"])])
    files = [*draw_angles(runs).write(folder / "angles"), *draw_maps(runs).write(folder / "tsne")]
    files += draw_neighbours(runs, images).write(folder / "neighbours")
    with suppress(StoreError):  # a store that cannot be written can still be drawn
        for row, run in zip(rows.values(), runs, strict=True):
            file = store.cell_dir(store.key(row)) / GEOMETRY
            atomic_write_text(file, json_with_checksum(run) + "\n")
    files.append(folder / GEOMETRY)
    atomic_write_text(files[-1], json.dumps(runs) + "\n")
    return Figures(tuple(files), tuple(runs))


def draw_angles(runs: Sequence[Numbers]) -> Picture:
    """Draw histograms of the angles between classes, plain and centred."""
    figure, palette = Picture(10, 4.2 + 0.44 * len(runs)), colours(10)
    for axis, name in zip(figure.panels(2), ("plain", "centred"), strict=True):
        for index, run in enumerate(runs):
            angles, colour = run["angles"][name], palette[index % 10]
            share = 100 * np.array(angles["counts"]) / max(1, sum(angles["counts"]))
            encoders = f", {len(run['clients'])} encoders" if run["clients"] else ""
            label = f"{run['title'].split(',')[0]}{encoders}\n{run['setting']}"
            if (median := angles["median"]) is not None:
                axis.axvline(median, color=colour, linewidth=1, linestyle=":")
                label = label.replace("\n", f", median {median:.0f}°\n")
            axis.stairs(share, angles["edges"], color=colour, linewidth=1.6, label=label)
            axis.stairs(share, angles["edges"], color=colour, alpha=0.12, fill=True)
        axis.set(title=f"{name} class means", ylabel="share of pairs, %")
        axis.set(xlabel="angle between two classes, degrees", xticks=range(0, 181, 30))
        axis.set(xlim=(0, 180), ylim=(0, None))
        axis.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    return figure


def draw_maps(runs: Sequence[Numbers]) -> Picture:
    """Draw maps of test features side by side, coloured by class."""
    columns = min(len(runs), _MAPS_PER_ROW)
    most = max((run["map"]["class_names"] for run in runs), key=len)
    named = len(most) <= _LEGEND_CLASSES
    figure = Picture(4.2 * columns + (1.6 if named else 0.2), 4.4 * -(-len(runs) // columns))
    for axis, run in zip(figure.panels(len(runs), columns), runs, strict=True):
        points, labels = np.array(run["map"]["points"]), np.array(run["map"]["labels"])
        names = run["map"]["class_names"]
        for index, colour in enumerate(colours(len(names))):
            xs, ys = points[labels == index].T
            axis.scatter(xs, ys, s=9, color=colour, linewidths=0, label=names[index])
        setting = textwrap.fill(run["setting"], _TITLE_WIDTH)
        axis.set_title(f"{run['title']}\n{setting}", fontsize="medium")
        axis.set(xticks=[], yticks=[])
        if named and names == most and not figure.legends:
            figure.explain(axis, title="class", markerscale=2)
    return figure


def draw_neighbours(runs: Sequence[Numbers], images: Sequence[NDArray[np.uint8]]) -> Picture:
    """Draw images (N, 1 + K, C, H, W) of each run: N test images, and below each its neighbours."""
    figure = Picture(8, 5 * len(runs))
    for axis, run, shown in zip(figure.panels(len(runs), 1), runs, images, strict=True):
        spaced = np.pad(shown, ((0, 0),) * 3 + ((1, 1),) * 2, constant_values=255)
        tiled = np.concatenate([np.concatenate(column, axis=1) for column in spaced], axis=2)
        axis.imshow(np.broadcast_to(tiled.transpose(1, 2, 0), (*tiled.shape[1:], 3)))
        axis.set(title=f"{run['title']}\n{run['setting']}", xticks=[], yticks=[])
        axis.set_xlabel("test images in the first row, below each its nearest by features")
        axis.spines[:].set_visible(False)
    return figure


def measure(run: TrainedRun) -> Numbers:
    """Measure angles on all test images, and map up to 1,000 of them, class-balanced, by t-SNE.

    `neighbours` are ten test images (N, 1 + K): positions of an image and of its nearest by cosine.

    Where encoders differ between `clients`, the angles are from all that are evaluated, and the map
    is from the first. Angles are degrees between mean features of classes: median, mean, histogram,
    `plain` and `centred` (after the mean of the class means was subtracted).

    Raises:
        NonFiniteFeaturesError: for an encoder that diverged.
    """
    setup, dataset, row = run.setup, run.setup.dataset, run.row
    clients = evaluated_clients(setup, run.trained) if setup.evaluate_on_clients else []
    truth = np.asarray(dataset.test_labels, np.int64)
    with single_thread():
        features = [_features(run, dataset.test_images, k) for k in (*clients,) or (None,)]
    angles = {}
    for name, centred in (("plain", False), ("centred", True)):
        values = torch.cat(
            [class_angles(f, truth, dataset.num_classes, centred=centred) for f in features]
        )
        counts, edges = np.histogram(values.numpy(), bins=np.arange(0.0, 181.0, 5.0))
        angles[name] = {
            "median": float(np.median(values)) if len(values) else None,
            "mean": float(values.mean()) if len(values) else None,
            "edges": edges.tolist(),
            "counts": counts.tolist(),
        }
    chosen = balanced_subset(truth, min(_MOST_IMAGES, len(truth)), f"map-{setup.config.seed}")
    unit = F.normalize(features[0].double(), dim=1)
    asked = torch.from_numpy(balanced_subset(truth, min(_ASKED, len(truth)), "neighbours"))
    nearness = unit[asked] @ unit.T
    nearness[torch.arange(len(asked)), asked] = 2.0  # an image itself comes first
    near = nearness.topk(min(_NEAREST + 1, len(truth))).indices
    points = project(features[0][torch.from_numpy(chosen)], setup.config.seed)
    return {
        "run_id": row.row_id,
        "title": f"{row.method}, client {clients[0]}" if clients else row.method,
        "setting": _setting(row),
        "clients": list(clients),
        "angles": angles,
        "map": _map(points, truth[chosen], dataset),
        "neighbours": near.tolist(),
    }


def client_maps(run: TrainedRun) -> list[Numbers]:
    """Map clients' own shares of the test images, for `draw_maps`: of three evaluated clients.

    Each is seen by its own encoder, where encoders differ. A client has test images in the class
    proportions that it trained on; clients without any are left out.
    """
    setup, dataset, seed = run.setup, run.setup.dataset, run.setup.config.seed
    truth = np.asarray(dataset.test_labels, np.int64)
    shares = make_test_partition(truth, setup.client_partition, dataset.train_labels, seed)
    maps = []
    with single_thread():
        for client_id in evaluated_clients(setup, run.trained)[:_MAPS_PER_ROW]:
            own = shares.client(client_id).astype(np.int64)[:_MOST_IMAGES]
            if not len(own):
                continue
            encoder = client_id if setup.evaluate_on_clients else None
            features = _features(run, np.asarray(dataset.test_images[own]), encoder)
            drawn = _map(project(features, seed), truth[own], dataset)
            title = f"{run.row.method}, client {client_id}"
            maps.append({"title": title, "setting": _setting(run.row), "map": drawn})
    return maps


def _features(run: TrainedRun, images: NDArray[np.uint8], client_id: int | None) -> Tensor:
    """Return the features (n, D) by a client's encoder, or by the one of all."""
    if client_id is not None:
        run.select(client_id)
    encode = partial(run.setup.method.encode, run.binding.net)
    features = extract(encode, images, device="cpu")
    check_finite(f"run {run.row.row_id}", features)
    return features


def _setting(row: Row) -> str:
    alpha = "" if row.alpha is None else f", alpha {row.alpha:,.12g}"
    shape = f"{row.num_clients} clients, E = {row.local_epochs}, seed {row.seed}"
    return f"{row.preset}, {row.partition}{alpha}, {shape}"


def _map(points: NDArray[np.float64], labels: NDArray[np.int64], dataset: Dataset) -> Numbers:
    names = list(dataset.class_names)
    return {"points": np.round(points, 3).tolist(), "labels": labels.tolist(), "class_names": names}


def project(features: Tensor, seed: int) -> NDArray[np.float64]:
    """t-SNE of features (n, D) to (n, 2), started from their principal components.

    Source: van der Maaten & Hinton 2008, https://www.jmlr.org/papers/v9/vandermaaten08a.html, in
    scikit-learn's implementation; perplexity 30, or less for few images.
    """
    from sklearn.manifold import TSNE  # a second that only a picture should pay

    values = features.double().numpy()
    if len(values) < 4 or np.allclose(values, values[:1]):
        return np.zeros((len(values), 2))  # nothing to tell apart
    perplexity = min(PERPLEXITY, (len(values) - 1) / 3)
    tsne = TSNE(perplexity=perplexity, init="pca", random_state=seed % 2**31, n_jobs=1)
    return np.asarray(tsne.fit_transform(values), np.float64)
