"""Angles between classes and t-SNE maps of finished runs: numbers, pictures, and a JSON file."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbench.bench.data.labels import balanced_subset
from fedbench.bench.evaluation.angles import class_angles, histogram
from fedbench.bench.evaluation.features import check_finite, extract
from fedbench.bench.evaluation.suite import evaluated_clients
from fedbench.bench.results.store.store import Store, open_store, replica_key
from fedbench.bench.runs.load import TrainedRun, load_run
from fedbench.bench.system.checksums import json_with_checksum
from fedbench.bench.system.errors import ConfigError, StoreError
from fedbench.bench.system.files import atomic_write_bytes, atomic_write_text
from fedbench.bench.system.seeding import single_thread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PERPLEXITY = 30.0
FORMS = ("png", "svg")
GEOMETRY = "geometry.json"
"""File of numbers: of several runs in the chosen folder, of one run in the run's folder."""

_STYLE: dict[str, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "fedbench",  # equal numbers give equal bytes
    "svg.fonttype": "none",  # text stays text
}
_MAPS_PER_ROW = 3
_LEGEND_CLASSES = 20  # beyond, colours cannot be told apart and names would fill the page


@dataclass(frozen=True)
class Geometry:
    """Numbers behind the pictures of one run.

    Attributes:
        run_id: its row id.
        title: the method, and the client whose encoder is mapped.
        setting: preset, alpha, number of clients, seed.
        clients: ids of those whose encoders gave the angles; empty if one encoder serves all.
        plain: angles between mean features of classes in degrees, over all pairs and clients.
        centred: the same after the mean of the class means was subtracted.
        points: (n, 2) map of test features.
        labels: (n,) their classes.
        class_names: names of all classes.
    """

    run_id: str
    title: str
    setting: str
    clients: tuple[int, ...]
    plain: Tensor
    centred: Tensor
    points: NDArray[np.float64]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """JSON values: medians, means and histograms of the angles, and the map."""
        angles = {}
        for name, values in (("plain", self.plain), ("centred", self.centred)):
            edges, counts = histogram(values)
            angles[name] = {
                "median": float(np.median(values)) if len(values) else None,
                "mean": float(values.mean()) if len(values) else None,
                "edges": edges.tolist(),
                "counts": counts.tolist(),
            }
        return {
            "run_id": self.run_id,
            "title": self.title,
            "setting": self.setting,
            "clients": list(self.clients),
            "angles": angles,
            "map": {
                "points": np.round(self.points, 3).tolist(),
                "labels": self.labels.tolist(),
                "class_names": list(self.class_names),
            },
        }


@dataclass(frozen=True)
class Figures:
    """Files that were written, and one record per run with what they show."""

    files: tuple[Path, ...]
    runs: tuple[dict[str, Any], ...]

    def as_dict(self) -> dict[str, Any]:
        """The output of `fedbench figures --json`: the maps' points are in `geometry.json`."""
        names = ("run_id", "title", "setting", "clients", "angles")
        return {
            "files": [str(file) for file in self.files],
            "runs": [{name: run[name] for name in names} for run in self.runs],
        }


def figures(
    run_ids: Sequence[str],
    folder: Path | str = "figures",
    *,
    forms: Sequence[str] = FORMS,
    num_images: int = 1000,
    client_id: int | None = None,
    store: Store | Path | str | None = None,
    data_dir: Path | str | None = None,
) -> Figures:
    """Draw angles between classes and t-SNE maps of test features of finished runs.

    Writes `angles` and `tsne` in each form, and `geometry.json` with their numbers. Each run's
    numbers are written to its folder too, where `report` reads them.

    Args:
        run_ids: row ids, or unambiguous beginnings of them; runs stand side by side in this order.
        folder: created if it does not exist; files in it are replaced.
        forms: `png`, `svg` or both.
        num_images: test images on each map, at most.
        client_id: client whose encoder is mapped where encoders differ; None = the first evaluated
            one.
        store: see `open_store`.
        data_dir: cache of data sets; None = the default one.

    Raises:
        StoreError: for a run that the store does not have, or has no checkpoint of.
        ConfigError: without runs, or for a client or a form that does not exist.
    """
    if not run_ids:
        raise ConfigError("no run given; `fedbench runs` lists run ids")
    for form in forms:
        if form not in FORMS:
            raise ConfigError(f"{form!r} is no form of a picture; choose from {', '.join(FORMS)}")
    store, folder = open_store(store), Path(folder).expanduser()
    rows = {replica_key(row): row for row in map(store.find, run_ids)}
    runs = [
        measure(load_run(store, name, data_dir), num_images=num_images, client_id=client_id)
        for name in rows
    ]
    files = []
    for name, draw in (("angles", angles), ("tsne", maps)):
        for form in forms:
            files.append(folder / f"{name}.{form}")
            atomic_write_bytes(files[-1], draw(runs, form))
    records = tuple(run.record() for run in runs)
    with suppress(StoreError):  # a store that cannot be written can still be drawn
        for row, record in zip(rows.values(), records, strict=True):
            file = store.cell_dir(store.key(row)) / GEOMETRY
            atomic_write_text(file, json_with_checksum(record) + "\n")
    files.append(folder / GEOMETRY)
    atomic_write_text(files[-1], json.dumps(records) + "\n")
    return Figures(tuple(files), records)


