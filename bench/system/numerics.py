"""Numeric platform: everything outside of a run's configuration that decides how sums are rounded.

Two processes on one platform compute the same bits; on two platforms rounding differs, and grows
over the rounds of a run. Since libraries also choose their code by processor, a record has a
fingerprint beside names: a hash of the bits that a few fixed operations give. Operations that are
not among them may differ still: `execution.arithmetic` hashes what a run itself computes.
"""

import ctypes
import hashlib
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedbench.bench.system.identity import content_id
from fedbench.bench.system.regime import products, reproducible
from fedbench.bench.system.scratch import unnamed_file
from fedbench.bench.system.seeding import generator, single_blas_thread, single_thread

_PRECISIONS = {"highest": "ieee", "high": "tf32", "medium": "bf16"}


@dataclass(frozen=True)
class Platform:
    """Names and fingerprint of a numeric platform."""

    architecture: str
    aten: str  # instruction set of torch's own operations, as `AVX2` or `DEFAULT`
    onednn: str  # implementations that it chose for a few convolutions, as `jit:avx2`, or `none`
    torch_blas: str  # library and version that torch was built with
    numpy_blas: str  # libraries of numpy and scipy, with versions and the kernels they chose
    torch: str
    numpy: str
    scipy: str
    device: str  # `cpu`, or `cuda` with the GPU, its compute capability, CUDA and cuDNN
    precision: str  # of float32 products: `ieee`, `tf32` or `bf16`
    fingerprint: str  # SHA-256 of the bits of fixed operations, 64 hexadecimal digits

    def __str__(self) -> str:
        """Short text that ends in a hash: platforms with the same text have equal values."""
        names = sorted(set(re.findall(r"sse\d+|avx\w*|sve_?\d*|asimd|acl", self.onednn)))
        return (
            f"{self.architecture} {self.aten.lower()}, onednn {'+'.join(names) or self.onednn},"
            f" torch {self.torch}, {self.device}, {content_id(asdict(self))[:8]}"
        )

    def as_dict(self) -> dict[str, str]:
        """Return the record, with its text as `name`, for checkpoints and rows."""
        return {"name": str(self), **asdict(self)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Return the platform of a record, which may have further keys."""
        return cls(**{each.name: record[each.name] for each in fields(cls)})


def measure(device: str = "cpu", tf32: bool = False) -> Platform:
    """Return the platform of this process; the first time takes a tenth of a second and imports.

    `device` is the type of the one that trains, `cpu` or `cuda`; `tf32` whether in TF32, not in
    IEEE float32, also around bf16.
    """
    return measured(device, tf32, torch.get_float32_matmul_precision())


@cache
def measured(device: str, tf32: bool, products_as_set: str) -> Platform:
    """Measure the platform, once for each precision that the program has set for products."""
    import scipy  # imported here, as in `_fingerprint`: training does without it

    with reproducible(device), products(tf32=True) if tf32 else nullcontext():
        with single_thread(), torch.enable_grad():  # the caller may be under `no_grad`
            lines, fingerprint = _with_onednn_log(lambda: _fingerprint(torch.device(device)))
        precision = _PRECISIONS[torch.get_float32_matmul_precision()]
    return Platform(
        architecture=platform.machine(),
        aten=torch.backends.cpu.get_cpu_capability(),
        onednn=_implementations(lines),
        torch_blas=_torch_blas(),
        numpy_blas=_numpy_blas(),
        torch=torch.__version__,
        numpy=np.__version__,
        scipy=scipy.__version__,
        device=_device_name(device),
        precision=precision,
        fingerprint=fingerprint,
    )


def _torch_blas() -> str:
    text = torch.__config__.show()
    names = re.search(r"BLAS_INFO=(\w+)", text)
    version = re.search(r"Math Kernel Library Version (\S+)", text)
    return " ".join(match[1] for match in (names, version) if match) or "unknown"


def _numpy_blas() -> str:
    """Name the BLAS libraries of numpy and scipy; the kernels come from the loaded libraries."""
    from threadpoolctl import threadpool_info

    libraries = [entry for entry in threadpool_info() if entry["user_api"] == "blas"]
    bundled = [entry for entry in libraries if re.search(r"numpy|scipy", entry["filepath"])]
    keys = ("internal_api", "version", "architecture")
    texts = {
        " ".join(str(entry[key]) for key in keys if entry.get(key))
        for entry in bundled or libraries
    }
    return ", ".join(sorted(texts)) or "unknown"


def _device_name(device: str) -> str:
    if device == "cpu":
        return device
    gpu = torch.cuda.get_device_properties(0)
    return (
        f"cuda {gpu.name} (compute {gpu.major}.{gpu.minor}, CUDA {torch.version.cuda}, cuDNN"
        f" {torch.backends.cudnn.version()})"
    )


def _with_onednn_log(compute: Callable[[], str]) -> tuple[list[str], str]:
    """Return oneDNN's log lines about a computation, and its result.

    Only its log tells which instruction set oneDNN uses. It goes to the C library's stdout and
    therefore, for these milliseconds, to a file.
    """
    if not torch.backends.mkldnn.is_available():
        return [], compute()
    libc = ctypes.CDLL(None)
    libc.fflush(None)  # else what the C library still holds would go to the file
    with unnamed_file() as log:
        stdout = os.dup(1)
        os.dup2(log.fileno(), 1)
        try:
            with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
                result = compute()
            libc.fflush(None)
        finally:
            os.dup2(stdout, 1)
            os.close(stdout)
        log.seek(0)
        return log.read().decode(errors="replace").splitlines(), result


def _implementations(lines: list[str]) -> str:
    """Return the implementations of convolutions in oneDNN's log, sorted."""
    matches = (re.search(r",exec,cpu,convolution,([^,]+),", line) for line in lines)
    return ", ".join(sorted({match[1] for match in matches if match})) or "none"


def _fingerprint(device: torch.device) -> str:
    digest = hashlib.sha256()
    for results in (_layers(device), _formulas(device), _on_cpu()):
        for result in results:
            digest.update(result.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return fixed numbers in [-0.5, 0.5], quotients, since short fractions make sums exact."""
    count = int(np.prod(shape))
    return ((torch.arange(count).double() * 7919 % 1009 - 504) / 1009).to(dtype).reshape(shape)


def _layers(device: torch.device) -> Iterator[Tensor]:
    """Layers of encoders, forward and backward, in both memory formats."""
    shapes = (((4, 3, 12, 12), (16, 3, 3, 3), 1), ((4, 16, 12, 12), (32, 16, 3, 3), 2))
    for layout in (torch.contiguous_format, torch.channels_last):
        for images_shape, weight_shape, stride in (*shapes, ((4, 16, 8, 8), (32, 16, 1, 1), 2)):
            images, weight = (
                _numbers(*shape).to(device).contiguous(memory_format=layout).requires_grad_()
                for shape in (images_shape, weight_shape)
            )
            maps = F.conv2d(images, weight, stride=stride, padding=weight_shape[-1] // 2)
            maps = F.relu(F.batch_norm(maps, None, None, training=True))
            maps = F.group_norm(maps, 4)
            maps.square().mean().backward()
            for tensor in (maps, images.grad, weight.grad):
                if tensor is not None:
                    yield tensor


def _formulas(device: torch.device) -> Iterator[Tensor]:
    """Products, sums and functions of losses, optimizers and probes."""
    for dtype in (torch.float32, torch.float64):
        left, right = (_numbers(*s, dtype=dtype).to(device) for s in ((96, 80), (80, 48)))
        product = left @ right  # (96, 48)
        yield product
        yield F.log_softmax(product, dim=1)
        yield F.normalize(product, dim=1)
        yield F.layer_norm(product, (48,))
        yield F.gelu(product)
        yield product.exp().sum(dim=0)
        yield product.add(left[:, :48], alpha=0.9).addcdiv(product, left[:, :48].abs() + 1)
        yield torch.linalg.eigvalsh(left.T @ left)


def _on_cpu() -> Iterator[Tensor]:
    """Computations that stay on the processor: draws, views of images, the linear probe."""
    from scipy.optimize import minimize  # imported here: it takes half a second

    draws = generator(0, "numerics")
    yield torch.empty(999).normal_(generator=draws)
    yield torch.empty(999).uniform_(-0.1, 0.3, generator=draws)
    images, turns = _numbers(2, 3, 9, 9), _numbers(2, 2, 3)
    yield F.grid_sample(
        images, F.affine_grid(turns, [2, 3, 9, 9], align_corners=False), align_corners=False
    )
    inputs = _numbers(120, 24, dtype=torch.float64)
    gram = inputs.T @ inputs
    yield from torch.linalg.eigh(gram)
    target = np.linspace(-1, 1, 24)

    def loss(weights: Any) -> tuple[float, Any]:
        rest = gram.numpy() @ weights - target
        return float(rest @ rest), 2 * gram.numpy() @ rest

    with single_blas_thread():  # as a probe is fitted
        best = minimize(loss, np.zeros(24), jac=True, method="L-BFGS-B", options={"maxiter": 10})
    yield torch.from_numpy(best.x)
