"""Plain training loops of four methods, written from their papers and without the harness.

One model, one optimizer, batches drawn without replacement: what a reader of a paper would write
to try it out. A loop shares no code with the project; it gets an encoder that maps images to
features and a function that draws views. What the federated setting adds is kept to a minimum: the
momentum starts at zero in every round, and Orchestra's only client sends its centroids to a server.

Sources: SimCLR, Chen et al. 2020, https://arxiv.org/abs/2002.05709; SimSiam, Chen and He 2021,
https://arxiv.org/abs/2011.10566; BYOL, Grill et al. 2020, https://arxiv.org/abs/2006.07733;
Orchestra, Lubana et al. 2022, https://arxiv.org/abs/2205.11506. Layers of the heads and the scale
of the losses are those of Orchestra's released code, which trained all four. `of` has the
hyperparameters by their names.
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

View = Callable[[int, Tensor, Generator], Tensor]
"""Draws one view of every image: (index of the view, images, generator) -> (B, C, H, W)."""
AfterRound = Callable[[int], None]
"""Called after every round of training with the number of rounds done; reads the encoder."""


@dataclass(frozen=True)
class Plan:
    """Length and optimizer of a training."""

    rounds: int  # the optimizer is made anew in each
    steps_per_round: int  # at most those of one pass over the images
    batch_size: int
    lr: float  # of SGD, constant
    momentum: float
    weight_decay: float  # on all parameters
    seed: int  # of the heads' first weights, the order of the images and the views

    def generator(self, purpose: int) -> Generator:
        """Return a generator of its own for each purpose."""
        return Generator().manual_seed(1_000_003 * (self.seed + 1) + purpose)


class Given(NamedTuple):
    """What every loop is given."""

    encoder: nn.Module
    images: Tensor
    view: View
    plan: Plan
    after_round: AfterRound


Curves = dict[str, list[float]]
"""Mean `loss` over the steps of each round, and those of its terms by name."""


def simclr(given: Given, of: Any) -> Curves:
    """Train an encoder with the NT-Xent loss: find an image's other view among all views."""
    encoder, view, plan = given.encoder, given.view, given.plan
    heads = plan.generator(0)
    projector = nn.Sequential(
        *_hidden(_width(given), of.hidden_dim, heads),
        _linear(of.hidden_dim, of.projection_dim, heads),
        nn.BatchNorm1d(of.projection_dim, affine=False),
    )

    def loss(batch: Tensor, draws: Generator) -> dict[str, Tensor]:
        first, second = (projector(encoder(view(k, batch, draws))) for k in (0, 1))
        unit = F.normalize(torch.cat([first, second]), dim=1)  # (2B, d)
        logits = unit @ unit.T / of.temperature  # (2B, 2B)
        itself = torch.eye(len(unit), dtype=torch.bool)
        partner = itself.roll(len(batch), dims=1)
        own = logits[partner]  # row i holds the similarity of i and its other view
        others = logits.masked_fill(itself, -math.inf)
        return {"contrast": (others.exp().sum(dim=1).log() - own).mean()}

    return _train(given, [encoder, projector], loss)


def simsiam(given: Given, of: Any) -> Curves:
    """Train an encoder to predict the projection of the other view, which gets no gradient."""
    encoder, view, plan = given.encoder, given.view, given.plan
    heads = plan.generator(0)
    projector = nn.Sequential(
        *_hidden(_width(given), of.hidden_dim, heads),
        *_hidden(of.hidden_dim, of.hidden_dim, heads),
        _linear(of.hidden_dim, of.projection_dim, heads, bias=False),
        nn.BatchNorm1d(of.projection_dim, affine=False),
    )
    predictor = _predictor(of.projection_dim, of.predictor_dim, heads)

    def loss(batch: Tensor, draws: Generator) -> dict[str, Tensor]:
        first, second = (projector(encoder(view(k, batch, draws))) for k in (0, 1))
        one = F.cosine_similarity(predictor(first), second.detach(), dim=1)
        two = F.cosine_similarity(predictor(second), first.detach(), dim=1)
        return {"prediction": -(one.mean() + two.mean()) / 2}

    return _train(given, [encoder, projector, predictor], loss)


