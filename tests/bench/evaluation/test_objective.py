import math
from collections.abc import Iterable

import numpy as np
import pytest
import torch

from fedbench.bench.data.views.views import make_view
from fedbench.bench.evaluation.features import NonFiniteFeaturesError
from fedbench.bench.evaluation.objective import (
    ClientScores,
    client_align_unif,
    client_statistics,
    objective,
)
from fedbench.bench.system import seeding
from fedbench.bench.testing import tiny_config
from tests.specs import gaussian

IMAGES = seeding.numpy_generator(0, "images").integers(0, 256, (60, 3, 8, 8), dtype=np.uint8)
WEIGHTS = torch.randn(3 * 8 * 8, 5, generator=seeding.generator(0, "weights")) / 14
CLIENTS = [np.arange(0, 25), np.arange(25, 26), np.arange(26, 60)]


def embed(images: torch.Tensor) -> torch.Tensor:
    return images.flatten(1) @ WEIGHTS


def slow(anchors: torch.Tensor, views: torch.Tensor, temperature: float) -> ClientScores:
    def cosine(a: list[float], b: list[float]) -> float:
        return sum(p * q for p, q in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)

    rows, others = anchors.tolist(), views.tolist()
    align = sum(cosine(a, b) for a, b in zip(rows, others, strict=True)) / len(rows)
    unif, without_self = 0.0, 0.0
    for i, x in enumerate(rows):
        terms = [math.exp(cosine(x, y) / temperature) for y in rows]
        unif -= math.log(sum(terms) / len(terms)) / len(rows)
        del terms[i]
        without_self -= math.log(sum(terms) / len(terms)) / len(rows)
    rho = sum(1 - cosine(x, y) for x in rows for y in rows) / len(rows) ** 2
    return ClientScores(align, unif, without_self, rho)


@pytest.mark.parametrize("temperature", [0.2, 1.0])
@pytest.mark.parametrize("chunk", [1, 7, 23, 256])
def test_equals_a_slow_double_loop_for_every_chunk(temperature: float, chunk: int) -> None:
    anchors, views = 3 * gaussian(23, 4), gaussian(23, 4, name="views")
    values = client_align_unif(anchors, views, temperature=temperature, chunk=chunk)
    assert values == pytest.approx(slow(anchors, views, temperature), abs=1e-9)


@pytest.mark.parametrize("size", [2, 300, 2000])
def test_a_collapsed_encoder_scores_zero(size: int) -> None:
    # s = 1 everywhere: align = 1, unif = -log exp(1 / 0.2) = -5, and 1 + 0.2 * (-5) = 0.
    features = gaussian(1, 33).expand(size, 33)
    client = client_align_unif(features, features)
    assert client == pytest.approx((1.0, -5.0, -5.0, 0.0), abs=1e-6)
    score = objective([client] * 3)
    assert [score[name] for name in ("align", "unif", "objective")] == pytest.approx(
        [1.0, -5.0, 0.0], abs=1e-6
    )
    assert "sep" not in score


@pytest.mark.parametrize("noise", [0.5, 1.2])
def test_contraction_takes_the_objective_to_zero_and_leaves_sep(noise: float) -> None:
    # z -> m + c (z - m): rho and delta shrink with c^2, their ratio stays.
    centre = torch.tensor([[40.0, 0, 0, 0, 0, 0]])
    images, seps, values = gaussian(200, 6), [], []
    views = images + noise * gaussian(200, 6, name="noise")
    for c in (1.0, 0.1, 0.01):
        score = objective([client_align_unif(centre + c * images, centre + c * views)])
        seps.append(score["sep"])
        values.append(abs(score["objective"]))
    assert seps == pytest.approx([seps[0]] * 3, abs=0.02)
    assert values[1] < values[0] / 50
    assert values[2] < values[1] / 50


def test_a_single_image_has_only_itself() -> None:
    client = client_align_unif(gaussian(1, 4), gaussian(1, 4), temperature=0.5)
    assert client[:2] == pytest.approx((1.0, -2.0))
    assert client.unif_without_self is None


def test_clients_count_alike_and_undefined_values_are_left_out() -> None:
    many = ClientScores(0.5, -1.0, -0.5, 0.8)
    one = ClientScores(1.0, -5.0, None, 0.0)
    # align (0.5 + 1) / 2, unif (-1 - 5) / 2, without self -0.5 alone, rho (0.8 + 0) / 2,
    # value 0.75 + 0.1 * (-3); delta 1 - 0.75, SEP 1 - 0.25 / 0.4.
    score = objective([many, one], weight=0.1)
    assert score == pytest.approx(
        {
            "objective": 0.45, "align": 0.75, "unif": -3.0, "unif_without_self": -0.5,
            "rho": 0.4, "delta_views": 0.25, "sep": 0.375,
        }
    )  # fmt: skip
    assert "unif_without_self" not in objective([one])


def by_hand(max_examples: int, seed: int) -> list[ClientScores | None]:
    """Compute each client separately from the same draws."""
    objectives: list[ClientScores | None] = []
    for client_id, indices in enumerate(CLIENTS):
        if len(indices) > max_examples:
            rng = seeding.numpy_generator(seed, "objective-subset", client_id)
            indices = np.sort(rng.choice(indices, max_examples, replace=False))
        raw = torch.from_numpy(IMAGES[indices])
        view = make_view("simclr-o", raw, seeding.generator(seed, "objective-view", client_id))
        objectives.append(slow(embed(raw / 127.5 - 1), embed(view), 0.2) if len(raw) > 1 else None)
    return objectives


@pytest.mark.parametrize("max_examples", [10, 2000])
def test_clients_are_packed_without_changing_them(
    max_examples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = by_hand(max_examples, seed=3)
    for batch_size in (4, 26, 500):
        monkeypatch.setattr("fedbench.bench.evaluation.objective.BATCH_SIZE", batch_size)
        config = tiny_config("simclr", seed=3, evaluation__objective_max_examples=max_examples)
        statistics = client_statistics(embed, enumerate(CLIENTS), IMAGES, config, "cpu")
        assert statistics[0] == pytest.approx(expected[0], abs=1e-5)
        assert statistics[1].unif == pytest.approx(-5.0)
        assert statistics[2] == pytest.approx(expected[2], abs=1e-5)


def test_draws_depend_on_seed_and_client_alone() -> None:
    def run(clients: Iterable[tuple[int, np.ndarray]], seed: int = 0) -> list[ClientScores]:
        config = tiny_config("simclr", seed=seed, evaluation__objective_max_examples=12)
        return client_statistics(embed, clients, IMAGES, config, "cpu")

    everyone = run(enumerate(CLIENTS))
    # float32 products of other batch sizes differ in the last bits
    assert run([(2, CLIENTS[2])]) == [pytest.approx(everyone[2], abs=1e-5)]
    assert run(enumerate(CLIENTS)) == everyone
    assert run(enumerate(CLIENTS), seed=1)[0] != pytest.approx(everyone[0], abs=1e-3)


def test_projections_that_are_not_finite_are_refused() -> None:
    ones = torch.ones(3, 2)
    with pytest.raises(NonFiniteFeaturesError):
        client_align_unif(ones, ones * math.nan)