def angles(runs: Sequence[Geometry], form: str) -> bytes:
    """Draw histograms of the angles between classes, plain and centred; return a file's bytes.

    Args:
        runs: one curve per run.
        form: `png` or `svg`.
    """
    with _context():
        common, settings = _settings(runs)
        lines = 2 if any(settings) else 1
        figure = _figure(10, 4.2 + 0.22 * len(runs) * lines)
        axes = figure.subplots(1, 2)
        for axis, name in zip(axes, ("plain", "centred"), strict=True):
            for index, run in enumerate(runs):
                values = run.plain if name == "plain" else run.centred
                _steps(axis, values, _name(run), settings[index], index)
            axis.set_title(f"{name} class means")
            axis.set_xlabel("angle between two classes, degrees")
            axis.set_ylabel("share of pairs, %")
            axis.set_xlim(0, 180)
            axis.set_xticks(range(0, 181, 30))
            axis.set_ylim(bottom=0)
            axis.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16))
        figure.suptitle(common, fontsize=10, color="0.35")
        return _bytes(figure, form)


def maps(runs: Sequence[Geometry], form: str) -> bytes:
    """Draw maps of test features side by side, coloured by class; return a file's bytes.

    Args:
        runs: one panel per run.
        form: `png` or `svg`.
    """
    with _context():
        common, settings = _settings(runs)
        columns = min(len(runs), _MAPS_PER_ROW)
        rows = math.ceil(len(runs) / columns)
        names = max((run.class_names for run in runs), key=len)
        named = len(names) <= _LEGEND_CLASSES
        figure = _figure(4.2 * columns + (1.6 if named else 0.2), 4.4 * rows)
        axes = figure.subplots(rows, columns, squeeze=False).flatten()
        for axis in axes[len(runs) :]:
            axis.set_axis_off()
        for axis, run, setting in zip(axes, runs, settings, strict=False):
            colours = _colours(len(run.class_names))
            for index in range(len(run.class_names)):
                points = run.points[run.labels == index]
                axis.scatter(*points.T, s=9, color=colours[index], linewidths=0, alpha=0.8)
            axis.set_title("\n".join(filter(None, (run.title, setting))))
            axis.set_xticks([])
            axis.set_yticks([])
            for side in axis.spines.values():
                side.set_visible(True)
                side.set_color("0.8")
        if named:
            _class_legend(figure, names)
        figure.suptitle(common, fontsize=10, color="0.35")
        return _bytes(figure, form)


def _context() -> Any:
    import matplotlib as mpl

    style: Any = _STYLE
    return mpl.rc_context(style)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def _bytes(figure: Figure, form: str) -> bytes:
    out = io.BytesIO()
    metadata = {"Date": None} if form == "svg" else {"Software": None}
    figure.savefig(out, format=form, metadata=metadata)
    return out.getvalue()


def _name(run: Geometry) -> str:
    method = run.title.split(",")[0]
    return f"{method}, {len(run.clients)} encoders" if run.clients else method


