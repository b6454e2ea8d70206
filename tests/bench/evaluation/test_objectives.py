"""Objectives from sums, with noise and without: closed forms, slow loops, what they claim."""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from fedbench.bench.evaluation.objectives import accumulator, scores
from fedbench.bench.evaluation.objectives.accumulator import (
    DELTA,
    Accumulator,
    GaussianNoise,
    bytes_sent,
    epsilon,
)
from fedbench.bench.evaluation.objectives.base import BYTES, Projections, Slices, Sums, triangle
from fedbench.bench.evaluation.objectives.names import check_name
from fedbench.bench.evaluation.objectives.scores import objectives, scored, with_noise
from fedbench.bench.experiment.resolve import resolve
from fedbench.bench.system.errors import ConfigError, UnknownNameError
from fedbench.bench.system.seeding import generator
from fedbench.bench.tuning.scoring import Scoring
from tests import specs
from tests.specs import measured, setup_of

_I, _J = torch.meshgrid(torch.arange(12), torch.arange(4), indexing="ij")
Z = (((7 * _I + 3 * _J + _I * _J) % 11) - 5).double()
V = Z + 0.25 * (((5 * _I + 2 * _J) % 3) - 1)
CLIENTS = [slice(0, 5), slice(5, 9), slice(9, 12)]
OBJECTIVES = objectives()


gaussian = partial(specs.gaussian, dtype=torch.float64)


def values(z: Tensor, v: Tensor, clients: Sequence[slice] = (slice(None),)) -> dict[str, float]:
    sums = Accumulator(OBJECTIVES.values(), len(clients))
    turned = torch.stack([z, v, z - v, z + 2 * v], dim=1)
    for client in clients:
        sums.add(z[client], v[client], turned[client])
    return sums.values()


