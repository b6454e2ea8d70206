"""Entry points of other packages: who they are, and how a broken one is reported."""

import warnings
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from fedbench.bench.system.errors import FedbenchError, PluginError, PluginWarning
from fedbench.bench.system.source import keep_source

T = TypeVar("T")


def origin(point: EntryPoint) -> str:
    """Return the name of an entry point and of its package, for messages."""
    package = point.dist.name if point.dist is not None else point.module
    return f"{point.name!r} of package {package!r}"


def load(point: EntryPoint) -> Any:
    """Import what an entry point names, and keep its source, of which a run's hash is taken."""
    value = point.load()
    keep_source(point.module)
    return value


def load_error(point: EntryPoint, err: Exception) -> PluginError:
    """Return the error for an entry point that raised another one when it was loaded."""
    reason = str(err) if isinstance(err, PluginError) else f"{type(err).__name__}: {err}"
    if isinstance(err, SyntaxError):  # whose text has the file without its folder
        reason = f"{type(err).__name__}: {err.msg} ({err.filename}, line {err.lineno})"
    return PluginError(f"plugin {origin(point)} cannot be loaded: {' '.join(reason.split())}")


def leave_out(error: FedbenchError) -> None:
    """Warn that a plugin, or a file of one, is left out."""
    warnings.warn(f"{error}; going on without it", PluginWarning, stacklevel=3)


def load_all(group: str, accept: Callable[[EntryPoint], T]) -> dict[str, T]:
    """Load the entry points of a group: map each name to what `accept` makes of it.

    Importing a package may raise anything: one that does is left out with a warning.
    """
    found = {}
    for point in sorted(entry_points(group=group)):
        try:
            found[point.name] = accept(point)
        except Exception as err:
            leave_out(load_error(point, err))
    return found
