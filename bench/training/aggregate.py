"""The uploads of a round on their way into the server's vector."""

from collections.abc import Iterator

import torch
from torch import Tensor

from fedbench.bench.config import RunConfig, ServerConfig
from fedbench.bench.method import Aggregator, ConfigError, Mean, Method, Needs, Sharing, writes
from fedbench.bench.method.aggregator import configured, least_cohort
from fedbench.bench.method.clipped_mean import ClippedMean
from fedbench.bench.system.errors import PluginError, expect
from fedbench.bench.system.seeding import generator
from fedbench.bench.training.layout import Binding, Slot, VectorLayout
from fedbench.bench.training.server_optimizers import ServerOptimizer
from fedbench.bench.training.setup import Setup


class ServerUpdate:
    """One round's uploads: averaged tensors for the aggregator, rows for their places.

    Uploads are folded in client-id order, so that sums have the same bits with any number of
    workers. An upload of weight 0 (a client that made no step) is ignored. Memory is what the
    aggregator takes, and the clients' rows.

    With `momentum` the mean is FedNova's: x + (sum p_i a_i) sum p_i (x_i - x) / a_i, for weights
    p_i of sum 1 and a_i = `norm_of_steps`. That is the mean under the weights p_i / a_i, whose
    change is multiplied by (sum p_i a_i) (sum p_i / a_i); averaged buffers are under these weights.

    Source: Wang et al. 2020, https://arxiv.org/abs/2007.07481, sections 4.1 and 5, with
    tau_eff = sum p_i a_i, as its release has it. Weight decay and a proximal term are not in a_i.
    """

    def __init__(
        self,
        layout: VectorLayout,
        device: torch.device | str,
        aggregator: Aggregator,
        momentum: float | None = None,
    ) -> None:
        self._layout, self._device, self._momentum = layout, device, momentum
        self.aggregator = expect(aggregator, Aggregator, "aggregator()")
        self._rows: list[tuple[int, float, Tensor]] = []  # of whom, with what weight
        self._total = 0.0
        self._weights = self._steps = 0.0  # sums of p_i, and of p_i a_i

    def fold(self, client_id: int, weight: float, upload: Tensor, num_steps: int = 1) -> None:
        """Take one client's upload, (upload_size,), which may be overwritten afterwards."""
        if weight <= 0:
            return
        if self._momentum is not None:
            norm = norm_of_steps(num_steps, self._momentum)
            self._weights += weight
            self._steps += weight * norm
            weight /= norm
        upload = upload.to(self._device)
        self.aggregator.fold(client_id, weight, upload[: self._layout.num_averaged])
        self._total += weight
        if self._layout.rows:
            self._rows.append((client_id, weight, upload[self._layout.num_averaged :].clone()))

    def apply(self, theta: Tensor, optimizer: ServerOptimizer) -> None:
        """Update the server's vector, (server_size,), in place.

        Trained tensors and mean-rows go through the optimizer; averaged buffers become the
        aggregator's result and own-rows the client's. If all weights are 0, nothing changes, but
        for the noise of client-level privacy.
        """
        if self._total == 0 and not isinstance(self.aggregator, ClippedMean):
            return
        trained, averaged = self._layout.num_trained, self._layout.num_averaged
        result = expect(self.aggregator.result(), Tensor, "an aggregator's result()")
        if result.shape != (averaged,):
            got = list(result.shape)
            raise PluginError(f"an aggregator's result() must be of shape [{averaged}] (got {got})")
        result = result.double()
        # A running variance is no weight: a step with momentum could make it negative.
        theta[trained:averaged].copy_(result[trained:])
        tables = self._set_rows(theta)
        spans = [slice(0, trained), *(slice(slot.start, slot.stop) for slot in tables)]
        # One step over all of it: adam's moments lie in one vector, in this order.
        changes = [result[:trained] - theta[:trained].double()]
        changes += [change / self._total for change in tables.values()]
        if self._momentum is not None:
            scale = self._steps / self._weights * (self._total / self._weights)
            changes = [change * scale for change in changes]
        joined = torch.cat([theta[span] for span in spans])
        optimizer.step(joined, torch.cat(changes))
        for span, part in zip(spans, joined.split([len(c) for c in changes]), strict=True):
            theta[span].copy_(part)

    def _set_rows(self, theta: Tensor) -> dict[Slot, Tensor]:
        """Put own rows in place; return the weighted change of each table of mean-rows, float64."""
        tables = {
            slot: torch.zeros(slot.size, dtype=torch.float64, device=theta.device)
            for slot in self._layout.rows
            if slot.rule is Sharing.MEAN_ROW
        }
        skip = self._layout.num_averaged
        for client_id, weight, rows in self._rows:
            for slot, row, place in self._layout.row_places(client_id):
                sent = rows[place.start - skip : place.stop - skip]
                if slot.rule is Sharing.MEAN_ROW:
                    moved = (sent.double() - theta[row].double()) * weight
                    tables[slot][row.start - slot.start : row.stop - slot.start] = moved
                else:
                    theta[row].copy_(sent)
        return tables