def mixture(n: int = 60, d: int = 12) -> tuple[Tensor, Tensor]:
    z = gaussian(n, d) + 3 * gaussian(4, d, name="centres").repeat(n // 4, 1)
    return z, z + 0.5 * gaussian(n, d, name="views")


def test_another_implementation_agrees() -> None:
    """reptrix 0.1.0; its LiDAR is another quantity.

    It adds 1e-7 to each of 128 shares p, which raises a rank by a share of 128e-7 (4.99 - 1), where
    4.99 is the mean of -log p.
    """
    import reptrix.alpha
    import reptrix.rankme

    scale = torch.arange(1, 129, dtype=torch.float64) ** -0.5
    z = gaussian(2000, 128) * scale
    found = values(z, z + 0.1)
    rates = reptrix.alpha.get_alpha(z, fit_range=np.arange(11, 102))
    assert found["alpha_req"] == pytest.approx(rates[0], abs=1e-6)
    singular = torch.linalg.svdvals(z - z.mean(0)).numpy()
    assert found["rankme_centred"] == pytest.approx(reptrix.rankme.get_rank(singular), rel=6e-5)


def test_slow_loops() -> None:
    z, v = mixture(24, 5)
    unit = z / z.norm(dim=1, keepdim=True)
    n, d = z.shape
    cosines = [[float(x @ y) for y in unit] for x in unit]
    found = values(z, v)
    pairs = sum(sum(row) for row in cosines) / n**2
    assert found["global_rho"] == pytest.approx(1 - pairs)
    align = sum(float(torch.cosine_similarity(x, y, dim=0)) for x, y in zip(z, v, strict=True)) / n
    assert found["global_align"] == pytest.approx(align)
    assert found["global_sep"] == pytest.approx(1 - (1 - align) / (1 - pairs))
    square, expected = sum(s * s for row in cosines for s in row), n + n * (n - 1) / d
    assert found["self_clustering"] == pytest.approx((square - expected) / (n**2 - expected))
    variance = torch.linalg.eigvalsh(torch.cov(unit.T))
    ratio = float(variance.sum() ** 2 / variance.square().sum())
    assert found["participation_ratio"] == pytest.approx(ratio)
    singular = torch.linalg.svdvals(z)
    share = singular / singular.sum()
    assert found["rankme"] == pytest.approx(float((-(share * share.log()).sum()).exp()))
    assert found["stable_rank"] == pytest.approx(float(singular.square().sum() / singular[0] ** 2))
    # With NumPy from the definition, on the 12 x 4 integers above.
    assert values(Z, V)["nesum"] == pytest.approx(2.577006, abs=1e-6)


def test_global_uniformity_approaches_all_pairs() -> None:
    z = gaussian(500, 32)
    unit = z / z.norm(dim=1, keepdim=True)
    exact = -math.log(float((unit @ unit.T / 0.2).exp().mean()))
    # 1,024 frequencies: errors of 0.003 to 0.02 over sets of images and draws.
    assert values(z, z)["global_unif"] == pytest.approx(exact, abs=0.04)


def test_lidar_with_the_papers_constant() -> None:
    mean, half = (Z + V) / 2, (Z - V) / 2
    between = torch.cov(mean.T)
    within = 2 * half.T @ half / 12
    assert scores.lidar(between, within, 0.0, 1e-4) == pytest.approx(1.984059, abs=1e-6)
    assert scores.lidar(between, within, 0.0, 1e-6) == pytest.approx(1.963143, abs=1e-6)
    assert scores.lidar(between, torch.zeros(4, 4)) is None
    assert scores.lidar(torch.zeros(4, 4), within) == 1.0
    relative = values(Z, V)["lidar"]
    assert relative == pytest.approx(scores.lidar(between, within, 1e-4) or 0, rel=1e-9)
    assert relative == pytest.approx(values(1e-3 * Z, 1e-3 * V)["lidar"], rel=1e-6)


def test_the_decay_of_a_power_law_and_of_a_bent_one() -> None:
    index = torch.arange(1, 257, dtype=torch.float64)
    assert scores.decay(1 / index, 10, 100) == pytest.approx((1.0, 1.0))
    bent = torch.where(index <= 100, index**-0.8, 100**2.2 * index**-3)
    assert scores.decay(bent, 10, 100)[0] == pytest.approx(0.8)
    assert scores.decay(bent, 10, 230)[0] == pytest.approx(1.195678, abs=1e-6)


def test_a_spectrum_that_is_no_power_law_has_no_exponent() -> None:
    """Of a step from 1 to 0.1 the weighted R^2 is 0.73; of exp(-j / 5) it is 0.94."""
    index, found = torch.arange(1, 25, dtype=torch.float64), []
    for eigenvalues in (torch.where(index <= 8, 1.0, 0.1), torch.exp(-index / 5)):
        products = triangle(torch.diag(eigenvalues.double()))
        moments = torch.cat([torch.zeros_like(index), products])
        found.append(OBJECTIVES["alpha-req"].combine({"pairs": torch.ones(2), "moments": moments}))
    assert found == [None, pytest.approx(1.566296, abs=1e-6)]


def test_ranks_count_what_is_small_and_leave_out_rounding() -> None:
    share = 0.005 / 1.005
    expected = math.exp(-share * math.log(share) - (1 - share) * math.log(1 - share))
    assert scores.entropy_rank(torch.tensor([1.0, 0.005])) == pytest.approx(expected)
    assert scores.entropy_rank(torch.tensor([1.0, 0.9e-6])) == 1.0


def test_several_exchanges_are_made_of_an_equal_share_of_every_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accumulator, "KEPT", 60)
    z, v = mixture(60, 12)
    clients = [slice(0, 40), slice(40, 60)]  # 30 each are the first 30, and all 20
    kept = torch.cat([torch.arange(30), torch.arange(40, 60)])
    found = values(z, v, clients)["clusterability"]
    assert found == pytest.approx(values(z[kept], v[kept])["clusterability"])
    assert found != pytest.approx(values(z, v)["clusterability"])
    sums = Accumulator([OBJECTIVES["clusterability"]], 6)
    sums.add(z, v)
    kept_parts = sums._kept[0].clean, sums._kept[0].view
    assert [part.untyped_storage().nbytes() for part in kept_parts] == [8 * 10 * 12] * 2


