"""Weighted k-nearest-neighbour accuracy."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.bench.evaluation.features import Labels, class_tensor


def knn_accuracy(
    bank: Tensor,
    bank_labels: Labels,
    queries: Tensor,
    query_labels: Labels,
    *,
    num_classes: int,
    neighbours: int = 200,
    temperature: float = 0.1,
    chunk: int = 256,
) -> float:
    """Share of the queries whose nearest bank examples vote for the right class.

    Each of the `neighbours` nearest bank examples by cosine similarity s adds exp(s / temperature)
    to the votes of its class. Equal votes go to the lowest class index. A vector of zeros has
    similarity 0 to everything.

    Source: Wu et al. 2018, https://arxiv.org/abs/1805.01978, section 3.4 (weighted k-NN, k = 200);
    the temperature is the one of Orchestra's released code. Deviations: k is capped at the size of
    the bank, and the largest similarity is subtracted before the exponential, which scales all
    votes of a query alike and keeps small temperatures from overflowing.

    Args:
        bank: (N, D) features of the training images, finite; the device of these and of the
            queries, which is the same, computes.
        bank_labels: (N,), each in [0, num_classes).
        queries: (M, D) features of the test images, finite.
        query_labels: (M,), each in [0, num_classes).
        num_classes: number of classes, at least 1.
        neighbours: voters per query, at least 1.
        temperature: positive.
        chunk: queries per matrix product; the working memory is about 4 * chunk * N bytes.

    Returns:
        Accuracy in [0, 1].
    """
    classes, truth = (class_tensor(labels, bank.device) for labels in (bank_labels, query_labels))
    neighbours = min(neighbours, len(bank))
    columns = F.normalize(bank.float(), dim=1).T  # (D, N)
    num_correct = torch.zeros((), dtype=torch.int64, device=bank.device)
    for rows, expected in zip(queries.split(chunk), truth.split(chunk), strict=True):
        similarity = F.normalize(rows.float(), dim=1) @ columns  # (m, N)
        near, index = similarity.topk(neighbours, dim=1)  # (m, k)
        # Sums in double precision: near-equal votes must not hinge on the order of addition.
        weight = ((near - near[:, :1]).double() / temperature).exp()  # (m, k)
        votes = weight.new_zeros(len(rows), num_classes)  # (m, C)
        votes.scatter_add_(1, classes[index], weight)
        num_correct += (votes.argmax(dim=1) == expected).sum()
    return num_correct.item() / len(queries)
