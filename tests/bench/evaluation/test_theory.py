"""Quantities of the theory beside loops over their definitions."""

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fedbench.bench.evaluation.theory as module
from fedbench.bench.evaluation.metrics import get
from fedbench.bench.evaluation.probes import fit_logistic
from fedbench.bench.evaluation.theory import (
    THEORY,
    bound_terms,
    clusters,
    idealised,
    info_nce_bound,
)
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


def test_apart_and_agreeing_are_counts_over_images() -> None:
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
    expected = {"views_apart": mixed / 75, "centroid_agrees": agreed / 75}
    assert expected.items() <= clusters(clients, 4).items()
    assert 0 < expected["views_apart"] < 1
    assert 0 < expected["centroid_agrees"] < 1


def test_equal_views_are_not_apart() -> None:
    same = [(units(16, k), units(16, k)) for k in range(3)]
    assert clusters(same, 0)["views_apart"] == 0


def at(*degrees: float) -> Tensor:
    """Unit vectors (n, 2) at these angles."""
    turns = torch.tensor(degrees).deg2rad()
    return torch.stack([turns.cos(), turns.sin()], dim=1)


def blob(count: int, seed: int) -> Tensor:
    """Unit vectors (n, 6) around one direction."""
    return F.normalize(torch.eye(6)[0] + 0.1 * units(count, seed), dim=1)


def slow_terms(rows: np.ndarray, centers: np.ndarray) -> dict[str, float]:
    """Definition 3.1 and proposition 3.3 by loops; the idealised setting by trying everything.

    Of all splits of the rows into equally large clusters it takes that with the largest sum of
    cosines to the clusters' mean directions, which is the sum of the lengths of their sums.
    """
    n, num = len(rows), len(centers)
    own = [max(range(num), key=lambda g: float(rows[b] @ centers[g])) for b in range(n)]
    delta = max(float(centers[g] @ rows[b]) for g in range(num) for b in range(n) if own[b] != g)
    best, ideal = -1.0, own
    for split in itertools.product(range(num), repeat=n):
        if len({split.count(g) for g in range(num)}) == 1:
            of = np.array(split)
            total = sum(float(np.linalg.norm(rows[of == g].sum(axis=0))) for g in range(num))
            if total > best + 1e-6:  # the same split under other labels is not another
                best, ideal = total, list(split)
    c = max(
        sum(own[b] == names[ideal[b]] for b in range(n)) / n
        for names in itertools.permutations(range(num))
    )
    terms = {"delta_term": 2 * delta + (num - 1) * delta**2, "c_term": 1 - c**2}
    return {"delta": delta, "c": c, **terms}


@pytest.mark.parametrize(
    ("rows", "centers", "c"),
    [
        (at(0, 5, 120, 128, 240, 251), at(10, 130, 239), 1.0),  # three blobs, each its cluster
        (at(0, 5, 9, 120, 128, 131, 240, 251, 254), at(4, 125, 190), 1.0),
        (at(0, 5, 9, 120, 128, 131, 240, 251, 254), at(4, 125, 65), 2 / 3),  # a blob is shared
        (at(10, 170, 10, 170, -10, 190, -10, 190), at(90, -90), 0.5),
        (at(0, 1, 2, 3, 4, 5, 6, 180), at(0, 180), 5 / 8),  # equally large: 4 and 4
    ],
)
def test_delta_and_c_are_those_of_all_samples_and_splits(
    rows: Tensor, centers: Tensor, c: float
) -> None:
    expected = slow_terms(rows.double().numpy(), centers.double().numpy())
    assert expected["c"] == c
    found = bound_terms(rows, centers, idealised(rows, len(centers), 0))
    assert found == pytest.approx(expected, abs=1e-6)


def test_sizes_of_the_idealised_clusters_differ_by_at_most_one() -> None:
    sizes = torch.bincount(idealised(blob(50, 3), 8, 0), minlength=8)
    assert sorted(sizes.tolist()) == [6] * 6 + [7] * 2


def test_one_blob_with_equal_views_has_a_large_delta() -> None:
    found = clusters([(blob(16, k), blob(16, k)) for k in range(3)], 0)
    assert found["views_apart"] == 0
    assert found["cluster_delta"] == found["anew_delta"] > 0.98


def test_two_opposite_clusters_have_a_delta_of_minus_one() -> None:
    """Though each image's views lie in both. The trained centroids count, and not those anew."""
    both = at(0, 180)
    swapped = [(both[[k % 2] * 16], both[[1 - k % 2] * 16]) for k in range(4)]
    found = clusters(swapped, 0, both)
    assert found["views_apart"] == 1
    assert found["cluster_delta"] == pytest.approx(-1)
    assert found["cluster_c"] == 1
    assert found["cluster_delta_term"] == pytest.approx(-2 + 1)
    assert found["anew_delta"] == pytest.approx(1)  # G = 16 share two places


def test_c_sees_local_clusters_that_join_what_lies_apart() -> None:
    """The failure of figure 2(b): a client's one centroid stands for two distant images."""
    up, down = at(10, 170), at(-10, 190)
    found = clusters([(each, each) for each in (up, up, down, down)], 2)
    assert found["centroid_agrees"] == 1
    assert found["anew_c"] == found["cluster_c"] == 0.5
    assert found["cluster_c_term"] == 0.75


def test_without_clusters_for_all_there_are_no_delta_and_c() -> None:
    found = clusters([(at(0, 90), at(0, 90))], 0, at(*range(3)))
    assert found.keys() == {"views_apart", "centroid_agrees"}


@pytest.mark.parametrize("spec", ["orchestra", "swav", "simclr"])
def test_centroids_of_the_training_count(spec: str) -> None:
    few = {"orchestra": "num_global_clusters", "swav": "num_prototypes"}
    fields = {f"method__{few[spec]}": 3} if spec in few else {}
    found = measured(tiny_setup(tiny_config(spec, data__num_clients=2, **fields)), ["theory"])
    assert (found["cluster_delta"] == found["anew_delta"]) == (spec == "simclr")
    assert -1 <= found["cluster_delta"] <= 1


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
    encoded: Any = SimpleNamespace(
        client_id=None, net=None, setup=tiny_setup(tiny_config("simclr"))
    )
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
