"""SCAFFOLD as an add-on: control variates take the drift of a client out of its gradient."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedbench.bench.method import (
    AddOn,
    Batch,
    Client,
    ClientData,
    ConfigError,
    DataSpec,
    Loss,
    Needs,
    Net,
    RunConfig,
    Server,
    Sharing,
    Upload,
    averaged_parameters,
    nothing_averaged,
    register,
)
from fedbench.bench.nn import Backbone, keep_within_round


@register("scaffold")
class Scaffold(AddOn):
    """Correct local gradients by the difference of the server's and the client's mean gradient.

    Source: Karimireddy et al. 2020, https://arxiv.org/abs/1910.06378, option II. The correction is
    the gradient of a linear term of the loss. A client's new control variate is the mean of its
    uncorrected gradients, which for SGD without momentum and weight decay is option II exactly and
    needs no learning rate. Meaningless for Adam. One further model goes up and one down.

    The server's variate is the mean of all clients' whatever `server.weighting` is, as in the
    paper. A client without a step keeps its own and changes nothing. Sums over clients, and how
    many made a step, are enough for the server. With `model.norm=batch-local` the norms count as
    shared: their gradients are sent and corrected.
    """

    def needs(self) -> Needs:
        """Ask for a plain mean of the control variates."""
        return replace(self.base.needs(), mean_gradients=("scaffold.control",))

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Add both control variates, zero at first, and a sum of gradients for one round."""
        net = self.base.build(backbone, data)
        size = sum(value.numel() for value in self._shared(net))
        if not size:
            raise ConfigError(nothing_averaged(self.base.name, self.name))
        net["scaffold"] = _buffers(control=size, own=size)
        net["scaffold_work"] = _buffers(total=size, steps=1, clients=data.num_clients)
        keep_within_round(net["scaffold_work"])
        return net

    def sharing(self) -> Mapping[str, Sharing]:
        """Average the server's control variate; the client's stays with it."""
        own = {"scaffold.control": Sharing.AVERAGED, "scaffold.own": Sharing.PERSONAL}
        return {**own, **self.base.sharing()}

    def before_local(self, net: Net, data: ClientData, client: Client) -> ClientData:
        """Start the sum of gradients."""
        net.tensor("scaffold_work.total").zero_()
        net.tensor("scaffold_work.steps").zero_()
        return self.base.before_local(net, data, client)

    def chance(self, config: RunConfig) -> Mapping[str, float | str]:
        """Add none: the term is 0."""
        return self.with_terms(config, correction="it is 0")

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Add a term of value 0 whose gradient is the correction."""
        out = self.base.loss(net, batch, client)
        weights = torch.cat([value.flatten() for value in self._shared(net)])
        return out.plus("correction", self._correction(net) @ (weights - weights.detach()))

    def after_step(self, net: Net, out: Loss, client: Client) -> None:
        """Add the uncorrected gradient to the sum."""
        gradients = [value.grad for value in self._shared(net)]
        whole = torch.cat([g.flatten() for g in gradients if g is not None])
        net.tensor("scaffold_work.total").add_(whole - self._correction(net))
        net.tensor("scaffold_work.steps").add_(1)
        self.base.after_step(net, out, client)

    def after_local(self, net: Net, data: ClientData, client: Client) -> Mapping[str, Tensor]:
        """Replace the client's control variate; send the server's plus the change."""
        own = net.tensor("scaffold.own")
        total, steps = net.tensor("scaffold_work.total"), net.tensor("scaffold_work.steps")
        new = torch.where(steps > 0, total / steps.clamp(min=1), own)
        net.tensor("scaffold.control").add_(new - own)
        own.copy_(new)
        return self.base.after_local(net, data, client)

    def server_step(self, net: Net, uploads: Sequence[Upload], server: Server) -> None:
        """Move the server's control variate by the sum of the changes over all clients' number."""
        stepped = sum(upload.num_steps > 0 for upload in uploads)  # those behind the mean change
        share = stepped / len(net.tensor("scaffold_work.clients"))
        with torch.no_grad():
            before = server.before["scaffold.control"]
            net.tensor("scaffold.control").copy_(
                torch.lerp(before, net.tensor("scaffold.control"), share)
            )
        self.base.server_step(net, uploads, server)

    def _shared(self, net: Net) -> Iterator[Tensor]:
        return averaged_parameters(net, self.base.sharing(), before="scaffold")

    def _correction(self, net: Net) -> Tensor:
        return net.tensor("scaffold.control") - net.tensor("scaffold.own")  # (P,)


def _buffers(**sizes: int) -> nn.Module:
    module = nn.Module()
    for name, size in sizes.items():
        module.register_buffer(name, torch.zeros(size))
    return module
