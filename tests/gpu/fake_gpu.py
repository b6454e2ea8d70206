"""A GPU that is none: tensors that say `cuda:0` and compute on the CPU, under a GPU's rules.

Every operation is looked at below autograd: operands on two devices are an error, as on a real GPU;
transfers and other waits of the host are counted with the line that caused them, and so are draws
from the GPU's generator. Values are real, so that branches on data go the way they would
go. Nothing is asynchronous, and nothing is fast.

    with FakeGPU() as gpu:
        ... torch.zeros(3, device="cuda") ...
    gpu.waits, gpu.signature
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, Self
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from fedbench.bench.system.numerics import measure
from fedbench.bench.training import run_state

aten = torch.ops.aten
CUDA = torch.device("cuda", 0)
_ROOTS = ("/bench/", "/methods/")
_TRANSFERS = {aten.copy_.default, aten._to_copy.default, aten._copy_from.default}
_INDEX = {aten.index.Tensor, aten.index_put_.default}
_WAITS = {  # the host does not know the result's size, or a Python number, before the GPU answers
    "_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "bincount",
    "unique_consecutive", "equal", "is_nonzero", "_linalg_eigh", "_linalg_svd", "linalg_eig",
    "linalg_lstsq", "_linalg_check_errors",
}  # fmt: skip
_RANDOM = {
    "rand", "randn", "randint", "randperm", "uniform_", "normal_", "bernoulli_", "bernoulli",
    "native_dropout", "multinomial", "geometric_", "exponential_", "random_", "rand_like",
    "randn_like",
}  # fmt: skip


class DeviceMismatchError(RuntimeError):
    """Raised for what a GPU would have refused."""


class Shadow(Tensor):
    """A tensor that says it is on the GPU.

    To torch's C++ it is a CPU tensor: the autograd engine of a build with CUDA insists on streams
    of a real GPU for anything else. Python sees the `device`, `to` and `cpu` of a GPU tensor.
    """

    _inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Shadow":
        made: Shadow = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device("cpu"),
            requires_grad=False,
        )
        made._inner = inner
        return made

    def __init__(self, inner: Tensor) -> None:
        pass

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Shadow({self._inner!r})"

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    @property
    def data(self) -> Tensor:
        with torch._C.DisableTorchFunctionSubclass():
            return Tensor.data.__get__(self)  # type: ignore[attr-defined, no-any-return]

    @data.setter
    def data(self, other: Tensor) -> None:
        if not isinstance(other, Shadow):
            raise DeviceMismatchError("a GPU tensor's data set to a CPU tensor")
        with torch._C.DisableTorchFunctionSubclass():
            Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        self._inner = other._inner

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name == "tolist":
            return _move(args[0], torch.device("cpu"), None).tolist()
        if name == "numpy":
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        if name in ("cpu", "cuda"):
            return _move(args[0], torch.device(name), None, **kwargs)
        if name in ("to", "type_as", "pin_memory"):
            return _to(args, kwargs)
        if name in ("unsqueeze_", "squeeze_", "transpose_", "t_"):
            # A shadow's shape cannot change in place; torchvision uses what these return.
            func = getattr(Tensor, name[:-1])
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if FakeGPU.active is None:
            raise RuntimeError("a fake GPU tensor outside of FakeGPU")
        return FakeGPU.active.run(func, args, kwargs or {})


class FakeGraph:
    """A CUDA graph: operations that run again on the same memory, with the same numbers."""

    def __init__(self) -> None:
        self.operations: list[tuple[Any, Any, Any, Any]] = []
        self._before: dict[int, tuple[Any, Any]] = {}

    def record(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation for the shape of its result; what it changes is restored later."""
        for tensor in tree_flatten((args, kwargs))[0]:
            if isinstance(tensor, Tensor):
                memory = tensor.untyped_storage()
                self._before.setdefault(memory.data_ptr(), (memory, memory.clone()))
        out = func(*args, **kwargs)
        for tensor in tree_flatten(out)[0]:
            if isinstance(tensor, Tensor):
                memory = tensor.untyped_storage()
                self._before.setdefault(memory.data_ptr(), (memory, None))
        self.operations.append((func, args, kwargs, out))
        return out

    def undo(self) -> None:
        """Restore memory as it was before the recording, which on a GPU runs nothing."""
        for memory, content in self._before.values():
            memory.fill_(255) if content is None else memory.copy_(content)  # 255: NaN

    def replay(self) -> None:
        """Run all operations on what the memory holds now."""
        for func, args, kwargs, out in self.operations:
            results = tree_flatten(func(*args, **kwargs))[0]
            for old, new in zip(tree_flatten(out)[0], results, strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class _Stream:
    def __init__(self, device: Any = None) -> None: ...

    def wait_stream(self, other: Self) -> None: ...


@contextmanager
def _on(stream: _Stream | None) -> Iterator[None]:
    before = FakeGPU.stream
    FakeGPU.stream = stream or before
    try:
        yield
    finally:
        FakeGPU.stream = before


@contextmanager
def _recording(graph: FakeGraph, stream: _Stream, **_: Any) -> Iterator[None]:
    """As `torch.cuda.graph`, which does not leave the stream of a recording that fails."""
    before, FakeGPU.graph, FakeGPU.stream = FakeGPU.stream, graph, stream
    try:
        yield
        FakeGPU.stream = before
    finally:
        FakeGPU.graph = None
        graph.undo()


def _to(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """`Tensor.to` in all its forms."""
    given = list(args[1:])
    like = next((x for x in given if isinstance(x, Tensor)), kwargs.get("other"))
    if like is not None:
        device, dtype = like.device, like.dtype
    else:
        device = next((x for x in given if isinstance(x, str | torch.device)), None)
        device = kwargs.get("device", device)
        dtype = next((x for x in given if isinstance(x, torch.dtype)), None)
        dtype = kwargs.get("dtype", dtype)
    rest = {k: v for k, v in kwargs.items() if k in ("non_blocking", "copy", "memory_format")}
    flags = [x for x in given if isinstance(x, bool)]
    rest |= dict(zip(("non_blocking", "copy"), flags, strict=False))
    return _move(args[0], device and torch.device(device), dtype, **rest)


def _move(
    x: Tensor,
    device: torch.device | None,
    dtype: torch.dtype | None,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    """`Tensor.to`, whose C++ form would take a shadow for a CPU tensor."""
    same = device is None or device.type == x.device.type
    if same and dtype in (None, x.dtype) and not copy and memory_format is None:
        return x
    more = {} if memory_format is None else {"memory_format": memory_format}
    FakeGPU.leaving = device is not None and device.type == "cpu"
    moved: Tensor = aten._to_copy.default(
        x, dtype=dtype or x.dtype, device=device or x.device, non_blocking=non_blocking, **more
    )
    return moved


def _line() -> str:
    """Return the innermost line of the product that led here."""
    frame = sys._getframe(3)
    while frame is not None:
        name = frame.f_code.co_filename
        for root in _ROOTS:
            if root in name and "/tests/" not in name and "site-packages" not in name:
                return f"{name.split(root)[-1]}:{frame.f_code.co_qualname}"
        frame = frame.f_back  # type: ignore[assignment]
    return "backward or elsewhere"


class FakeGPU(TorchDispatchMode):
    """The rules and the counts of a GPU inside the block.

    Attributes:
        waits: of the host, by kind and place.
        draws: from the GPU's own generator, by place.
        signature: each operation with its numbers and shapes, to find values that a recorded step
            would bake in.
    """

    active: ClassVar["FakeGPU | None"] = None
    graph: ClassVar[FakeGraph | None] = None
    """What operations are recorded into, at the moment."""
    stream: ClassVar[_Stream] = _Stream()
    """The current one."""
    leaving: ClassVar[bool] = False
    """A transfer that Python asked for; C++ takes shadows for CPU tensors anyway."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reset()

    def reset(self) -> None:
        self.waits, self.draws = Counter[str](), Counter[str]()
        self.signature: list[tuple[str, str, str]] = []

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        self._stack.enter_context(_believed())
        FakeGPU.active = self
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *info: Any) -> None:
        super().__exit__(*info)  # type: ignore[no-untyped-call]
        FakeGPU.active = None
        self._stack.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run one operation: check devices, compute on the CPU, count, wrap."""
        flat, spec = tree_flatten((args, kwargs))
        shadows = [x for x in flat if isinstance(x, Shadow)]
        plain = [x for x in flat if isinstance(x, Tensor) and not isinstance(x, Shadow)]
        asked = kwargs.get("device")
        asked = None if asked is None else torch.device(asked)
        if shadows and asked is not None and asked.type == "cpu" and not FakeGPU.leaving:
            asked = None  # `grad.to(self.options())` and the like
            kwargs = {k: v for k, v in kwargs.items() if k != "device"}
            flat, spec = tree_flatten((args, kwargs))
        FakeGPU.leaving = False
        if not shadows and (asked is None or asked.type == "cpu"):
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        self._check(func, name, args, kwargs, shadows, plain)
        back = {id(x._inner): x for x in shadows}
        inner = [x._inner if isinstance(x, Shadow) else x for x in flat]
        inner_args, inner_kwargs = tree_unflatten(inner, spec)
        if asked is not None:
            inner_kwargs["device"] = torch.device("cpu")
        if "pin_memory" in inner_kwargs:
            inner_kwargs["pin_memory"] = None
        if name == "_fused_sdp_choice":
            return 0  # the formula itself: a GPU's kernels have other operators
        before = [(x, x._inner.shape) for x in shadows]
        if self.graph is None:
            out = func(*inner_args, **inner_kwargs)
        else:
            out = self.graph.record(func, inner_args, inner_kwargs)
        if any(shadow._inner.shape != shape for shadow, shape in before):
            raise NotImplementedError(f"{func} resized a tensor in place")
        line = _line()
        scalars = [x for x in inner if not isinstance(x, Tensor)]
        shapes = [tuple(x.shape) for x in inner if isinstance(x, Tensor)]
        self.signature.append((f"{name} @ {line}", str(scalars), str(shapes)))
        if kind := _wait(func, name, args, kwargs, bool(shadows), asked):
            self.waits[f"{kind} @ {line}"] += 1
        if name in ("copy_", "_copy_from") and not isinstance(args[0], Shadow):
            return out
        to_cpu = asked is not None and asked.type == "cpu"

        def wrap(x: Any) -> Any:
            if not isinstance(x, Tensor) or to_cpu:
                return x
            return back[id(x)] if id(x) in back else Shadow(x)

        return wrap(out) if isinstance(out, Tensor) else tree_map(wrap, out)

    def _check(
        self, func: Any, name: str, args: Any, kwargs: Any, shadows: list[Any], plain: list[Any]
    ) -> None:
        generator = kwargs.get("generator")
        generator = generator or next((a for a in args if isinstance(a, torch.Generator)), None)
        if generator is not None and generator.device.type == "cpu":
            raise DeviceMismatchError(f"{func}: CPU generator for a GPU tensor @ {_line()}")
        if name in _RANDOM and generator is None:
            self.draws[f"{name} @ {_line()}"] += 1
        if not shadows or not plain or func in _TRANSFERS:
            return
        if func in _INDEX and isinstance(args[0], Shadow):
            values = args[2] if len(args) > 2 else None
            if values is None or isinstance(values, Shadow) or values.dim() == 0:
                return
        if torch._C._current_graph_task_id() != -1:
            return  # zeros for an unused output, which C++ makes where it takes shadows to be
        if any(x.dim() > 0 for x in plain):
            raise DeviceMismatchError(f"{func}: tensors on two devices @ {_line()}")


def _wait(
    func: Any, name: str, args: Any, kwargs: Any, shadows: bool, asked: torch.device | None
) -> str:
    """Return the kind of wait that an operation makes; empty if it makes none."""
    if name in _WAITS:
        return name
    if func in _INDEX:
        for index in args[1]:
            if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8):
                return f"{name} by a mask"
            if isinstance(index, Tensor) and not isinstance(index, Shadow):
                return f"{name} by a CPU tensor"
    if name == "_to_copy" and asked is not None:
        if asked.type == "cpu":
            return "copy to the CPU"
        if not shadows and not kwargs.get("non_blocking"):
            return "copy to the GPU"
    crosses = name == "copy_" and isinstance(args[0], Shadow) != isinstance(args[1], Shadow)
    if crosses and not (len(args) > 2 and args[2]):
        return "copy to the GPU" if isinstance(args[0], Shadow) else "copy to the CPU"
    return ""


@contextmanager
def without_onednn() -> Iterator[None]:
    """Compute convolutions by torch's own code.

    oneDNN's backward reads shadows as tensors of the layout that C++ believes them to have.
    """
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


@contextmanager
def _believed() -> Iterator[None]:
    here = measure("cpu")  # a fingerprint of the fake GPU would say nothing
    with ExitStack() as stack:

        def patch(owner: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(owner, name, value))

        patch(run_state, "measure", lambda *a, **k: here)
        patch(torch.cuda, "_lazy_init", lambda: None)
        patch(torch.cuda, "is_available", lambda: True)
        patch(torch.cuda, "device_count", lambda: 1)
        patch(torch.cuda, "is_initialized", lambda: True)
        patch(torch.cuda, "manual_seed_all", lambda seed: None)
        patch(torch.cuda, "get_rng_state", lambda device="cuda": torch.zeros(16).byte())
        patch(torch.cuda, "set_rng_state", lambda state, device="cuda": None)
        patch(torch.cuda, "get_device_name", lambda device=None: "fake GPU")
        patch(torch.cuda, "is_bf16_supported", lambda *a, **k: True)
        patch(torch.cuda, "mem_get_info", lambda device=None: (2**33, 2**33))
        patch(torch.cuda, "max_memory_allocated", lambda device=None: 2**20)
        patch(torch.cuda, "reset_peak_memory_stats", lambda device=None: None)
        patch(torch.cuda, "Stream", _Stream)
        patch(torch.cuda, "current_stream", lambda device=None: FakeGPU.stream)
        patch(torch.cuda, "stream", _on)
        patch(torch.cuda, "CUDAGraph", FakeGraph)
        patch(torch.cuda, "graph", _recording)
        patch(Tensor, "pin_memory", lambda self, *a: self)
        for name in ("tensor", "as_tensor"):  # they copy below the reach of any mode
            patch(torch, name, _maker(getattr(torch, name)))
        plain = torch.autocast.__init__
        patch(
            torch.autocast,
            "__init__",
            lambda self, device_type, *a, **k: plain(self, "cpu", *a, **k),
        )
        before = torch.__future__.get_overwrite_module_params_on_conversion()
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        stack.enter_context(without_onednn())
        try:
            yield
        finally:
            torch.__future__.set_overwrite_module_params_on_conversion(before)


def _maker(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def made(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        if device is None or torch.device(device).type == "cpu":
            return plain(data, *args, **kwargs)
        return _move(plain(data, *args, **kwargs), torch.device(device), None)

    return made
