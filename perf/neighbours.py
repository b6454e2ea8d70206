"""Compute what fedbench and its neighbours both compute, on one input; writes docs/neighbours.md.

    python -m perf.neighbours

`perf/rivals/neighbours*.txt` pin the neighbours, which are installed in environments of their own
on first use (a few GB). Exits with 1 if a line is not what it says: equal, or different.
"""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "neighbours.md"
PACKAGES = {
    "neighbours": (
        "flwr", "flwr-datasets", "lightly", "reptrix", "torchmetrics", "scikit-learn", "scipy",
        "statsmodels", "scikit-posthocs", "autorank", "dp-accounting", "opacus", "autodp",
        "torchvision", "kornia",
    ),
    "neighbours-others": ("stable-pretraining", "pfl"),
}  # fmt: skip
"""Neighbours by the environment that holds them: `perf/rivals/NAME.txt`; not all go together."""
DIGITS = (12, 7, 5, 4)
"""A line is equal to the first of these that its largest relative difference allows."""

Values = tuple[Any, Any]
"""What a neighbour and fedbench compute: numbers, or arrays of one shape."""


@dataclass(frozen=True)
class Line:
    """One quantity that a neighbour and fedbench compute."""

    package: str
    call: str
    ours: str
    values: Callable[[], Values]
    differs: str = ""  # the convention that differs; without one the two must be equal
    equal: str = "equal"  # what is said of equal values


def _from(module: str, name: str) -> Any:
    """Return a function or class of a neighbour, which need not be installed where this runs."""
    return getattr(import_module(module), name)


def _normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def _views() -> tuple[torch.Tensor, torch.Tensor]:
    return _normal(64, 32), _normal(64, 32) + _normal(64, 32, seed=1)


def _nt_xent() -> Values:
    from fedbench.bench.nn.losses import nt_xent

    first, second = _views()
    return _from("lightly.loss", "NTXentLoss")(temperature=0.5)(first, second), nt_xent(
        first, second, 0.5
    )


def _simsiam() -> Values:
    from fedbench.bench.nn.losses import negative_cosine

    first, second = _views()
    return _from("lightly.loss", "NegativeCosineSimilarity")()(first, second), negative_cosine(
        first, second
    )


def _sinkhorn() -> Values:
    from fedbench.methods.swav import assignments

    scores = F.normalize(_normal(64, 16), dim=1)
    theirs = _from("lightly.loss.swav_loss", "sinkhorn")(scores, iterations=3, epsilon=0.05)
    return theirs, assignments(scores, 0.05, 3)


def _features() -> torch.Tensor:
    """Return features (2000, 128) with a spectrum that falls as 1 / j and a mean."""
    return _normal(2000, 128) * torch.arange(1, 129) ** -0.5 + 0.2


def _scores(name: str) -> float:
    from fedbench.bench.evaluation.objectives.accumulator import Accumulator
    from fedbench.bench.evaluation.objectives.scores import objectives

    features = _features()
    sums = Accumulator(objectives().values(), 1)
    sums.add(features, _second_view(features))
    return float(sums.values()[name])


def _second_view(features: torch.Tensor) -> torch.Tensor:
    return features + 0.3 * _normal(*features.shape, seed=2)


def _alpha() -> Values:
    get_alpha = _from("reptrix.alpha", "get_alpha")
    return get_alpha(_features(), fit_range=np.arange(11, 102))[0], _scores("alpha_req")


def _rankme() -> Values:
    return _from("reptrix.rankme", "get_rankme")(_features()), _scores("rankme")


def _rankme_of_singular_values() -> Values:
    features = _features()
    singular = torch.linalg.svdvals(features - features.mean(dim=0)).numpy()
    return _from("reptrix.rankme", "get_rank")(singular), _scores("rankme_centred")


def _lidar() -> Values:
    features = _features()
    views = torch.stack([features, _second_view(features)], dim=1).flatten(0, 1)
    theirs = _from("reptrix.lidar", "get_lidar")(views, len(features), 2)
    return theirs, _scores("lidar")


