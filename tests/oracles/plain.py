"""A softmax regression in plain NumPy, for oracles of what is built on one."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def softmax(scores: Floats) -> Floats:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares: Floats = powers / powers.sum(axis=1, keepdims=True)
    return shares


class SoftmaxRegression:
    """Least mean cross entropy + l2 |W|^2 / 2 on standardised features, by Newton's method.

    Args:
        x: features (n, D).
        y: classes (n,), each in [0, classes).
        classes: C.
        l2: penalty of the weights, not of the bias.
    """

    def __init__(self, x: Any, y: Any, classes: int, l2: float) -> None:
        x, onehot = np.asarray(x, np.float64), np.eye(classes)[y]
        self.mean, spread = x.mean(axis=0), x.std(axis=0)
        self.scale = np.divide(1.0, spread, where=spread > 1e-6, out=np.zeros_like(spread))
        rows = self._rows(x)  # (n, D + 1)
        n, d = rows.shape
        ridge = np.diag([*[l2] * (d - 1), 0.0])
        self.theta = np.zeros((d, classes))
        for _ in range(200):
            p = softmax(rows @ self.theta)
            slope = rows.T @ (p - onehot) / n + ridge @ self.theta
            curves = np.einsum("nc,ck->nck", p, np.eye(classes)) - np.einsum("nc,nk->nck", p, p)
            bend = np.einsum("nd,ne,nck->dcek", rows, rows, curves) / n
            bend += np.einsum("de,ck->dcek", ridge, np.eye(classes))
            flat = bend.reshape(d * classes, d * classes)
            step = np.linalg.lstsq(flat, slope.ravel(), rcond=1e-12)[0].reshape(d, classes)
            self.theta -= step / max(1.0, np.abs(rows @ step).max())  # short where it is steep
            if np.abs(step).max() < 1e-10:
                return
        raise AssertionError("Newton's method has not converged")

    def _rows(self, x: Floats) -> Floats:
        return np.column_stack([(x - self.mean) * self.scale, np.ones(len(x))])

    def probabilities(self, x: Any) -> Floats:
        """Return (n, C)."""
        return softmax(self._rows(np.asarray(x, np.float64)) @ self.theta)
