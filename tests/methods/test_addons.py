"""Add-ons: terms by hand, rows, proximity, factors, correlations and transport."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbench.bench.method import RoundPlan, Sharing, registry
from fedbench.bench.method.registry import create
from fedbench.bench.nn.losses import client_cross_entropy
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.testing import loss_of, tiny_config, tiny_setup, train
from fedbench.bench.training.client import ClientRunner, Task
from fedbench.methods.feddecorr import squared_correlation
from fedbench.methods.fedu2 import min_norm_weights, sphere_log
from tests.specs import batch_of, client, setup_of, unit


def test_the_term_is_added_to_the_bases_loss_summed_over_views() -> None:
    setup = setup_of("simclr+uv", **{"method.uv.weight": 0.7, "method.uv.temperature": 0.2})
    net, batch = setup.make_net(), batch_of(6)
    out = loss_of(setup.method, net, batch, client(2))
    base = registry.create("simclr", {"hidden_dim": 16, "projection_dim": 16})
    alone = base.loss(net, batch, client(2))
    terms = [
        client_cross_entropy(net["uv_projector"](h), net.tensor("uv.weight"), 2, 0.2)
        for h in alone.features
    ]
    torch.testing.assert_close(out.total, alone.total + 0.7 * (terms[0] + terms[1]))
    torch.testing.assert_close(out.parts["uv"], 0.7 * (terms[0] + terms[1]).detach())


@pytest.mark.parametrize("rows", ["own", "mean"])
@pytest.mark.parametrize("optimizer", ["average", "adam"])
def test_rows_have_length_one_after_every_round(tmp_path: Path, rows: str, optimizer: str) -> None:
    setup = setup_of(
        "simclr+uv", **{"method.uv.rows": rows, "server.optimizer": optimizer, "server.lr": 0.1}
    )
    rule = setup.method.sharing()["uv.weight"]
    assert rule is (Sharing.OWN_ROW if rows == "own" else Sharing.MEAN_ROW)
    start = setup.make_net().tensor("uv.weight")
    torch.testing.assert_close(start.norm(dim=1), torch.ones(4))
    final = train(setup, tmp_path).binding.net.tensor("uv.weight")
    torch.testing.assert_close(final.norm(dim=1), torch.ones(4))
    assert not torch.allclose(final, start)


CPU = torch.device("cpu")


def test_proximity_is_zero_at_the_received_model_and_pulls_towards_it(tmp_path: Path) -> None:
    setup = setup_of("simclr+fedprox", method__fedprox__mu=0.5)
    runner = ClientRunner(setup, CPU, tmp_path)
    local = runner.begin(Task(0, 0, RoundPlan(1)), runner.binding.server.data.clone())
    batch, size = next(local.batches), runner.layout.num_trained
    net, server = runner.binding.net, runner.binding.server
    assert float(setup.method.loss(net, batch, local.client).parts["proximity"]) == 0.0
    start = server.data[:size].clone()
    moved = torch.randn(size, generator=torch.Generator().manual_seed(0))
    server.data[:size] += moved
    gradients = []
    for method in (setup.method, setup.method.base):  # type: ignore[attr-defined]
        runner.binding.zero_grad()
        method.loss(net, batch, local.client).total.backward()
        gradients.append(server.grad[:size].clone())
    difference = server.data[:size] - start
    torch.testing.assert_close(gradients[0] - gradients[1], 0.5 * difference, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("addon", ["scaffold", "fedu2"])
def test_an_add_on_with_rows_may_follow_one_that_goes_by_trained_tensors(
    addon: str, tmp_path: Path
) -> None:
    trainer = train(setup_of(f"simclr+{addon}+uv"), tmp_path)
    assert bool(trainer.vector.isfinite().all())


def test_the_min_norm_step_moves_an_averaged_target_too(tmp_path: Path) -> None:
    fields = {"method__fedu2__normalised": True, "method__fedu2__server_lr": 8.0}
    trainer = train(setup_of("byol+fedu2", **fields), tmp_path)
    change = trainer.vector - trainer.initial
    lengths = {
        part: sum(
            float(change[slot.start : slot.stop].square().sum())
            for slot in trainer.layout.averaged
            if slot.name.startswith(f"{part}.")
        )
        for part in ("encoder", "target_encoder")
    }
    assert lengths["target_encoder"] > 0.1 * lengths["encoder"]


ONE, TWO = {"a": [1.0, 0.0]}, {"a.weight": [1.0, 0.0], "b.weight": [10.0, 0.0]}
TURNED = {"a.weight": [0.0, 1.0], "b.weight": [10.0, 0.0]}
STILL = {"a.weight": [0.3, -2.0], "a.bias": [0.0, 0.0]}  # or zeros: no direction


@pytest.mark.parametrize(
    ("held", "sent", "fields", "factors"),
    [
        (ONE, {"a": [1.0, 1.0]}, {}, {"a": 0.5**0.5}),
        (ONE, {"a": [0.0, 2.0]}, {}, {"a": 0.0}),
        (ONE, {"a": [-1.0, 0.0]}, {}, {"a": -1.0}),  # a client that points the other way is flipped
        (ONE, {"a": [-1.0, 0.0]}, {"floor": 0.0}, {"a": 0.0}),
        (TWO, TURNED, {"unit": "tensor"}, {"a.weight": 0.0, "b.weight": 1.0}),
        (TWO, TURNED, {"unit": "module"}, {"a.weight": 0.0, "b.weight": 1.0}),
        (TWO, TURNED, {"unit": "model"}, {"a.weight": 0.9901, "b.weight": 0.9901}),
        (STILL, {**STILL, "a.bias": [1.0, 0.0]}, {}, dict.fromkeys(STILL, 1.0)),
        # Statistics are averaged plainly unless asked.
        ({"a.running_var": [1.0, 0.0]}, {"a.running_var": [0.0, 1.0]}, {}, {}),
        (
            {"a.running_var": [1.0, 0.0]},
            {"a.running_var": [0.0, 1.0]},
            {"buffers": "scaled"},
            {"a.running_var": 0.0},
        ),
    ],
)
def test_factors_are_cosines(
    held: dict[str, Any], sent: dict[str, Any], fields: dict[str, Any], factors: dict[str, float]
) -> None:
    method = create("simclr+l-dawa", {"l-dawa": {"warmup_rounds": 0, **fields}})
    after, before = ({name: torch.tensor(v) for name, v in part.items()} for part in (sent, held))
    found = method.weigh(after, before, 0)
    assert found == pytest.approx(factors, abs=1e-4)
    assert held is not STILL or found == factors  # to the bit, so that a mean stays plain


@pytest.mark.parametrize("spec", ["simclr+l-dawa+scaffold", "simclr+scaffold+l-dawa"])
def test_no_cosine_scales_a_control_variate(spec: str, tmp_path: Path) -> None:
    controls = []
    for each in (spec, "simclr+scaffold"):
        fields = {"method__l-dawa__warmup_rounds": 0} if each == spec else {}
        config = tiny_config(each, federation__num_rounds=1, **fields)
        controls.append(train(tiny_setup(config), tmp_path / each).binding.net)
    a, b = (net.tensor("scaffold.control") for net in controls)
    torch.testing.assert_close(a, b)


def test_the_correction_leaves_the_value_of_the_loss_alone(tmp_path: Path) -> None:
    config = tiny_config("simclr+scaffold", federation__num_rounds=3)
    trainer = train(tiny_setup(config), tmp_path)
    assert float(trainer.binding.net.tensor("scaffold.control").norm()) > 0
    assert {record.parts["correction"] for record in trainer.history} == {0.0}


def test_outputs_that_a_method_does_not_have_are_refused() -> None:
    setup = setup_of("rotpred+feddecorr", method__feddecorr__on="projections")
    with pytest.raises(ConfigError, match=r"method\.feddecorr\.on"):
        loss_of(setup.method, setup.make_net(), batch_of(views="a"), client(0))


def test_a_loop_over_pairs_and_rescaled_columns_agree() -> None:
    rows = torch.randn(9, 5, generator=torch.Generator().manual_seed(0)).double()
    loop = [
        torch.corrcoef(rows[:, [i, j]].T)[0, 1] ** 2 for i in range(5) for j in range(5) if i != j
    ]
    expected = float(torch.stack(loop).mean())
    assert float(squared_correlation(rows)) == pytest.approx(expected, rel=1e-5)
    moved = (rows * torch.tensor([2.0, -3.0, 0.5, 1.0, 7.0]) + 4.0)[:, [3, 1, 0, 4, 2]]
    assert float(squared_correlation(moved)) == pytest.approx(expected, rel=1e-5)


def test_dead_units_and_single_rows_give_no_nan() -> None:
    rows = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    rows[:, 1] = 0.0
    rows.requires_grad_(True)
    value = squared_correlation(rows)
    value.backward()
    assert rows.grad is not None
    assert bool(rows.grad.isfinite().all())
    assert float(squared_correlation(rows[:1].detach())) == 0.0
    assert float(squared_correlation(rows[:, :1].detach())) == 0.0  # no pair of columns


def gram(*vectors: tuple[float, ...]) -> np.ndarray:
    rows = np.array(vectors)
    product: np.ndarray = rows @ rows.T
    return product


@pytest.mark.parametrize(
    ("vectors", "weights"),
    [
        (((2.0, 0.0), (0.0, 2.0)), (0.5, 0.5)),
        (((1.0, 0.0), (3.0, 0.0)), (1.0, 0.0)),  # the shorter one of the same direction
        (((1.0, 0.0), (2.0, 1.0)), (1.0, 0.0)),  # v1.v2 >= |v1|^2
        (((0.0, 0.0), (0.0, 0.0)), (0.5, 0.5)),
        (((1.0, 0.0),), (1.0,)),
    ],
)
def test_weights_by_hand(
    vectors: tuple[tuple[float, ...], ...], weights: tuple[float, ...]
) -> None:
    np.testing.assert_allclose(min_norm_weights(gram(*vectors)), weights, atol=1e-9)


def test_logarithms_have_the_length_of_the_angle_and_touch_the_sphere() -> None:
    points, rows = unit(3, 5, name="points"), unit(7, 5)
    tangents = sphere_log(rows, points)
    angles = torch.acos(points @ rows.T)
    torch.testing.assert_close(tangents.norm(dim=2), angles, atol=1e-4, rtol=1e-4)
    along = (tangents * points[:, None]).sum(dim=2)
    torch.testing.assert_close(along, torch.zeros_like(along), atol=1e-5, rtol=0)


def test_logarithms_at_a_point_and_at_its_antipode_are_finite() -> None:
    """The products of unit vectors along the axes are exactly 1 and -1."""
    axes = torch.eye(3)
    rows = torch.cat([axes, -axes]).requires_grad_()
    tangents = sphere_log(rows, axes)
    tangents.square().sum().backward()
    assert bool(tangents.isfinite().all())
    assert rows.grad is not None
    assert bool(rows.grad.isfinite().all())
    torch.testing.assert_close(tangents.diagonal().T, torch.zeros(3, 3), atol=2e-3, rtol=0)