def byol(given: Given, of: Any) -> Curves:
    """Train an encoder to predict what a slowly following copy says about the other view."""
    encoder, view, plan = given.encoder, given.view, given.plan
    heads = plan.generator(0)
    projector = nn.Sequential(
        *_hidden(_width(given), of.hidden_dim, heads),
        _linear(of.hidden_dim, of.projection_dim, heads, bias=False),
    )
    predictor = _predictor(of.projection_dim, of.hidden_dim, heads)
    online = nn.Sequential(encoder, projector)
    target = copy.deepcopy(online)

    def loss(batch: Tensor, draws: Generator) -> dict[str, Tensor]:
        first, second = (view(k, batch, draws) for k in (0, 1))
        with torch.no_grad():
            goals = [target(seen) for seen in (first, second)]
        one = F.cosine_similarity(predictor(online(first)), goals[1], dim=1)
        two = F.cosine_similarity(predictor(online(second)), goals[0], dim=1)
        return {"prediction": -(one.mean() + two.mean()) / 2}

    def after_step() -> None:
        _follow(target, online, of.ema_decay)

    return _train(given, [online, predictor], loss, after_step)


def orchestra(given: Given, of: Any) -> Curves:
    """Train the encoder of the only client to agree with its slow copy about global clusters.

    Before the first round the client fills its memory and clusters it, without any training. The
    views are two of the image and one that is turned by a multiple of 90 degrees.
    """
    encoder, view, plan = given.encoder, given.view, given.plan
    heads, chance = plan.generator(0), plan.generator(1)
    projector = nn.Sequential(
        *_hidden(_width(given), of.hidden_dim, heads),
        _linear(of.hidden_dim, of.projection_dim, heads, bias=False),
        nn.BatchNorm1d(of.projection_dim, affine=False),
    )
    rotation = _linear(of.projection_dim, 4, heads)
    online = nn.Sequential(encoder, projector)
    target = copy.deepcopy(online)
    centroids = _linear(
        of.projection_dim, of.num_global_clusters, heads, bias=False
    ).weight.detach()
    memory = torch.empty(0, of.projection_dim)

    def remember(projections: Tensor) -> None:
        nonlocal memory
        memory = torch.cat([memory, projections])[-of.memory_size :]

    def cluster() -> None:
        """Cluster the memory on the client, and its centroids on the server."""
        nonlocal centroids
        local = _local_clusters(
            memory, of.num_local_clusters, of.local_iterations, of.sinkhorn_strength, chance
        )
        centres = nn.Parameter(centroids.clone())
        optimizer = torch.optim.SGD(
            [centres],
            lr=of.global_lr,
            momentum=of.global_momentum,
            weight_decay=of.global_weight_decay,
        )
        for _ in range(of.global_steps):
            scores = local @ centres.T  # (L, G)
            with torch.no_grad():
                goal = _sinkhorn(scores, of.sinkhorn_strength, iterations=100)
            assigned = (scores / of.temperature).softmax(dim=1)
            optimizer.zero_grad()
            (-F.cosine_similarity(assigned, goal, dim=1).mean()).backward()
            optimizer.step()
            with torch.no_grad():
                centres.copy_(F.normalize(centres, dim=1))
        centroids = centres.detach()

    def loss(batch: Tensor, draws: Generator) -> dict[str, Tensor]:
        first, second, third = (view(k, batch, draws) for k in (0, 1, 2))
        turns = torch.randint(4, (len(batch),), generator=draws)
        turned = torch.stack(
            [
                torch.rot90(image, int(turn), (1, 2))
                for image, turn in zip(third, turns, strict=True)
            ]
        )
        with torch.no_grad():
            goal = F.normalize(target(first), dim=1)
            online(first)  # the released code makes this pass; only its batch statistics matter
        scores = F.normalize(online(second), dim=1) @ centroids.T
        wanted = (goal @ centroids.T / of.temperature).softmax(dim=1)
        agreement = -(wanted * (scores / of.temperature).log_softmax(dim=1)).sum(dim=1).mean()
        turning = F.cross_entropy(rotation(online(turned)), turns)
        remember(goal)
        return {"clusters": agreement, "rotation": turning}

    def after_step() -> None:
        _follow(target, online, of.ema_decay)

    # Round 0: the memory is filled, and the statistics of the batch norms stay as they were.
    before, draws = copy.deepcopy(target.state_dict()), plan.generator(2)
    target.train()
    order = torch.randperm(len(given.images), generator=draws)[: of.memory_size]
    for rows in order.split(plan.batch_size):
        with torch.no_grad():
            remember(F.normalize(target(view(0, given.images[rows], draws)), dim=1))
    target.load_state_dict(before)
    cluster()
    return _train(given, [online, rotation], loss, after_step, cluster)


