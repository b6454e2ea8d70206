"""Orchestra: clients and server cluster together; besides weights only centroids leave a client."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedbench.bench.method import (
    Batch,
    Client,
    ClientData,
    DataSpec,
    Extra,
    Loss,
    Method,
    Needs,
    Net,
    RoundPlan,
    RunConfig,
    Server,
    Sharing,
    Size,
    Upload,
    register,
    rotate90,
)
from fedbench.bench.nn import (
    TARGET_ENCODER,
    Backbone,
    ClusterBudget,
    Memory,
    add_targets,
    cluster_globally,
    cluster_locally,
    cluster_privately,
    ema_update,
    has_batch_norm,
    projector,
    random_units,
    restored_buffers,
)


@register("orchestra")
class Orchestra(Method):
    """Two views of an image should fall into the same global clusters.

    A client keeps its newest target projections in a memory that never leaves it, and sends the
    centroids of local clusters; the server clusters these into global centroids. A round 0 without
    training makes the first ones.

    Source: Lubana et al. 2022, https://arxiv.org/abs/2205.11506, algorithms 1 and 2, and its
    release, followed where they differ: temperature, augmented target input, evaluation of the
    online encoder, and the cross entropy of soft assignments, where equation 3 has an argmax and
    algorithm 1, line 14, a minus too many; turns are predicted from the projection, which is not
    brought to unit length. Cluster numbers: table 2. Deviations: the memory starts empty, holds no
    more rows than the client has images, and is not uploaded; it is clustered into at most half as
    many clusters as it has rows; round 0 fills it by one batch; the target moves after each step,
    not before the next pass (see `methods.byol`); the size of the smallest cluster goes up as well
    (4 bytes), for the log. What table 7 calls local-DP is `representations: private`; it clusters
    one projection of each image, made by the net as it was received: in the memory an image may
    stand twice, and each row depends on all images that the net was trained on, so that neither
    could be given an epsilon. It covers the centroids; the weights go up unprotected.
    """

    num_local_clusters: Size = Field(8, description="L; the paper: 8, CIFAR-100 16")
    representations: Literal["centroids", "memory", "private", "random"] = Field(
        "centroids",
        description="what goes up; memory: the rows themselves, the ideal case; private: centroids"
        " under differential privacy; random: unit vectors without information, a control",
    )
    epsilon: float = Field(
        1.0, gt=0, le=100, description="private: budget of a client's images in one round"
    )
    delta: float = Field(1e-3, gt=0, lt=1, description="private: delta of that budget")
    strict_k_anonymity: bool = Field(
        False, description="every centroid stands for n // L >= 2 images, each with its newest row"
    )
    sinkhorn_strength: float = Field(25.0, gt=0, le=300, description="inverse regulariser")
    local_iterations: int = Field(5, ge=1, description="iterations of local clustering")
    global_steps: int = Field(500, ge=1, description="steps of global clustering, per round")
    global_lr: float = Field(0.01, gt=0, description="learning rate of global clustering")
    global_momentum: float = Field(0.9, ge=0, lt=1, description="momentum of global clustering")
    global_weight_decay: float = Field(1e-4, ge=0, description="weight decay of global clustering")
    num_global_clusters: int = Field(
        32, ge=2, le=16_384, description="G; the paper: 32, CIFAR-100 256"
    )
    memory_size: int = Field(
        128, ge=2, le=65_536, description="most projections that a client clusters"
    )
    temperature: float = Field(0.1, gt=0, description="softmax divisor; the paper's text has none")
    ema_decay: float = Field(0.996, ge=0, le=1, description="share of the old target kept")
    augmentation: Literal["orchestra-o", "simclr-m"] = Field(
        "orchestra-o", description="how views are made"
    )
    target_view: Literal["view-1", "plain"] = Field(
        "view-1", description="the target's input; plain: the image itself, as in the paper's text"
    )
    target: bool = Field(True, description="false: the online parts take the target's place")
    degeneracy: bool = Field(True, description="predict quarter turns of a third view as well")
    online_x1_pass: bool = Field(True, description="online batch norms see view 1 too")
    hidden_dim: Size = Field(512, description="width of the projector's hidden layer")
    projection_dim: Size = Field(512, description="width of projections and centroids")

    def needs(self) -> Needs:
        """Ask for the target's view, the other one, a third to be turned, and a round 0.

        Algorithm 2 returns the target, the release evaluates the online encoder; both are judged.
        """
        suffixes = ("-1", "-2") if self.augmentation == "orchestra-o" else ("", "")
        first, second = (self.augmentation + suffix for suffix in suffixes)
        target = first if self.target_view == "view-1" else "plain"
        turned = (first,) if self.degeneracy else ()
        sizes = {"min_cluster_size": Extra()}
        extras = {
            "centroids": {"centroids": Extra(group_size="min_cluster_size"), **sizes},
            "memory": {"memory": Extra(per_sample=True), **sizes},
            "private": {"centroids": Extra(budget=ClusterBudget(self.epsilon, self.delta))},
            "random": {"centroids": Extra()},
        }
        return Needs(
            views=(target, second, *turned),
            encoders=TARGET_ENCODER if self.target else {},
            preparatory_rounds=1,
            extras=extras[self.representations],
            capturable=True,
        )

    def build(self, backbone: Backbone, data: DataSpec) -> Net:
        """Make online parts, their targets, classifier of turns, centroids, and the memory."""
        if self.degeneracy:
            data.require_square(self.name, "method.degeneracy=false")
        dim = self.projection_dim
        head = projector(backbone, self.hidden_dim, dim, normed=True, out_bias=False)
        net = Net({"encoder": backbone.make(), "projector": head})
        if self.target:
            add_targets(net, "encoder", "projector")
        if self.degeneracy:
            net["rotation"] = nn.Linear(dim, 4)
        net["memory"] = Memory(self.memory_size, dim)
        start = torch.randn(self.num_global_clusters, dim)
        net.register_buffer("centroids", F.normalize(start, dim=1))
        return net

    def centroids(self, net: Net) -> Tensor:
        """Return the global centroids (G, d)."""
        return net.tensor("centroids")

    def sharing(self) -> Mapping[str, Sharing]:
        """Send centroids down only; average weights and targets."""
        return {"centroids": Sharing.BROADCAST, "*": Sharing.AVERAGED}

    def plan_round(self, round_index: int, default: RoundPlan) -> RoundPlan:
        """Skip training in round 0."""
        return RoundPlan(0, default.cohort) if round_index == 0 else default

    def before_local(self, net: Net, data: ClientData, client: Client) -> ClientData:
        """Empty the memory, which another client may have filled, and fill it in round 0.

        `private` fills it in every round, with a row for each image that depends on that image and
        the received net only.
        """
        memory, view = Memory.of(net), self.needs().views[0]
        memory.reset(len(data))
        if self.representations == "private":
            net.eval()
            with torch.no_grad():
                rows = [self._target(net, x) for x in data.ordered(view, client.rng)]
            net.train()
            memory.hold(torch.cat(rows))  # (n, d)
        elif client.round == 0 and len(data) >= (2 if has_batch_norm(net) else 1):
            some = data.keep(torch.randperm(len(data), generator=client.rng)[: self.memory_size])
            views = some.ordered(view, client.rng, self.memory_size)
            with torch.no_grad(), restored_buffers(net):
                rows = [self._target(net, x) for x in views]  # one chunk, (n, d)
            memory.push(torch.cat(rows), torch.arange(len(some), device=rows[0].device))
        return data

    def _target(self, net: Net, x: Tensor) -> Tensor:
        prefix = "target_" if self.target else ""
        return F.normalize(net(x, prefix + "encoder", prefix + "projector"), dim=1)

    def draws(self, batch_size: int, client: Client) -> Mapping[str, Tensor]:
        """Draw the number of quarter turns of each image's third view."""
        if not self.degeneracy:
            return {}
        return {"turns": torch.randint(4, (batch_size,), generator=client.rng)}

    def chance(self, config: RunConfig) -> Mapping[str, float | str]:
        """Return ln G for clusters and ln 4 for quarter turns.

        The global clustering keeps clusters equally large. Where assignments fill them evenly, a
        prediction that does not depend on the image has at least the entropy of their mean, ln G,
        as cross entropy; turns are drawn evenly. A net that gives all images one cluster has less
        without information, which `collapsed` and the smallest cluster show.
        """
        found = {"clusters": math.log(self.num_global_clusters)}
        if self.degeneracy:
            found["rotation"] = math.log(4)
        return {**found, "loss": sum(found.values()), "min_cluster_size": "no term of the loss"}

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Compute the cross entropy of the views' cluster assignments, plus that of the turns."""
        x1, x2 = batch.views[:2]  # (B, C, H, W)
        centroids = net.tensor("centroids").T / self.temperature  # (d, G)
        with torch.no_grad():
            t1 = self._target(net, x1)  # (B, d)
            assigned = (t1 @ centroids).softmax(dim=1)  # (B, G)
            if self.target and self.online_x1_pass and has_batch_norm(net):
                net(x1, "encoder", "projector")
        views = (x2, rotate90(batch.views[2], batch.draws["turns"])) if self.degeneracy else (x2,)
        # A CPU runs the views one by one, as ever: together they would round otherwise.
        h2, *turned = net.views(views, "encoder", cpu_apart=True)  # (B, D)
        z2, *turned = net.views((h2, *turned), "projector", cpu_apart=True)  # (B, d)
        logits = F.normalize(z2, dim=1) @ centroids  # (B, G)
        agreement = F.cross_entropy(logits, assigned)
        parts = {"clusters": agreement.detach()}
        keep = {"rows": t1, "examples": batch.examples}
        out = Loss(agreement, features=(h2,), parts=parts, keep=keep, projections=(z2,))
        if not self.degeneracy:
            return out
        turns = batch.draws["turns"]  # (B,)
        predicted = net(turned[0], "rotation")  # (B, 4)
        return out.plus("rotation", F.cross_entropy(predicted, turns))

    def after_step(self, net: Net, out: Loss, client: Client) -> None:
        """Move the target, if there is one, and remember the batch."""
        ema_update(net, self.ema_decay)
        Memory.of(net).push(out.keep["rows"], out.keep["examples"])

    def after_local(self, net: Net, data: ClientData, client: Client) -> Mapping[str, Tensor]:
        """Send local centroids (L, d), or all rows, of the memory's rows (n, d).

        With them goes `min_cluster_size` (1,), the number of images in the smallest cluster. L is
        at most n // 2, but a single row makes one cluster unless `strict_k_anonymity`, which uses
        one row of each image; too few rows send nothing. Private and random centroids are always L,
        whatever the client holds, and no size goes with them.
        """
        memory, rng, num_clusters = Memory.of(net), client.rng, self.num_local_clusters
        rows, images = memory.valid(), memory.images()
        if self.representations == "private":
            budget = ClusterBudget(self.epsilon, self.delta)
            return {"centroids": cluster_privately(rows, num_clusters, budget, rng)}
        if self.representations == "random":
            return {"centroids": random_units(num_clusters, rows.shape[1], rng).to(rows)}
        if self.representations == "memory":
            return {"memory": rows, "min_cluster_size": rows.new_ones(1)} if len(rows) else {}
        if self.strict_k_anonymity:
            newest = memory.newest().to(rows.device)
            rows, images = rows[newest], images[newest]
        if len(rows) < (2 if self.strict_k_anonymity else 1):
            return {}
        local = cluster_locally(
            rows,
            min(num_clusters, max(1, len(rows) // 2)),
            rng,
            iterations=self.local_iterations,
            strength=self.sinkhorn_strength,
            strict=self.strict_k_anonymity,
            images=images,
        )
        smallest = local.sizes.min().to(rows.dtype).view(1)
        return {"centroids": local.centroids, "min_cluster_size": smallest}

    def server_step(self, net: Net, uploads: Sequence[Upload], server: Server) -> None:
        """Cluster what the clients sent, starting from the centroids of the previous round."""
        sent = [upload.extras for upload in uploads if upload.extras]
        if not sent:
            return
        name = "memory" if self.representations == "memory" else "centroids"
        centroids = net.tensor("centroids")  # (G, d)
        moved = cluster_globally(
            torch.cat([extras[name] for extras in sent]).to(centroids.device),  # (N, d)
            centroids,
            temperature=self.temperature,
            strength=self.sinkhorn_strength,
            steps=self.global_steps,
            lr=self.global_lr,
            momentum=self.global_momentum,
            weight_decay=self.global_weight_decay,
        )
        centroids.copy_(moved)
        sizes = [float(e["min_cluster_size"]) for e in sent if "min_cluster_size" in e]
        if sizes:
            server.log["min_cluster_size"] = min(sizes)
