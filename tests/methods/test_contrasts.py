"""SimCLR, spectral contrast, FeatARC, FedX and FedSC: losses by hand, and what they compare."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedbench.bench.method import Batch, Client
from fedbench.bench.nn.losses import clipped_spectral_contrast, info_nce, nt_xent, spectral_contrast
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.seeding import generator
from fedbench.bench.testing import tiny_config, tiny_setup, train
from fedbench.methods.featarc import FeatARC
from fedbench.methods.fedsc import correlation_contrast
from fedbench.methods.fedx import relation_gap
from tests.specs import batch_of, client, setup_of

CLIENT = client()


Contrast = Callable[[Tensor, Tensor], Tensor]
OF_NORM: dict[str, Contrast] = {
    "cos": lambda z1, z2: spectral_contrast(F.normalize(z1, dim=1), F.normalize(z2, dim=1)),
    "clip": partial(clipped_spectral_contrast, mu=0.5),
    "none": spectral_contrast,
}
CONTRASTS: list[tuple[str, dict[str, Any], Contrast]] = [
    ("simclr", {"variant": "nt-xent", "temperature": 0.3}, partial(nt_xent, temperature=0.3)),
    ("simclr", {"variant": "info-nce", "temperature": 0.3}, partial(info_nce, temperature=0.3)),
    *(
        ("spectral", {"norm": norm, "num_outputs": outputs, "mu": 0.5}, contrast)
        for outputs in (None, 7)
        for norm, contrast in OF_NORM.items()
    ),
]


@pytest.mark.parametrize(("spec", "fields", "contrast"), CONTRASTS)
def test_the_loss_contrasts_outputs_of_two_views(
    spec: str, fields: dict[str, Any], contrast: Contrast
) -> None:
    setup = setup_of(spec, **{f"method__{name}": value for name, value in fields.items()})
    net, batch = setup.make_net(), batch_of()
    out = setup.method.loss(net, batch, CLIENT)
    h = [net["encoder"](view) for view in batch.views]
    z = [net["projector"](features) for features in h]
    if fields.get("num_outputs"):
        z = [net["output"](row / row.norm(dim=1, keepdim=True)) for row in z]
    torch.testing.assert_close(out.total, contrast(*z))
    torch.testing.assert_close(out.features[1], h[1])


@pytest.mark.parametrize("anchor", ["projector", "backbone-clean"])
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_featarcs_loss_by_hand(anchor: str, norm: str) -> None:
    fields = {"method__anchor": anchor, "method__align_weight": 0.3, "method__temperature": 0.2}
    setup = setup_of("featarc", model__norm=norm, **fields)
    net = setup.make_net().train()
    batch = batch_of(views="abc"[: len(setup.needs.views)])
    views = batch.views
    received = setup.make_net().eval()
    setup.method.before_local(net, setup.client_data(0, "cpu"), CLIENT)
    with torch.no_grad():  # the client trains, what it received stays
        for part in ("encoder", "projector"):
            for value in net[part].parameters():
                value.mul_(1.1)
    out = setup.method.loss(net, batch, CLIENT)
    h = [net["encoder"](view) for view in views[:2]]
    z = [net["projector"](features) for features in h]
    if anchor == "projector":
        anchors = [received["projector"](received["encoder"](view)) for view in views[:2]]
    else:
        anchors = [received["encoder"](views[2])] * 2
    cosines = [F.cosine_similarity(a, b).mean() for a, b in zip(anchors, z, strict=True)]
    align = -(cosines[0] + cosines[1]) / 2
    torch.testing.assert_close(out.total, nt_xent(z[0], z[1], 0.2) + 0.3 * align)
    torch.testing.assert_close(out.parts["align"], (0.3 * align).detach())
    out.total.backward()
    for name, parameter in net.named_parameters():
        assert (parameter.grad is None) == name.startswith("target_"), name


def test_the_releases_anchor_needs_equal_widths() -> None:
    setup = setup_of("featarc")
    method = FeatARC(anchor="backbone-clean", projection_dim=8)
    with pytest.raises(ConfigError, match="width 16"):
        method.build(setup.backbone, setup.spec)


def test_relations_by_hand() -> None:
    """Relations (3/4, 1/4) and (1/4, 3/4) have the mean (1/2, 1/2), which is 0.1438 away."""
    anchors = torch.eye(2)
    # cos a - cos b = ln 3 at temperature 1 for a vector (x, y) with x - y = ln 3, x^2 + y^2 = 1.
    x = (math.log(3) + math.sqrt(2 - math.log(3) ** 2)) / 2
    y = x - math.log(3)
    first, second = torch.tensor([[x, y]]), torch.tensor([[y, x]])
    expected = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert float(relation_gap(first, second, anchors, 1.0, 1.0)) == pytest.approx(
        expected, abs=1e-5
    )


def test_equal_views_and_a_single_anchor_have_no_gap() -> None:
    rows = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    others = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    assert float(relation_gap(rows, rows, others, 0.1, 0.1)) == pytest.approx(0.0, abs=1e-6)
    assert float(relation_gap(rows, others, rows[:1], 0.1, 0.1)) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("anchors", ["batch", "halves"])
def test_the_received_model_is_frozen(anchors: str) -> None:
    setup = setup_of("fedx", method__anchors=anchors)
    net = setup.make_net()
    data = setup.client_data(0, "cpu")
    setup.method.before_local(net, data, CLIENT)
    views = torch.rand(2, 6, *setup.spec.image_shape).unbind()
    others = (torch.rand(6, *setup.spec.image_shape),) if anchors == "batch" else ()
    batch = Batch(views, torch.full((6,), -1), torch.arange(6), second_batch=others)
    before = {name: value.clone() for name, value in net["target_encoder"].named_buffers()}
    out = setup.method.loss(net, batch, CLIENT)
    out.total.backward()
    assert set(out.parts) == {"received", "relations"}
    for name, parameter in net.named_parameters():
        assert (parameter.grad is None) == name.startswith("target_"), name
    for name, value in net["target_encoder"].named_buffers():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize(("own", "expected"), [(1.0, -1.5), (0.5, -1.25), (0.2, -1.1)])
def test_fedscs_loss_by_hand(own: float, expected: float) -> None:
    """-2 + a |R|^2 + 2 (1 - a) tr(R O) for orthonormal pairs: R = I / 2, |R|^2 = tr(R O) = 1/2."""
    eye = torch.eye(2)
    value = correlation_contrast(eye, eye, torch.diag(torch.tensor([1.0, 0.0])), torch.tensor(own))
    assert float(value) == pytest.approx(expected)


def test_at_one_share_of_k_clients_the_mean_gradient_is_that_of_pooled_data() -> None:
    rng = torch.Generator().manual_seed(0)
    parts = [torch.randn(4, 3, generator=rng).double().requires_grad_(True) for _ in range(3)]
    matrices = [part.detach().T @ part.detach() / 4 for part in parts]
    for k, part in enumerate(parts):
        others = torch.stack([m for j, m in enumerate(matrices) if j != k]).mean(dim=0)
        share = torch.tensor(1 / 3).double()
        correlation_contrast(part, part, others, share).backward()
    pooled = torch.cat([part.detach() for part in parts]).requires_grad_(True)
    whole = pooled.T @ pooled / 12
    (whole.square().sum() - 2 * pooled.square().sum() / 12).backward()
    assert pooled.grad is not None
    mine = torch.cat([part.grad for part in parts if part.grad is not None]) / 3
    torch.testing.assert_close(mine, pooled.grad)


def test_matrices_of_clients_add_up_and_the_own_one_is_left_out() -> None:
    setup = setup_of("fedsc", method__augmentation="simclr-m", method__passes=2)
    net, method = setup.make_net().eval(), setup.method
    answers = []
    with torch.no_grad():
        for k in range(3):
            client = Client(k, 0, generator(0, "survey", 0, k))
            answers.append(method.pre_round(net, setup.client_data(k, "cpu"), client))
    for answer in answers:
        matrix = answer["correlation"]
        torch.testing.assert_close(matrix, matrix.T)
        assert float(torch.linalg.eigvalsh(matrix).min()) > -1e-5
        assert float(matrix.trace()) <= 4.0 + 1e-4  # mu
    sums = {name: sum(a[name].double() for a in answers) for name in answers[0]}
    method.server_pre_round(net, sums, None)  # type: ignore[arg-type]
    client = Client(1, 0, torch.Generator(), answers=answers[1])
    method.before_local(net, setup.client_data(1, "cpu"), client)
    expected = (answers[0]["correlation"] + answers[2]["correlation"]) / 2
    torch.testing.assert_close(net.tensor("others.correlation"), expected, atol=1e-5, rtol=1e-4)


def test_its_bytes_are_a_matrix_each_way(tmp_path: Path) -> None:
    """More than FedAvg: d^2 + 1 numbers up; down with the model and again before the training."""
    config = tiny_config("fedsc", federation__num_rounds=1)
    dim = config.method["projection_dim"]
    assert isinstance(dim, int)
    trainer = train(tiny_setup(config), tmp_path)
    clients = config.cohort_size
    up, down = trainer.ledger.up, trainer.ledger.down
    assert up["correlation"] + up["count"] == 4 * clients * (dim**2 + 1)
    assert down["correlations"] == 2 * 4 * clients * dim**2
    assert down["correlation_count"] == 2 * 4 * clients


@pytest.mark.parametrize(("clients", "share"), [(1, 1.0), (2, 0.2)])
def test_a_client_that_is_alone_in_a_round_has_the_plain_loss(clients: int, share: float) -> None:
    setup = setup_of("fedsc")
    net, method = setup.make_net(), setup.method
    matrix = torch.eye(*net.tensor("correlations").shape)
    sums = {"correlation": clients * matrix, "count": torch.tensor([float(clients)])}
    method.server_pre_round(net, sums, None)  # type: ignore[arg-type]
    # So late that the share is at its least, 0.2, but for a client that is alone.
    late = Client(0, 10**6, torch.Generator(), answers={"correlation": matrix})
    method.before_local(net, setup.client_data(0, "cpu"), late)
    assert float(net.tensor("others.own_share")) == pytest.approx(share)
    left = matrix if clients == 2 else torch.zeros_like(matrix)
    torch.testing.assert_close(net.tensor("others.correlation"), left)
