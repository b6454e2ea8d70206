"""Quantities of the papers' theory: separation and agreement of clusters, bounds on information.

A curve of them tells by which mechanism a method wins or loses. They are of one encoder that all
clients share; information is in nats. At most 20 clients with images are drawn, and of each at most
128 images, with two views (`evaluation.objective_view`); draws depend on the seed and the client,
and not on the round. With unit projections z1, z2, features h1, h2 and clients s:

    cluster_delta      max_g max_{z1: g(z1) != g} mu_g.z1  g(z): nearest of the G centroids mu_g
    cluster_c          mean [g(z1) == p(i(z1))]            i(z): cluster in the idealised setting
    cluster_delta_term 2 delta + (G - 1) delta^2           of the bound on a linear probe's error
    cluster_c_term     1 - c^2                             likewise, without its factor gamma
    anew_delta, …      the same four, of centroids that are made anew for every method
    views_apart        mean [a(z1) != a(z2)]               a(z): nearest centroid made anew
    centroid_agrees    mean [a(z1) == a(m(z1))]            m(z): nearest of the client's L centroids
    client_entropy     H(s) = -sum_s p(s) ln p(s)          p(s): the client's share of the images
    client_identified  mean [argmax r(. | h1) == s]        r: a linear softmax, on images that it
    client_loss        mean -ln r(s | h1)                  has not seen
    local_mi           sum_s p(s) mean_j ln( exp(z1_j.z2_j / t) / mean_i exp(z1_i.z2_j / t) )
    global_mi          local_mi + H(s) + mean ln r(s | h1) + mean ln r(s | h2)
    label_mi           H(y) + mean ln q(y | h1)            q: as r, of classes; reads labels

The first four are of the centroids that a method trains (`Method.centroids`); where it has none, of
those made anew by Orchestra's two steps, with G = 32 and L = 8 or fewer. The idealised setting is
one clustering of all z1 into G clusters whose sizes differ by at most one: the best by total cosine
of four starts. p matches the labels of both clusterings one to one, so that most agree. Rows
without structure are clustered differently from every start, so that c is small though no client
errs. One cluster, or more than z1, has no delta and c.

`local_mi` bounds I(z1; z2 | s) from below (InfoNCE within each client), `global_mi` I(z1; z2),
`label_mi` I(h; y). A bound that comes out negative says nothing.

Sources: Lubana et al. 2022, https://arxiv.org/abs/2205.11506, definition 3.1 (delta) and
proposition 3.3 (c), whose bound asks for G > 4 M + 2: if M counts classes, 32 clusters of CIFAR-10
and 256 of CIFAR-100 are too few; Louizos et al. 2024, https://arxiv.org/abs/2405.02081, equations 3
(`local_mi`) and 6 (`global_mi`). Ours: the sample; the nearest centroid as the cluster of a sample;
the search for the idealised clusters and the matching p; clusters made anew, `views_apart` and
`centroid_agrees`; `label_mi`; critics, which are linear, and t, which is
`evaluation.objective_temperature`.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.bench.data.views.views import make_view
from fedbench.bench.evaluation.features import check_finite, encode_batch, take_images
from fedbench.bench.evaluation.metrics import Metric
from fedbench.bench.evaluation.probes import Encoded, LogisticFit, fit_logistic
from fedbench.bench.nn.clustering import assign_evenly, cluster_globally, cluster_locally
from fedbench.bench.system.seeding import generator, numpy_generator

_CLIENTS, _IMAGES = 20, 128
_GLOBAL, _LOCAL, _STARTS = 32, 8, 4
_L2 = 0.01  # of the linear critics, which see some sixty images of a client
_VIEW, _T = "objective_view", "objective_temperature"
THEORY = (
    *(
        Metric(f"{of}_{what}", better="higher" if what == "c" else "lower", reads=(_VIEW,))
        for of in ("cluster", "anew")
        for what in ("delta", "c", "delta_term", "c_term")
    ),
    Metric("views_apart", better="lower", reads=(_VIEW,)),
    Metric("centroid_agrees", reads=(_VIEW,)),
    Metric("client_entropy", reads=()),
    Metric("client_identified", unit="fraction", reads=(_VIEW,)),
    Metric("client_loss", better="lower", reads=(_VIEW,)),
    Metric("local_mi", reads=(_VIEW, _T)),
    Metric("global_mi", reads=(_VIEW, _T)),
    Metric("label_mi", reads=(_VIEW,), needs_labels=True),
)


class _Sample(NamedTuple):
    """Two views of the images of one client."""

    labels: Tensor  # (n,) int64, -1 = unknown
    features: tuple[Tensor, Tensor]  # (n, D) each
    projections: tuple[Tensor, Tensor]  # (n, d) each, at unit length


def theory(encoded: Encoded, protocols: Collection[str]) -> dict[str, float]:
    """Return the quantities of an encoder that all clients share; of a client's own none."""
    setup = encoded.setup
    if encoded.client_id is not None:
        return {}
    samples = list(_samples(encoded))
    sizes = [len(sample.labels) for sample in samples]
    trained = setup.method.centroids(encoded.net)
    found = clusters([s.projections for s in samples], setup.config.seed, trained)
    entropy = _entropy(torch.tensor(sizes))
    found |= {"client_entropy": entropy}
    temperature = setup.config.evaluation.objective_temperature
    bounds = [info_nce_bound(*sample.projections, temperature) for sample in samples]
    found["local_mi"] = sum(b * n for b, n in zip(bounds, sizes, strict=True)) / sum(sizes)
    clients = torch.repeat_interleave(torch.arange(len(samples)), torch.tensor(sizes))
    of_client = torch.cat([torch.arange(n) for n in sizes])
    halves = of_client % 2 == 0, of_client % 2 == 1  # to learn from, and to be judged on
    h1, h2 = (torch.cat([sample.features[view] for sample in samples]) for view in (0, 1))
    if min(int(half.sum()) for half in halves):
        critic = _fit(h1, clients, halves[0])
        first, right = _judge(critic, h1[halves[1]], clients[halves[1]])
        second, _ = _judge(critic, h2[halves[1]], clients[halves[1]])
        found |= {"client_loss": first, "client_identified": right}
        found["global_mi"] = found["local_mi"] + entropy - first - second
    labels = torch.cat([sample.labels for sample in samples])
    learnt, judged = (half & (labels >= 0) for half in halves)
    if bool(learnt.any()) and bool(judged.any()):
        loss, _ = _judge(_fit(h1, labels, learnt), h1[judged], labels[judged])
        found["label_mi"] = _entropy(torch.bincount(labels[judged])) - loss
    return found


