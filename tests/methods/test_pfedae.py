"""pFedAE: three gradient modes, exact traffic, the server's step, tensors of each side."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedbench.bench.data.batches import Batch
from fedbench.bench.method import Client, Net, RoundPlan, Server, Upload
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.seeding import generator
from fedbench.bench.testing import tiny_config, tiny_setup, train
from fedbench.bench.training.client import ClientRunner, Task
from fedbench.bench.training.setup import Setup
from fedbench.methods.pfedae import PFedAE
from tests.specs import client

CPU = torch.device("cpu")
CLIENT = client()
X = torch.rand(6, 1, 8, 8, generator=generator(0, "images"))
BATCH = Batch((X,), torch.full((6,), -1))


def setup_of(gradient: str = "split", **values: Any) -> Setup:
    return tiny_setup(tiny_config("pfedae", method__gradient=gradient, **values))


def client_net(gradient: str) -> tuple[Setup, Net]:
    """Net of a client, with the server's parts frozen."""
    setup = setup_of(gradient)
    return setup, setup.bound().net.train()


def gradients(gradient: str) -> dict[str, Tensor]:
    setup, net = client_net(gradient)
    setup.method.loss(net, BATCH, CLIENT).total.backward()
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def test_split_and_ship_have_the_gradient_of_one_network() -> None:
    """Freezing the server's parts does not change the gradients of the others."""
    setup = setup_of()
    free = setup.make_net().train()
    z = free["encoder"](X)
    served = free["surrogate_encoder"](free["decoder"](z))
    F.mse_loss(free["surrogate_decoder"](served), X).backward()
    split, ship = gradients("split"), gradients("ship")
    assert set(split) == set(ship)
    assert {name.split(".")[0] for name in split} == {"encoder", "surrogate_decoder"}
    for name, value in split.items():
        expected = free.get_parameter(name).grad
        assert expected is not None
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-8)
        torch.testing.assert_close(ship[name], expected, rtol=1e-5, atol=1e-8)


def test_ste_by_hand() -> None:
    """d loss / dz is replaced by d loss / dz'; the client's decoder has the exact gradient."""
    setup, net = client_net("ste")
    out = setup.method.loss(net, BATCH, CLIENT)
    out.total.backward()
    _, other = client_net("ste")
    z = other["encoder"](X)
    with torch.no_grad():
        served = other["surrogate_encoder"](other["decoder"](z))
    served.requires_grad_(True)
    loss = F.mse_loss(other["surrogate_decoder"](served), X)
    loss.backward()
    assert out.total.item() == loss.item()
    z.backward(served.grad)
    for name, value in other.named_parameters():
        if value.requires_grad:
            torch.testing.assert_close(net.get_parameter(name).grad, value.grad)


@pytest.mark.parametrize(("gradient", "per_number"), [("split", 16), ("ste", 8)])
def test_the_meter_counts_every_latent_and_gradient(
    gradient: str, per_number: int, tmp_path: Path
) -> None:
    """A client's round takes 16 L E N_k bytes, half of that with `ste`, equal in each direction.

    80 images over 4 clients: N_k = 20; L = 16, E = 3; two rounds.
    """
    setup = setup_of(gradient, client__local_epochs=3, client__batch_size=8)
    trainer = train(setup, tmp_path)
    one_way = per_number // 2 * 16 * 3 * 20 * 4 * 2
    assert trainer.ledger.up == trainer.ledger.down == {"activations": one_way}
    assert sum(r.bytes_up + r.bytes_down for r in trainer.history) == 2 * one_way


def test_shipped_parts_are_counted_and_change_nothing_else(tmp_path: Path) -> None:
    """`ship` sends the server's parts down and each latent of the last epoch up, 4 L N_k bytes."""
    values = {"client__local_epochs": 2, "client__batch_size": 8}
    split = train(setup_of("split", **values), tmp_path / "split")
    ship = train(setup_of("ship", **values), tmp_path / "ship")
    assert ship.ledger.up == {"activations": 4 * 16 * 20 * 4 * 2}
    size = sum(
        4 * value.numel()
        for name, value in ship.binding.net.state_dict().items()
        if name.startswith(("decoder.", "surrogate_encoder."))
    )
    assert sum(ship.ledger.down.values()) == size * 4 * 2
    for name, value in split.binding.net.state_dict().items():
        if name.startswith(("decoder.", "surrogate_encoder.")):  # also after the server's steps
            torch.testing.assert_close(value, ship.binding.net.tensor(name), rtol=1e-4, atol=1e-6)


def test_the_server_gets_the_latents_of_the_last_epoch(tmp_path: Path) -> None:
    """They come in the order of the batches; those of earlier epochs are discarded."""
    setup = setup_of(client__local_epochs=2, client__batch_size=8, client__lr=0.01)
    seen: list[Tensor] = []

    class Watcher(PFedAE):
        def after_step(self, net: Net, out: Any, client: Client) -> None:
            seen.append(out.keep["z"])

    object.__setattr__(setup, "method", Watcher())
    runner = ClientRunner(setup, CPU, tmp_path)
    vector = runner.binding.server.data.clone()
    trained = runner.run(Task(1, 0, RoundPlan(2)), vector, torch.empty(0))
    assert [len(z) for z in seen] == [8, 8, 4, 8, 8, 4]
    assert torch.equal(trained.extras["activations"], torch.cat(seen[3:]))
    assert set(trained.parts) == {"latent_gap"}


def server_of(round_index: int = 0) -> Server:
    return Server(round_index, generator(0, "server"), {})


def test_a_single_server_step_is_adam_on_the_mean_error() -> None:
    setup = setup_of()
    method = PFedAE(server_steps="single", server_lr=0.02, server_batch_size=3)
    net, other = setup.make_net(), setup.make_net()
    latents = [torch.randn(n, 16, generator=generator(0, "z", n)) for n in (4, 3)]
    uploads = [Upload(k, 4, 1, {"activations": z}) for k, z in enumerate(latents)]
    server = server_of()
    method.server_step(net, [*uploads, Upload(9, 0, 0, {})], server)
    trained = [*other["decoder"].parameters(), *other["surrogate_encoder"].parameters()]
    adam = torch.optim.Adam(trained, lr=0.02)
    z = torch.cat(latents)
    loss = F.mse_loss(other["surrogate_encoder"](other["decoder"](z)), z)
    loss.backward()
    adam.step()
    assert server.log["server_loss"] == pytest.approx(loss.item(), rel=1e-5)
    for name, value in net.named_parameters():
        # Each number moves by about 0.02; a gradient near 0 makes its share of that uncertain.
        torch.testing.assert_close(value, other.get_parameter(name), rtol=0, atol=1e-3)


def test_the_latent_width_and_its_errors() -> None:
    setup = setup_of(method__latent_dim=5)
    assert setup.make_net()["encoder"](X).shape == (6, 5)
    with pytest.raises(ConfigError, match="decoder_width"):
        setup_of(method__decoder_width=3).make_net()
    with pytest.raises(ConfigError, match="group norm"):
        setup_of(model__norm="batch", model__width=3).make_net()
