"""The contract fails for each fault that it checks for."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedbench.bench.data.batches import Batch, ClientData
from fedbench.bench.method import (
    Client,
    DataSpec,
    Extra,
    Loss,
    Needs,
    Net,
    Server,
    Sharing,
    Upload,
    registry,
)
from fedbench.bench.nn.backbones import Backbone
from fedbench.bench.system.errors import ConfigError, PluginError
from fedbench.bench.testing import MethodContract
from fedbench.methods.simclr import SimCLR
from tests.bench.execution.test_audit import Memory


class DeadTensor(SimCLR):
    """Has a part that the loss does not use."""

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        net = super().build(backbone, data)
        net["unused"] = nn.Linear(2, 2)
        return net


class Impure(SimCLR):
    """Edits the net inside the loss."""

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        with torch.no_grad():
            net.tensor("projector.0.weight").mul_(0.9)
        return super().loss(net, batch, client)


class DeadPattern(SimCLR):
    """Misspells a part in its table."""

    def sharing(self) -> Mapping[str, Sharing]:
        return {"projectr.*": Sharing.PERSONAL, "*": Sharing.AVERAGED}


class Leaky(SimCLR):
    """Sends a tensor up that it declared to be personal."""

    def needs(self) -> Needs:
        return Needs(views=super().needs().views, min_batch=2, extras={"memory": Extra()})

    def sharing(self) -> Mapping[str, Sharing]:
        return {"projector.*": Sharing.PERSONAL, "*": Sharing.AVERAGED}

    def after_local(self, net: Net, data: ClientData, client: Client) -> Mapping[str, Tensor]:
        return {"memory": net.tensor("projector.0.weight")}


class Hoarder(Memory):
    """Averages a buffer that holds single projections."""


class NoSum(SimCLR):
    """Declares a sum and reads the largest upload."""

    def needs(self) -> Needs:
        declared = {"size": Extra(summed=True)}
        return Needs(views=super().needs().views, min_batch=2, extras=declared)

    def after_local(self, net: Net, data: ClientData, client: Client) -> Mapping[str, Tensor]:
        return {"size": torch.tensor([client.id + 1.0])}

    def server_step(self, net: Net, uploads: Sequence[Upload], server: Server) -> None:
        net.tensor("projector.0.weight").data.add_(max(float(u.extras["size"]) for u in uploads))


class Forgetful(SimCLR):
    """Keeps state outside the net."""

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        _STEPS.append(0)
        out = super().loss(net, batch, client)
        return out.plus("drift", out.total * (len(_STEPS) % 5))


class OneImage(SimCLR):
    """Claims to work on a batch of one image and does not."""

    def needs(self) -> Needs:
        return Needs(views=super().needs().views, min_batch=1)

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        if len(batch.labels) < 2:
            raise ZeroDivisionError
        return super().loss(net, batch, client)


_STEPS: list[int] = []


@pytest.mark.parametrize(
    ("cls", "test", "error"),
    [
        (DeadTensor, "test_the_loss_reaches_every_trained_tensor", AssertionError),
        (Impure, "test_the_loss_is_pure", AssertionError),
        (DeadPattern, "test_the_sharing_table_is_complete", PluginError),
        (Leaky, "test_private_tensors_stay_where_they_are", AssertionError),
        (Hoarder, "test_what_reveals_single_images_is_declared", PluginError),
        (NoSum, "test_declared_sums_are_all_that_the_server_needs", AssertionError),
        (Forgetful, "test_an_interrupted_run_ends_with_the_same_bits", AssertionError),
        (OneImage, "test_clients_of_any_size_work", ZeroDivisionError),
    ],
)
def test_broken_methods_fail(
    cls: type[SimCLR],
    test: str,
    error: type[Exception],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry.entries()))
    registry.register("broken")(cls)
    contract = MethodContract()
    contract.spec = "broken"
    check: Any = getattr(contract, test)
    takes_folder = "tmp_path" in check.__func__.__code__.co_varnames[:2]
    with pytest.raises(error):
        check(tmp_path) if takes_folder else check()


def test_a_search_space_with_a_field_that_is_gone_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, contract = tmp_path / "simclr.yaml", MethodContract()
    monkeypatch.setattr("fedbench.bench.testing.space_file", lambda name: file)
    contract.spec = "simclr"
    space = "method: simclr\nspace: {{method.{}: {{type: float, low: 0.1, high: 1.0}}}}\n"
    file.write_text(space.format("temperature"))
    contract.test_its_search_space_has_fields_that_are_there()
    file.write_text(space.format("gone"))
    with pytest.raises(ConfigError, match=r"simclr\.yaml.*method\.gone"):
        contract.test_its_search_space_has_fields_that_are_there()