def _labelled() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return 600 features of six classes with labels, then 400 more, (N, 16) and (N,)."""
    labels = torch.arange(1000) % 6
    features = _normal(1000, 16) + 1.2 * _normal(6, 16, seed=3)[labels]
    features = features.float()
    return features[:600], labels[:600], features[600:], labels[600:]


def _nt_xent_of_stable() -> Values:
    from fedbench.bench.nn.losses import nt_xent

    first, second = _views()
    theirs = _from("stable_pretraining.losses", "NTXEntLoss")(temperature=0.5)
    return theirs(first, second), nt_xent(first, second, 0.5)


def _byol_of_stable() -> Values:
    from fedbench.bench.nn.losses import negative_cosine

    first, second = _views()
    theirs = _from("stable_pretraining.losses", "BYOLLoss")()
    return theirs(first, second), negative_cosine(first, second)


def _rankme_of_stable() -> Values:
    """Return what the callback logs, without a trainer around it."""
    logged: dict[str, float] = {}
    callback = SimpleNamespace(
        _target_queue=SimpleNamespace(data=_features()), name="rankme", verbose=False
    )
    hook = _from("stable_pretraining.callbacks.rankme", "RankMe").on_validation_batch_end
    module = SimpleNamespace(log=lambda name, value: logged.update({name: value}))
    hook(callback, SimpleNamespace(global_rank=0), module, {}, {}, 0)
    return logged["rankme"], _scores("rankme")


def _lidar_of_stable(delta: float | None) -> Values:
    """Return the callback's value; None = the constant that ours adds to the same scatter."""
    features = _features()
    second = _second_view(features)
    if delta is None:
        delta = 1e-4 * float(((features - second) ** 2 / 2).mean())
    settings = {"n_classes": 2000, "samples_per_class": 2, "delta": delta, "epsilon": 1e-8}
    compute = _from("stable_pretraining.callbacks.lidar", "LiDAR")._compute_lidar
    views = torch.stack([features, second], dim=1).flatten(0, 1)
    return compute(SimpleNamespace(name="lidar", **settings), views)["lidar"], _scores("lidar")


def _knn(temperature: float) -> torch.Tensor:
    from fedbench.bench.evaluation.probes import knn_predictions

    bank, labels, queries, _ = _labelled()
    return knn_predictions(
        bank, labels.numpy(), queries, num_classes=6, neighbours=50, temperature=temperature
    )


def _knn_of_lightly() -> Values:
    bank, labels, queries, _ = _labelled()
    theirs = _from("lightly.utils.benchmarking.knn", "knn_predict")(
        F.normalize(queries, dim=1), F.normalize(bank, dim=1).T, labels, 6, knn_k=50, knn_t=0.07
    )
    return theirs[:, 0], _knn(0.07)


def _knn_of_sklearn() -> Values:
    bank, labels, queries, _ = _labelled()
    model = _from("sklearn.neighbors", "KNeighborsClassifier")(
        50, metric="cosine", weights=lambda distances: np.exp((1 - distances) / 0.1)
    )
    return model.fit(bank, labels).predict(queries), _knn(0.1)


def _linear(c: float) -> Values:
    """Return predictions: on images that are easily told apart, weights agree to 3 digits only."""
    from fedbench.bench.evaluation.probes import fit_logistic

    bank, labels, queries, _ = _labelled()
    scaled = _from("sklearn.preprocessing", "StandardScaler")().fit(bank)
    model = _from("sklearn.linear_model", "LogisticRegression")(C=c, tol=1e-10, max_iter=10_000)
    theirs = model.fit(scaled.transform(bank), labels).predict(scaled.transform(queries))
    return theirs, fit_logistic(bank, labels.numpy(), num_classes=6, l2=1e-4).predict(queries)


