"""Random generators, each derived from the seed and the purpose of its draws.

A generator depends on `(seed, purpose, …)` alone, so draws do not depend on the number of workers,
on the order in which clients finish, or on whether a run was interrupted.
"""

import hashlib
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch
    from threadpoolctl import ThreadpoolController


def derive(seed: int, purpose: str, *index: int) -> int:
    """Return a 63-bit seed for one purpose, for example `derive(0, "cohort", round_index)`."""
    key = "/".join([str(seed), purpose, *map(str, index)])
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1


def generator(seed: int, purpose: str, *index: int) -> "torch.Generator":
    """Return a CPU generator; draws move to the device, so that CPU and GPU runs have the same."""
    import torch

    return torch.Generator().manual_seed(derive(seed, purpose, *index))


def numpy_generator(seed: int, purpose: str, *index: int) -> np.random.Generator:
    """Return a NumPy generator."""
    return np.random.default_rng(derive(seed, purpose, *index))


@contextmanager
def scope(seed: int, purpose: str, *index: int) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and `random` in the block; restore them after it.

    Meant for code that takes no generator: weight initialisers, dropout, a plugin's own draws.
    """
    import torch

    numpys, pythons = np.random.get_state(), random.getstate()  # noqa: NPY002
    value, gpus = derive(seed, purpose, *index), torch.cuda.is_initialized()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if gpus else ()):
        # `torch.manual_seed` would also record a traceback for each kind of device not in use.
        torch.default_generator.manual_seed(value)
        if gpus:
            torch.cuda.manual_seed_all(value)
        random.seed(value)
        np.random.seed(value % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(pythons)
            np.random.set_state(numpys)  # noqa: NPY002


def drawn() -> tuple[object, ...]:
    """Return what changes with each draw from a global generator, but for those of GPUs."""
    import torch

    _, key, *others = np.random.get_state()  # noqa: NPY002
    state = torch.default_generator.get_state().numpy().tobytes()
    return state, np.asarray(key).tobytes(), *others, random.getstate()


@contextmanager
def single_thread() -> Iterator[None]:
    """Run torch on one CPU thread inside the block: sums then do not depend on the cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def _blas() -> "ThreadpoolController":
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


def single_blas_thread() -> AbstractContextManager[Any]:
    """Run the BLAS of NumPy and SciPy on one thread; both are to be imported before.

    Torch's number does not reach it. Its threads share the sum of more than 10,000 numbers, with
    older kernels smaller ones too, which so depended on the cores; and they wait for each other
    wherever these are busy: then L-BFGS took most of the time of a fit.
    """
    limited: AbstractContextManager[Any] = _blas().limit(limits=1)
    return limited
