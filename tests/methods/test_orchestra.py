"""Orchestra: loss, stopped gradients, sharing tables and bytes."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedbench.bench import testing
from fedbench.bench.config import ModelConfig
from fedbench.bench.data.batches import Batch, ClientData
from fedbench.bench.method import DataSpec, Loss, Net, Server, Upload
from fedbench.bench.nn.backbones import make_backbone
from fedbench.bench.nn.memory import Memory
from fedbench.bench.system.seeding import generator, scope
from fedbench.methods.orchestra import Orchestra
from tests.specs import client, unit

SPEC = DataSpec((3, 32, 32), 10, 100)


def small(**fields: Any) -> Orchestra:
    given = {
        "hidden_dim": 16,
        "projection_dim": 8,
        "num_global_clusters": 5,
        "num_local_clusters": 4,
        "global_steps": 10,
    }
    return Orchestra.model_validate({**given, **fields})


def make(
    method: Orchestra, norm: str = "group", backbone: str = "resnet8", width: int | None = 4
) -> Net:
    config = ModelConfig.model_validate({"backbone": backbone, "width": width, "norm": norm})
    with scope(0, "init"):
        return method.build(make_backbone(config, 3), SPEC)


def batch_for(method: Orchestra, size: int = 6) -> Batch:
    rng = generator(0, "views")
    views = tuple(torch.randn(size, 3, 8, 8, generator=rng) for _ in method.needs().views)
    return Batch(views, torch.full((size,), -1), torch.arange(size))


def loss_of(method: Orchestra, net: Net, batch: Batch) -> Loss:
    return testing.loss_of(method, net, batch, client(0, 1))


def shaken(net: Net) -> Net:
    """Net whose online and target parts differ, like after some training."""
    rng = generator(0, "shaken")
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=rng) * 0.1)
    return net


def log_softmax(values: list[float]) -> list[float]:
    total = math.log(sum(math.exp(v) for v in values))
    return [v - total for v in values]


@pytest.mark.parametrize("target", [True, False])
@pytest.mark.parametrize("degeneracy", [True, False])
def test_loss_by_hand(target: bool, degeneracy: bool) -> None:
    method = small(target=target, degeneracy=degeneracy, temperature=0.2)
    net = shaken(make(method))
    batch = batch_for(method)
    out = loss_of(method, net, batch)
    turns = torch.randint(4, (6,), generator=generator(0, "client")).tolist()
    prefix = "target_" if target else ""
    clusters = rotation = 0.0
    with torch.no_grad():
        for i in range(6):
            x1, x2 = batch.views[0][i : i + 1], batch.views[1][i : i + 1]
            t1 = net(x1, prefix + "encoder", prefix + "projector")[0]
            z2 = net(x2, "encoder", "projector")[0]
            cosines = [
                [float(F.cosine_similarity(z, c, dim=0)) / 0.2 for c in net.tensor("centroids")]
                for z in (t1, z2)
            ]
            assigned, predicted = map(log_softmax, cosines)
            clusters -= sum(math.exp(a) * p for a, p in zip(assigned, predicted, strict=True)) / 6
            if degeneracy:
                turned = torch.rot90(batch.views[2][i], turns[i], (1, 2)).unsqueeze(0)
                logits = net(turned, "encoder", "projector", "rotation")[0].tolist()
                rotation -= log_softmax(logits)[turns[i]] / 6
    assert float(out.parts["clusters"]) == pytest.approx(clusters, rel=1e-4)
    assert float(out.total.detach()) == pytest.approx(clusters + rotation, rel=1e-4)
    assert ("rotation" in out.parts) is degeneracy


def test_without_a_target_the_online_branch_of_view_1_stops_gradients() -> None:
    """The derivative equals that with the assignment as a given constant."""
    method = small(target=False, degeneracy=False)
    net = shaken(make(method))
    batch = batch_for(method)
    loss_of(method, net, batch).total.backward()
    gradients = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    net.zero_grad()
    with torch.no_grad():
        t1 = F.normalize(net(batch.views[0], "encoder", "projector"), dim=1)
    centroids = net.tensor("centroids")
    scores = F.normalize(net(batch.views[1], "encoder", "projector"), dim=1) @ centroids.T / 0.1
    constant = (t1 @ centroids.T / 0.1).softmax(dim=1)
    (-(constant * scores.log_softmax(dim=1)).sum(dim=1).mean()).backward()
    expected = [p.grad for p in net.parameters() if p.grad is not None]
    assert len(gradients) == len(expected) > 0
    for a, b in zip(gradients, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def statistics(net: Net, part: str) -> Tensor:
    return torch.cat([buffer.flatten() for buffer in net[part].buffers()]).clone()


@pytest.mark.parametrize("seen", [True, False])
def test_online_statistics_see_view_1_only_if_asked(seen: bool) -> None:
    """One pass leaves 0.9 (old) + 0.1 (batch), so a pass of view 1 before view 2 is visible."""
    method = small(online_x1_pass=seen, degeneracy=False)
    net, other = make(method, "batch"), make(method, "batch")
    batch = batch_for(method)
    loss_of(method, net, batch)
    with torch.no_grad():
        for view in batch.views if seen else batch.views[1:]:
            other(view, "encoder", "projector")
    assert torch.equal(statistics(net, "encoder"), statistics(other, "encoder"))
    assert torch.equal(statistics(net, "projector"), statistics(other, "projector"))


def test_after_a_step_the_target_follows_and_the_memory_holds_the_batch() -> None:
    method = small(ema_decay=0.75)
    net = shaken(make(method))
    before = net.tensor("target_encoder.stem.weight").clone()
    Memory.of(net).reset(10)
    out = loss_of(method, net, batch_for(method))
    method.after_step(net, out, client(0, 1))
    moved = 0.75 * before + 0.25 * net.tensor("encoder.stem.weight").detach()
    torch.testing.assert_close(net.tensor("target_encoder.stem.weight"), moved)
    assert torch.equal(Memory.of(net).valid(), out.keep["rows"])
    assert Memory.of(net).images().tolist() == [0, 1, 2, 3, 4, 5]
    torch.testing.assert_close(out.keep["rows"].norm(dim=1), torch.ones(6))


def extras_of(
    method: Orchestra, rows: Tensor, images: Sequence[int] | None = None
) -> dict[str, Tensor]:
    """Extras sent after a round that left these rows in the memory, by default one per image."""
    net = Net({"encoder": torch.nn.Identity(), "memory": Memory(128, rows.shape[1])})
    Memory.of(net).push(rows, torch.tensor(images) if images else torch.arange(len(rows)))
    data = ClientData(torch.zeros(len(rows), 3, 8, 8, dtype=torch.uint8), torch.zeros(len(rows)))
    return dict(method.after_local(net, data, client(0, 1)))


def test_the_server_keeps_its_centroids_when_nothing_comes_up() -> None:
    method = small()
    net = make(method)
    before = net.tensor("centroids").clone()
    server = Server(0, generator(0, "server"), {})
    method.server_step(net, [Upload(0, 1, 1, {}), Upload(1, 0, 0, {})], server)
    assert torch.equal(net.tensor("centroids"), before)
    up = {"centroids": F.normalize(torch.ones(1, 8), dim=1), "min_cluster_size": torch.ones(1)}
    method.server_step(net, [Upload(0, 1, 1, {}), Upload(1, 1, 1, up)], server)
    assert not torch.equal(net.tensor("centroids"), before)
    torch.testing.assert_close(net.tensor("centroids").norm(dim=1), torch.ones(5))


@pytest.mark.parametrize(
    ("n", "sent"), [(0, 0), (1, 1), (2, 1), (3, 1), (4, 2), (15, 7), (16, 8), (60, 8)]
)
def test_at_most_half_as_many_clusters_as_rows(n: int, sent: int) -> None:
    up = extras_of(Orchestra(), unit(n, 4))
    assert len(up.get("centroids", [])) == sent
    assert sorted(up) == (["centroids", "min_cluster_size"] if sent else [])


def test_strict_sends_no_centroid_of_a_single_row() -> None:
    strict = Orchestra(strict_k_anonymity=True)
    assert extras_of(strict, unit(1, 4)) == {}
    for n in (2, 5, 60):
        up = extras_of(strict, unit(n, 4))
        assert float(up["min_cluster_size"]) == n // len(up["centroids"]) >= 2


@pytest.mark.parametrize("strict", [False, True])
def test_a_cluster_counts_images_not_rows(strict: bool) -> None:
    """Eight equal rows of four images are one cluster of 8 rows or, by images, of 4.

    Strict clusters of 10 rows of 5 images are two of 2 and 3 images; by rows they were 5.
    """
    method = Orchestra(strict_k_anonymity=strict, num_local_clusters=2 if strict else 1)
    images = [0, 1, 2, 3, 4] * 2 if strict else [0, 1, 2, 3] * 2
    up = extras_of(method, unit(len(images), 4), images)
    assert float(up["min_cluster_size"]) == (2 if strict else 4)
    if strict:  # made of the newest rows only
        again = extras_of(method, unit(len(images), 4)[5:])
        assert torch.equal(up["centroids"], again["centroids"])


def test_the_ideal_case_sends_every_row() -> None:
    ideal = Orchestra(representations="memory")
    up = extras_of(ideal, unit(5, 4))
    assert torch.equal(up["memory"], unit(5, 4))
    assert float(up["min_cluster_size"]) == 1
    assert extras_of(ideal, unit(0, 4)) == {}