def _balanced(package: str) -> Values:
    from fedbench.bench.evaluation.probes import balanced_accuracy

    truth = np.repeat([0, 1, 2], [700, 200, 100])
    guessed = np.where(np.random.default_rng(0).random(1000) < 0.3, 0, truth)
    splits: Any = SimpleNamespace(test_labels=truth, num_classes=3)
    right = torch.from_numpy(guessed == truth)
    ours = balanced_accuracy("knn", right, splits)["balanced_knn_acc"]
    if package == "scikit-learn":
        return _from("sklearn.metrics", "balanced_accuracy_score")(truth, guessed), ours
    score = _from("torchmetrics.classification", "MulticlassAccuracy")(3, average="macro")
    return score(torch.from_numpy(guessed), torch.from_numpy(truth)), ours


def _replies(rows: list[np.ndarray[Any, Any]]) -> list[Any]:
    """Return what Flower's server reads of replies of clients with equal numbers of examples.

    A `Message` itself can be made in a running federation alone.
    """
    app = import_module("flwr.app")
    replies = []
    for row in rows:
        arrays = app.ArrayRecord({"w": app.Array(row)})
        content = app.RecordDict({"arrays": arrays, "m": app.MetricRecord({"num-examples": 1.0})})
        replies.append(SimpleNamespace(content=content, has_error=lambda: False))
    return replies


def _uploads(count: int = 9) -> list[np.ndarray[Any, Any]]:
    rows = np.random.default_rng(0).standard_normal((count, 40)).astype(np.float32)
    rows[0] *= 50
    return [*rows]


def _aggregated(
    strategy: str, ours: Callable[[list[torch.Tensor]], Any], **settings: Any
) -> Values:
    rows = _uploads()
    theirs = _from("flwr.serverapp.strategy", strategy)(**settings)
    arrays, _ = theirs.aggregate_train(1, _replies(rows))
    return arrays["w"].numpy(), ours([torch.from_numpy(row) for row in rows])


def _krum() -> Values:
    from fedbench.bench.nn.robust import krum

    return _aggregated("Krum", lambda rows: rows[krum(rows, 2)], num_malicious_nodes=2)


def _median() -> Values:
    from fedbench.bench.nn.robust import coordinate_median

    return _aggregated("FedMedian", lambda rows: coordinate_median(rows, [1.0] * len(rows)))


def _trimmed(fraction: float, count: int) -> Values:
    from fedbench.bench.method.aggregator import TrimmedMean

    rows = _uploads(count)
    theirs = _from("flwr.serverapp.strategy.fedtrimmedavg", "trim_mean")(np.stack(rows), fraction)
    ours = TrimmedMean(fraction)
    for client, row in enumerate(rows):
        ours.fold(client, 1.0, torch.from_numpy(row))
    return theirs, ours.result()


