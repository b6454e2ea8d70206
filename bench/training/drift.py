"""How far the clients of a round move the weights, and in how many directions."""

import math
from itertools import groupby

import torch
from torch import Tensor

from fedbench.bench.training.layout import VectorLayout

ENCODER, HEADS = "encoder", "heads"
_LEAST = torch.finfo(torch.float32).tiny
_LONGEST = 1e30  # sums of longer updates may be beyond float32


class Drift:
    """Sums over the updates of one round, in the memory of two models whatever the cohort.

    An update D is a client's change of the trained, averaged tensors, those of the part `encoder`
    and those of all other parts (`heads`) apart. Clients count alike, whatever the server's
    weights; rows and personal tensors are left out.

    Source of the diversity: Yin et al. 2018, https://arxiv.org/abs/1706.05699, equation 1, here
    of updates after local steps instead of gradients.

    Args:
        layout: of the uploads.
        before: the server's vector, (server_size,), which must not change until `values`.
    """

    def __init__(self, layout: VectorLayout, before: Tensor) -> None:
        self._before = before
        spans: dict[str, list[slice]] = {ENCODER: [], HEADS: []}
        for inside, group in groupby(layout.trained, lambda slot: slot.part == ENCODER):
            slots = [*group]
            spans[ENCODER if inside else HEADS].append(slice(slots[0].start, slots[-1].stop))
        self._spans = {name: places for name, places in spans.items() if places}
        size = layout.num_trained
        self._sum, self._units = (torch.zeros(size, device=before.device) for _ in range(2))
        self._norms: dict[str, Tensor] = {
            name: torch.zeros(2, dtype=torch.float64, device=before.device) for name in self._spans
        }
        self._count = 0

    def add(self, upload: Tensor) -> None:
        """Add a client's upload, (upload_size,), which may be overwritten afterwards."""
        size = len(self._sum)
        change = upload[:size].to(self._before) - self._before[:size]
        self._sum.add_(change)
        for name, spans in self._spans.items():
            # In float64: weights before a batch norm may grow beyond what float32 can square.
            norms = [torch.linalg.vector_norm(change[s], dtype=torch.float64) for s in spans]
            norm = torch.stack(norms).norm()
            self._norms[name].add_(torch.stack([norm, norm.square()]))
            for span in spans:
                self._units[span].addcdiv_(change[span], norm.float().clamp_min(_LEAST))
        self._count += 1

    def values(self) -> dict[str, dict[str, float]]:
        """Return figures by name, of `encoder` and `heads` where they are averaged.

        - `norm`, `norm_std`: mean and standard deviation (divided by n) of |D| over the clients;
        - `cosine`: mean cosine of D to the mean of all D, in [-1, 1];
        - `diversity`: sum |D|^2 / |sum D|^2, from 1 / n (all alike) over 1 (orthogonal) upwards.

        The last two are left out where the updates sum to 0 or are of lengths beyond 1e30.
        """
        found = {}
        for name, spans in self._spans.items() if self._count else ():
            first, second = (float(x) / self._count for x in self._norms[name])
            found[name] = {"norm": first, "norm_std": math.sqrt(max(0.0, second - first**2))}
            sums = (torch.linalg.vector_norm(self._sum[s], dtype=torch.float64) for s in spans)
            total = math.hypot(*map(float, sums))
            if total > 0 and second < _LONGEST**2:
                along = sum(float(self._units[s] @ self._sum[s]) for s in spans)
                found[name]["cosine"] = along / (self._count * total)
                found[name]["diversity"] = second * self._count / total**2
        return found
