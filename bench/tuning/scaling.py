"""Values that follow an axis of a grid, such as a learning rate that follows the cohort."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fedbench.bench.config import RunConfig, Strict
from fedbench.bench.errors import ConfigError
from fedbench.bench.fields import get


class Scale(Strict):
    """How a value follows an axis: by the ratio of the axis to its plain value.

    Attributes:
        by: `linear`, `sqrt`, or `inverse`: divided by the ratio.
        of: dotted name of the axis.
    """

    by: Literal["linear", "sqrt", "inverse"]
    of: str

    def apply(self, base: int | float, ratio: float) -> int | float:
        """The scaled value: a whole number of at least 1 for a whole number, else six digits."""
        factor = {"linear": ratio, "sqrt": math.sqrt(ratio), "inverse": 1 / ratio}[self.by]
        value = base * factor
        if isinstance(base, int):
            return max(1, math.floor(value + 0.5))
        return float(f"{value:.6g}")


@dataclass(frozen=True)
class Scaled:
    """A value that followed an axis, and why.

    Attributes:
        key: its dotted name.
        base: what it is without the axis.
        value: what it is in the cell.
        reason: the factor, with both values of the axis.
    """

    key: str
    base: int | float
    value: int | float
    reason: str

    @property
    def text(self) -> str:
        """One line: `client.lr 0.003 -> 0.00424264: x sqrt(participation 1.0 / 0.5)`."""
        return f"{self.key} {self.base:g} -> {self.value:g}: {self.reason}"


def follow(key: str, scale: Scale, plain: RunConfig, new: Any) -> Scaled | None:
    """A value at one point of its axis; None if it does not change there.

    Args:
        key: dotted name of the value.
        scale: how it follows.
        plain: the configuration without the axis.
        new: the axis's value.
    """
    base, old = get(plain, key), get(plain, scale.of)
    value = scale.apply(base, float(new) / float(old))
    if value == base:
        return None
    top, bottom = (old, new) if scale.by == "inverse" else (new, old)
    ratio = f"{scale.of.rpartition('.')[2]} {top} / {bottom}"
    return Scaled(key, base, value, f"x sqrt({ratio})" if scale.by == "sqrt" else f"x {ratio}")


def check_scale(
    key: str, scale: Scale, plain: Any, axes: Sequence[Mapping[str, Sequence[Any]]]
) -> None:
    """Refuses a value that cannot follow.

    Args:
        key: dotted name of the value.
        scale: how it follows.
        plain: an example of the value.
        axes: the axes of the grid, and those under each preset.

    Raises:
        ConfigError: if one of both is no number, or there is no such axis.
    """
    if any(key in each for each in axes):
        raise ConfigError(f"scaling: {key} is an axis and cannot follow another")
    points = [value for each in axes for value in each.get(scale.of, ())]
    if not points:
        raise ConfigError(f"scaling: {key} follows {scale.of!r}, which is no axis of the grid")
    for name, values in ((key, [plain]), (scale.of, points)):
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise ConfigError(f"scaling: {name} must be a positive number (got {value!r})")