def _spread(counts: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Return two figures of counts (K, C): share of the largest class, spread of sizes."""
    sizes = counts.sum(axis=1)
    held = counts[sizes > 0]
    return float((held.max(axis=1) / held.sum(axis=1)).mean()), float(sizes.std() / sizes.mean())


def _of_rows(partitioner: Any) -> Any:
    labels = np.arange(2000) % 10
    partitioner.dataset = _from("datasets", "Dataset").from_dict({"label": labels})
    return partitioner


def _partitions(theirs: Callable[[int], Any], **settings: Any) -> Values:
    """Return figures of 60 partitions of 2000 images in 10 classes among 20 clients, rounded.

    Draws differ, so equal distributions are told by means: to 0.05, three standard errors.
    """
    from fedbench.bench.config import DataConfig
    from fedbench.bench.data.partition import make_partition

    labels = np.arange(2000) % 10
    config = DataConfig(num_clients=20, **settings)
    figures: tuple[list[Any], list[Any]] = ([], [])
    for seed in range(60):
        partitioner = theirs(seed)
        parts = [partitioner.load_partition(k)["label"] for k in range(20)]
        figures[0].append(_spread(np.stack([np.bincount(p, minlength=10) for p in parts])))
        made = make_partition(labels, 10, config, seed)
        figures[1].append(_spread(made.class_counts(labels)))
    means = np.array([np.mean(each, axis=0) for each in figures])
    if np.abs(means[0] - means[1]).max() <= 0.05:
        means[:] = means.mean(axis=0)
    return means[0], means[1]


def _dirichlet() -> Values:
    make = _from("flwr_datasets.partitioner", "DirichletPartitioner")
    return _partitions(
        lambda seed: _of_rows(make(20, "label", alpha=0.3, min_partition_size=0, seed=seed)),
        partition="dirichlet", alpha=0.3,
    )  # fmt: skip


def _pathological() -> Values:
    make = _from("flwr_datasets.partitioner", "PathologicalPartitioner")
    return _partitions(
        lambda seed: _of_rows(make(20, "label", 2, class_assignment_mode="random", seed=seed)),
        partition="pathological", classes_per_client=2,
    )  # fmt: skip


def _pfl() -> Values:
    split = _from("pfl.data.partition", "partition_by_dirichlet_class_distribution")

    def partitioner(seed: int) -> Any:
        np.random.seed(seed)  # noqa: NPY002  pfl draws from it
        parts = split(np.arange(2000) % 10, 0.3, lambda: 100)
        return SimpleNamespace(load_partition=lambda k: {"label": np.array(parts[k]) % 10})

    return _partitions(partitioner, partition="hsu", alpha=0.3, multiply_prior=False)


def _gaussian(theirs: Callable[[], float]) -> Values:
    from fedbench.bench.evaluation.objectives.accumulator import epsilon

    return theirs(), epsilon(1.0)


def _sampled(theirs: Callable[[], float]) -> Values:
    from fedbench.bench.execution.guarantees import client_epsilon

    return theirs(), client_epsilon(1.0, 1e-5, {0.1: 50})


def _opacus(name: str) -> float:
    account = _from("opacus.accountants", name)()
    account.history = [(1.0, 0.1, 50)]
    return float(account.get_epsilon(1e-5))


def _autodp() -> float:
    return float(_from("autodp.mechanism_zoo", "ExactGaussianMechanism")(1.0).get_approxDP(1e-5))


SEEDS = np.array([[0.50, 0.53, 0.52], [0.55, 0.56, 0.51], [0.48, 0.49, 0.51], [0.60, 0.57, 0.59]])
P_VALUES = [0.01, 0.04, 0.03, 0.5]


def _pooled() -> Values:
    from fedbench.bench.results.leaderboard.separation import Separation

    return _from("scipy.stats", "ttest_ind")(SEEDS[0], SEEDS[1]).pvalue, Separation(
        {0: [*SEEDS[0]], 1: [*SEEDS[1]]}
    ).p(0, 1)


def _pooled_over_all() -> Values:
    from fedbench.bench.results.leaderboard.separation import Separation

    long = _from("pandas", "DataFrame")(SEEDS.T).melt()
    theirs = _from("scikit_posthocs", "posthoc_ttest")(
        long, "value", "variable", pool_sd=True, p_adjust=None
    )
    return theirs.loc[0, 1], Separation({i: [*row] for i, row in enumerate(SEEDS)}).p(0, 1)


def _holm() -> Values:
    from fedbench.bench.results.leaderboard.statistics import holm

    adjust = _from("statsmodels.stats.multitest", "multipletests")
    return adjust(P_VALUES, method="holm")[1], holm(P_VALUES)


def _levene() -> Values:
    from fedbench.bench.results.leaderboard.statistics import brown_forsythe_p

    return _from("scipy.stats", "levene")(*SEEDS).pvalue, brown_forsythe_p([*map(list, SEEDS)])


def _nemenyi() -> Values:
    from fedbench.bench.results.leaderboard.statistics import nemenyi_difference

    return _from("autorank._util", "_critical_distance")(0.05, 5, 12), nemenyi_difference(5, 12)


def _image() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).random((1, 3, 32, 32)))


def _op(name: str, theirs: Callable[[Any, torch.Tensor], Any], *values: float) -> Values:
    ours = _from("fedbench.bench.data.views.image_ops", name)
    library = import_module("torchvision.transforms.v2.functional")
    image = _image()
    return theirs(library, image), ours(image, *(torch.tensor([v]) for v in values))


def _kornia(name: str, ours: str, factor: float, of_ours: float) -> Values:
    image = _image()
    mine = _from("fedbench.bench.data.views.image_ops", ours)(image, torch.tensor([of_ours]))
    return _from("kornia.enhance", name)(image, factor), mine


DRAWS = "same means over 60 draws"
LINES = (
    Line("flwr", "`Krum`", "`server.aggregator=krum`", _krum),
    Line("flwr", "`FedMedian`", "`server.aggregator=median`", _median),
    Line(
        "flwr", "`FedTrimmedAvg`, 0.2 of 9", "`server.aggregator=trimmed-mean`",
        lambda: _trimmed(0.2, 9),
    ),
    Line(
        "flwr", "`FedTrimmedAvg`, 0.29 of 100", "`server.aggregator=trimmed-mean`",
        lambda: _trimmed(0.29, 100),
        "it cuts 28 at either end (0.29 · 100 is 28.99…), we 29; `server.trim_fraction=0.28`"
        " gives its",
    ),
    Line(
        "flwr-datasets", "`DirichletPartitioner`, `min_partition_size=0`",
        "`data.partition=dirichlet`", _dirichlet, equal=DRAWS,
    ),
    Line(
        "flwr-datasets", "`PathologicalPartitioner`, random", "`data.partition=pathological`",
        _pathological,
        "it draws classes for each client, so that holders of a class and sizes vary; ours gives"
        " every class as many holders. [Its partition can be read](data.md#partitions)",
    ),
    Line("lightly", "`NTXentLoss`", "`simclr`", _nt_xent),
    Line("lightly", "`NegativeCosineSimilarity`", "`simsiam`, `byol`", _simsiam),
    Line("lightly", "`sinkhorn`", "`swav`", _sinkhorn),
    Line(
        "lightly", "`knn_predict`, of unit rows, t = 0.07", "`evaluation.knn_temperature=0.07`",
        _knn_of_lightly,
    ),
    Line("stable-pretraining", "`NTXEntLoss`", "`simclr`", _nt_xent_of_stable),
    Line(
        "stable-pretraining", "`BYOLLoss`", "`byol`, `simsiam`", _byol_of_stable,
        "it is 2 − 2 cos, ours −cos, with half its gradient: double our rate",
    ),
    Line(
        "stable-pretraining", "`RankMe`", "`rankme`", _rankme_of_stable,
        "it adds 1e-5 inside the logarithm",
    ),
    Line(
        "stable-pretraining", "`LiDAR`, `delta=1e-4`", "`lidar`", lambda: _lidar_of_stable(1e-4),
        "its constant is absolute, ours 1e-4 of the mean variance between views",
    ),
    Line(
        "stable-pretraining", "`LiDAR`, `delta` = 1e-4 of that variance", "`lidar`",
        lambda: _lidar_of_stable(None),
    ),
    Line(
        "pfl", "`partition_by_dirichlet_class_distribution`",
        "`data.partition=hsu`, `data.multiply_prior=false`", _pfl,
        equal=DRAWS,
    ),
    Line(
        "reptrix", "`get_rankme`", "`rankme`", _rankme,
        "it subtracts the mean and takes eigenvalues; the paper has singular values of the features"
        " as they are, and so have we. No setting gives its number",
    ),
    Line(
        "reptrix", "`get_rank` of centred singular values", "`rankme-centred`",
        _rankme_of_singular_values,
        "it adds 1e-7 inside the logarithm",
    ),
    Line("reptrix", "`get_alpha`, indices 11 to 101 of 128", "`alpha-req`", _alpha),
    Line(
        "reptrix", "`get_lidar`", "`lidar`", _lidar,
        "it squares the eigenvalues of the paper. No setting gives its number",
    ),
    Line("scikit-learn", "`KNeighborsClassifier`, cosine", "`knn`", _knn_of_sklearn),
    Line(
        "scikit-learn", "`LogisticRegression`, C = 1 / (1e-4 · 600), standardised", "`linear`",
        lambda: _linear(1 / (1e-4 * 600)),
    ),
    Line(
        "scikit-learn", "`LogisticRegression`, C = 1, standardised", "`linear`",
        lambda: _linear(1.0), "our C is 1 / (1e-4 N), for N images",
    ),
    Line(
        "scikit-learn", "`balanced_accuracy_score`", "`balanced_knn_acc`",
        lambda: _balanced("scikit-learn"),
    ),
    Line(
        "torchmetrics", "`MulticlassAccuracy`, macro", "`balanced_knn_acc`",
        lambda: _balanced("torchmetrics"),
    ),
    Line("scipy", "`ttest_ind` of two lines", "p-value of a board", _pooled),
    Line("scipy", '`levene(center="median")`', "Brown and Forsythe's test", _levene),
    Line("statsmodels", '`multipletests(method="holm")`', "`p_best`", _holm),
    Line(
        "scikit-posthocs", "`posthoc_ttest(pool_sd=True)`", "p-value of a board",
        _pooled_over_all,
    ),
    Line("autorank", "critical distance", "Nemenyi's difference", _nemenyi),
    Line(
        "dp-accounting", "`get_epsilon_gaussian(1, 1e-5)`", "`objective_epsilon`",
        lambda: _gaussian(lambda: _from("dp_accounting", "get_epsilon_gaussian")(1.0, 1e-5)),
    ),
    Line(
        "autodp", "`ExactGaussianMechanism`", "`objective_epsilon`",
        lambda: _gaussian(_autodp),
    ),
    Line(
        "opacus", "`PRVAccountant`, 50 rounds of 10 %, noise 1", "`epsilon`",
        lambda: _sampled(lambda: _opacus("PRVAccountant")),
        "it adds its error bound of 0.01; ours is dp-accounting's PLD, an upper bound too",
    ),
    Line(
        "opacus", "`RDPAccountant`, the same", "`epsilon`",
        lambda: _sampled(lambda: _opacus("RDPAccountant")),
        "Rényi's bound is looser; no setting gives it",
    ),
    Line(
        "torchvision", "v2 `adjust_brightness`", "views",
        lambda: _op("adjust_brightness", lambda tv, x: tv.adjust_brightness(x, 1.3), 1.3),
    ),
    Line(
        "torchvision", "v2 `adjust_contrast`", "views",
        lambda: _op("adjust_contrast", lambda tv, x: tv.adjust_contrast(x, 0.7), 0.7),
    ),
    Line(
        "torchvision", "v2 `adjust_saturation`", "views",
        lambda: _op("adjust_saturation", lambda tv, x: tv.adjust_saturation(x, 1.4), 1.4),
    ),
    Line(
        "torchvision", "v2 `adjust_hue`, of float images", "views",
        lambda: _op("adjust_hue", lambda tv, x: tv.adjust_hue(x, 0.08), 0.08),
    ),
    Line(
        "torchvision", "v2 `gaussian_blur`, 3 x 3", "views",
        lambda: _op("gaussian_blur", lambda tv, x: tv.gaussian_blur(x, [3, 3], [0.9, 0.9]), 0.9),
    ),
    Line(
        "torchvision", "v2 `solarize`, 128 / 255", "views",
        lambda: _op("solarize", lambda tv, x: tv.solarize(x, 128 / 255)),
    ),
    Line(
        "kornia", "`adjust_brightness`", "views",
        lambda: _kornia("adjust_brightness", "adjust_brightness", 1.3, 1.3),
        "it adds the factor; torchvision and we multiply by it",
    ),
    Line(
        "kornia", "`adjust_brightness_accumulative`", "views",
        lambda: _kornia("adjust_brightness_accumulative", "adjust_brightness", 1.3, 1.3),
    ),
    Line(
        "kornia", "`adjust_contrast`", "views",
        lambda: _kornia("adjust_contrast", "adjust_contrast", 0.7, 0.7),
        "it blends with black; torchvision and we with the mean grey",
    ),
    Line(
        "kornia", "`adjust_contrast_with_mean_subtraction`", "views",
        lambda: _kornia("adjust_contrast_with_mean_subtraction", "adjust_contrast", 0.7, 0.7),
        "its grey has 0.299 of red, torchvision's and ours 0.2989: off by 2e-5",
    ),
    Line(
        "kornia", "`adjust_saturation`", "views",
        lambda: _kornia("adjust_saturation", "adjust_saturation", 1.4, 1.4),
        "it scales the saturation of HSV; torchvision and we blend with grey",
    ),
    Line(
        "kornia", "`adjust_hue`, in radians", "views",
        lambda: _kornia("adjust_hue", "adjust_hue", 0.16 * np.pi, 0.08),
    ),
)  # fmt: skip

SUMS = "m = β m + (1 − β) Δ; v = β₂ v + (1 − β₂) Δ²; "
STEPS: tuple[tuple[str, str, str, dict[str, float]], ...] = (
    ("average", "θ += η Δ", "SGD", {"lr": 0.1}),
    (
        "momentum", "m = μ m + Δ; θ += η m", "FedAvgM",
        {"server_learning_rate": 0.1, "server_momentum": 0.9},
    ),
    (
        "adam", SUMS + "θ += η m / (1 − β^t) / (sqrt(v / (1 − β₂^t)) + ε)", "Adam",
        {"lr": 0.1},
    ),
    ("adam-reddi", SUMS + "θ += η m / (sqrt(v) + ε)", "", {}),
    (
        "adam-flower", SUMS + "θ += η sqrt(1 − β₂^(t+1)) / (1 − β^(t+1)) m / (sqrt(v) + ε)",
        "FedAdam", {"eta": 0.1},
    ),
    (
        "yogi", "m as above; v −= (1 − β₂) Δ² sign(v − Δ²); θ as in `adam-reddi`", "FedYogi",
        {"eta": 0.1},
    ),
    ("adagrad", "v += Δ²; θ += η Δ / (sqrt(v) + ε)", "FedAdagrad", {"eta": 0.1}),
)  # fmt: skip
"""Ours, its formula, an optimizer of torch or strategy of Flower with the same steps, settings."""


def our_steps(name: str) -> list[float]:
    """Return the first three steps of a server optimizer at rate 0.1, each on a change of 1."""
    from fedbench.bench.config import ServerConfig
    from fedbench.bench.training.server_optimizers import server_optimizer

    optimizer = server_optimizer(
        ServerConfig.model_validate({"optimizer": name, "lr": 0.1}), 1, "cpu"
    )
    theta, places = torch.zeros(1), [0.0]
    for _ in range(3):
        optimizer.step(theta, torch.ones(1, dtype=torch.float64))
        places.append(theta.item())
    return [after - before for before, after in pairwise(places)]


def torch_steps(name: str, settings: dict[str, float]) -> list[float]:
    """Return the same steps of an optimizer of torch, whose gradient is the negated change."""
    theta, places = torch.nn.Parameter(torch.zeros(1)), [0.0]
    optimizer = getattr(torch.optim, name)([theta], **settings)
    for _ in range(3):
        theta.grad = -torch.ones(1)
        optimizer.step()
        places.append(theta.item())
    return [after - before for before, after in pairwise(places)]


def flower_steps(name: str, settings: dict[str, float]) -> list[float]:
    """Return the same steps of a strategy of Flower."""
    app = import_module("flwr.app")
    strategy = _from("flwr.serverapp.strategy", name)(**settings)
    place, steps = np.zeros(1, np.float32), []
    for index in range(3):
        if name != "FedAvgM":
            strategy.current_arrays = {"w": place}
        elif index == 0:
            strategy.current_arrays = app.ArrayRecord({"w": app.Array(place)})
        arrays, _ = strategy.aggregate_train(index + 1, _replies([place + np.float32(1)]))
        after = arrays["w"].numpy()
        steps.append(float(after[0] - place[0]))
        place = after
    return steps


HEAD = """# Neighbours

<!-- Written by python -m perf.neighbours, which computes every line; do not edit. -->

Are your numbers ours? Find your package. Both computed each line on one input: they are equal to
so many digits, or a convention differs. Releases: {releases}.

| package | theirs | ours | result |
|---|---|---|---|
"""
MIDDLE = """
No method here has the losses of Barlow Twins, VICReg or DINO.

## Server optimizers

η is `server.lr`, β `server.beta1`, β₂ `server.beta2`, ε `server.epsilon`, μ `server.momentum`, t
the round from 1 and Δ the clients' mean change; m and v begin at 0. The steps are those at η = 0.1,
Δ = 1 and defaults.

| `server.optimizer` | formula | same steps | first three |
|---|---|---|---|
"""
TAIL = """
Flower weighs clients by their examples: `server.weighting=examples`. Its FedAdam returns float64;
we keep float32. Reddi et al. (algorithm 2) begin v at ε² or more, which no setting gives.
"""


def computed(environment: str) -> dict[str, Any]:
    """Return rows of the tables, by place, that an environment gives, and what does not hold."""
    rows, steps, wrong = {}, [], []
    for place, line in enumerate(LINES):
        if line.package not in PACKAGES[environment]:
            continue
        theirs, ours = (np.asarray(value, np.float64) for value in line.values())
        difference = float(np.abs(theirs - ours).max() / max(float(np.abs(ours).max()), 1e-300))
        digits = next((each for each in DIGITS if difference <= 10.0**-each), 0)
        found = line.equal if digits == DIGITS[0] else f"equal to {digits} digits"
        if line.differs:
            first, second = (f"{value.ravel()[0]:.4g}" for value in (theirs, ours))
            values = f"{first}, ours {second}: " if theirs.size == 1 and first != second else ""
            found = f"differs: {values}{line.differs}"
        if bool(line.differs) is (digits >= 5) or theirs.shape != ours.shape:
            wrong.append(f"{line.package} {line.call}: off by {difference:.1e}")
        rows[place] = f"| {line.package} | {line.call} | {line.ours} | {found} |\n"
    for name, formula, same, settings in STEPS if environment == "neighbours" else ():
        mine, their_steps = our_steps(name), flower_steps if same[:3] == "Fed" else torch_steps
        if same and not np.allclose(mine, their_steps(same, settings), rtol=1e-5):
            wrong.append(f"{same}: other steps than {name}")
        shown = ", ".join(f"{step:.4f}" for step in mine)
        whose = f"{'Flower' if same[:3] == 'Fed' else 'torch'} `{same}`" if same else ""
        steps.append(f"| `{name}` | {formula} | {whose} | {shown} |\n")
    releases = [f"{name} {version(name)}" for name in PACKAGES[environment]]
    return {"rows": rows, "steps": steps, "wrong": wrong, "releases": releases}


def main() -> int:
    """Write the page from what all environments compute; return 1 if a line does not hold."""
    if sys.argv[1:]:
        logging.disable(logging.INFO)  # Flower reports every reply
        Path(sys.argv[2]).write_text(json.dumps(computed(sys.argv[1])))
        return 0

    from perf.rivals import environment

    parts = []
    for name in PACKAGES:
        python = environment(name, Path.home() / ".cache" / "fedbench-perf")
        with NamedTemporaryFile(suffix=".json") as file:
            command = [str(python), "-W", "ignore", "-m", "perf.neighbours", name, file.name]
            env = {**os.environ, "PYTHONPATH": str(ROOT)}
            subprocess.run(command, cwd=ROOT, env=env, check=True)
            parts.append(json.loads(Path(file.name).read_text()))
    rows = {int(place): row for part in parts for place, row in part["rows"].items()}
    releases, steps, wrong = (
        [each for part in parts for each in part[key]] for key in ("releases", "steps", "wrong")
    )
    table = "".join(rows[place] for place in sorted(rows))
    head = HEAD.format(releases=", ".join(releases))
    PAGE.write_text(head + table + MIDDLE + "".join(steps) + TAIL, encoding="utf-8")
    print("\n".join(wrong) or f"wrote {PAGE}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