@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_the_rotation_probe_leaves_each_image_out(scale: float) -> None:
    """Fifty fits by normal equations, each to 49 images; shrinking changes nothing."""
    n, dim = 50, 12
    turned = gaussian(n, 4, dim) + gaussian(4, dim, name="turns") / 2
    objective = OBJECTIVES["rotation-probe"]
    sums = Accumulator([objective], 2)
    for client in (slice(0, 20), slice(20, None)):
        sums.add(turned[client, 0], turned[client, 0], scale * turned[client])
    rows = torch.cat([turned, torch.ones(n, 4, 1)], dim=2)
    penalty = torch.eye(dim + 1).double() * 1e-3 * turned.square().sum() / dim
    penalty[-1, -1] = 0
    hits = 0
    for image in range(n):
        others = rows[torch.arange(n) != image].flatten(0, 1)
        turns = torch.eye(4).double().repeat(n - 1, 1)
        weights = torch.linalg.solve(others.T @ others + penalty, others.T @ turns)
        hits += int(((rows[image] @ weights).argmax(dim=1) == torch.arange(4)).sum())
    assert 0.5 < hits / (4 * n) < 0.9
    assert sums.values()["rotation_probe"] == hits / (4 * n)


def test_the_rotation_probe_is_at_chance_where_features_are_equal() -> None:
    sums = Accumulator([OBJECTIVES["rotation-probe"]], 1)
    sums.add(Z, V, torch.ones(12, 4, 5))
    assert sums.values()["rotation_probe"] == 0.25


def test_sigreg_of_a_constant_and_of_normals() -> None:
    zeros = torch.zeros(20, 8)
    assert values(zeros, zeros)["sigreg"] == pytest.approx(0.408921, abs=1e-6)
    # A statistic of n normals has mean 1.059 / n; unit length changes little at 512 dimensions.
    z = gaussian(1000, 512)
    assert values(z, z)["sigreg"] == pytest.approx(1.0594 / 1000, rel=0.2)


def test_slices_are_those_of_cosine_and_sine() -> None:
    projections = Projections(Z, V)
    sums = Slices().of(projections, {})
    drawn = torch.randn(4, 256, dtype=torch.float64, generator=generator(0, "objective-slices", 4))
    along = 2 * projections.unit @ (drawn / drawn.norm(dim=0))
    for index, knot in enumerate(Slices.knots):
        assert torch.allclose(sums[0, index], (knot * along).cos().sum(dim=0), atol=1e-10)
        assert torch.allclose(sums[1, index], (knot * along).sin().sum(dim=0), atol=1e-10)


def test_clusters_explain_separate_groups_and_little_of_none() -> None:
    centres = 10 * gaussian(8, 16, name="centres")
    grouped = centres.repeat(40, 1) + 0.1 * gaussian(320, 16)
    none = gaussian(320, 16)
    found = [values(z, z)["clusterability"] for z in (grouped, none)]
    assert found[0] > 0.95
    # 32 clusters of 320 directions in 16 dimensions fit some of the noise.
    assert 0.1 < found[1] < 0.5


def test_contraction() -> None:
    z, v = mixture(60, 16)
    mean = z.mean(dim=0)
    near, far = (values(mean + c * (z - mean), mean + c * (v - mean)) for c in (0.01, 0.1))
    for objective in OBJECTIVES.values():
        one, other = (v.get(objective.metric.name) for v in (near, far))
        if one is None or other is None:
            continue
        moved = abs(one - other) > 0.05 * max(abs(one), abs(other))
        assert moved == objective.sees_contraction or objective.name == "global-align"
    assert near["global_rho"] < 0.05 * far["global_rho"]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_invariances(name: str) -> None:
    objective = OBJECTIVES[name]
    z, v = mixture(60, 16)
    slope = torch.arange(1, 17, dtype=torch.float64) ** -1.0  # alpha-req needs a power law
    z, v = slope * z, slope * v

    def value(first: Tensor, second: Tensor) -> float:
        return values(first, second)[objective.metric.name]

    plain = value(z, v)
    order = torch.randperm(60, generator=generator(0, "order"))
    # k-means of 60 images in 16 dimensions may end elsewhere when the last bits differ.
    close = 0.1 if name == "clusterability" else 1e-9
    assert value(z[order], v[order]) == pytest.approx(plain, rel=close)
    assert value(7 * z, 7 * v) == pytest.approx(plain, rel=1e-9)
    if name not in ("global-unif", "sigreg", "clusterability"):  # these draw directions
        rotation = torch.linalg.qr(gaussian(16, 16, name="rotation"))[0]
        assert value(z @ rotation, v @ rotation) == pytest.approx(plain, rel=1e-8)