def _steps(axis: Axes, values: Tensor, name: str, setting: str, index: int) -> None:
    edges, counts = histogram(values)
    colour = _colours(10)[index % 10]
    share = 100 * counts / max(1, counts.sum())
    median = float(np.median(values)) if len(values) else None
    shown = "no angle" if median is None else f"{median:.0f}°"
    label = "\n".join(filter(None, (f"{name}, median {shown}", setting)))
    axis.stairs(share, edges, color=colour, linewidth=1.6, label=label)
    axis.stairs(share, edges, color=colour, alpha=0.12, fill=True)
    if median is not None:
        axis.axvline(median, color=colour, linewidth=1, linestyle=":")


def _colours(count: int) -> list[Any]:
    import matplotlib as mpl

    if count <= 10:
        return [mpl.colormaps["tab10"](index) for index in range(count)]
    if count <= 20:
        return [mpl.colormaps["tab20"](index) for index in range(count)]
    return [mpl.colormaps["hsv"](place) for place in np.linspace(0, 1, count, endpoint=False)]


def _class_legend(figure: Figure, names: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], marker="o", linestyle="", color=colour, label=name)
        for name, colour in zip(names, _colours(len(names)), strict=True)
    ]
    figure.legend(handles=handles, loc="outside right center", frameon=False, title="class")


def _settings(runs: Sequence[Geometry]) -> tuple[str, list[str]]:
    """The part of the setting that all runs share, and the rest of each run's setting."""
    parts = [run.setting.split(", ") for run in runs]
    common = [part for part in parts[0] if all(part in setting for setting in parts)]
    rest = [", ".join(part for part in setting if part not in common) for setting in parts]
    return ", ".join(common), rest


def measure(run: TrainedRun, *, num_images: int = 1000, client_id: int | None = None) -> Geometry:
    """Measure angles on all test images, and map some of them by t-SNE.

    Where encoders differ between clients, the angles are from all evaluated clients, and the
    map is from one of them.

    Args:
        run: a finished run.
        num_images: test images on the map, class-balanced, at most.
        client_id: client whose encoder is mapped; None = the first of those evaluated.

    Raises:
        ConfigError: for a client that the run does not have, or where encoders do not differ.
        NonFiniteFeaturesError: for an encoder that diverged.
    """
    setup, dataset, seed = run.setup, run.setup.dataset, run.setup.config.seed
    per_client = setup.evaluate_on_clients
    clients = evaluated_clients(setup) if per_client else []
    mapped = _mapped_client(run, clients, client_id)
    truth, classes = dataset.test_labels, dataset.num_classes
    plain, centred = [], []
    shown = torch.empty(0)
    with single_thread():
        for k in dict.fromkeys([*clients, *([] if mapped is None else [mapped])]) or [None]:
            if k is not None:
                run.select(k)
            features = extract(
                lambda x: setup.method.encode(run.binding.net, x),
                dataset.test_images,
                device="cpu",
            )
            check_finite(f"run {run.row.row_id}", features)
            if k is None or k in clients:
                plain.append(class_angles(features, truth, classes))
                centred.append(class_angles(features, truth, classes, centred=True))
            if k == mapped:
                shown = features
    size = min(num_images, len(truth))
    chosen = balanced_subset(np.asarray(truth, np.int64), size, f"map-{seed}")
    row = run.row
    alpha = "" if row.alpha is None else f", alpha {row.alpha:,.12g}"
    return Geometry(
        run_id=row.row_id,
        title=row.method if mapped is None else f"{row.method}, client {mapped}",
        setting=f"{row.preset}, {row.partition}{alpha}, {row.num_clients} clients, seed {row.seed}",
        clients=tuple(clients),
        plain=torch.cat(plain),
        centred=torch.cat(centred),
        points=project(shown[torch.from_numpy(chosen)], seed),
        labels=np.asarray(truth, np.int64)[chosen],
        class_names=tuple(dataset.class_names),
    )


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


def _mapped_client(run: TrainedRun, clients: Sequence[int], wanted: int | None) -> int | None:
    if not run.setup.evaluate_on_clients:
        if wanted is not None:
            raise ConfigError(
                f"--client: run {run.row.row_id} has one encoder for all clients; leave it out"
            )
        return None
    if wanted is None:
        return clients[0]
    if not 0 <= wanted < run.setup.client_partition.num_clients:
        raise ConfigError(
            f"--client: must be in 0..{run.setup.client_partition.num_clients - 1} for run"
            f" {run.row.row_id} (got {wanted})"
        )
    return wanted
