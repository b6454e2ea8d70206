"""Errors that arise in code of other packages, with the place."""

import inspect
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path

from pydantic import ValidationError

from fedbench.bench.method import registry
from fedbench.bench.system.errors import FedbenchError, PluginError, exhausted
from fedbench.bench.system.regime import own_switches

_GROUPS = ("methods", "backbones", "probes", "objectives", "datasets")


@contextmanager
def guarded() -> Iterator[None]:
    """Compute in the block as in a process of its own, and raise what fails as a `FedbenchError`.

    What fails by a plugin or by a limit of the system; all else is a bug, and stays what it is.
    """
    try:
        with own_switches():
            yield
    except Exception as err:
        if (known := exhausted(err) or error_of_plugin(err)) is None:
            raise
        raise known from err


def error_of_plugin(err: BaseException) -> PluginError | None:
    """Return an exception that a plugin's code raised as an error of the plugin; None = it did not.

    The place is the innermost line of the plugin, or its function that cannot be called so.
    """
    if isinstance(err, FedbenchError):
        return None
    classes = [entry.cls for entry in registry.entries().values()]
    points = [point for group in _GROUPS for point in entry_points(group=f"fedbench.{group}")]
    modules = [*(cls.__module__ for cls in classes), *(point.module for point in points)]
    foreign = {module.partition(".")[0] for module in modules} - {"fedbench", "__main__"}
    place = None
    for frame, line in traceback.walk_tb(err.__traceback__):
        module = frame.f_globals.get("__name__", "").partition(".")[0]
        if module in foreign:
            place = (module, frame.f_code.co_filename, line, frame.f_code.co_name)
    if place is None and isinstance(err, TypeError):  # such as a hook with too few parameters
        for cls in classes:
            hook = str(err).partition("()")[0].removeprefix(f"{cls.__qualname__}.")
            module, code = cls.__module__.partition(".")[0], vars(cls).get(hook)
            if module in foreign and inspect.isfunction(code):
                place = (module, code.__code__.co_filename, code.__code__.co_firstlineno, hook)
    if place is None:
        return None
    module, file, line, function = place
    text = f"{type(err).__name__}: {err}"
    if isinstance(err, ValidationError):
        text = registry.describe_validation(err, ())
    text = " ".join(text.split())
    return PluginError(f"plugin {module}, {Path(file).name}:{line} in {function}: {text}")
