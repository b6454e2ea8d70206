"""Errors that fedbench raises on purpose, with the exit code of the command line for each."""

import difflib
import errno
from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T")


class FedbenchError(Exception):
    """Base of expected errors; the message quotes the value, the rule and a remedy."""

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Return message and exit code for another process, where a plugin's class is its base."""
        kind = next(kind for kind in type(self).__mro__ if globals().get(kind.__name__) is kind)
        # Not by `__init__`, which may take other arguments.
        return kind.__new__, (kind, str(self)), {"exit_code": self.exit_code}


class ConfigError(FedbenchError):
    """A configuration, an option or a settings file is invalid."""

    exit_code = 2


_MANY, _ALIKE = 40, 8  # names that a message lists


class UnknownNameError(ConfigError):
    """A name is in no registry; the message names the nearest known ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str], more: str = "") -> None:
        super().__init__(f"unknown {kind} {name!r}{did_you_mean(name, known)}{more}")


class ResourceError(FedbenchError):
    """The machine or cluster lacks a resource: a GPU, memory, a worker that survives."""

    exit_code = 3


class DataError(FedbenchError):
    """A data set is missing, torn or of another layout than announced."""

    exit_code = 5


class StoreError(FedbenchError):
    """A result store cannot be read or written."""

    exit_code = 5


_EXHAUSTED = {
    errno.EMFILE: "open files (`ulimit -n`)",
    errno.ENFILE: "open files of the whole system",
    errno.EAGAIN: "processes and threads (`ulimit -u`, or that of a container)",
    errno.ENOMEM: "memory",
}
_SAID = {"can't start new thread": errno.EAGAIN, "can't allocate memory": errno.ENOMEM}
"""Text of a RuntimeError -> its error number, which Python and torch leave out."""


def exhausted(cause: BaseException) -> ResourceError | None:
    """Turn an error about a limit of the system into one line; None = it is about something else.

    >>> print(exhausted(OSError(errno.EMFILE, "Too many open files")))
    the limit of open files (`ulimit -n`) is reached; raise it, or use fewer --workers
    """
    number = errno.ENOMEM if isinstance(cause, MemoryError) else getattr(cause, "errno", None)
    if isinstance(cause, RuntimeError):
        number = next((each for text, each in _SAID.items() if text in str(cause)), None)
    if number not in _EXHAUSTED:
        return None
    limit = _EXHAUSTED[number]
    return ResourceError(f"the limit of {limit} is reached; raise it, or use fewer --workers")


class PluginError(FedbenchError):
    """A method plugin breaks the contract of `fedbench.bench.method`."""


def expect(value: T, kind: type[Any], what: str) -> T:
    """Return what a plugin gave; a PluginError unless it is of its kind."""
    if not isinstance(value, kind):
        raise PluginError(f"{what} must be a {kind.__name__} (got {type(value).__name__})")
    return value


class PluginWarning(UserWarning):
    """A plugin could not be loaded; everything else works without it."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to a given one, ignoring case; None if none is.

    >>> nearest("SimCLR", ["simclr", "byol"])
    'simclr'
    """
    by_folded = {known_name.casefold(): known_name for known_name in sorted(known, reverse=True)}
    close = difflib.get_close_matches(name.casefold(), by_folded, n=1)
    return by_folded[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the nearest match, and the allowed names.

    Of very many only those that are like it are named, if there are some.

    >>> did_you_mean("simcrl", ["simclr", "byol"]), did_you_mean("x", [])
    ("; did you mean 'simclr'? (known: byol, simclr)", ' (known: none)')
    """
    names = sorted(known)
    close = nearest(name, names)
    hint = "" if close is None else f"; did you mean {close!r}?"
    if close is not None and len(names) > _MANY:
        alike = difflib.get_close_matches(name, names, n=_ALIKE)
        return f"{hint} ({len(names)} are known, alike: {', '.join(alike or [close])})"
    return f"{hint} (known: {', '.join(names) or 'none'})"
