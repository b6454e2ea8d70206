"""Compare each shortcut that only a GPU has with the plain way, when a run first uses it.

Steps and clusterings recorded as CUDA graphs, several views in one pass and fused SGD save time and
may change results by rounding alone. A run computes the first of each in the plain way too. Where
the two differ by more than the precision allows, it goes on in the plain way, with a line and an
entry of the environment of a row that say so.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

_log = logging.getLogger(__name__)
T = TypeVar("T")

RECORDED_STEPS, RECORDED_CLUSTERING = "recorded steps", "recorded clustering"
VIEWS_AT_ONCE, FUSED_SGD = "views at once", "fused SGD"
MEANS = RECORDED_STEPS, RECORDED_CLUSTERING, VIEWS_AT_ONCE, FUSED_SGD
COMPILED = "compiled {}"
"""Name of the passes through a part of a net by torch.compile."""
COMPILER = COMPILED.format("passes")
"""Name of all of them, which a run leaves out where one does not compile."""

TOLERANCE = {"fp32": 1e-3, "tf32": 1e-2, "bf16": 5e-2}
"""Largest distance between both ways by precision, as a share of the plain result's norm.

A recorded step starts the kernels of the plain one, so that it differs by an error or not at all.
"""
VIEWS_TOLERANCE = {"fp32": 5e-3, "tf32": 5e-2, "bf16": 0.15}
"""The same for several views in one pass, whose convolutions may choose other kernels.

Outputs tell a fault from rounding: batch norms that mix the views change those of batches of 16 by
0.27 to 0.34 of their size (ResNet-8, ResNet-18, training mode), rounding to bf16 by 0.03 to 0.07.
Gradients are less clear, 0.47 to 0.70 and 0.14 to 0.41; in fp32 one unit that rounding moves across
the kink of a ReLU changes them by up to 4e-3. With batches of 256 mixing changes outputs by 0.08,
which is found in fp32 and tf32 alone.
"""
GRADIENT_FACTOR = 3
"""How many times as far gradients may differ as outputs."""
ELEMENTWISE = 1e-6
"""The same for a formula of a few operations on each number, in float32."""
_NOISE, _ROUNDING = 1e-3, 2e-7
"""Added to that norm, since a gradient that is zero but for rounding has no size to compare with;
and the share of what was there before by which its change may be rounded."""

_agreed: set[tuple[str, bool, int]] = set()
_off: dict[str, str] = {}


def begin_run() -> None:
    """Forget the comparisons of the run before."""
    _agreed.clear()
    _off.clear()


@contextmanager
def plain() -> Iterator[None]:
    """Take no shortcut inside the block, and say nothing of it; forget all comparisons after it."""
    _off.update(dict.fromkeys(MEANS, "plain"))
    try:
        yield
    finally:
        begin_run()


def switched_off() -> dict[str, str]:
    """Return the shortcuts that this run leaves out, each with the difference that was found."""
    return dict(_off)


def agreed() -> set[str]:
    """Return the shortcuts that this run has compared and uses."""
    return {name for name, *_ in _agreed} - _off.keys()


def switch_off(reasons: Mapping[str, str]) -> None:
    """Leave these shortcuts out for the rest of the run; log one line for each that was in use."""
    for name, reason in reasons.items():
        if name not in _off:
            _off[name] = reason
            _log.warning("%s: switched off for this run: %s", name, reason)


def checked(
    name: str,
    fast: Callable[[], T],
    plain: Callable[[], T],
    read: Callable[[T], Mapping[str, Sequence[Tensor]]],
    state: Callable[[], Mapping[str, Sequence[Tensor]]],
    allowed: float,
    larger: Mapping[str, float] | None = None,
    refusals: type[Exception] | tuple[()] = (),
    refused: str = "",
    net: int = 0,
) -> T:
    """Compute by `fast`, or by `plain` if the two were found to differ.

    A run's first call under a name computes both, one with and one without gradients each, and for
    each `net` whose result has to be compared for itself. `read` gives the tensors of a result that
    are compared, and `state` all tensors that both change in place, by name and of one type each:
    their changes are compared too, and in the end they are as the way has left them whose result is
    returned. `allowed` is the largest distance between the two, as a share of the size; `larger`
    has factors of it by name, for what may differ more. Where `fast` raises one of the `refusals`,
    what is left out has the name `refused`.
    """
    key = name, torch.is_grad_enabled(), net
    if name in _off:
        return plain()
    if key in _agreed:
        return fast()
    changed = state()
    before = {what: _flat(tensors) for what, tensors in changed.items()}

    def outcome(result: T) -> dict[str, Tensor]:
        shown = {what: _flat(tensors) for what, tensors in read(result).items()}
        return shown | {what: _flat(changed[what]) - start for what, start in before.items()}

    expected = plain()
    wanted = outcome(expected)
    after = {what: _flat(tensors) for what, tensors in changed.items()}
    _restore(changed, before)
    limits = {what: allowed * (larger or {}).get(what, 1) for what in wanted}
    left_out = name
    try:
        result = fast()
        reason = _difference(outcome(result), wanted, before, limits)
    except refusals as err:
        left_out, said = refused, str(err).partition("\n\n")[0]  # advice on debugging follows
        reason = " ".join(f"{type(err).__name__}: {said}".split())[:200]
    if not reason:
        _agreed.add(key)
        return result
    switch_off({left_out: reason})
    _restore(changed, after)
    return expected


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    """Return a copy of the tensors as one vector."""
    parts = [value.detach().flatten() for value in tensors]
    return torch.cat(parts) if parts else torch.zeros(0)


def _restore(tensors: Mapping[str, Sequence[Tensor]], values: Mapping[str, Tensor]) -> None:
    for what, held in tensors.items():
        for tensor, part in zip(held, values[what].split([t.numel() for t in held]), strict=True):
            # Through `data`: autograd would refuse to go back through a batch norm whose statistics
            # were overwritten, although it does not read them.
            tensor.data.copy_(part.view_as(tensor))


def _difference(
    found: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    before: Mapping[str, Tensor],
    limits: Mapping[str, float],
) -> str:
    """Say what differs by more than its limit, a share of its size; empty if nothing does."""
    for what, other in wanted.items():
        one = found[what]
        equal = (one == other) | (one.isnan() & other.isnan())
        distance = _norm((one - other).masked_fill(equal, 0))
        size = _norm(other.nan_to_num(0, 0, 0)) + _NOISE
        rounding = _ROUNDING * _norm(before[what]) if what in before else 0.0
        if not distance <= limits[what] * size + rounding:
            share = distance / size
            return f"{what} differ by {share:.1e} of their size, more than {limits[what]:g}"
    return ""


def _norm(vector: Tensor) -> float:
    return float(vector.double().norm())
