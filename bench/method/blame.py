"""Errors that arise in code of other packages, with the place."""

import inspect
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import entry_points
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from fedbench.bench.method import Method, registry
from fedbench.bench.system.errors import FedbenchError, PluginError, exhausted
from fedbench.bench.system.packages import broken_package
from fedbench.bench.system.regime import own_switches

_GROUPS = ("methods", "backbones", "probes", "objectives", "datasets")
_OURS, _SESSION = "fedbench", "__main__"
_REMEDIES = {
    "modified by an inplace operation": "backward() of it needs a tensor that is changed in place"
    " afterwards, as by x += 1, x[i] = 0 or x.fill_(0); change a copy: x + 1, x.masked_fill(…)",
    "through the graph a second time": "backward() reaches what an earlier step computed; detach()"
    " what is kept from one step to the next",
}
"""Text of autograd -> what to say instead."""


@contextmanager
def guarded() -> Iterator[None]:
    """Compute in the block as in a process of its own, and raise what fails as a `FedbenchError`.

    What fails by a plugin, a broken package or a limit of the system; all else is a bug, and stays
    what it is.
    """
    try:
        with own_switches():
            yield
    except Exception as err:
        known: FedbenchError | None = exhausted(err) or broken_package(err) or error_of_plugin(err)
        if known is None:
            raise
        raise known from err


def error_of_plugin(err: BaseException) -> PluginError | None:
    """Return an exception that a plugin's code raised as an error of the plugin; None = it did not.

    The place is the innermost line of the plugin, or its function that cannot be called so. A
    script or session counts from a hook on that it has registered: the rest of it calls fedbench.
    """
    if isinstance(err, FedbenchError):
        return None
    classes = [entry.cls for entry in registry.entries().values()]
    points = [point for group in _GROUPS for point in entry_points(group=f"fedbench.{group}")]
    modules = [*(cls.__module__ for cls in classes), *(point.module for point in points)]
    foreign = {module.partition(".")[0] for module in modules} - {_OURS, _SESSION}
    hooks = {code for cls in classes if cls.__module__ == _SESSION for code in _codes(cls)}
    place, inside = None, False
    for frame, line in traceback.walk_tb(err.__traceback__):
        module = frame.f_globals.get("__name__", "").partition(".")[0]
        inside |= frame.f_code in hooks
        if module in foreign or (inside and module == _SESSION):
            place = (module, frame.f_code.co_filename, line, frame.f_code.co_name)
    if place is None and isinstance(err, TypeError):  # such as a hook with too few parameters
        for cls in classes:
            hook = str(err).partition("()")[0].removeprefix(f"{cls.__qualname__}.")
            module, code = _package(cls), vars(cls).get(hook)
            if module != _OURS and inspect.isfunction(code):
                place = (module, code.__code__.co_filename, code.__code__.co_firstlineno, hook)
    if place is None:
        return None
    text = f"{type(err).__name__}: {err}"
    if isinstance(err, ValidationError):
        text = registry.describe_validation(err, ())
    return _error(place, text)


def error_in_backward(err: BaseException, spec: str, loss: Callable[[], Tensor]) -> PluginError:
    """Return an error of backward() as one of the method, with the line if a plugin has it.

    No frame of the loss is on the stack then: of a plugin it is made once more, and autograd asked
    which line made what it fails on.
    """
    text = next((remedy for part, remedy in _REMEDIES.items() if part in str(err)), "")
    text = text or f"backward() of it fails, {type(err).__name__}: {err}"
    kinds = [cls for entry in registry.parse_spec(spec) for cls in entry.cls.__mro__]
    foreign = [cls for cls in kinds if issubclass(cls, Method) and _package(cls) != _OURS]
    of = {code.co_filename: _package(cls) for cls in foreign for code in _codes(cls)}
    if not foreign:
        return PluginError(f"method {spec!r}: {' '.join(text.split())}")
    # It fails once more, which is known: wanted is the warning that autograd gives with it.
    with warnings.catch_warnings(record=True) as told, suppress(Exception):
        warnings.simplefilter("always")
        with torch.autograd.detect_anomaly(check_nan=False):
            loss().backward()
    said = "".join(str(each.message) for each in told)
    lines = re.findall(r'File "(.+)", line (\d+), in (\w+)', said)
    places = [(of[file], file, int(line), name) for file, line, name in lines if file in of]
    whole = f"method {spec!r}: {' '.join(text.split())}"
    return _error(places[-1], text) if places else PluginError(whole)


def _package(cls: type[Any]) -> str:
    return cls.__module__.partition(".")[0]


def _codes(cls: type[Any]) -> list[CodeType]:
    """Return the code of the functions of a class."""
    return [each.__code__ for each in vars(cls).values() if inspect.isfunction(each)]


def _error(place: tuple[str, str, int, str], text: str) -> PluginError:
    module, file, line, function = place
    of = "this session" if module == _SESSION else f"plugin {module}"
    return PluginError(f"{of}, {Path(file).name}:{line} in {function}: {' '.join(text.split())}")
