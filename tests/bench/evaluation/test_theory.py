"""Quantities of the theory beside loops over their definitions."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fedbench.bench.evaluation.theory as module
from fedbench.bench.evaluation.metrics import get
from fedbench.bench.evaluation.probes import fit_logistic
from fedbench.bench.evaluation.theory import THEORY, clusters, info_nce_bound
from fedbench.bench.nn.clustering import cluster_globally, cluster_locally
from fedbench.bench.system.seeding import generator
from fedbench.bench.testing import tiny_config, tiny_setup
from tests.specs import measured, unit


def units(count: int, seed: int) -> Tensor:
    return unit(count, 6, name=str(seed))


def slow_bound(first: Tensor, second: Tensor, temperature: float) -> float:
    """Equation 3 of Louizos et al.: mean_j ln(e^{f(j, j)} / ((1/n) sum_i e^{f(i, j)}))."""
    total, n = 0.0, len(first)
    for j in range(n):
        scores = [math.exp(float(first[i] @ second[j]) / temperature) for i in range(n)]
        total += math.log(scores[j] / (sum(scores) / n))
    return total / n


def test_info_nce_is_the_loop_and_at_most_the_logarithm_of_the_batch() -> None:
    first, second = units(7, 0), units(7, 1)
    assert info_nce_bound(first, second, 0.5) == pytest.approx(slow_bound(first, second, 0.5))
    # Orthogonal images, each equal to its view: e^{1/t} beside n - 1 ones.
    eye, t = torch.eye(6), 0.1
    expected = math.log(6) - math.log1p(5 * math.exp(-1 / t))
    assert info_nce_bound(eye, eye, t) == pytest.approx(expected)
    same = eye[:1].expand(6, 6)
    assert info_nce_bound(same, same, t) == pytest.approx(0.0)  # nothing is told apart


def nearest(point: Tensor, centers: Tensor) -> int:
    scores = [float(point @ center) for center in centers]
    return scores.index(max(scores))


def test_mixing_and_consistency_are_counts_over_images() -> None:
    """Each image by itself: its cluster, that of its other view, that of its local centroid."""
    clients = [(units(n, n), F.normalize(units(n, n) + 0.6 * units(n, n + 50), dim=1))
               for n in (30, 20, 25)]  # fmt: skip
    rng = generator(4, "theory-clusters")
    local = [cluster_locally(first, 8, rng).centroids for first, _ in clients]
    points = torch.cat(local)
    start = points[torch.randperm(24, generator=rng)[:12]]
    centers = cluster_globally(points, start)
    mixed, agreed = 0, 0
    for (first, second), own in zip(clients, local, strict=True):
        for x, view in zip(first, second, strict=True):
            mixed += nearest(x, centers) != nearest(view, centers)
            agreed += nearest(x, centers) == nearest(own[nearest(x, own)], centers)
    expected = {"mixing": mixed / 75, "consistent": agreed / 75}
    assert clusters(clients, 4) == expected
    assert 0 < expected["mixing"] < 1
    assert 0 < expected["consistent"] < 1


def test_equal_views_do_not_mix() -> None:
    same = [(units(16, k), units(16, k)) for k in range(3)]
    assert clusters(same, 0)["mixing"] == 0


def test_an_encoder_has_all_of_them() -> None:
    found = measured(tiny_setup(tiny_config("simclr", data__num_clients=2)), ["theory"])
    names = {metric.name for metric in THEORY}
    assert names <= found.keys()
    assert [name for name in names if (m := get(name)) and m.needs_labels] == ["label_mi"]
    # H(s) of clients that hold equally many images is ln K.
    assert found["client_entropy"] == pytest.approx(math.log(2), abs=0.1)
    # By equation 6, of losses that are not negative.
    assert found["global_mi"] < found["local_mi"] + found["client_entropy"]
    assert names.isdisjoint(measured(tiny_setup(tiny_config("single-ae")), ["theory"]))


def test_the_bound_on_all_information_is_equation_6(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops over clients and held-out images, with the critic that the even images give."""
    samples = []
    for k in range(3):
        h1, h2 = (units(10, 7 * k + view) + 2 * torch.eye(6)[k] for view in (0, 1))
        labels = torch.arange(10) // 5 if k else torch.full((10,), -1)
        samples.append(module._Sample(labels, (h1, h2), (units(10, k), units(10, k + 9))))
    monkeypatch.setattr(module, "_samples", lambda encoded: samples)
    encoded: Any = SimpleNamespace(client_id=None, setup=tiny_setup(tiny_config("simclr")))
    found = module.theory(encoded, ["theory"])

    def loss(targets: list[list[int]], view: int) -> tuple[float, float]:
        """Mean of -ln r(target | h) and share that is right, of odd images with a target."""
        known = [(k, i) for k in range(3) for i in range(10) if targets[k][i] >= 0]
        even = [at for at in known if at[1] % 2 == 0]
        x = torch.stack([samples[k].features[0][i] for k, i in even])
        y = torch.tensor([targets[k][i] for k, i in even])
        fit = fit_logistic(x, y, num_classes=int(y.max()) + 1, l2=0.01)
        total, right, count = 0.0, 0, 0
        for k, i in known:
            if i % 2:
                h = samples[k].features[view][i].double()
                powers = [math.exp(v) for v in (h - fit.mean) * fit.scale @ fit.weight + fit.bias]
                total -= math.log(powers[targets[k][i]] / sum(powers))
                right += powers.index(max(powers)) == targets[k][i]
                count += 1
        return total / count, right / count

    of_clients = [[k] * 10 for k in range(3)]
    first, identified = loss(of_clients, 0)
    second, _ = loss(of_clients, 1)
    local = sum(slow_bound(*s.projections, 0.2) for s in samples) / 3
    label, _ = loss([s.labels.tolist() for s in samples], 0)
    entropy = -(0.4 * math.log(0.4) + 0.6 * math.log(0.6))  # odd ones: 1, 3 of class 0; 5, 7, 9
    assert found["client_entropy"] == pytest.approx(math.log(3))
    assert found["client_loss"] == pytest.approx(first)
    assert found["client_identified"] == identified > 0.8
    assert found["local_mi"] == pytest.approx(local)
    assert found["global_mi"] == pytest.approx(local + math.log(3) - first - second)
    assert found["label_mi"] == pytest.approx(entropy - label)
