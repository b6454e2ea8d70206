"""Batch norm by view: as one formula for a compiler it is the same function, with its gradient."""

from itertools import product

import pytest
import torch
from torch import Tensor

from fedbench.bench.nn.norms import BatchNorm1d, BatchNorm2d, PerView, add_statistics

CHANNELS = 5
SHAPES = ((8, CHANNELS, 16, 16), (8, CHANNELS, 4, 4), (8, CHANNELS))


def norms(shape: tuple[int, ...], affine: bool, num_views: int) -> list[PerView]:
    made: list[PerView] = []
    for _ in range(2):
        kind: type[BatchNorm1d | BatchNorm2d] = BatchNorm2d if len(shape) == 4 else BatchNorm1d
        norm = kind(CHANNELS, affine=affine)
        rng = torch.Generator().manual_seed(0)
        for parameter in norm.parameters():
            parameter.data.normal_(generator=rng)
        norm.num_views, norm.num_batches_tracked = num_views, None  # as in every net
        made.append(norm)
    return made


@pytest.mark.parametrize(
    ("shape", "affine", "num_views"), list(product(SHAPES, (True, False), (1, 2, 4)))
)
def test_one_formula_is_the_norm_of_each_view(
    shape: tuple[int, ...], affine: bool, num_views: int
) -> None:
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=rng) * 3 + 1
    weights = torch.randn(shape, generator=rng)
    plain, formula = norms(shape, affine, num_views)
    results: list[list[Tensor]] = []
    for norm, function in ((plain, plain.forward), (formula, formula._at_once)):
        given = x.clone().requires_grad_()
        y = function(given)
        gradients = torch.autograd.grad((y * weights).sum(), [given, *norm.parameters()])
        results.append([y.detach(), *gradients])
    taken = formula.taken
    assert taken is not None
    add_statistics([formula], [taken])
    for norm, tensors in zip((plain, formula), results, strict=True):
        tensors += [norm.get_buffer("running_mean"), norm.get_buffer("running_var")]
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_each_norm_moves_by_its_own_momentum() -> None:
    """From 0 and 1: 0.5 * 4 = 2 after one view, 0.5 * (2 + 8) = 5 after two; by 0.25 1 and 2.75."""
    norms_ = [BatchNorm1d(1, momentum=momentum) for momentum in (0.5, 0.25)]
    for norm in norms_:
        norm.num_batches_tracked = None
    taken = torch.tensor([[4.0], [8.0]]), torch.ones(2, 1)  # means and variances of two views
    add_statistics(norms_, [taken, taken])
    assert [norm.get_buffer("running_mean").item() for norm in norms_] == [5.0, 2.75]
    assert [norm.get_buffer("running_var").item() for norm in norms_] == [1.0, 1.0]