@pytest.mark.parametrize("dim", [1, 4])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_images_and_dimensions_give_finite_values(count: int, dim: int) -> None:
    for z in (gaussian(count, dim), torch.zeros(count, dim), torch.ones(count, dim)):
        found = values(z, z + 0.1)
        assert all(math.isfinite(value) for value in found.values())


def test_collapsed_projections() -> None:
    constant = torch.ones(50, 8)
    found = values(constant, constant)
    assert found["global_rho"] == pytest.approx(0, abs=1e-12)
    assert found["global_align"] == pytest.approx(1)
    assert found["global_unif"] == pytest.approx(-1 / 0.2)
    ranks = ("rankme", "rankme_centred", "stable_rank", "nesum", "participation_ratio", "lidar")
    assert all(found[metric] == pytest.approx(1) for metric in ranks)
    assert found["self_clustering"] == pytest.approx(1)
    undefined = {"global_sep", "alpha_req", "clusterability"}
    assert undefined.isdisjoint(found)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("global-align", 2), ("global-sep", 2 + 128), ("rankme", 2 + 128 + 8256),
        ("lidar", 2 + 128 + 2 * 8256), ("global-unif", 2 + 2048), ("sigreg", 2 + 4096),
        ("clusterability", 2 + 128 + 8256 + 6 * 32 * 129),
    ],
)  # fmt: skip
def test_numbers_that_a_client_sends(name: str, numbers: int) -> None:
    assert bytes_sent(OBJECTIVES[name], 128) == BYTES * numbers


def test_the_numbers_of_an_objective_that_fails_are_known() -> None:
    class Failing(scores.RankMe):
        def combine(self, sums: Sums) -> float:
            raise ZeroDivisionError

    assert bytes_sent(Failing(), 128) == bytes_sent(OBJECTIVES["rankme"], 128)


def test_bytes_count_every_statistic_once_and_every_client() -> None:
    once = {s.name: s for o in OBJECTIVES.values() if o.exchanges == 1 for s in o.statistics}
    numbers = sum(s.of(Projections(Z, V), {}).numel() for s in once.values())
    several = [o for o in OBJECTIVES.values() if o.exchanges > 1]
    total = BYTES * numbers + sum(bytes_sent(objective, 4) for objective in several)
    assert values(Z, V, CLIENTS)["objective_bytes"] == 3 * total


PRIVATE = with_noise(OBJECTIVES.values())
METRICS = [objective.metric.name for objective in PRIVATE]
STATISTICS = {s.name: s for objective in PRIVATE for s in objective.statistics}
DIM = 6


def test_which_objectives_have_an_epsilon() -> None:
    assert METRICS == [
        "global_align", "global_rho", "global_sep", "global_unif", "participation_ratio",
        "self_clustering", "sigreg",
    ]  # fmt: skip


@pytest.mark.parametrize("name", STATISTICS)
def test_one_image_changes_a_sum_by_its_sensitivity_at_most(name: str) -> None:
    """The bound is met: an image that equals its view has the largest change of each."""
    statistic = STATISTICS[name]
    assert statistic.sensitivity is not None
    z, view = mixture(40, DIM)
    z[0] = view[0] = 5.0
    changes = []
    for k in range(len(z)):
        one = statistic.of(Projections(z[k : k + 1], view[k : k + 1]), {})
        changes.append(float((one / statistic.noise_scale(DIM)).norm()))
    assert max(changes) == pytest.approx(statistic.sensitivity)


@pytest.mark.parametrize(("multiplier", "scorings"), [(0.7, 1), (3.73, 1), (10.0, 20), (200.0, 3)])
def test_epsilon_against_dp_accounting(multiplier: float, scorings: int) -> None:
    loss = pytest.importorskip("dp_accounting.pld.privacy_loss_mechanism")
    mechanism = loss.GaussianPrivacyLoss(multiplier / math.sqrt(scorings))
    expected = mechanism.get_delta_for_epsilon(epsilon(multiplier, scorings))
    assert expected == pytest.approx(DELTA, rel=1e-6)


