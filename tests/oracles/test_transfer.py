"""Probes on another data set, computed once more in plain NumPy from the images of its file."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedbench.bench.evaluation.transfer import with_transfer
from fedbench.bench.system.seeding import numpy_generator
from fedbench.bench.testing import tiny_config, tiny_setup
from tests.oracles.plain import SoftmaxRegression
from tests.specs import measured

NEIGHBOURS, T, L2 = 25, 0.01, 0.003
T_OF_NINE = 2.2621571627982  # of a 95 % interval from ten values


def made(rng: np.random.Generator, count: int, hidden: int) -> tuple[Any, Any]:
    """Return images of three classes that look alike to a degree, and labels, some -1."""
    labels = np.arange(count) % 3
    noise = rng.integers(0, 200, (count, 12, 12))
    noise[labels == 1, :6] += 40
    noise[labels == 2, :, 6:] += 40
    labels[rng.permutation(count)[:hidden]] = -1
    return noise.astype(np.uint8), labels


def votes(bank: Any, labels: Any, query: Any) -> int:
    """Return the class with the greatest sum of e^(cosine / T) over the nearest."""
    cosines = [float(query @ row) / math.hypot(*query) / math.hypot(*row) for row in bank]
    near = sorted(range(len(bank)), key=lambda i: -cosines[i])[:NEIGHBOURS]
    sums = [sum(math.exp(cosines[i] / T) for i in near if labels[i] == c) for c in range(3)]
    return sums.index(max(sums))


def test_transfer_metrics_are_those_of_the_other_sets_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    train, labels = made(rng, 66, hidden=6)
    test, truth = made(rng, 39, hidden=0)
    arrays = {"train_images": train, "train_labels": labels}
    np.savez(tmp_path / "shades.npz", **arrays, test_images=test, test_labels=truth)
    config = tiny_config(
        "simclr",
        evaluation__transfer=(f"npz:{tmp_path / 'shades.npz'}",),
        evaluation__knn_neighbours=NEIGHBOURS,
        evaluation__knn_temperature=T,
        evaluation__linear_l2=L2,
        evaluation__probe_fractions=(1.0,),
    )
    plain = tiny_setup(config)
    setup = with_transfer(plain, plain.make_net(), tmp_path / "cache")
    found = measured(setup, ("knn", "linear", "few-shot"))

    # The copy that is probed has the images of the file in an order of its own.
    (other,) = setup.transfer
    copy, kept = np.asarray(other.train_images)[:, 0], other.train_labels
    given = zip(train.tolist(), labels.tolist(), strict=True)
    assert sorted(zip(copy.tolist(), kept.tolist(), strict=True)) == sorted(given)
    train, labels = copy, kept

    net = setup.bound().net.eval()

    def features(images: Any) -> Any:
        with torch.no_grad():
            x = torch.from_numpy((images[:, None] / 127.5 - 1).astype(np.float32))
            return setup.method.encode(net, x).double().numpy()

    known = labels >= 0
    x, y, queries = features(train)[known], labels[known], features(test)

    def probe(rows: Any, l2: float) -> tuple[float, float]:
        """Return the shares that are right of the images learnt from and of the test images."""
        fit = SoftmaxRegression(x[rows], y[rows], 3, l2)
        pairs = ((x[rows], y[rows]), (queries, truth))
        of_both = [(fit.probabilities(h).argmax(axis=1) == c).mean() for h, c in pairs]
        return float(of_both[0]), float(of_both[1])

    learnt, linear = probe(np.arange(60), L2)
    right = [votes(x, y, query) == c for query, c in zip(queries, truth, strict=True)]
    expected = {"knn_acc": sum(right) / 39, "linear_acc": linear, "linear_train_acc": learnt}
    for shots in (1, 5, 10):
        shares = []
        for draw in range(10):
            order = numpy_generator(config.seed, "few-shot", draw).permutation(60)
            rows = [i for c in range(3) for i in [k for k in order if y[k] == c][:shots]]
            shares.append(probe(rows, 1 / (3 * shots))[1])
        spread = math.sqrt(sum((s - sum(shares) / 10) ** 2 for s in shares) / 9)
        expected[f"few_shot_{shots}_acc"] = sum(shares) / 10
        expected[f"few_shot_{shots}_half"] = T_OF_NINE * spread / math.sqrt(10)
    names = {name for name in found if name.startswith("transfer_")}
    shown = {name: round(found[name], 9) for name in names}
    start = "transfer_npz_shades_npz_"
    assert shown == {f"{start}{name}": round(value, 9) for name, value in expected.items()}
    assert len({*expected.values()}) > 6  # far from chance and from one another
