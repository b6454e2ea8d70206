"""Parts of a run that follow from configuration and data, the same in every process."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedbench.bench.config import RunConfig
from fedbench.bench.data.batches import ClientData
from fedbench.bench.data.datasets import Dataset
from fedbench.bench.data.labels import held_out, hide_all, visible_labels
from fedbench.bench.data.partition import Partition
from fedbench.bench.data.rotated import rotated_images
from fedbench.bench.method import DataSpec, Labels, Method, Needs, Net, RoundPlan, Sharing
from fedbench.bench.method.sharing import rule_of
from fedbench.bench.nn.backbones import Backbone, check_output, make_backbone, with_start
from fedbench.bench.system.errors import ConfigError, PluginError, expect
from fedbench.bench.system.seeding import generator, scope
from fedbench.bench.training.layout import Binding, VectorLayout

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Setup:
    """A run before its first round.

    Attributes:
        config, method, dataset: the configuration, the method built from it, images and labels.
        client_partition: each client's images.
        partition: the images that each client trains on: its own, or all of them at one client.
        images: training images as clients see them, uint8 (N, C, H, W): rotated under such a shift.
        known_labels: training labels that exist, (N,), -1 where hidden: all of them, or the share
            `data.label_fraction` of each client's. Probes train on these.
        labels: the known labels that the method may see, (N,), -1 where hidden.
        backbone, spec: makes encoders, and describes the data, for `Method.build`.
        transfer: other data sets that the encoder is probed on.
    """

    config: RunConfig
    method: Method
    dataset: Dataset
    client_partition: Partition
    partition: Partition
    images: np.ndarray
    known_labels: np.ndarray
    labels: np.ndarray
    backbone: Backbone
    spec: DataSpec
    transfer: tuple[Dataset, ...] = ()

    @classmethod
    def of(
        cls, config: RunConfig, dataset: Dataset, client_partition: Partition, method: Method
    ) -> Self:
        """Return the setup of a configuration and its method, on a data set and its partition.

        Raises:
            FedbenchError: if images, settings or first weights do not fit each other.
        """
        needs, fraction = method.needs(), config.data.label_fraction
        partition = client_partition.pooled() if needs.pooled else client_partition
        known = np.asarray(dataset.train_labels)
        if fraction:
            clients = [client_partition.client(k) for k in range(client_partition.num_clients)]
            known = visible_labels(known, clients, fraction, config.seed)
        seen = needs.labels in (Labels.ALL, Labels.ONLY) or (
            fraction and needs.labels is not Labels.NONE
        )
        labels = known if seen else hide_all(known)
        channels, *size = dataset.image_shape
        backbone = make_backbone(config.model, channels, (size[0], size[1]))
        check_output(backbone, config.model.backbone)
        setup = cls(
            config=config,
            method=method,
            dataset=dataset,
            client_partition=client_partition,
            partition=partition,
            images=rotated_images(dataset, client_partition),
            known_labels=known,
            labels=labels,
            backbone=with_start(backbone, config.model),
            spec=DataSpec(
                dataset.image_shape,
                dataset.num_classes,
                partition.num_clients,
                labelled=bool((labels >= 0).any()),
            ),
        )
        setup._check_labels()
        return setup

    def _check_labels(self) -> None:
        """Refuse to measure or train by labels that do not exist."""
        if (self.dataset.train_labels >= 0).all():
            return
        protocols = self.config.evaluation.protocols
        learns = self.needs.labels in (Labels.SOME, Labels.ALL, Labels.ONLY)
        if learns and not self.spec.labelled:
            raise ConfigError(
                f"{self.config.spec!r} learns from labels, but no training image of"
                f" {self.dataset.name} has one; choose a method without labels"
            )
        if protocols and not len(self.probed):
            raise ConfigError(
                f"evaluation.protocols={','.join(protocols)}: they learn from labelled images, but"
                f" none that a client holds in {self.dataset.name} has a label; set"
                " evaluation.protocols=[]"
            )

    @cached_property
    def needs(self) -> Needs:
        """What the method declares."""
        return self.method.needs()

    def make_net(self, *, last: bool = False) -> Net:
        """Return the net before the first round, on the CPU; all processes get the same weights.

        The weights are drawn once, and copied; the `last` one leaves none here that takes memory.
        """
        net = self._net
        if not last:
            return deepcopy(net)
        del vars(self)["_net"]
        return net

    def with_other(self, **parts: Any) -> Self:
        """Return a setup with some parts replaced, and the same net before the first round."""
        other = replace(self, **parts)
        vars(other)["_net"] = self.make_net()
        return other

    @cached_property
    def _net(self) -> Net:
        # The encoder has a seed apart, so that under one seed all methods start from the same one
        # and their differences are paired.
        with scope(self.config.seed, "init"):
            net = self.method.build(replace(self.backbone, seed=self.config.seed), self.spec)
        expect(net, Net, "build()")
        for part in ("encoder", *self.needs.encoders.values()):
            if part not in net:
                raise PluginError(f"method {self.method.name!r}: build() returned no part {part!r}")
        net.drop_counters()
        return net

    def sharing(self, net: Net) -> Mapping[str, Sharing]:
        """Return the method's sharing table under the configured norm policy.

        With `batch-local` every tensor of a batch norm that would be averaged stays with its client
        (Li et al. 2021, FedBN, https://arxiv.org/abs/2102.07623).
        """
        table = expect(self.method.sharing(), Mapping, "sharing()")
        if self.config.model.norm != "batch-local":
            return table
        local = {}
        for path, module in net.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                for leaf in module.state_dict():
                    if rule_of(f"{path}.{leaf}", table) is Sharing.AVERAGED:
                        local[f"{path}.{leaf}"] = Sharing.PERSONAL
        return {**local, **table}

    def layout(self, net: Net) -> VectorLayout:
        """Return the layout of the net's tensors and mark the parts that only the server holds.

        Raises:
            ConfigError: if `model.trainable` leaves clients nothing to train.
        """
        layout = VectorLayout.of(net, self.sharing(net))
        for slot in layout.rows:
            if slot.shape[0] != self.spec.num_clients:
                raise PluginError(
                    f"tensor {slot.name!r} is {slot.rule} but has {slot.shape[0]} rows for"
                    f" {self.spec.num_clients} clients"
                )
        slots = (*layout.server, *layout.personal)
        if layout.frozen and not any(slot.trainable for slot in slots):
            raise ConfigError(
                f"model.trainable={self.config.model.trainable}: clients of {self.config.spec!r}"
                " have nothing to train but what it freezes; set last:N or all"
            )
        here = {slot.part for slot in slots if slot.rule is not Sharing.SERVER_ONLY}
        net.remote = frozenset(slot.part for slot in slots) - here
        return layout

    def plan(self, index: int) -> RoundPlan:
        """Return the method's plan of a round, counted from 0, preparatory rounds included."""
        return self.method.plan_round(index, RoundPlan(self.config.client.local_epochs))

    def pool(self, plan: RoundPlan) -> Ids:
        """Return the clients that a round with this plan may draw, ascending; all have images."""
        pool = np.flatnonzero(self.partition.sizes > 0)
        if plan.cohort != "labelled":
            return pool
        seen = [(self.labels[self.partition.client(k)] >= 0).any() for k in pool.tolist()]
        return pool[np.array(seen, np.bool_)]

    def cohort(self, index: int, plan: RoundPlan | None = None) -> list[int]:
        """Return the clients that take part in a round, ascending, in every process the same.

        `plan` None = as the method plans the round.
        """
        plan = plan or self.plan(index)
        pool = self.pool(plan)
        if plan.cohort != "all":
            pool = self.drawn(pool, index, self.config.cohort_size)
        cohort: list[int] = pool.tolist()
        return cohort

    def drawn(self, pool: Ids, index: int, size: int) -> Ids:
        """Return the clients of `pool` that a round draws, ascending: `size` of them.

        Under client-level privacy the draws are independent, since that is what is accounted for.
        They follow from the round alone, so that any process can ask for any round.
        """
        rng = generator(self.config.seed, "cohort", index)
        if self.config.privacy.clip is not None:
            taken = torch.rand(len(pool), generator=rng) < self.config.federation.participation
            return np.compress(taken.numpy(), pool)
        return np.sort(pool[torch.randperm(len(pool), generator=rng).numpy()[:size]])

    def participation(self, index: int) -> float:
        """Return the probability that a client takes part in a round with client-level privacy."""
        everybody = self.plan(index).cohort == "all"
        return 1.0 if everybody else self.config.federation.participation

    def bound(self, device: torch.device | str = "cpu") -> Binding:
        """Return the net before the first round as a view of vectors on a device."""
        net = self.make_net()
        return self.layout(net).bind(net, device)

    def client_data(
        self, client_id: int, device: torch.device | str, images: Tensor | None = None
    ) -> ClientData:
        """Return the images that one client trains on, and their visible labels, on a device.

        `images` are all training images on that device, if they lie there.
        """
        chosen = self.partition.client(client_id)
        if self.needs.labels is Labels.ONLY:
            chosen = chosen[self.labels[chosen] >= 0]
        labels = torch.from_numpy(self.labels[chosen]).to(device)
        if images is not None:
            return ClientData(images[torch.tensor(chosen, device=device)], labels)
        return ClientData(torch.from_numpy(self.images[chosen]).to(device), labels)

    @property
    def probed(self) -> np.ndarray:
        """Positions of the training images that protocols learn from, ascending.

        Those of the clients whose labels exist, as the clients see them, or the held-out ones.
        """
        config = self.config
        if config.evaluation.labels_from == "held-out":
            labels = self.dataset.train_labels
            outside = held_out(labels, config.data.held_out, config.seed)
            return outside[labels[outside] >= 0]
        held: np.ndarray = np.sort(self.client_partition.indices)
        known: np.ndarray = held[self.known_labels[held] >= 0]
        return known

    @property
    def evaluate_on_clients(self) -> bool:
        """True if encoders differ between clients, so that each of them is evaluated."""
        local_norm = self.config.model.norm == "batch-local"
        return not self.needs.pooled and (local_norm or self.needs.evaluate_on == "clients")


def least_batch(config: RunConfig, needs: Needs) -> int:
    """Return the smallest batch to train on; a batch norm needs two examples with every method."""
    return max(needs.min_batch, 2 if config.model.mixes_examples else 1)


def num_batches(images: Ids, config: RunConfig, needs: Needs) -> Ids:
    """Return the local steps of an epoch for clients with so many images, (K,)."""
    client, least = config.client, least_batch(config, needs)
    if client.batch_size < least:
        return np.zeros_like(images)
    # Must count as `ClientData.batches` yields; a test compares the two.
    incomplete = images % client.batch_size >= least
    return images // client.batch_size + (incomplete if client.keep_last_batch else 0)