def test_noise_of_all_sums_together_costs_what_is_stated() -> None:
    """Standard deviations over sensitivity, as 1 / square, add to that of the multiplier."""
    sums = {s.name: s.of(Projections(*mixture(40, DIM)), {}) for s in STATISTICS.values()}
    noisy = GaussianNoise(3.0, 0).add(sums, list(STATISTICS.values()), DIM)
    precisions = [
        s.sensitivity**2 / float(noisy[f"{s.name}.variance"])
        for s in STATISTICS.values()
        if s.sensitivity is not None
    ]
    assert sum(precisions) == pytest.approx(1 / 3.0**2)
    drawn = (noisy["frequencies"] - sums["frequencies"]) / float(
        noisy["frequencies.variance"]
    ) ** 0.5
    assert float(drawn.std()) == pytest.approx(1, abs=0.05)  # 2,048 draws: 3 sd


def test_noise_is_taken_out_of_a_squared_mean() -> None:
    """Ten images, mean (0.6, 0): of |mean|^2 = 0.36, 2 * 2 / 10^2 is noise of variance 2."""
    sums = {"pairs": [10.0, 9.0], "directions": [6.0, 0.0], "directions.variance": 2.0}
    given = {name: torch.tensor(v, dtype=torch.float64) for name, v in sums.items()}
    assert OBJECTIVES["global-rho"].combine(given) == pytest.approx(1 - (0.36 - 0.04))


def test_noise_adds_no_bias() -> None:
    """Means over 200 draws lie within 4 standard errors of the value without noise."""
    z, view = mixture(4000, DIM)
    clean = Accumulator(PRIVATE, 1)
    clean.add(z, view)
    expected = clean.values()
    found: dict[str, list[float]] = {name: [] for name in METRICS}
    for index in range(200):
        sums = Accumulator(PRIVATE, 1, GaussianNoise(1.0, 0, index))
        sums.sums, sums.dim, sums._clients = clean.sums, DIM, 1
        noisy = sums.values()
        for name in METRICS:
            found[name].append(noisy[name])
    for name in METRICS:
        values = torch.tensor(found[name], dtype=torch.float64)
        error = float(values.std()) / math.sqrt(len(values))
        assert abs(float(values.mean()) - expected[name]) < 4 * error, name
        assert error > 0


def test_noise_differs_between_scorings_and_not_between_runs() -> None:
    z, view = mixture(40, DIM)
    results = []
    for index in (0, 1, 0):
        sums = Accumulator(PRIVATE, 1, GaussianNoise(1.0, 7, index))
        sums.add(z, view)
        results.append(sums.values())
    assert results[0] == results[2] != results[1]
    assert results[0].keys() - {"objective_bytes", "objective_epsilon"} <= {*METRICS}
    assert results[0]["objective_epsilon"] == epsilon(1.0)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="'rankme'"):
        scored(["rankmee"])
    with pytest.raises(UnknownNameError, match="'sep'"):
        check_name("sepp+gate")


def test_a_search_takes_an_objective_that_noise_leaves_an_epsilon() -> None:
    Scoring("global-sep+gate").check_noise(1.0)
    Scoring("rankme").check_noise(None)
    for name in ("rankme", "align-unif", "clusterability"):
        with pytest.raises(ConfigError, match="global-sep"):
            Scoring(name).check_noise(1.0)
    with pytest.raises(ConfigError, match="objective_noise"):
        resolve("simclr", set={"evaluation.objective_noise": 0}, environ={})
    both = {"evaluation.objective_noise": 1, "evaluation.objectives": ["sigreg", "lidar"]}
    with pytest.raises(ConfigError, match=r"'lidar'.*global-sep"):
        resolve("simclr", set=both, environ={})


def test_runs_of_one_seed_have_draws_of_their_own() -> None:
    """Equal draws would cancel in the difference of two trials; here the encoder is one."""
    found = set()
    for rate in (0.01, 0.02):
        setup = setup_of("simclr", client__lr=rate, evaluation__objective_noise=5.0)
        found.add(measured(setup)["global_align"])
    assert len(found) == 2
