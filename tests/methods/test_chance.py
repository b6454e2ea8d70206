"""What methods state of nets without information is what their losses give for such outputs."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedbench.bench.method import registry
from fedbench.bench.nn import info_nce, nt_xent, spectral_contrast
from fedbench.bench.nn.losses import clipped_spectral_contrast
from fedbench.bench.testing import tiny_config
from fedbench.methods.aligned import log_potential
from fedbench.methods.lejepa import sigreg, waves
from fedbench.methods.simclr import SimCLR
from tests.specs import SPECS

SIZE = 32


def stated(spec: str, **fields: Any) -> dict[str, Any]:
    values = {f"method__{name}": value for name, value in fields.items()}
    config = tiny_config(spec, client__batch_size=SIZE, **values)
    return dict(registry.create(config.spec, config.method).chance(config))


def noise(dim: int = 16, scale: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return outputs that depend on no image, drawn anew for each view."""
    rng = torch.Generator().manual_seed(seed)
    z1, z2 = torch.randn(2, SIZE, dim, generator=rng) * scale
    return z1, z2


@pytest.mark.parametrize("spec", SPECS)
def test_every_method_states_its_total(spec: str) -> None:
    assert any(term.startswith("loss") for term in stated(spec))


@pytest.mark.parametrize(("variant", "contrast"), [("nt-xent", nt_xent), ("info-nce", info_nce)])
def test_contrasts_of_equal_outputs_and_of_noise(variant: str, contrast: Any) -> None:
    value = stated("simclr", variant=variant)["loss"]
    equal = torch.ones(SIZE, 16)
    assert float(contrast(equal, equal, 0.1)) == pytest.approx(value, rel=1e-6)
    assert all(float(contrast(*noise(seed=seed), 0.1)) > value for seed in range(20))
    if variant == "nt-xent":
        assert stated("featarc")["loss - align"] == value
        assert stated("fedx")["received"] == stated("fedx")["loss - received - relations"] == value
        assert "loss - received" in stated("fedx", relational=0.0)


@pytest.mark.parametrize(
    ("norm", "mu"), [("cos", 1.0), ("none", 1.0), ("clip", 1.0), ("clip", 0.3), ("clip", 4.0)]
)
def test_spectral_contrasts_of_equal_outputs_and_of_noise(norm: str, mu: float) -> None:
    value = stated("spectral", norm=norm, mu=mu)["loss"]

    def loss(z1: Tensor, z2: Tensor) -> float:
        if norm == "clip":
            return float(clipped_spectral_contrast(z1, z2, mu))
        if norm == "cos":
            z1, z2 = F.normalize(z1, dim=1), F.normalize(z2, dim=1)
        return float(spectral_contrast(z1, z2))

    lengths = torch.linspace(0.1, 3, 300)
    equal = [loss(*[length * F.normalize(torch.ones(SIZE, 16))] * 2) for length in lengths]
    assert min(equal) == pytest.approx(value, abs=1e-3)
    assert all(loss(*noise(seed=seed)) > value for seed in range(20))


def test_turns_and_clusters_of_a_prediction_that_ignores_the_image() -> None:
    logits = torch.zeros(SIZE, 4)
    turns = float(F.cross_entropy(logits, torch.arange(SIZE) % 4))
    assert stated("rotpred")["loss"] == pytest.approx(turns)
    values = stated("orchestra", num_global_clusters=SIZE)
    # Clusters are equally large: as many images have each as their target.
    assigned = torch.eye(SIZE)
    rng = torch.Generator().manual_seed(0)
    blind = [torch.randn(SIZE, generator=rng).expand(SIZE, SIZE) * s for s in (0.0, 0.5, 5.0)]
    losses = [float(F.cross_entropy(prediction, assigned)) for prediction in blind]
    assert min(losses) == pytest.approx(values["clusters"])
    assert losses == sorted(losses)
    assert values["rotation"] == pytest.approx(turns)
    assert values["loss"] == pytest.approx(math.log(SIZE) + math.log(4))
    assert "rotation" not in stated("orchestra", degeneracy=False)


@pytest.mark.parametrize(("t", "weight"), [(2.0, 1.0), (2.0, 0.25), (4.0, 0.5)])
def test_alignment_and_uniformity_of_equal_outputs_and_of_noise(t: float, weight: float) -> None:
    def loss(z1: Tensor, z2: Tensor) -> float:
        u1, u2 = F.normalize(z1, dim=1), F.normalize(z2, dim=1)
        spread = (log_potential(u1, t) + log_potential(u2, t)) / 2
        return float((u1 - u2).square().sum(dim=1).mean() + weight * spread)

    equal = loss(*[torch.ones(SIZE, 16)] * 2)
    assert equal == pytest.approx(0.0, abs=1e-5)
    value = stated("aligned", t=t, uniformity=weight)["loss"]
    assert min(equal, loss(*noise(dim=20_000))) == pytest.approx(value, abs=0.02)
    assert stated("ssd", t=t, uniformity=weight)["loss - separation - distillation"] == value
    assert "loss - separation" in stated("ssd", distillation=0.0)


@pytest.mark.parametrize("weight", [0.02, 0.05, 0.2])
def test_lejepa_of_noise_of_the_best_scale(weight: float) -> None:
    """The mean over draws of the loss, least over scales; 0 are equal outputs."""
    rng = torch.Generator().manual_seed(1)

    def loss(scale: float) -> float:
        found = []
        for _ in range(40):
            z1, z2 = torch.randn(2, SIZE, 16, generator=rng) * scale
            directions = F.normalize(torch.randn(16, 64, generator=rng), dim=0)
            terms = []
            for z in (z1, z2):
                cosines, sines = waves(z, directions)
                terms.append(sigreg(cosines.mean(dim=0), sines.mean(dim=0), SIZE))
            apart = ((z1 - z2) / 2).square().mean()
            found.append((1 - weight) * apart + weight * torch.stack(terms).mean())
        return float(torch.stack(found).mean())

    best = min(map(loss, torch.linspace(0, 1.2, 13).tolist()))
    assert stated("lejepa", weight=weight)["loss"] == pytest.approx(best, rel=0.04)
    assert isinstance(stated("lejepa", statistics="global")["loss"], str)


def test_what_collapse_minimises_has_no_value() -> None:
    for spec in ("byol", "simsiam", "fedsc", "fedavg-ae", "supervised", "mim"):
        assert isinstance(stated(spec)["loss"], str)


def test_an_addon_takes_its_terms_out_of_the_total() -> None:
    assert stated("simclr+uv")["loss - uv"] == stated("simclr")["loss"]
    assert isinstance(stated("simclr+uv")["uv"], str)
    assert stated("byol+l-dawa") == stated("byol")
    both = stated("orchestra+feddecorr+fedprox")
    assert both["clusters"] == math.log(32)
    assert "loss - decorrelation - proximity" in both or "loss - proximity - decorrelation" in both
    assert stated("simclr+fedu2", **{"fedu2.weight": 0.0}) == stated("simclr")


def test_an_addon_follows_what_its_base_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimCLR, "chance", lambda self, config: {})
    assert stated("simclr+fedprox") == {}
    monkeypatch.setattr(SimCLR, "chance", lambda self, config: {"loss": 2.0, "loss_pull": 1.0})
    assert stated("simclr+fedprox").keys() == {"loss - proximity", "loss_pull", "proximity"}


def test_labels_change_what_is_contrasted() -> None:
    config = tiny_config("simclr", data__label_fraction=0.5)
    assert isinstance(registry.create("simclr", config.method).chance(config)["loss"], str)
