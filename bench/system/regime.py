"""Numeric regime of a GPU: torch's switches that decide which bits it computes.

`reproducible` is entered in every process that uses a GPU before CUDA starts, since libraries read
some of these settings only then. On a CPU nothing here changes anything.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedbench.bench.system.errors import ResourceError

TF32 = "tf32"
"""Value of `client.precision` for products of numbers that are rounded to 10 bits."""


def check_precision(precision: str, device: torch.device | str) -> None:
    """Refuse a precision that a device does not compute in."""
    if precision == TF32 and torch.device(device).type != "cuda":
        other = "--device cuda, or client.precision fp32 or bf16"
        raise ResourceError(f"client.precision=tf32 needs a GPU, and this is a CPU; use {other}")


@contextmanager
def reproducible(device: torch.device | str) -> Iterator[None]:
    """Let a GPU compute the same bits each time, and products of float32 as IEEE 754 has them.

    An operation that has no deterministic form on a GPU still runs, with a warning of torch. The
    caller's switches are restored; `CUBLAS_WORKSPACE_CONFIG` stays. For a CPU nothing changes.
    """
    if torch.device(device).type != "cuda":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with (
            _set(torch.backends.cudnn, deterministic=True, benchmark=False),
            _set(torch.utils.deterministic, fill_uninitialized_memory=False),  # it takes time
            sdpa_kernel(SDPBackend.MATH),  # the fused kernels add up gradients in any order
            products(tf32=False),
        ):
            yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)


@contextmanager
def own_switches() -> Iterator[None]:
    """Undo in the block what the calling program has switched in torch; put it back after it.

    No gradients, inference mode, autocast, anomaly detection, a default type or device, an error
    where an operation is not deterministic, and rounded products.
    """
    dtype = torch.get_default_dtype()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    with ExitStack() as switches:
        switches.callback(torch.set_default_dtype, dtype)
        torch.set_default_dtype(torch.float32)
        switches.enter_context(torch.inference_mode(mode=False))
        switches.enter_context(torch.enable_grad())
        switches.enter_context(torch.autograd.set_detect_anomaly(mode=False))
        for kind in filter(torch.is_autocast_enabled, ("cpu", "cuda")):
            switches.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":  # as a mode it takes time in each operation
            switches.enter_context(torch.device("cpu"))
        for name in ("matmul", "conv"):  # what `set_float32_matmul_precision` changes on a CPU
            part = getattr(torch.backends.mkldnn, name, None)  # torch 2.9 has it
            if part is not None and part.fp32_precision not in ("none", "ieee"):
                switches.enter_context(_set(part, fp32_precision="ieee"))
        if torch.are_deterministic_algorithms_enabled():
            switches.callback(torch.use_deterministic_algorithms, True, warn_only=warned)
            torch.use_deterministic_algorithms(False)
        yield


@contextmanager
def products(*, tf32: bool) -> Iterator[None]:
    """Let a GPU's convolutions and matrix products round float32 to TF32, or not."""
    before = torch.get_float32_matmul_precision()
    with _set(torch.backends.cudnn, allow_tf32=tf32):
        # Not `set_float32_matmul_precision`, which changes products on the CPU too.
        torch.backends.cuda.matmul.allow_tf32 = tf32
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


@contextmanager
def _set(owner: Any, **values: Any) -> Iterator[None]:
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)