def _samples(encoded: Encoded) -> Iterator[_Sample]:
    setup, net, device = encoded.setup, encoded.net, encoded.device
    seed, view = setup.config.seed, setup.config.evaluation.objective_view
    embed = partial(setup.method.embed, net)
    holders = np.flatnonzero(setup.client_partition.sizes)
    drawn = numpy_generator(seed, "theory-clients").permutation(holders)[:_CLIENTS]
    for client_id in sorted(drawn.tolist()):
        held = setup.client_partition.client(client_id).astype(np.int64)
        order = numpy_generator(seed, "theory-images", client_id).permutation(len(held))
        chosen = held[order[:_IMAGES]]
        raw = take_images(setup.images, chosen).to(device)
        draws = generator(seed, "theory-views", client_id)
        views = [make_view(view, raw, draws) for _ in range(2)]
        h1, h2 = (encode_batch(encoded.encode, x, device).cpu() for x in views)
        z1, z2 = (encode_batch(embed, x, device).cpu() for x in views)
        check_finite("features and projections of views", torch.cat([h1, h2, z1, z2], dim=1))
        labels = torch.from_numpy(setup.known_labels[chosen].astype(np.int64))
        yield _Sample(labels, (h1, h2), (F.normalize(z1, dim=1), F.normalize(z2, dim=1)))


