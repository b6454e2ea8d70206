"""Resampling weights from the table equal computed ones."""

from __future__ import annotations

import torch

from fedbench.bench.data.views import resampling as module
from fedbench.bench.data.views.resampling import resampling

CPU = torch.device("cpu")


def test_every_box_has_its_own_weights() -> None:
    size_in, size_out = 7, 5
    boxes = [(i, n) for n in range(1, size_in + 1) for i in range(size_in + 1 - n)]
    shuffled = torch.randperm(len(boxes), generator=torch.Generator().manual_seed(0))
    start, length = torch.tensor(boxes)[shuffled].T
    for mirrored in (None, torch.arange(len(boxes)) % 3 == 0):
        given = (start, length, size_in, size_out, "bicubic", mirrored, CPU)
        assert torch.equal(resampling(*given), module._weights(*given))  # type: ignore[arg-type]


def test_large_images_have_no_table() -> None:
    before = module._table.cache_info().currsize
    start, length = torch.tensor([3, 0]), torch.tensor([90, 96])
    weights = resampling(start, length, 96, 96, "bilinear", None, CPU)
    assert weights.shape == (2, 96, 96)
    torch.testing.assert_close(weights[1], torch.eye(96))
    assert module._table.cache_info().currsize == before
