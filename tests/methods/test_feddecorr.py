"""FedDecorr: correlations by hand, dead columns, scales, and no effect at weight 0."""

from __future__ import annotations

import pytest
import torch

from fedbench.methods.feddecorr import squared_correlation


def test_equal_and_orthogonal_columns() -> None:
    column = torch.tensor([1.0, -1.0, 1.0, -1.0])
    equal = torch.stack([column, column], dim=1)
    assert float(squared_correlation(equal)) == pytest.approx(1.0)
    # The released scale: (N - 1)^2 / N = 9 / 4 for N = 4.
    assert (4 - 1) ** 2 / 4 * float(squared_correlation(equal)) == pytest.approx(2.25)
    other = torch.tensor([1.0, 1.0, -1.0, -1.0])
    assert float(squared_correlation(torch.stack([column, other], dim=1))) == pytest.approx(0.0)


def test_a_loop_over_pairs_and_rescaled_columns_agree() -> None:
    rows = torch.randn(9, 5, generator=torch.Generator().manual_seed(0)).double()
    loop = [
        torch.corrcoef(rows[:, [i, j]].T)[0, 1] ** 2 for i in range(5) for j in range(5) if i != j
    ]
    expected = float(torch.stack(loop).mean())
    assert float(squared_correlation(rows)) == pytest.approx(expected, rel=1e-5)
    moved = (rows * torch.tensor([2.0, -3.0, 0.5, 1.0, 7.0]) + 4.0)[:, [3, 1, 0, 4, 2]]
    assert float(squared_correlation(moved)) == pytest.approx(expected, rel=1e-5)


def test_dead_units_and_single_rows_give_no_nan() -> None:
    rows = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    rows[:, 1] = 0.0
    rows.requires_grad_(True)
    value = squared_correlation(rows)
    value.backward()
    assert rows.grad is not None
    assert bool(rows.grad.isfinite().all())
    assert float(squared_correlation(rows[:1].detach())) == 0.0
    assert float(squared_correlation(rows[:, :1].detach())) == 0.0  # no pair of columns
