"""Label skew: partitioners by which clients differ in their classes."""

import numpy as np

from fedbench.bench.config.partitioners.dirichlet import (
    FloatArray,
    largest_remainder,
    log_dirichlet,
    round_to_totals,
    sinkhorn,
)
from fedbench.bench.config.partitioners.registry import (
    PARTITIONERS,
    Examples,
    IntArray,
    Owners,
    Partitioner,
)
from fedbench.bench.system.errors import ConfigError

MAX_REDRAWS = 1000
"""Draws that `dirichlet` makes for `data.min_client_size`; fewer above 100,000 cells."""

_LEGACY_SCALINGS = 100
_HSU_BLOCK = 1 << 16


def dirichlet(examples: Examples, *, alpha: float, min_client_size: int) -> Owners:
    """Split every class over the clients by its own Dirichlet draw; clients can come out empty.

    With `min_client_size` all classes are drawn again, a bounded number of times.
    """
    labels, num_classes, num_clients = examples.labels, examples.num_classes, examples.num_clients
    totals = np.bincount(labels, minlength=num_classes)
    shape = (num_clients, num_classes)
    attempts = max(10, min(MAX_REDRAWS, 10**8 // (shape[0] * shape[1])))
    smallest = 0
    for _ in range(attempts):
        shares = np.exp(log_dirichlet(examples.rng, alpha, shape, axis=0))
        split = zip(shares.T, totals.tolist(), strict=True)
        counts = np.stack([largest_remainder(examples.rng, *each) for each in split], 1)
        least = int(counts.sum(axis=1).min())
        if least >= min_client_size:
            return _by_counts(labels, counts, examples.rng)
        smallest = max(smallest, least)
    raise ConfigError(
        f"data.min_client_size={min_client_size} was not reached in {attempts} draws (best smallest"
        f" client: {smallest}); lower it, raise data.alpha or use data.partition=dirichlet-balanced"
    )


def dirichlet_balanced(examples: Examples, *, alpha: float, legacy: bool) -> Owners:
    """Skewed class proportions with equal client sizes, which differ by one image at most.

    Source: Lubana et al. 2022, Orchestra, https://arxiv.org/abs/2205.11506, experiments: Dirichlet
    over clients for every class, scaled until clients and classes have equal totals. Deviations
    from the released code (`dirichlet_balanced_legacy` has its arithmetic): scaling runs in
    logarithms to a tolerance, classes keep the sizes that the data set gives them, whole
    numbers come from largest remainders and not from rounding down, classes are shuffled, and
    the draw follows the run's seed.
    """
    labels, num_classes, num_clients = examples.labels, examples.num_classes, examples.num_clients
    if legacy:
        return dirichlet_balanced_legacy(examples, alpha)
    totals = np.bincount(labels, minlength=num_classes)
    present = np.flatnonzero(totals)
    sizes = even_sizes(len(labels), num_clients)
    draws = log_dirichlet(examples.rng, alpha, (num_clients, len(present)), axis=0)
    quotas = sinkhorn(draws, sizes.astype(np.float64), totals[present].astype(np.float64))
    counts = np.zeros((num_clients, num_classes), np.int64)
    counts[:, present] = round_to_totals(quotas, sizes, totals[present])
    return _by_counts(labels, counts, examples.rng)


def dirichlet_balanced_legacy(examples: Examples, alpha: float) -> Owners:
    """The partition of Orchestra's released code: fixed seed 0, 100 scalings, rounding down.

    Of the eight cross-device numbers of Lubana et al. 2022, table 4, that are not all classes, it
    gives four exactly: for CIFAR-10 4.69 and 1.08 classes with an image, for CIFAR-100 29.3, and
    17.92 with 1 % of 500. The other three of 1 % fit other counts (3.13 and 1.05 are of more than
    10 images, 2.13 of one), and for 3.56 none was found. Rounding down leaves up to a tenth of the
    images unused, and at a concentration of 0.001 client sizes range from 433 to 732 on CIFAR-10.
    Both sums are taken before either division, as there: the total alternates, and is 1 after an
    even number of scalings.
    """
    labels, num_classes, num_clients = examples.labels, examples.num_classes, examples.num_clients
    # Its stream is frozen by NumPy's compatibility policy; nothing else draws from it.
    random = np.random.RandomState(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = random.dirichlet(np.full(num_clients, alpha), num_classes).T
        shares = shares / num_classes  # (K, C), total 1
        for _ in range(_LEGACY_SCALINGS):
            class_sums, client_sums = shares.sum(axis=0), shares.sum(axis=1)
            shares = shares / class_sums[None, :] / client_sums[:, None]
    if not np.isfinite(shares).all():
        at = f"data.alpha={alpha:g} and {num_clients} clients"
        raise ConfigError(f"data.legacy=true underflows with {at}; set data.legacy=false")
    return _by_counts(labels, np.floor(shares * len(labels)).astype(np.int64), None)


def hsu(examples: Examples, *, alpha: float, multiply_prior: bool) -> Owners:
    """Clients of equal size, each drawing its images by its own Dirichlet over classes.

    Clients draw one after another without replacement. A class that runs out drops out of all
    later draws. With `multiply_prior` the concentration per class is alpha / num_classes: the prior
    is uniform, so that classes of unequal size make clients differ at any alpha.

    Source: Hsu et al. 2019, https://arxiv.org/abs/1909.06335, as used by Louizos et al. 2024,
    https://arxiv.org/abs/2405.02081. Deviations: where probabilities in the reference code
    underflow, so that a client has no class left and turns to a uniform draw, ours stay exact in
    logarithms; when images do not divide evenly, the first clients get one more, none is left.
    """
    labels, num_classes, num_clients = examples.labels, examples.num_classes, examples.num_clients
    concentration = alpha / num_classes if multiply_prior else alpha
    sizes = even_sizes(len(labels), num_clients)
    draws = log_dirichlet(examples.rng, concentration, (num_clients, num_classes), axis=1)
    left = np.bincount(labels, minlength=num_classes)
    counts = np.zeros((num_clients, num_classes), np.int64)
    start = 0
    while start < num_clients:
        block = slice(start, min(start + _HSU_BLOCK, num_clients))
        drawn = examples.rng.multinomial(sizes[block], _among(draws[block], left))  # (block, C)
        over = np.flatnonzero((np.cumsum(drawn, axis=0) > left).any(axis=1))
        # Draws before the first overdraft are valid: none depends on a later client's.
        stop = int(over[0]) if over.size else len(drawn)
        counts[start : start + stop] = drawn[:stop]
        left = left - drawn[:stop].sum(axis=0)
        start += stop
        if over.size:
            counts[start] = _overdraft(drawn[stop], draws[start], left, examples.rng)
            left = left - counts[start]
            start += 1
    return _by_counts(labels, counts, examples.rng)


def pathological(examples: Examples, *, classes_per_client: int) -> Owners:
    """Every client holds `classes_per_client` classes; holders of a class share it evenly.

    Clients are placed around a circle of classes at equal distances, and each takes the classes
    from its place on: ten clients on ten classes get {i, i + 1}. If there are more than enough
    classes, shares are disjoint and some classes are left unused. If there are more clients than
    classes, every further lap of the circle shuffles the classes.

    Source: Arora 2023, pFedAE, experiments with two classes per client; the thesis does not say
    which, so the layout is ours.
    """
    labels, num_classes, num_clients = examples.labels, examples.num_classes, examples.num_clients
    totals = np.bincount(labels, minlength=num_classes)
    present = np.flatnonzero(totals)
    width, num_present = classes_per_client, len(present)
    if width > num_present:
        raise ConfigError(f"data.classes_per_client={width}; allowed: 1 to {num_present} classes")
    holders: list[list[IntArray]] = [[] for _ in range(num_classes)]
    for first in range(0, num_clients, num_present):
        num = min(num_present, num_clients - first)
        lap = present if first == 0 else examples.rng.permutation(present)
        place = np.arange(num) * num_present // num
        classes = lap[(place[:, None] + np.arange(width)) % num_present]  # (num, width)
        order = np.argsort(classes, axis=None, kind="stable")
        values, starts = np.unique(classes.ravel()[order], return_index=True)
        for c, clients in zip(values, np.split(first + order // width, starts[1:]), strict=True):
            holders[c].append(clients)
    owners = np.full(len(labels), -1, np.int32)
    for c in range(num_classes):
        if not holders[c]:
            continue
        clients = np.concatenate(holders[c])
        if len(clients) > totals[c]:
            raise ConfigError(
                f"class {c} has {totals[c]} images for {len(clients)} clients that should hold it;"
                f" lower data.num_clients={num_clients} or data.classes_per_client={width}"
            )
        images = examples.rng.permutation(np.flatnonzero(labels == c))
        owners[images] = examples.rng.permutation(clients)[np.arange(len(images)) % len(clients)]
    return owners


def even_sizes(num_examples: int, num_clients: int) -> IntArray:
    """Return (K,) sizes that sum to `num_examples` and differ by one at most, larger ones first."""
    more = np.arange(num_clients) < num_examples % num_clients
    return num_examples // num_clients + more.astype(np.int64)


def _by_counts(labels: IntArray, counts: IntArray, rng: np.random.Generator | None) -> Owners:
    """Return owners that give client k `counts[k, c]` images of class c, as far as they suffice.

    Without a generator, clients take consecutive images of a class in the data set's order.
    """
    owners = np.full(len(labels), -1, np.int32)
    by_class = np.argsort(labels, kind="stable")
    ends = np.cumsum(np.bincount(labels, minlength=counts.shape[1]))
    clients = np.arange(counts.shape[0], dtype=np.int32)
    for c, images in enumerate(np.split(by_class, ends[:-1])):
        takers = np.repeat(clients, counts[:, c])[: len(images)]
        order = images if rng is None else rng.permutation(images)
        owners[order[: len(takers)]] = takers
    return owners


def _among(log_weights: FloatArray, left: IntArray) -> FloatArray:
    """Return probabilities of classes that have images left, (…, C), others exactly 0."""
    masked = np.where(left > 0, log_weights, -np.inf)
    masked -= masked.max(axis=-1, keepdims=True)
    np.exp(masked, out=masked)
    masked /= masked.sum(axis=-1, keepdims=True)
    return masked


def _overdraft(
    drawn: IntArray, log_weights: FloatArray, left: IntArray, rng: np.random.Generator
) -> IntArray:
    """Return one client's counts, (C,), when its draw asked for more of a class than is left."""
    held = np.minimum(drawn, left)
    while (missing := int(drawn.sum() - held.sum())) > 0:
        more = rng.multinomial(missing, _among(log_weights, left - held))
        held = np.minimum(held + more, left)
    return held


PARTITIONERS["dirichlet-balanced"] = Partitioner(dirichlet_balanced)
PARTITIONERS["hsu"] = Partitioner(hsu)
PARTITIONERS["dirichlet"] = Partitioner(dirichlet, may_leave_clients_empty=True)
PARTITIONERS["pathological"] = Partitioner(pathological)
