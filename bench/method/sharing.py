"""Sharing rules: who holds a tensor and when it travels; declarations of everything else sent."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from torch import Tensor, nn

from fedbench.bench.nn.budget import ClusterBudget
from fedbench.bench.system.errors import PluginError, did_you_mean


class Sharing(StrEnum):
    """Rule of one group of tensors: what happens to it when a client takes part in a round."""

    AVERAGED = "averaged"
    """Sent down, trained, sent up; the server's optimizer gets the weighted mean."""

    OWN_ROW = "own-row"
    """Sent down; only row `client.id` is trained and sent up, and it replaces the server's row."""

    MEAN_ROW = "mean-row"
    """Treated on the client like own-row; the server averages the row's change over the whole
    cohort, in which other clients count as zero change, and hands it to its optimizer."""

    BROADCAST = "broadcast"
    """Sent down and frozen there; never goes up."""

    PERSONAL = "personal"
    """Kept by the client from round to round; never leaves it."""

    SERVER_ONLY = "server-only"
    """Kept by the server, frozen for clients; computing through it sends activations."""

    FROZEN = "frozen"
    """Held by all from the start, as `build` made it; never trained, sent or stored."""


UPLOADED = (Sharing.AVERAGED, Sharing.MEAN_ROW, Sharing.OWN_ROW)
SENT_DOWN = (*UPLOADED, Sharing.BROADCAST)
ROWS = (Sharing.MEAN_ROW, Sharing.OWN_ROW)
UNTRAINED = (Sharing.BROADCAST, Sharing.SERVER_ONLY)

ACTIVATIONS = "activations"
"""Name that declares activations sent to server-only parts, and their gradients."""


@dataclass(frozen=True)
class Extra:
    """Declaration of one tensor that leaves a client besides the averaged tensors and rows."""

    per_sample: bool = False  # it holds something of single images, for example a row for each
    # Name of the extra that holds the number of images behind the smallest part of this one; at 1
    # a message reveals a single image. None = all images together.
    group_size: str | None = None
    summed: bool = False  # the server uses only the sum over clients
    # Differential privacy of one message, per image; None = none.
    budget: ClusterBudget | None = None


def rule_of(name: str, table: Mapping[str, Sharing]) -> Sharing:
    """Return the rule of the first pattern that matches; a `PluginError` if none does."""
    for pattern, rule in table.items():
        if fnmatchcase(name, pattern):  # not `fnmatch`, which ignores case on some systems
            try:
                return Sharing(rule)  # its word will do
            except ValueError as err:
                known = ", ".join(Sharing)
                raise PluginError(f"sharing(): {rule!r} is no rule (known: {known})") from err
    raise PluginError(f"tensor {name!r} matches no pattern of sharing(): {', '.join(table)}")


def averaged_parameters(
    net: nn.Module, table: Mapping[str, Sharing], before: str
) -> Iterator[Tensor]:
    """Yield the parameters that clients train and the server averages, in the net's order.

    The part `before`, an add-on's, and what follows it are left out.
    """
    parts = [name for name, _ in net.named_children()]
    left_out = parts[parts.index(before) :] if before in parts else []
    for name, value in net.named_parameters():
        if name.partition(".")[0] in left_out or not value.requires_grad:
            continue
        if rule_of(name, table) is Sharing.AVERAGED:
            yield value


def nothing_averaged(base: str, addon: str) -> str:
    """Return the message for an add-on on a method that averages nothing which clients train."""
    return (
        f"{base}+{addon}: {base} has no tensors that clients train and the server averages, so"
        f" {addon} has nothing to do; leave it out"
    )


def check_table(names: Iterable[str], table: Mapping[str, Sharing]) -> None:
    """Refuse a table with a pattern that matches no tensor, or a tensor that no pattern covers."""
    names = list(names)
    for name in names:
        rule_of(name, table)
    for pattern in table:
        if not any(fnmatchcase(name, pattern) for name in names):
            parts = {name.partition(".")[0] + ".*" * ("." in name) for name in names}
            close = did_you_mean(pattern, parts)
            raise PluginError(f"sharing() pattern {pattern!r} matches no tensor{close}")


def check_sent(
    spec: str, declared: Mapping[str, Extra], sent: Iterable[str], *, activations: bool
) -> None:
    """Refuse tensors that leave a client undeclared.

    Args:
        spec: the method, for the message.
        declared: its `Needs.extras`.
        sent: names of the tensors that `after_local` returned.
        activations: whether anything crossed to server-only parts.
    """
    names = set(sent)
    known = ", ".join(declared) or "nothing"
    for name in names - set(declared):
        raise PluginError(
            f"method {spec!r} sends {name!r} up, which its needs() does not declare (declared:"
            f' {known}); add extras={{"{name}": Extra()}}, with per_sample=True if it holds'
            " something of single images"
        )
    for name in names:
        size = declared[name].group_size
        if size is not None and size not in names:
            raise PluginError(f"method {spec!r} sends {name!r} without its group size {size!r}")
    if activations and not declared.get(ACTIVATIONS, Extra()).per_sample:
        raise PluginError(
            f"method {spec!r} computes its loss through server-only parts, so activations of single"
            f' images leave the client; declare extras={{"{ACTIVATIONS}": Extra(per_sample=True)}}'
        )
