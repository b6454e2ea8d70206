"""Every error that fedbench raises on purpose, with the exit code the command line gives it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedbenchError(Exception):
    """Base of expected errors; the message says what was given, what is allowed, what to do."""

    exit_code = 1


class ConfigError(FedbenchError):
    """A configuration, option or file of settings that cannot be used."""

    exit_code = 2


class UnknownNameError(ConfigError):
    """A name that is in no registry; the message names the nearest known ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str], more: str = "") -> None:
        super().__init__(f"unknown {kind} {name!r}{did_you_mean(name, known)}{more}")


class ResourceError(FedbenchError):
    """Something the machine or the cluster does not have: a GPU, memory, a worker that survives."""

    exit_code = 3


class DataError(FedbenchError):
    """A data set that is missing, torn or not of the announced layout."""

    exit_code = 5


class StoreError(FedbenchError):
    """A result store that cannot be read or written."""

    exit_code = 5


class PluginError(FedbenchError):
    """A method plugin that breaks the contract of `fedbench.bench.method.base`."""


class PluginWarning(UserWarning):
    """A third party's plugin that could not be loaded; everything else works without it."""


def described(error: FedbenchError) -> tuple[str, str, int]:
    """An error as plain values, for the way to another process: `rebuild` takes them."""
    kinds = (kind.__name__ for kind in type(error).__mro__ if globals().get(kind.__name__) is kind)
    return next(kinds), str(error), error.exit_code


def rebuild(name: str, message: str, exit_code: int) -> FedbenchError:
    """The error that `described` took apart.

    A class of a plugin's own comes back as the nearest one of this module.
    """
    kind: type[FedbenchError] = globals()[name]
    error = kind.__new__(kind, message)  # a subclass may make its message from other arguments
    error.exit_code = exit_code
    return error


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like a given one, in whatever case; None if none is.

    >>> nearest("SimCLR", ["simclr", "byol"])
    'simclr'
    """
    by_case = {each.casefold(): each for each in sorted(known, reverse=True)}
    close = difflib.get_close_matches(name.casefold(), by_case, n=1)
    return by_case[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error message: the nearest match, and everything that is allowed.

    >>> did_you_mean("simcrl", ["simclr", "byol"]), did_you_mean("x", [])
    ("; did you mean 'simclr'? (known: byol, simclr)", ' (known: none)')
    """
    names = sorted(known)
    close = nearest(name, names)
    hint = "" if close is None else f"; did you mean {close!r}?"
    return f"{hint} (known: {', '.join(names) or 'none'})"