def clusters(
    projections: Sequence[tuple[Tensor, Tensor]], seed: int, trained: Tensor | None = None
) -> dict[str, float]:
    """Return the quantities of clusters, from two views of each client's images, (n, d) each.

    To make clusters anew, each client clusters its first views locally; the server clusters these
    centroids, from some of them, into at most half as many. `trained`, (G, d), are a method's own.
    """
    rng = generator(seed, "theory-clusters")
    local = [
        cluster_locally(first, min(_LOCAL, max(1, len(first) // 2)), rng).centroids
        for first, _ in projections
    ]
    points = torch.cat(local)
    drawn = torch.randperm(len(points), generator=rng)[: max(1, min(_GLOBAL, len(points) // 2))]
    centers = cluster_globally(points, points[drawn])
    mixed = agreed = 0
    for (first, second), own in zip(projections, local, strict=True):
        nearest = own[(first @ own.T).argmax(dim=1)]  # (n, d), the image's local centroid
        here, there, through = (
            (rows @ centers.T).argmax(dim=1) for rows in (first, second, nearest)
        )
        mixed += int((here != there).sum())
        agreed += int((here == through).sum())
    rows = torch.cat([first for first, _ in projections])
    found = {"views_apart": mixed / len(rows), "centroid_agrees": agreed / len(rows)}
    made = {"cluster": centers if trained is None else trained.to(rows), "anew": centers}
    nums = {len(centroids) for centroids in made.values()}
    ideal = {num: idealised(rows, num, seed) for num in nums if 2 <= num <= len(rows)}
    for of, centroids in made.items():
        if len(centroids) in ideal:
            terms = bound_terms(rows, centroids, ideal[len(centroids)])
            found |= {f"{of}_{what}": value for what, value in terms.items()}
    return found


def idealised(rows: Tensor, num: int, seed: int) -> Tensor:
    """Cluster all clients' unit rows (n, d) into `num` equally large clusters, (n,) int64."""
    rng = generator(seed, "theory-ideal")
    tries = []
    for _ in range(_STARTS):
        scores = rows @ cluster_locally(rows, num, rng).centroids.T  # (n, G)
        assigned = assign_evenly(scores)
        tries.append((float(scores.gather(1, assigned[:, None]).double().sum()), assigned))
    return max(tries, key=itemgetter(0))[1]


def bound_terms(rows: Tensor, centroids: Tensor, ideal: Tensor) -> dict[str, float]:
    """Return delta, c and their terms, of unit rows (n, d), centroids (G, d), clusters (n,)."""
    from scipy.optimize import linear_sum_assignment

    num, scores = len(centroids), rows @ centroids.T  # (n, G)
    assigned = scores.argmax(dim=1)
    delta = float(scores.scatter(1, assigned[:, None], -math.inf).max())
    overlap = torch.bincount(assigned * num + ideal, minlength=num * num).view(num, num)
    c = int(overlap[linear_sum_assignment(overlap, maximize=True)].sum()) / len(rows)
    terms = {"delta_term": 2 * delta + (num - 1) * delta**2, "c_term": 1 - c**2}
    return {"delta": delta, "c": c, **terms}


def info_nce_bound(first: Tensor, second: Tensor, temperature: float) -> float:
    """Bound on the information between two views, from unit projections (n, d); at most ln n."""
    logits = first.double() @ second.double().T / temperature  # (n, n): critic of z1_i and z2_j
    bound = logits.diagonal() - logits.logsumexp(dim=0) + math.log(len(logits))
    return float(bound.mean())


def _entropy(counts: Tensor) -> float:
    """Entropy in nats of shares that counts give."""
    shares = counts[counts > 0].double() / counts.sum()
    return -float((shares * shares.log()).sum())


def _fit(features: Tensor, targets: Tensor, rows: Tensor) -> LogisticFit:
    count = int(targets.max()) + 1
    return fit_logistic(features[rows], targets[rows], num_classes=count, l2=_L2)


def _judge(fit: LogisticFit, features: Tensor, targets: Tensor) -> tuple[float, float]:
    """Return the mean cross entropy of the targets and the share that is predicted."""
    logits = (features.double() - fit.mean) * fit.scale @ fit.weight + fit.bias
    right = (logits.argmax(dim=1) == targets).double().mean()
    return float(F.cross_entropy(logits, targets)), float(right)
