"""Probes of frozen features: nearest neighbours, a logistic regression, a perceptron, angles."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedbench.bench.config import RunConfig
from fedbench.bench.data.datasets import Dataset
from fedbench.bench.data.labels import balanced_subset, held_out, majority
from fedbench.bench.data.partition import make_test_partition
from fedbench.bench.evaluation.features import (
    Encode,
    Images,
    Labels,
    check_finite,
    class_tensor,
    extract,
)
from fedbench.bench.evaluation.metrics import PROBES, Metric, accuracy
from fedbench.bench.method import Net
from fedbench.bench.nn import optimizers
from fedbench.bench.nn.heads import mlp
from fedbench.bench.system import seeding
from fedbench.bench.system.compute import resident
from fedbench.bench.training.setup import Setup

ANGLES = tuple(
    Metric(f"{name}_{figure}", needs_labels=True)
    for name in ("angle", "angle_centred")
    for figure in ("mean", "median")
)


def class_angles(
    features: Tensor, labels: Labels, num_classes: int, *, centred: bool = False
) -> Tensor:
    """Angle between the mean features of every two classes, in degrees in [0, 180], on the CPU.

    Features of a network that ends in ReLU and averaging are not negative, so plain angles do not
    exceed 90 degrees and shrink with all that the classes have in common; centred ones, after the
    mean of the class means was subtracted, do not. From finite features (N, D), float64
    (C (C - 1) / 2,), without classes that have no examples or a mean of length 0.

    Source: Arora 2023, pFedAE, equations 4.1 and 4.2 (plain).
    """
    classes = class_tensor(labels, features.device)
    shape = num_classes, features.shape[1]
    sums = torch.zeros(shape, dtype=torch.float64, device=features.device)
    sums.index_add_(0, classes, features.double())
    counts = torch.bincount(classes, minlength=num_classes)
    means = sums[counts > 0] / counts[counts > 0, None]  # (C, D)
    if centred:
        means = means - means.mean(dim=0)
    lengths = means.norm(dim=1)
    # A mean that rounding alone keeps from 0 has no direction.
    rounding = torch.finfo(torch.float32).eps * features.double().norm(dim=1).mean()
    means = means[lengths > rounding]
    unit = means / means.norm(dim=1, keepdim=True)
    first, second = torch.triu_indices(len(unit), len(unit), offset=1)
    cosines = (unit[first] * unit[second]).sum(dim=1).clamp(-1, 1)
    return torch.rad2deg(torch.acos(cosines)).cpu()


def both_angles(features: Tensor, labels: Labels, num_classes: int) -> dict[str, Tensor]:
    """`class_angles` as `angle`, and the centred ones as `angle_centred`."""
    return {
        name: class_angles(features, labels, num_classes, centred=centred)
        for name, centred in (("angle", False), ("angle_centred", True))
    }


def angle_summary(encoders: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """Means and medians over pairs of classes of all encoders, each given as `both_angles`."""
    metrics = {}
    for name in dict.fromkeys(name for angles in encoders for name in angles):
        pairs = torch.cat([angles[name] for angles in encoders]).numpy()
        if len(pairs):
            metrics[f"{name}_mean"] = float(np.mean(pairs))
            metrics[f"{name}_median"] = float(np.median(pairs))
    return metrics


OnStep = Callable[[str, int, int], None]
"""Takes a protocol, and its steps that are done and in all, at most."""


@dataclass(eq=False)
class Splits:
    """Images that probes learn from and are scored on; a GPU gets them once."""

    dataset: Dataset
    images: NDArray[np.uint8]  # its training images, as the encoder's clients see them
    chosen: NDArray[np.int64]  # (N,) positions of those that probes learn from
    channels: int  # that the encoder takes; gray images get so many equal ones
    device: torch.device

    def __post_init__(self) -> None:
        self.train_labels: NDArray[np.int64] = self.dataset.train_labels[self.chosen]  # (N,)
        self.test_labels = self.dataset.test_labels  # (M,)
        self.num_classes = self.dataset.num_classes

    @cached_property
    def train(self) -> Images:
        """uint8 (N, C, H, W), the images that probes learn from."""
        return self._resident(self.images[self.chosen])

    @cached_property
    def test(self) -> Images:
        """uint8 (M, C, H, W), all test images."""
        return self._resident(self.dataset.test_images)

    def _resident(self, images: NDArray[np.uint8]) -> Images:
        shape = (len(images), self.channels, *images.shape[2:])
        return resident(np.broadcast_to(images, shape), self.device)


@dataclass(eq=False)
class Encoded:
    """One encoder of a run, as probes see it."""

    setup: Setup
    net: Net  # that the encoder is part of, in eval mode
    encode: Encode
    splits: Splits
    device: torch.device
    client_id: int | None = None  # whose encoder it is; None for one of all clients
    on_step: OnStep = lambda *_: None

    @cached_property
    def train(self) -> Tensor:
        """Features (N, D) of `splits.train`, on `device`."""
        return self._features("training images", self.splits.train)

    @cached_property
    def test(self) -> Tensor:
        """Features (M, D) of `splits.test`, on `device`."""
        return self._features("test images", self.splits.test)

    @property
    def train_labels(self) -> NDArray[np.int64]:
        """Classes (N,) of `splits.train`, for probes of other packages."""
        return self.splits.train_labels

    @cached_property
    def angles(self) -> dict[str, Tensor]:
        """Angles between the classes of test images; see `both_angles`."""
        return both_angles(self.test, self.splits.test_labels, self.splits.num_classes)

    def _features(self, what: str, images: Images) -> Tensor:
        features = extract(self.encode, images, device=self.device)
        check_finite(what, features)
        return features


def knn_accuracy(
    bank: Tensor, bank_labels: Labels, queries: Tensor, query_labels: Labels, **settings: Any
) -> float:
    """Share of the queries for whose class their nearest vote; see `knn_predictions`."""
    predicted = knn_predictions(bank, bank_labels, queries, **settings)
    right = predicted == class_tensor(query_labels, bank.device)
    return right.sum().item() / len(queries)


def knn_predictions(
    bank: Tensor,
    bank_labels: Labels,
    queries: Tensor,
    *,
    num_classes: int,
    neighbours: int = 200,
    temperature: float = 0.1,
    chunk: int = 256,
) -> Tensor:
    """Class for which the nearest bank examples of each query vote, int64 (M,) on their device.

    Each of the `neighbours` nearest bank examples by cosine similarity s adds exp(s / temperature)
    to the votes of its class. Equal votes go to the lowest class index. A vector of zeros has
    similarity 0 to everything.

    Source: Wu et al. 2018, https://arxiv.org/abs/1805.01978, section 3.4 (weighted k-NN, k = 200);
    the temperature is the one of Orchestra's released code. Deviations: k is capped at the size of
    the bank; all images count, where that code leaves out incomplete batches of 256, of the bank
    too; and the largest similarity is subtracted before the exponential, which scales all votes of
    a query alike and keeps small temperatures from overflowing.

    Features of bank (N, D) and queries (M, D) are finite and on one device, which computes; labels
    are in [0, num_classes). A chunk of queries takes about 4 * chunk * N bytes.
    """
    classes, predicted = class_tensor(bank_labels, bank.device), []
    neighbours = min(neighbours, len(bank))
    columns = F.normalize(bank.float(), dim=1).T  # (D, N)
    for rows in queries.split(chunk):
        similarity = F.normalize(rows.float(), dim=1) @ columns  # (m, N)
        near, index = similarity.topk(neighbours, dim=1)  # (m, k)
        # Sums in double precision: near-equal votes must not hinge on the order of addition.
        weight = ((near - near[:, :1]).double() / temperature).exp()  # (m, k)
        votes = weight.new_zeros(len(rows), num_classes)  # (m, C)
        votes.scatter_add_(1, classes[index], weight)
        predicted.append(votes.argmax(dim=1))
    return torch.cat(predicted)


def balanced_accuracy(name: str, right: Tensor, splits: Splits) -> dict[str, float]:
    """Mean over classes of the share of right answers (M,), where one class has far more images."""
    if majority(splits.test_labels, splits.num_classes) is None:
        return {}
    truth = class_tensor(splits.test_labels, right.device)
    counts = torch.bincount(truth).double()
    hits = torch.bincount(truth, weights=right.double())
    return {f"balanced_{name}_acc": (hits / counts)[counts > 0].mean().item()}


CHUNK = 4096
"""Rows per matrix product: fixed, so that sums are always added in the same order."""

MAX_ITERATIONS, TOLERANCE = 200, 1e-9
"""Relative decrease of the loss in one iteration below which the fit has converged."""


class LogisticFit(NamedTuple):
    """A fitted classifier: logits = ((x - mean) * scale) @ weight + bias, all float64."""

    mean: Tensor  # (D,)
    scale: Tensor  # (D,): 1 / standard deviation, 0 for constant dimensions
    weight: Tensor  # (D, C)
    bias: Tensor  # (C,)

    def predict(self, features: Tensor) -> Tensor:
        """Most probable class of each row of (N, D), ties to the lowest index; int64 (N,)."""
        logits = [
            (rows.double() - self.mean) * self.scale @ self.weight + self.bias
            for rows in features.split(CHUNK)
        ]
        return torch.cat(logits).argmax(dim=1)


def fit_logistic(
    features: Tensor,
    labels: Labels,
    *,
    num_classes: int,
    l2: float = 1e-4,
    on_step: OnStep = lambda *_: None,
) -> LogisticFit:
    """Multinomial logistic regression on standardised features by L-BFGS, from zero weights.

    Minimises sum_i CE_i + l2 * N * |W|^2 / 2, that is mean CE + l2 * |W|^2 / 2; the bias is not
    penalised. (In scikit-learn's terms C = 1 / (l2 * N).) Nothing is random, and everything is in
    double precision, so the optimum is found to more digits than float32 features carry. The device
    of the features computes the loss and its gradient; SciPy's L-BFGS runs on the CPU.

    L-BFGS runs in rotated and rescaled coordinates: W = Q diag(1 / s) V with the eigenvectors Q of
    the feature correlations and s^2 about the curvature along each. The optimum is the same and is
    reached in far fewer iterations, because encoder features are strongly correlated.

    Features (N, D) are finite, labels (N,) in [0, num_classes). At most 200 iterations are made.
    """
    classes = class_tensor(labels, features.device)
    mean, scale = standardisation(features)
    basis, curvature = _eigenbasis(features, mean, scale, l2, num_classes)  # (D, r), (r,)
    transform = scale[:, None] * basis / curvature.sqrt()  # (D, r)
    device, size = features.device, (len(features), basis.shape[1])
    inputs = torch.empty(size, dtype=torch.float64, device=device)  # (N, r)
    for rows, out in zip(features.split(CHUNK), inputs.split(CHUNK), strict=True):
        torch.mm(rows.double() - mean, transform, out=out)
    penalty = (l2 / curvature)[:, None]  # (r, 1)
    shape = (basis.shape[1] + 1, num_classes)

    from scipy.optimize import minimize  # imported here: it takes half a second

    def loss_and_gradient(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        parameters = torch.from_numpy(flat).view(shape).to(device)
        weight, bias = parameters[:-1], parameters[-1]  # (r, C), (C,)
        gradient = torch.zeros_like(parameters)
        loss = torch.zeros((), dtype=torch.float64, device=device)  # read once, at the end
        for rows, expected in zip(inputs.split(CHUNK), classes.split(CHUNK), strict=True):
            log_probability = F.log_softmax(rows @ weight + bias, dim=1)  # (n, C)
            loss += F.nll_loss(log_probability, expected, reduction="sum")
            error = log_probability.exp_()
            error[torch.arange(len(rows), device=device), expected] -= 1.0
            gradient[:-1] += rows.T @ error
            gradient[-1] += error.sum(dim=0)
        gradient /= len(inputs)
        gradient[:-1] += penalty * weight
        loss = loss / len(inputs) + 0.5 * (penalty * weight.square()).sum()
        return loss.item(), gradient.view(-1).cpu().numpy()

    iterations = count(1)
    with seeding.single_blas_thread():
        result = minimize(
            loss_and_gradient,
            np.zeros(shape[0] * shape[1]),
            jac=True,
            method="L-BFGS-B",
            callback=lambda _: on_step("linear", next(iterations), MAX_ITERATIONS),
            options={
                "maxiter": MAX_ITERATIONS,
                "maxfun": 4 * MAX_ITERATIONS,
                "gtol": 1e-6,
                "ftol": TOLERANCE,
            },
        )
    best = torch.from_numpy(result.x).view(shape).to(device)
    return LogisticFit(
        mean=mean, scale=scale, weight=basis / curvature.sqrt() @ best[:-1], bias=best[-1]
    )


def standardisation(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and 1 / standard deviation per dimension, both float64 (D,); 0 where constant."""
    chunks = features.split(CHUNK)
    mean = torch.stack([rows.double().sum(dim=0) for rows in chunks]).sum(dim=0) / len(features)
    squares = torch.stack([(rows.double() - mean).square().sum(dim=0) for rows in chunks])
    std = (squares.sum(dim=0) / len(features)).sqrt()
    # A spread below float32's resolution of the values is rounding, not signal.
    constant = std <= 4 * torch.finfo(torch.float32).eps * mean.abs()
    return mean, torch.where(constant, 0.0, 1.0 / std)


def _eigenbasis(
    features: Tensor, mean: Tensor, scale: Tensor, l2: float, num_classes: int
) -> tuple[Tensor, Tensor]:
    """Eigenvectors (D, r) of the feature correlations and the loss's curvature (r,) along each.

    Directions without variance are dropped: the loss is flat along them, so their weight stays 0.
    """
    correlation = torch.zeros(len(mean), len(mean), dtype=torch.float64, device=mean.device)
    for rows in features.split(CHUNK):
        standard = (rows.double() - mean) * scale
        correlation.addmm_(standard.T, standard, alpha=1.0 / len(features))
    variance, basis = torch.linalg.eigh(correlation)  # ascending (D,), (D, D)
    varying = variance > variance[-1] * len(mean) * torch.finfo(torch.float64).eps
    # p (1 - p) is 1/C (1 - 1/C) before training and a fraction of it after: only a scale.
    return basis[:, varying], 2 * variance[varying] / num_classes + l2


MLP_BATCH = 256
MLP = accuracy("mlp_acc", "MLP %", ("mlp_hidden_dim", "mlp_epochs", "mlp_lr"))


def probe_accuracies(encoded: Encoded, protocols: Collection[str]) -> dict[str, float]:
    """Accuracies of the linear probe, and with `mlp` also of a perceptron.

    Both are trained on the pooled labels, or on a share of each class: `linear_acc`,
    `linear_10pct_acc`, `mlp_acc`, … With `local` both are also scored on the clients' shares of the
    test set, in the clients' class proportions, as `linear_local_acc`: the client's accuracy where
    the encoder is one client's, else the mean over clients, with `linear_local_acc_std`. The linear
    probe (`fit_logistic`) sees each image once, without augmentation; expect about one point of
    difference from Orchestra's (`linear_probe_paper`).

    Source: Arora 2023, pFedAE, tables 4.1 and 4.2.
    """
    setup, train, test = encoded.setup, encoded.train, encoded.test
    config, seed = setup.config.evaluation, setup.config.seed
    labels, num_classes = encoded.splits.train_labels, encoded.splits.num_classes
    truth = class_tensor(encoded.splits.test_labels, "cpu")
    shares = _test_shares(setup, encoded.client_id) if "local" in protocols else []
    accuracies: dict[str, float] = {}
    for suffix, rows in _subsets(labels, config.probe_fractions, num_classes, seed):
        # NumPy's indices: an array indexed by a tensor of one element would give a number.
        x, y = train[rows.to(train.device)], labels[rows.numpy()]
        watched, l2 = encoded.on_step, config.linear_l2
        linear = fit_logistic(x, y, num_classes=num_classes, l2=l2, on_step=watched)
        right = linear.predict(x) == class_tensor(y, train.device)
        accuracies[f"linear{suffix}_train_acc"] = right.double().mean().item()
        predictions = {"linear": linear.predict(test).cpu()}
        if "mlp" in protocols:
            predictions["mlp"] = mlp_predictions(x, y, test, num_classes, setup.config)
        for name, predicted in predictions.items():
            correct = (predicted == truth).double()
            accuracies[f"{name}{suffix}_acc"] = correct.mean().item()
            accuracies |= {} if suffix else balanced_accuracy(name, correct, encoded.splits)
            if local := [correct[rows].mean().item() for rows in shares]:
                accuracies[f"{name}{suffix}_local_acc"] = float(np.mean(local))
                if encoded.client_id is None:
                    accuracies[f"{name}{suffix}_local_acc_std"] = float(np.std(local))
    return accuracies


def _test_shares(setup: Setup, client_id: int | None) -> list[Tensor]:
    """Positions of each client's test images; clients without any are left out."""
    dataset = setup.dataset
    test = make_test_partition(
        dataset.test_labels, setup.client_partition, dataset.train_labels, setup.config.seed
    )
    clients = range(test.num_clients) if client_id is None else [client_id]
    rows = [torch.from_numpy(test.client(k).astype(np.int64)) for k in clients]
    return [positions for positions in rows if len(positions)]


def _subsets(
    labels: NDArray[np.int64], fractions: Sequence[float], num_classes: int, seed: int
) -> Iterator[tuple[str, Tensor]]:
    """Suffix and rows of each share of the labels: at least as many examples as classes."""
    for fraction in fractions:
        if fraction == 1:
            yield "", torch.arange(len(labels))
        else:
            size = _size(len(labels), fraction, num_classes)
            chosen = balanced_subset(labels, size, f"probe-labels-{seed}")
            yield f"_{fraction * 100:g}pct", torch.from_numpy(chosen)


def _size(images: int, fraction: float, num_classes: int) -> int:
    return min(images, max(num_classes, round(fraction * images)))


def mlp_predictions(
    train: Tensor, train_labels: Labels, test: Tensor, num_classes: int, run: RunConfig
) -> Tensor:
    """Train a perceptron with one hidden layer on features and predict the class of others.

    Plain SGD with a constant rate, as in the source. Choices of ours, where the source is silent:
    512 hidden units, batches of 256 (an incomplete last one is used too), no momentum, no weight
    decay, and features standardised by the training set's mean and deviation, so that an encoder's
    scale does not act as a learning rate. The seed of `run` names the draws of weights and order.
    Takes finite features (N, D) with labels (N,), and (M, D) of the same encoder; returns the most
    probable class of each test row, int64 (M,) on the CPU.

    Source: Arora 2023, pFedAE, experiments (two layers, SGD with 0.1, 100 epochs).
    """
    config, device = run.evaluation, train.device
    classes = class_tensor(train_labels, device)
    mean, scale = standardisation(train)
    inputs, held_out = (((x.double() - mean) * scale).float() for x in (train, test))
    with seeding.scope(run.seed, "mlp-probe-init"):
        net = mlp(train.shape[1], config.mlp_hidden_dim, num_classes).to(device)
    optimizer = optimizers.SGD(net.parameters(), lr=config.mlp_lr)
    order = seeding.generator(run.seed, "mlp-probe-order")
    for _ in range(config.mlp_epochs):
        for rows in torch.randperm(len(inputs), generator=order).to(device).split(MLP_BATCH):
            optimizer.zero_grad()
            F.cross_entropy(net(inputs[rows]), classes[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        return torch.cat([net(rows).argmax(dim=1) for rows in held_out.split(4096)]).cpu()


SHOTS = (1, 5, 10)
DRAWS = 10

FEW_SHOT = (
    *(accuracy(f"few_shot_{shots}_acc", f"{shots}-shot %") for shots in SHOTS),
    *(Metric(f"few_shot_{n}_half", better="lower", reads=PROBES, needs_labels=True) for n in SHOTS),
)


def few_shot(encoded: Encoded, protocols: Collection[str]) -> dict[str, float]:
    """Accuracy on all test images of a linear probe that saw 1, 5 or 10 images of each class.

    Gives for each number of shots the mean over ten draws, `few_shot_5_acc`, and half of its 95 %
    t-interval, `few_shot_5_half`, which tells of the draws alone: encoder and test images are the
    same in all of them. A draw of more shots includes that of fewer; a class with fewer images
    gives all of them, and draws of the same images share a probe. The probe is `fit_logistic` with
    a penalty of |W|^2 / 2 beside the sum of the losses, since a share of the number of images would
    be nothing with so few.
    """
    from scipy import stats  # imported here: it takes half a second

    labels, classes = encoded.splits.train_labels, encoded.splits.num_classes
    truth = class_tensor(encoded.splits.test_labels, "cpu")
    shares = np.empty((len(SHOTS), DRAWS))
    known: dict[bytes, float] = {}  # accuracies by the images that a probe saw
    done, images = 0, few_shot_images(labels, classes)
    encoded.on_step("few-shot", done, images)
    for draw in range(DRAWS):
        order = seeding.numpy_generator(encoded.setup.config.seed, "few-shot", draw).permutation(
            len(labels)
        )
        of_class = [order[labels[order] == c] for c in range(classes)]
        for at, shots in enumerate(SHOTS):
            rows = np.concatenate([mine[:shots] for mine in of_class])
            if (seen := np.sort(rows).tobytes()) not in known:
                chosen = torch.from_numpy(rows).to(encoded.train.device)
                fit = fit_logistic(
                    encoded.train[chosen], labels[rows], num_classes=classes, l2=1 / len(rows)
                )
                right = fit.predict(encoded.test).cpu() == truth
                known[seen] = right.double().mean().item()
                encoded.on_step("few-shot", done := done + len(rows), images)
            shares[at, draw] = known[seen]
    half = stats.t.ppf(0.975, DRAWS - 1) * stats.sem(shares, axis=1)
    named = zip(SHOTS, shares.mean(axis=1), half, strict=True)
    return {
        f"few_shot_{shots}_{name}": float(value)
        for shots, mean, width in named
        for name, value in (("acc", mean), ("half", width))
    }


def few_shot_images(labels: NDArray[np.int64], num_classes: int) -> int:
    """Return how many images the probes of `few_shot` see together, at most."""
    counts = np.bincount(labels[labels >= 0], minlength=num_classes)
    seen = [
        np.minimum(counts, shots).sum() * (DRAWS if counts.max() > shots else 1) for shots in SHOTS
    ]
    return int(sum(seen))


def cautions(config: RunConfig, dataset: Dataset, prefix: str = "") -> Iterator[str]:
    """Yield a line for each metric that learns from other images than its name says."""
    labels, classes = dataset.train_labels, dataset.num_classes
    if not classes:  # nothing that learns from labels is asked for
        return
    if config.evaluation.labels_from == "held-out" and not prefix:
        labels = labels[held_out(labels, config.data.held_out, config.seed)]
    counts = np.bincount(labels[labels >= 0], minlength=classes)
    asked, images = config.evaluation.protocols, int(counts.sum())
    short = [n for n in SHOTS if counts.min() < n]
    if "few-shot" in asked and short:
        names = " and ".join(f"{prefix}few_shot_{n}_acc" for n in short)
        yield (
            f"{names}: {(counts < short[-1]).sum():,} of {classes:,} classes have fewer images to"
            f" learn from, the smallest {counts.min()}"
        )
    for fraction in config.evaluation.probe_fractions if "linear" in asked else ():
        size, named = _size(images, fraction, classes), round(fraction * images)
        if size > named:
            yield (
                f"{prefix}linear_{fraction * 100:g}pct_acc: learns from {size:,} images in place of"
                f" {named:,}, one for each class"
            )