def norm_of_steps(steps: int, momentum: float) -> float:
    """Return how much `steps` > 0 local steps of SGD with momentum in [0, 1) move a client.

    The sum over its gradients of the factors that they have in its change, over the learning rate:
    the number of steps without momentum.

    Source: Wang et al. 2020, section 4.1: (1 - momentum^(steps - s)) / (1 - momentum) for the
    gradient of step s, counted from 0.

    >>> norm_of_steps(3, 0.0), norm_of_steps(2, 0.5)  # the first gradient counts 1.5, the second 1
    (3.0, 2.5)
    """
    missing = momentum * (1 - momentum**steps) / (1 - momentum)
    return (steps - missing) / (1 - momentum)


def server_update(setup: Setup, binding: Binding, index: int) -> ServerUpdate:
    """Return the empty update of a round, with the method's aggregator."""
    held = binding.server.data[: binding.layout.num_averaged]
    default, privacy = configured(setup.config.server), setup.config.privacy
    if (clip := privacy.clip) is not None:
        clients = setup.participation(index) * setup.config.data.num_clients
        rng = generator(setup.config.seed, "privacy", index)
        default = ClippedMean(held, clip, privacy.noise_multiplier * clip, clients, rng)
    elif isinstance(default, Mean):
        default = _mean(setup, binding, index)
    aggregator = setup.method.aggregator(default, held, index)
    by_steps = setup.config.server.weighting == "steps"
    momentum = setup.config.client.momentum if by_steps else None
    return ServerUpdate(binding.layout, held.device, aggregator, momentum)


def _mean(setup: Setup, binding: Binding, index: int) -> Mean:
    method, alike = setup.method, setup.needs.mean_gradients
    slots = {slot.name: slot for slot in binding.layout.averaged}
    spans = {name: slice(slot.start, slot.stop) for name, slot in slots.items()}
    unweighted = [spans[name] for name in alike]
    if not writes(method, "weigh"):
        return Mean(unweighted)
    # What each client adds the same to is no tensor of its model: a control variate.
    names = [name for name in slots if name not in alike]
    received = {name: binding.net.tensor(name).detach() for name in names}

    def weigh(upload: Tensor) -> Iterator[tuple[slice, float]]:
        sent = {name: slots[name].of(upload) for name in names}
        for name, factor in method.weigh(sent, received, index).items():
            yield spans[name], factor

    return Mean(unweighted, weigh)


def declared_aggregator(
    method: Method, server: ServerConfig, default: Aggregator | None = None
) -> Aggregator:
    """Return the aggregator of a method's rounds, to read what it declares."""
    made = method.aggregator(default or configured(server), torch.empty(0), 0)
    return expect(made, Aggregator, "aggregator()")


def check_aggregator(config: RunConfig, method: Method, needs: Needs) -> None:
    """Refuse an aggregator beside what relies on a mean, or on another use of single uploads.

    Raises:
        ConfigError: naming both; or for a cohort of which Krum promises nothing.
    """
    server, default = config.server, configured(config.server)
    used = declared_aggregator(method, server, default)
    if used is default and server.aggregator == "mean":
        return
    if used is not default and server.aggregator != "mean":
        raise ConfigError(
            f"server.aggregator: must be mean for {config.spec!r}, which aggregates by"
            f" {type(used).__name__} (got {server.aggregator!r})"
        )
    least, cohort = least_cohort(server.num_byzantine), config.cohort_size
    if server.aggregator == "krum" and cohort < least:
        raise ConfigError(
            f"server.num_byzantine: krum needs a cohort of 2 f + 3 = {least} clients (got f ="
            f" {server.num_byzantine} for {cohort}); lower it, or raise federation.participation"
        )
    rules = method.sharing().values()
    conflicts = {
        "one client holds all the data": needs.pooled,
        "nothing is averaged": Sharing.AVERAGED not in rules,
        "the server combines single uploads by itself": needs.single_uploads,
        "each client's part of the mean is scaled": writes(method, "weigh"),
        "a control variate is a mean over all clients": needs.mean_gradients,
        "statistics of all clients are summed before a round": needs.pre_round,
        "rows are averaged over the cohort": Sharing.MEAN_ROW in rules,
        "privacy.clip bounds a client's part of a mean": config.privacy.clip,
    }
    if why := next((why for why, holds in conflicts.items() if holds), ""):
        raise ConfigError(
            f"{config.spec!r}: {type(used).__name__} cannot take the place of the mean, since"
            f" {why}; leave one of the two out"
        )


def optimized_size(layout: VectorLayout) -> int:
    """Count numbers that go through the server's optimizer: trained averaged ones and mean-rows."""
    return layout.num_trained + sum(s.size for s in layout.rows if s.rule is Sharing.MEAN_ROW)
