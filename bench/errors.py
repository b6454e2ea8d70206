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

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        super().__init__(f"unknown {kind} {name!r}; {did_you_mean(name, known)}")


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
    """A method plugin that breaks the contract of `fedbench.bench.method`."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The part of an error message that names the nearest match and everything that is allowed.

    >>> did_you_mean("simcrl", ["simclr", "byol"])
    "did you mean 'simclr'? (known: byol, simclr)"
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}(known: {', '.join(names) or 'none'})"
