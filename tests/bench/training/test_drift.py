"""Drift of a round's updates against the same figures from all updates at once."""

import numpy as np
import pytest
import torch
from torch import nn

from fedbench.bench.method import Net, Sharing
from fedbench.bench.training.drift import Drift
from fedbench.bench.training.layout import VectorLayout


def layout_of(rule: Sharing = Sharing.AVERAGED, **parts: nn.Module) -> VectorLayout:
    net = Net(parts)
    net.register_buffer("statistic", torch.zeros(3))
    return VectorLayout.of(net, {"encoder.*": rule, "*": Sharing.AVERAGED})


def test_figures_are_those_of_all_updates_at_once() -> None:
    layout = layout_of(first=nn.Linear(2, 2), encoder=nn.Linear(3, 4), last=nn.Linear(4, 2))
    rng = np.random.default_rng(0)
    before = torch.tensor(rng.normal(size=layout.server_size), dtype=torch.float32)
    uploads = torch.tensor(rng.normal(size=(5, layout.upload_size)), dtype=torch.float32)
    drift = Drift(layout, before)
    scratch = torch.empty(layout.upload_size)
    for upload in uploads:
        drift.add(scratch.copy_(upload))
        scratch.fill_(torch.nan)
    found = drift.values()
    changes = (uploads[:, : layout.num_trained] - before[: layout.num_trained]).double().numpy()
    names = np.repeat(
        [s.name.partition(".")[0] for s in layout.server if s.trainable],
        [s.size for s in layout.server if s.trainable],
    )
    for group, chosen in (("encoder", names == "encoder"), ("heads", names != "encoder")):
        part = changes[:, chosen]
        norms, total = np.linalg.norm(part, axis=1), part.sum(axis=0)
        assert found[group] == pytest.approx(
            {
                "norm": norms.mean(),
                "norm_std": norms.std(),
                "cosine": np.mean(part @ total / norms / np.linalg.norm(total)),
                "diversity": (norms**2).sum() / (total @ total),
            },
            rel=1e-4,
        )


def test_limits() -> None:
    layout = layout_of(encoder=nn.Linear(2, 1, bias=False))

    def of(*updates: tuple[float, float]) -> dict[str, float]:
        drift = Drift(layout, torch.zeros(layout.server_size))
        for update in updates:
            drift.add(torch.tensor([*update, 9.0, 9.0, 9.0]))  # a buffer is no step of training
        return drift.values()["encoder"]

    same = {"norm": 5.0, "norm_std": 0.0, "cosine": 1.0, "diversity": 0.25}
    assert of(*[(3.0, 4.0)] * 4) == pytest.approx(same)
    # Orthogonal ones: (|a|^2 + |b|^2) / |a + b|^2 = 1.
    assert of((1.0, 0.0), (0.0, 1.0))["diversity"] == pytest.approx(1.0)
    assert of((1.0, 0.0), (-1.0, 0.0)) == {"norm": 1.0, "norm_std": 0.0}
    # Lengths have their figures up to the largest number of float32, directions do not.
    far = torch.finfo(torch.float32).max
    assert of((3e29, 0.0), (3e29, 0.0))["cosine"] == pytest.approx(1.0)
    assert of((far, far), (far, far)) == pytest.approx({"norm": 2**0.5 * far, "norm_std": 0.0})


def test_nothing_averaged_has_no_figures() -> None:
    layout = layout_of(Sharing.PERSONAL, encoder=nn.Linear(2, 2))
    drift = Drift(layout, torch.zeros(layout.server_size))
    drift.add(torch.zeros(layout.upload_size))
    assert drift.values() == {}
