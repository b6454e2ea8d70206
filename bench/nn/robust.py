"""Means that a few vectors cannot move far: coordinate-wise median, trimmed mean, and Krum."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

_COLUMNS = 1 << 16  # at a time, so that sorting a hundred uploads takes some 100 MB at most
_CACHED = 1 << 12  # of these at a time stay in a processor's cache while each two rows are compared


def trimmed_mean(rows: Sequence[Tensor], cut: int, weights: Sequence[float]) -> Tensor:
    """Mean of each coordinate without its `cut` smallest and its `cut` largest values.

    Source: Yin et al. 2018, https://arxiv.org/abs/1803.01498, definition 2, of rows that count
    alike. Deviation: the values that are left have weights; `cut` counts rows, whatever they weigh.
    Of n rows (P,) with n weights above 0, and a cut below n / 2; float64 (P,).
    """
    means = []
    for values, share in _sorted(rows, weights):
        kept = slice(cut, len(rows) - cut)
        means.append((values[kept].double() * share[kept]).sum(dim=0) / share[kept].sum(dim=0))
    return torch.cat(means)


def coordinate_median(rows: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Median of each coordinate; of an even number of values the mean of the middle two.

    Source: Yin et al. 2018, https://arxiv.org/abs/1803.01498, definition 1, of rows that count
    alike. Deviation: a row counts as often as it weighs, so the result is the mean of the smallest
    and of the largest value with at most half of the weight on either side. Of n rows (P,) with n
    weights above 0; float64 (P,).

    >>> rows = [torch.tensor([value]) for value in (1.0, 2.0, 900.0)]
    >>> coordinate_median(rows, [1, 1, 1]).item(), coordinate_median(rows, [1, 2, 3]).item()
    (2.0, 451.0)
    """
    medians = []
    for values, share in _sorted(rows, weights):
        for row in range(1, len(rows)):  # `cumsum` has no reproducible form on a GPU
            share[row] += share[row - 1]
        # Of sums rather than of shares: sums of equal whole weights are exact.
        places = ((2 * share < share[-1]).sum(dim=0), (2 * share <= share[-1]).sum(dim=0))
        pair = [values.gather(0, p.expand(1, values.shape[1])).double() for p in places]
        medians.append((pair[0] + pair[1])[0] / 2)
    return torch.cat(medians)


def krum(rows: Sequence[Tensor], num_byzantine: int) -> int:
    """Position of the vector that is closest to its n - f - 2 nearest others.

    Source: Blanchard et al. 2017, https://arxiv.org/abs/1703.02757, section 4: the score is the sum
    of the squared distances to these; of equal scores the first counts. Of n finite rows (P,),
    n > 2 f + 2 for the f of the source, `num_byzantine`.

    >>> krum([torch.tensor([value]) for value in (0.0, 1.0, 2.0, 900.0, 2.5)], 1)
    2
    """
    count = len(rows)
    apart = torch.zeros(count * (count - 1) // 2, dtype=torch.float64, device=rows[0].device)
    for block in _blocks(rows):
        for part in block.double().split(_CACHED, dim=1):
            # Of differences: products lose their digits, beside a row of 1e20 those of all others.
            apart += torch.pdist(part).square()
    distances = apart.new_full((count, count), torch.inf)  # a vector is none of its own neighbours
    first, second = torch.triu_indices(count, count, offset=1, device=apart.device)
    distances[first, second] = distances[second, first] = apart
    nearest = distances.sort(dim=1).values[:, : count - num_byzantine - 2]
    return int(nearest.sum(dim=1).argmin())


def _sorted(rows: Sequence[Tensor], weights: Sequence[float]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the values of some columns, sorted, (n, columns), and the weight of each.

    Weights are float64, (n, columns), or (n, 1) where all are equal; the caller may change them.
    """
    weight = torch.tensor(weights, dtype=torch.float64, device=rows[0].device)
    alike = min(weights) == max(weights)
    for block in _blocks(rows):
        if alike and block.device.type == "cpu":
            # NumPy sorts values alone, which takes a tenth of the time of sorting their places too.
            turned = np.sort(np.ascontiguousarray(block.T.numpy()), axis=1)  # (columns, n)
            yield torch.from_numpy(turned).T, weight[:, None].clone()
        else:
            values, order = block.sort(dim=0, stable=True)
            yield values, weight[order]


def _blocks(rows: Sequence[Tensor]) -> Iterator[Tensor]:
    for at in range(0, max(1, len(rows[0])), _COLUMNS):
        yield torch.stack([row[at : at + _COLUMNS] for row in rows])
