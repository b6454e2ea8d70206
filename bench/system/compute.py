"""Devices and memory of the machine, and a check for finite numbers."""

import ctypes
import sys

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbench.bench.system.cores import MAX_LANES, MAX_WORKERS, usable_cores
from fedbench.bench.system.errors import ConfigError, ResourceError, exhausted


def choose_devices(device: str, workers: int | None, lanes: int | None = None) -> list[str]:
    """Return one device name per worker; the first is also the server's.

    Without a count there are as many workers as usable cores, or one per GPU. `lanes` are clients
    at a time in one process, which is then the only worker. Raises `ConfigError` for values out of
    range or several workers and lanes at once, `ResourceError` for `cuda` where torch sees no GPU.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"--device: must be auto, cpu or cuda (got {device!r})")
    if workers is not None and not 1 <= workers <= MAX_WORKERS:
        raise ConfigError(f"--workers: must be from 1 to {MAX_WORKERS:,} (got {workers})")
    if lanes is not None:
        if not 1 <= lanes <= MAX_LANES:
            raise ConfigError(f"--lanes: must be from 1 to {MAX_LANES} (got {lanes})")
        if workers not in (None, 1):
            raise ConfigError(
                f"--lanes trains all clients in one process (got --workers {workers}); give one"
            )
        workers = 1
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "cuda" and gpus == 0:
        raise ResourceError("--device cuda: torch sees no GPU here; use --device cpu or auto")
    if device == "cpu" or gpus == 0:
        return ["cpu"] * (workers or usable_cores())
    return [f"cuda:{index % gpus}" for index in range(workers or gpus)]


_CUDA_ERRORS = ("CUDA error", "CUDA driver error", "cuDNN error", "CUBLAS_STATUS", "CUDNN_STATUS")


def breaks_cuda(err: BaseException) -> bool:
    """Return True for an error after which CUDA answers every call in its process with the same.

    Too little memory is none: the run asks for too much, and the process goes on.
    """
    kind = type(err).__name__
    known = isinstance(err, RuntimeError) and any(text in str(err) for text in _CUDA_ERRORS)
    return kind == "AcceleratorError" or (known and kind != "OutOfMemoryError")


def of_machine(err: BaseException) -> bool:
    """Return True for an error about memory or a GPU, whatever code met it."""
    full = type(err).__name__ == "OutOfMemoryError" or exhausted(err) is not None
    return full or breaks_cuda(err)


_TOP_PAD, _TRIM, _MMAP = -2, -1, -3  # parameter numbers of glibc's mallopt


def keep_freed_memory() -> None:
    """Make the C library keep freed blocks of up to 32 MB for the next step.

    By default it returns a layer's activations to the system and fetches them again at every step:
    thousands of page faults, a tenth of the time of a small encoder on a CPU.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # only glibc has it
        # glibc refuses a larger threshold of _MMAP.
        for parameter, size in ((_MMAP, 2**25), (_TRIM, 2**28), (_TOP_PAD, 2**24)):
            mallopt(parameter, size)


def all_finite(values: Tensor) -> bool:
    """Return False if an entry is NaN or infinite.

    The extremes are NaN if any entry is: one pass, a tenth of the time of `isfinite().all()`.

    >>> import torch
    >>> all_finite(torch.tensor([[0.0, float("nan")]]))
    False
    """
    if not values.numel():
        return True
    low, high = values.aminmax()
    return bool(low.isfinite() & high.isfinite())


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; the copy from a CPU to a GPU does not wait for its work."""
    if device.type == "cpu" or values.device.type != "cpu":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def resident(images: NDArray[np.uint8], device: torch.device) -> NDArray[np.uint8] | Tensor:
    """Copy images to a GPU if they take at most a quarter of its free memory; else return them."""
    if device.type == "cpu" or images.nbytes > torch.cuda.mem_get_info(device)[0] / 4:
        return images
    return torch.from_numpy(np.array(images)).to(device)  # a copy: torch warns about memory maps
