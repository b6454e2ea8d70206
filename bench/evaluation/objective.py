"""Alignment and uniformity: the label-free score by which settings are chosen.

Source: Lubana et al. 2022, https://arxiv.org/abs/2205.11506, equation 5. With the cosine s,

    align = mean_k mean_{x in X_k} E_view s(x, view(x))
    unif  = -mean_k mean_{x in X_k} log mean_{y in X_k} exp(s(x, y) / temperature)

and objective = align + weight * unif, larger is better. The mean over clients is outermost and
unweighted; y runs over the images of x's client, x included. The released code computes another
formula (two augmented views, batches of 256); this is the paper's, with one drawn view per image.
The paper scores "representations"; these are projections, as in the release, or with
`evaluation.objective_on: encoder` features.

Beside it stand its parts to first order, per client and averaged in the same way:

    rho   = mean_{x, y in X_k} (1 - s(x, y)) = 1 - |mean_x unit projection of x|^2
    delta = 1 - align
    SEP   = 1 - delta / rho, of the averaged rho and delta

By Jensen's inequality unif <= -|mean_x ...|^2 / temperature, so with weight = temperature (the
defaults) objective <= rho - delta: a spread minus a spread, not their ratio. An encoder whose
projections contract by c multiplies both by c^2 and its objective goes to 0 from either side, so
that an objective below 0 gains by learning less. SEP has no scale: it is 1 where views of an image
coincide, and negative where they differ more than two images of a client do, x = y included. That
lowers rho by 1/n for a client of n images, so SEP is too low for clients of a few images.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedbench.bench.config import RunConfig
from fedbench.bench.data.views.views import make_view
from fedbench.bench.evaluation.features import (
    BATCH_SIZE,
    Encode,
    Images,
    check_finite,
    clean,
    encode_batch,
    extract,
    take_images,
)
from fedbench.bench.evaluation.metrics import SCORES, Metric, register
from fedbench.bench.evaluation.objectives.accumulator import Accumulator
from fedbench.bench.evaluation.objectives.base import separation
from fedbench.bench.system import seeding

UNIF_WITHOUT_SELF = register(Metric("unif_without_self", reads=(*SCORES, "objective_temperature")))
RHO = register(Metric("rho", reads=SCORES))
DELTA_VIEWS = register(Metric("delta_views", better="lower", reads=(*SCORES, "objective_view")))
SEP = register(Metric("sep", reads=(*SCORES, "objective_view")))


class ClientScores(NamedTuple):
    """Alignment and uniformity on one client's data."""

    align: float
    unif: float
    unif_without_self: float | None  # None: the client has a single image
    rho: float


def client_align_unif(
    anchors: Tensor, views: Tensor, temperature: float = 0.2, chunk: int = 256
) -> ClientScores:
    """Alignment and uniformity of a client, from projections (N, d) of images and of a view each.

    A collapsed encoder has align 1 and unif -1 / temperature. With a single image only the pair of
    the image with itself is left: unif is -1 / temperature and `unif_without_self` is None. A block
    of similarities takes 8 * chunk * N bytes; results depend on `chunk` in the last bits at most.
    Returns align in [-1, 1], unif in [-1 / temperature, 1 / temperature], with and without the
    pairs (x, x), and rho in [0, 1].
    """
    check_finite("projections of clean images", anchors)
    check_finite("projections of views", views)
    # Double precision costs little next to the encoder; a collapsed encoder then scores exactly 0.
    unit = F.normalize(anchors.double(), dim=1)  # (N, d)
    align = (unit * F.normalize(views.double(), dim=1)).sum(dim=1).mean()
    rho = (unit - unit.mean(dim=0)).square().sum(dim=1).mean()
    size = len(unit)
    total, total_without_self = unit.new_zeros(()), unit.new_zeros(())
    for start in range(0, size, chunk):
        rows = unit[start : start + chunk]
        logits = rows @ unit.T / temperature  # (n, N)
        diagonal = logits.diagonal(start)
        to_itself = diagonal.clone()  # (n,), s(x, x) / temperature
        diagonal.fill_(-math.inf)
        others = logits.logsumexp(dim=1)  # (n,)
        total += torch.logaddexp(others, to_itself).sum()
        total_without_self += others.sum()
    # Read together, since a GPU is waited for.
    values = torch.stack([align, rho, total, total_without_self]).tolist()
    unif = math.log(size) - values[2] / size
    without_self = None if size == 1 else math.log(size - 1) - values[3] / size
    return ClientScores(values[0], unif, without_self, values[1])


