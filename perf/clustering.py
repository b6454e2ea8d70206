"""W6: Orchestra's clustering on the server."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbench.bench.nn.clustering import cluster_globally
from fedbench.bench.system.seeding import generator, single_thread
from perf.context import Context
from perf.measure import Result, time_calls

LAMBDA, TEMPERATURE = 25.0, 0.1


def _sinkhorn(scores: Tensor) -> Tensor:
    """Scale a whole matrix, (K, N), alternately to the marginals 1/K and 1/N."""
    kernel = F.softmax(LAMBDA * scores, dim=1).T
    clusters, samples = kernel.shape
    columns = torch.full((samples, 1), 1 / samples)
    for iteration in range(100):
        rows = (1 / clusters) / (kernel @ columns)
        new = (1 / samples) / (rows.T @ kernel).T
        change = torch.nansum(torch.abs(columns / new - 1))
        columns = new
        if iteration % 10 == 0 and float(change) < 1e-2:
            break
    balanced = (kernel * columns.squeeze()).T * rows.squeeze()
    return balanced / balanced.sum(dim=1, keepdim=True)


def autograd_clustering(points: Tensor, start: Tensor, steps: int) -> Tensor:
    """Cluster by the published scheme with a linear layer, autograd and torch's SGD.

    Written from Lubana et al. 2022, https://arxiv.org/abs/2205.11506, with the release's constants:
    the scores are computed once for the targets and once more for the predictions.
    """
    layer = nn.Linear(points.shape[1], len(start), bias=False)
    layer.weight.data.copy_(start)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    for _ in range(steps):
        with torch.no_grad():
            targets = _sinkhorn(layer(points))
        predicted = F.softmax(layer(points) / TEMPERATURE, dim=1)
        loss = -F.cosine_similarity(targets, predicted, dim=1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            layer.weight.copy_(F.normalize(layer.weight, dim=1))
    return layer.weight.detach()


def clustering(context: Context) -> Result:
    """Cluster 800 centroids of 512 numbers into 128 clusters, 500 steps."""
    count, dim, clusters, steps = (40, 16, 8, 5) if context.smoke else (800, 512, 128, 500)
    rng = generator(0, "benchmark")
    points = F.normalize(torch.randn(count, dim, generator=rng), dim=1)
    start = F.normalize(torch.randn(clusters, dim, generator=rng), dim=1)

    def matmuls() -> None:
        for _ in range(steps):
            scores = points @ start.T
            torch.mm(scores.T, points)

    result = Result()
    calls = {
        "autograd": lambda: autograd_clustering(points, start, steps),
        "fedbench": lambda: cluster_globally(points, start, steps=steps),
        "two products": matmuls,
    }
    with single_thread():
        time_calls(result, calls, context.repeats)
    result.divide("fedbench / autograd", "fedbench", "autograd")
    result.divide("two products / autograd", "two products", "autograd")
    apart = autograd_clustering(points, start, steps) - cluster_globally(points, start, steps=steps)
    result.add("largest difference of the centroids", float(apart.abs().max()))
    result.notes.append("one thread; synthetic centroids")
    return result
