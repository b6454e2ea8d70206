"""Angles between classes and t-SNE maps of a finished run, from its stored weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbench.bench.data.labels import balanced_subset
from fedbench.bench.evaluation.angles import class_angles, histogram
from fedbench.bench.evaluation.features import check_finite, extract
from fedbench.bench.evaluation.suite import evaluated_clients
from fedbench.bench.runs.load import TrainedRun
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.seeding import single_thread

PERPLEXITY = 30.0


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


def measure(run: TrainedRun, *, num_images: int = 1000, client_id: int | None = None) -> Geometry:
    """Measure angles on all test images, and map some of them by t-SNE.

    Where encoders differ between clients, the angles are those of all evaluated clients, and the
    map is that of one of them.

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