def objective(per_client: Sequence[ClientScores], weight: float = 0.2) -> dict[str, float]:
    """Unweighted means over clients, at least one, by metric; without those that are undefined."""
    align = fmean(client.align for client in per_client)
    unif = fmean(client.unif for client in per_client)
    rho = fmean(client.rho for client in per_client)
    without_self = [c.unif_without_self for c in per_client if c.unif_without_self is not None]
    found = {
        "objective": align + weight * unif,
        "align": align,
        "unif": unif,
        "unif_without_self": fmean(without_self) if without_self else None,
        "rho": rho,
        "delta_views": 1 - align,
        "sep": separation(rho, 1 - align),
    }
    return {name: value for name, value in found.items() if value is not None}


def client_statistics(
    embed: Encode,
    clients: Iterable[tuple[int, NDArray[np.int64]]],
    images: Images,
    config: RunConfig,
    device: torch.device | str,
    accumulator: Accumulator | None = None,
    encode: Encode | None = None,
) -> list[ClientScores]:
    """Alignment and uniformity of each client, in the given order; reads no label.

    `embed` maps normalised images to projections, in eval mode and on `device`. Clients are pairs
    of an id and the indices, at least one, of its training images, uint8 (N, C, H, W); of many
    some are drawn. Draws depend on (seed, client) and not on the round, so that rounds and trials
    with one seed are compared on the same images and views. Several small clients share a forward
    pass. The accumulator is given all projections, and what `encode` makes of turned images if one
    of its objectives asks for that. Raises `NonFiniteFeaturesError` if a projection is NaN or
    infinite.
    """
    seed, settings = config.seed, config.evaluation
    statistics: list[ClientScores] = []
    for pack in _packs(clients, seed, settings.objective_max_examples):
        pairs, turned = [], []
        for client_id, chosen in pack:
            raw = take_images(images, chosen).to(device)
            draws = seeding.generator(seed, "objective-view", client_id)
            pairs.append((clean(raw), make_view(settings.objective_view, raw, draws)))
            features = None
            if encode is not None and accumulator is not None and accumulator.turns:
                some = raw[: accumulator.share]
                each = [extract(encode, some.rot90(k, (2, 3)), device=device) for k in range(4)]
                check_finite("features of turned images", features := torch.stack(each, dim=1))
            turned.append(features)
        sizes = [len(anchor) for anchor, _ in pairs]
        anchors, views = (
            torch.cat(
                [encode_batch(embed, batch, device) for batch in torch.cat(part).split(BATCH_SIZE)]
            ).split(sizes)
            for part in zip(*pairs, strict=True)
        )
        for anchor, other, features in zip(anchors, views, turned, strict=True):
            statistics.append(client_align_unif(anchor, other, settings.objective_temperature))
            if accumulator is not None:
                accumulator.add(anchor, other, features)
    return statistics


def _packs(
    clients: Iterable[tuple[int, NDArray[np.int64]]], seed: int, max_examples: int
) -> Iterator[list[tuple[int, NDArray[np.int64]]]]:
    """Group consecutive clients, with their drawn subsets of images, until they fill a batch."""
    pack: list[tuple[int, NDArray[np.int64]]] = []
    for client_id, chosen in clients:
        if len(chosen) > max_examples:
            rng = seeding.numpy_generator(seed, "objective-subset", client_id)
            chosen = np.sort(rng.choice(chosen, max_examples, replace=False))
        pack.append((client_id, chosen))
        if sum(len(indices) for _, indices in pack) >= BATCH_SIZE:
            yield pack
            pack = []
    if pack:
        yield pack
