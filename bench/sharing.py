"""The sharing table: for every tensor of a run, who holds it and when it travels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase

from fedbench.bench.errors import PluginError


class Sharing(StrEnum):
    """What happens to one group of tensors when a client takes part in a round."""

    AVERAGED = "averaged"
    """Sent down, trained, sent up; the server's optimizer is fed the weighted mean."""

    OWN_ROW = "own-row"
    """Sent down; only row `client.id` is trained and sent up, and it replaces the server's row."""

    MEAN_ROW = "mean-row"
    """As own-row on the client; the server averages the row's change over the whole cohort, in
    which the other clients count as zero change, and feeds it to its optimizer."""

    BROADCAST = "broadcast"
    """Sent down and frozen there; never goes up."""

    PERSONAL = "personal"
    """Kept by the client from round to round; never leaves it."""

    SERVER_ONLY = "server-only"
    """Kept by the server, frozen for clients; computing through it sends activations."""


UPLOADED = (Sharing.AVERAGED, Sharing.MEAN_ROW, Sharing.OWN_ROW)
SENT_DOWN = (*UPLOADED, Sharing.BROADCAST)
ROWS = (Sharing.MEAN_ROW, Sharing.OWN_ROW)
FROZEN = (Sharing.BROADCAST, Sharing.SERVER_ONLY)


def rule_of(name: str, table: Mapping[str, Sharing]) -> Sharing:
    """The rule of the first pattern that matches, read from the top.

    Raises:
        PluginError: if no pattern matches.
    """
    for pattern, rule in table.items():
        if fnmatchcase(name, pattern):
            return rule
    raise PluginError(f"tensor {name!r} matches no pattern of sharing(): {', '.join(table)}")


def check_table(names: Iterable[str], table: Mapping[str, Sharing]) -> None:
    """Refuse a table with a pattern that no tensor meets: it is a misspelt name.

    Raises:
        PluginError: naming the pattern, or the tensor that no pattern covers.
    """
    names = list(names)
    for name in names:
        rule_of(name, table)
    for pattern in table:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise PluginError(
                f"sharing() pattern {pattern!r} matches no tensor (tensors: {', '.join(names)})"
            )
