"""FedU2 as an add-on: uniform local representations, and a server step that nobody objects to."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedbench.bench.method import (
    AddOn,
    Batch,
    Client,
    Loss,
    Needs,
    Net,
    PluginError,
    RunConfig,
    Server,
    Size,
    Upload,
    register,
)

_LEAST_ANGLE = 1e-3
"""Radians; of smaller ones float32 cannot tell the cosine from 1."""


@register("fedu2", bases=("simclr", "simsiam", "byol"))
class FedU2(AddOn):
    """Add a transport distance to uniform points; combine clients by their min-norm direction.

    Source: Liao et al. 2024, https://arxiv.org/abs/2403.16398, read in its released code (5c44407).
    The regulariser is the release's (sliced Wasserstein in tangent spaces), as a mean over tangent
    points and views. The release sums over as many points as a batch has images, divides by 6 and
    adds both views: its weight of 0.01 at batches of 128 is 0.01 x 128 / 6 x 2 = 0.427 here. The
    loss of `byol` is a quarter of the release's, beside which 0.107 is as strong, projections of
    length 1 assumed: beside BYOL and SimSiam the release maps them at their own lengths. Both views
    share one draw of points, samples and directions.

    The server moves along the shortest convex combination of the changes of the clients that made a
    step, solved exactly. With `normalised` each change counts by its direction, as released, and
    `server_lr` is 0.1 to 8 there; without it and at 1, the server takes a convex combination of the
    clients' models. Not taken over: a rotation task that the release adds, its more local epochs
    for small clients, and its similarities of 0 in place of left-out ones.

    The server needs each client's model. It replaces `server.optimizer` and what `l-dawa` makes of
    parameters; buffers are averaged.
    """

    weight: float = Field(0.427, ge=0, description="factor of the regulariser's mean over views")
    tangents: Size = Field(6, description="tangent points of a batch")
    slices: Size = Field(6, description="directions in each tangent space")
    combine: bool = Field(True, description="False: average as without the add-on")
    normalised: bool = Field(False, description="True: changes of length 2, as released")
    server_lr: float = Field(1.0, gt=0, description="step of the server")

    def without_effect(self, config: RunConfig) -> str:
        """Say so of a server's optimizer or weights that the min-norm step replaces."""
        if self.combine and config.server.optimizer != "average":
            return f"server.optimizer={config.server.optimizer}: fedu2 makes the server's step"
        if self.combine and config.server.lr != 1:
            return f"server.lr={config.server.lr:g}: fedu2 makes the server's step"
        if self.combine and "l-dawa" in config.spec.split("+"):
            return "l-dawa: fedu2 takes clients' parameters as they are sent, without its factors"
        return super().without_effect(config)

    def needs(self) -> Needs:
        """Ask for each client's tensors."""
        needs = replace(self.base.needs(), capturable=False)  # draws in the loss
        return replace(needs, single_uploads=True) if self.combine else needs

    def chance(self, config: RunConfig) -> Mapping[str, float | str]:
        """Add none: points that are drawn evenly from the sphere have the least distance."""
        if not self.weight:
            return self.base.chance(config)
        return self.with_terms(config, uniform="noise has its least value")

    def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
        """Add the mean of both views' distances to the base's loss."""
        out = self.base.loss(net, batch, client)
        if not self.weight:
            return out
        if not out.projections:
            raise PluginError(f"method {self.base.name!r} has no projections for fedu2")
        size, dim = out.projections[0].shape
        shapes = ((self.tangents, dim), (size, dim), (self.tangents, dim, self.slices))
        device = out.total.device
        drawn = [torch.randn(s, generator=client.rng).to(device) for s in shapes]
        points, samples = (F.normalize(rows, dim=1) for rows in drawn[:2])
        terms = [
            tangent_transport(F.normalize(z.float(), dim=1), samples, points, drawn[2])
            for z in out.projections
        ]
        return out.plus("uniform", self.weight * torch.stack(terms).mean())

    def server_step(self, net: Net, uploads: Sequence[Upload], server: Server) -> None:
        """Replace the average of parameters, a target's too, by the min-norm step."""
        trained = [upload.weights for upload in uploads if upload.num_steps]
        if self.combine and trained:
            names = [name for name, _ in net.named_parameters() if name in trained[0]]
            held = torch.cat([server.before[name].flatten() for name in names]).double()
            changes = []  # from each client's model to the server's
            for weights in trained:
                sent = torch.cat([weights[name].to(held.device).flatten() for name in names])
                changes.append(held - sent.double())
            matrix = torch.stack(changes)  # (K, P)
            if self.normalised:
                lengths = torch.linalg.vector_norm(matrix, dim=1, keepdim=True)
                matrix = 2 * matrix / lengths.clamp(min=torch.finfo(torch.float64).tiny)
            shares = min_norm_weights((matrix @ matrix.T).cpu().numpy())
            step = torch.mv(matrix.T, torch.from_numpy(shares).to(held.device))
            moved = held - self.server_lr * step
            with torch.no_grad():
                sizes = [server.before[name].numel() for name in names]
                for name, part in zip(names, moved.split(sizes), strict=True):
                    value = net.tensor(name)
                    value.copy_(part.view(value.shape))
        self.base.server_step(net, uploads, server)


def tangent_transport(rows: Tensor, samples: Tensor, points: Tensor, slices: Tensor) -> Tensor:
    """Squared sliced Wasserstein distance between points of a sphere, in some tangent spaces.

    Args:
        rows: of length 1, (B, d).
        samples: of length 1, (B, d).
        points: at which tangent spaces touch, of length 1, (T, d).
        slices: directions in each tangent space, (T, d, S).

    Returns:
        Scalar >= 0: mean over points, directions and sorted pairs.
    """
    lines = [torch.bmm(sphere_log(part, points), slices) for part in (rows, samples)]  # (T, B, S)
    first, second = (line.sort(dim=1).values for line in lines)
    return (first - second).square().mean()


def sphere_log(rows: Tensor, points: Tensor) -> Tensor:
    """Tangent vectors that lead from points of the unit sphere to others along great circles.

    The vector to the antipode, which has no direction, has the length of the angle kept finite.

    Args:
        rows: of length 1, (B, d).
        points: of length 1, (T, d).

    Returns:
        (T, B, d); the length of each is the angle between its point and its row.
    """
    cosine = (points @ rows.T).clamp(-1 + _LEAST_ANGLE**2, 1 - _LEAST_ANGLE**2)  # (T, B)
    angle = torch.acos(cosine)
    factor = angle / angle.sin()
    aside = rows[None] - cosine[..., None] * points[:, None]
    return factor[..., None] * aside


def min_norm_weights(gram: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Weights of the shortest convex combination of vectors.

    With |sum w v|^2 + (1 - sum w)^2 minimised over w >= 0, the weights divided by their sum solve
    the problem exactly: for fixed proportions the best scale leaves a monotone function of the
    combination's length.

    Args:
        gram: inner products of the vectors, (K, K).

    Returns:
        (K,), at least 0, with sum 1; equal weights if all vectors are 0.
    """
    from scipy.optimize import nnls  # imported here: it takes a quarter of a second

    scale = np.abs(gram).max()
    if scale == 0:
        return np.full(len(gram), 1 / len(gram))
    values, vectors = np.linalg.eigh(gram / scale)
    root = np.sqrt(values.clip(min=0))[:, None] * vectors.T  # (K, K): root.T @ root = gram
    system = np.vstack([root, np.ones(len(gram))])
    weights, _ = nnls(system, np.append(np.zeros(len(gram)), 1.0))
    result: npt.NDArray[np.float64] = weights / weights.sum()
    return result