def _local_clusters(
    memory: Tensor, clusters: int, iterations: int, strength: float, chance: Generator
) -> Tensor:
    """Cluster the rows of a memory into groups of about equal size; return unit centroids."""
    centres = memory[torch.randperm(len(memory), generator=chance)[:clusters]]
    for _ in range(iterations):
        chosen = _sinkhorn(memory @ centres.T, strength, iterations=10).argmax(dim=1)
        rows = []
        for index in range(clusters):
            members = memory[chosen == index]
            if not len(members):  # an empty cluster starts again from a random row
                lucky = int(torch.randint(len(memory), (1,), generator=chance))
                members = memory[lucky : lucky + 1]
            rows.append(F.normalize(members.mean(dim=0), dim=0))
        centres = torch.stack(rows)
    return centres


def _sinkhorn(scores: Tensor, strength: float, iterations: int) -> Tensor:
    """Turn similarities (N, K) into soft assignments of equal mass per cluster, rows of sum 1."""
    plan = (strength * scores).softmax(dim=1) / len(scores)
    for step in range(1, iterations + 1):
        share = plan.sum(dim=0, keepdim=True) * plan.shape[1]  # 1 where a cluster has its mass
        plan = plan / share
        plan = plan / (plan.sum(dim=1, keepdim=True) * len(scores))
        if step % 10 == 0 and float((share - 1).abs().sum()) < 1e-2:
            break
    return plan * len(scores)


@torch.no_grad()
def _follow(target: nn.Module, online: nn.Module, decay: float) -> None:
    """Move a target's parameters towards those of the online network; not its batch statistics."""
    for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
        slow.copy_(decay * slow + (1 - decay) * fast)


def _train(
    given: Given,
    modules: list[nn.Module],
    loss: Callable[[Tensor, Generator], dict[str, Tensor]],
    after_step: Callable[[], None] = lambda: None,
    end_of_round: Callable[[], None] = lambda: None,
) -> Curves:
    """Minimise the sum of the terms of a loss by SGD, round after round."""
    plan = given.plan
    parameters = [parameter for module in modules for parameter in module.parameters()]
    order, draws = plan.generator(3), plan.generator(4)
    curves: Curves = {"loss": []}
    for done in range(1, plan.rounds + 1):
        for module in modules:
            module.train()
        optimizer = torch.optim.SGD(
            parameters, lr=plan.lr, momentum=plan.momentum, weight_decay=plan.weight_decay
        )
        steps: list[dict[str, float]] = []
        for batch in _batches(given.images, plan, order):
            terms = loss(batch, draws)
            optimizer.zero_grad()
            torch.stack(list(terms.values())).sum().backward()
            optimizer.step()
            after_step()
            steps.append({name: float(term.detach()) for name, term in terms.items()})
        for name in steps[0]:
            curves.setdefault(name, []).append(sum(step[name] for step in steps) / len(steps))
        curves["loss"].append(sum(curves[name][-1] for name in steps[0]))
        end_of_round()
        given.after_round(done)
    return curves


def _batches(images: Tensor, plan: Plan, order: Generator) -> Iterator[Tensor]:
    shuffled = torch.randperm(len(images), generator=order)
    for rows in shuffled.split(plan.batch_size)[: plan.steps_per_round]:
        yield images[rows]


def _predictor(width: int, hidden_dim: int, chance: Generator) -> nn.Sequential:
    return nn.Sequential(*_hidden(width, hidden_dim, chance), _linear(hidden_dim, width, chance))


def _hidden(inputs: int, width: int, chance: Generator) -> list[nn.Module]:
    return [_linear(inputs, width, chance, bias=False), nn.BatchNorm1d(width), nn.ReLU()]


def _linear(inputs: int, outputs: int, chance: Generator, *, bias: bool = True) -> nn.Linear:
    """Make a layer with torch's usual first weights, from a generator instead of the global one."""
    layer = nn.Linear(inputs, outputs, bias=bias, device="meta").to_empty(device="cpu")
    bound = 1 / math.sqrt(inputs)
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=chance)
    return layer


@torch.no_grad()
def _width(given: Given) -> int:
    """Return the number of features of an encoder, and leave its batch statistics alone."""
    given.encoder.eval()
    return int(given.encoder(given.images[:2].float()).shape[1])
