"""Dimensions of a search space: a range of numbers, a range of whole numbers, a list of values."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from fedbench.bench.config import Strict
from fedbench.bench.fields import text_for_number

Scalar = bool | int | float | str


def _no_text(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError(text_for_number(value))
    return value


Number = Annotated[float, BeforeValidator(_no_text)]
Whole = Annotated[int, BeforeValidator(_no_text)]


class FloatRange(Strict):
    """All numbers from low to high; `grid` is what a grid search visits."""

    type: Literal["float"]
    low: Number
    high: Number
    log: bool = False
    grid: tuple[Number, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> FloatRange:
        _check_ends(self.low, self.high, self.log)
        for value in self.grid:
            if not self.holds(value):
                raise ValueError(f"grid value {value} must lie in [{self.low}, {self.high}]")
        return self

    def holds(self, value: Any) -> bool:
        """Whether a value lies in the range."""
        return _is_number(value) and self.low <= value <= self.high

    def ends(self) -> tuple[Scalar, ...]:
        """The values whose legality implies that of all others."""
        return self.low, self.high

    def steps(self, num_steps: int | None) -> tuple[Scalar, ...]:
        """What a grid search visits: `grid`, or that many even steps; empty if neither is given."""
        if self.grid or num_steps is None:
            return self.grid
        return tuple(_even(self.low, self.high, num_steps, self.log))


class IntRange(Strict):
    """Whole numbers from low to high in steps; with `log` every number, small ones more often."""

    type: Literal["int"]
    low: Whole
    high: Whole
    log: bool = False
    step: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _check(self) -> IntRange:
        _check_ends(self.low, self.high, self.log)
        if self.log and self.step != 1:
            raise ValueError(f"step must be 1 with log (got {self.step})")
        if (self.high - self.low) % self.step:
            raise ValueError(f"step {self.step} must divide high - low = {self.high - self.low}")
        return self

    def holds(self, value: Any) -> bool:
        """Whether a value is one of the numbers."""
        if not _is_number(value) or not self.low <= value <= self.high:
            return False
        return bool((value - self.low) % self.step == 0)

    def ends(self) -> tuple[Scalar, ...]:
        """The values whose legality implies that of all others."""
        return self.low, self.high

    def steps(self, num_steps: int | None) -> tuple[Scalar, ...]:
        """What a grid search visits: every number, or about that many spread evenly."""
        numbers = range(self.low, self.high + 1, self.step)
        if num_steps is None or num_steps >= len(numbers):
            return tuple(numbers)
        wanted = _even(self.low, self.high, num_steps, self.log)
        near = {min(numbers, key=lambda number: abs(number - each)) for each in wanted}
        return tuple(sorted(near))


class Choice(Strict):
    """A list of values without order."""

    type: Literal["choice"]
    values: tuple[Scalar, ...] = Field(min_length=1)

    def holds(self, value: Any) -> bool:
        """Whether a value is in the list."""
        return value in self.values

    def ends(self) -> tuple[Scalar, ...]:
        """The values whose legality implies that of all others."""
        return self.values

    def steps(self, num_steps: int | None) -> tuple[Scalar, ...]:
        """What a grid search visits: every value."""
        return self.values


Dimension = Annotated[FloatRange | IntRange | Choice, Field(discriminator="type")]


def _check_ends(low: float, high: float, log: bool) -> None:
    if low >= high:
        raise ValueError(f"low must be below high (got {low} and {high})")
    if log and low <= 0:
        raise ValueError(f"low must be above 0 with log (got {low})")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _even(low: float, high: float, num_steps: int, log: bool) -> list[float]:
    """That many values from low to high, evenly spaced (with `log` in ratio), ends exact."""
    if num_steps < 2:
        return [math.sqrt(low * high) if log else (low + high) / 2]
    inner = [step / (num_steps - 1) for step in range(1, num_steps - 1)]
    values = [low * (high / low) ** t if log else low + (high - low) * t for t in inner]
    return [low, *values, high]
