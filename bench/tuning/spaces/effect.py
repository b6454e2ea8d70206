"""Dimensions of a search space that change nothing: known before the first trial, or seen after."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedbench.bench.config import RunConfig
from fedbench.bench.config.partitioners import fields_not_read
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.identity import canonical_json
from fedbench.bench.tuning.spaces.space import Choice, SearchSpace

_READ_BY_SERVER: Mapping[str, tuple[str, ...]] = {
    "average": (),
    "momentum": ("momentum",),
    **dict.fromkeys(("adam", "adam-reddi", "yogi"), ("beta1", "beta2", "epsilon")),
    "adagrad": ("epsilon",),
}
_SERVER = {"momentum", "beta1", "beta2", "epsilon"}
_SWITCHES = ("server.optimizer", "client.optimizer", "data.partition")
"""Fields by whose value others are read or not."""


def unread(config: RunConfig) -> dict[str, str]:
    """Map fields that a run does not read to the setting because of which it does not."""
    server, client, partition = config.server.optimizer, config.client.optimizer, config.data
    found = {
        f"server.{name}": f"server.optimizer={server}"
        for name in _SERVER - {*_READ_BY_SERVER.get(server, _SERVER)}
    }
    if client == "adam":
        found["client.momentum"] = "client.optimizer=adam"
    for name in fields_not_read(partition.partition):
        found[f"data.{name}"] = f"data.partition={partition.partition}"
    return found


def dead_dimensions(
    space: SearchSpace, configure: Callable[[dict[str, Any]], RunConfig]
) -> dict[str, str]:
    """Map dimensions that no trial reads to the reason.

    `configure` makes the configuration of parameters. ConfigError if no other dimension is there.
    """
    switches = {
        key: part.values
        for key, part in space.dimensions.items()
        if key in _SWITCHES and isinstance(part, Choice)
    }
    every = [
        unread(configure(dict(zip(switches, values, strict=True))))
        for values in itertools.product(*switches.values())
    ]
    dead = {key: every[0][key] for key in space.dimensions if all(key in names for names in every)}
    if len(dead) == len(space.dimensions):
        reasons = "; ".join(f"{key} is not read with {why}" for key, why in dead.items())
        raise ConfigError(
            f"the search space of {space.spec}: {reasons}: all trials would be the same run; set"
            " another value there, or give --space with other dimensions"
        )
    return dead


def seen_without_effect(trials: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the dimensions in which some trials differ alone, all of them of equal objectives.

    Every trial has an objective.
    """
    found = []
    for name in dict.fromkeys(name for trial in trials for name in trial["params"]):
        alike: dict[str, list[float]] = {}  # objectives by the other parameters
        for trial in trials:
            others = canonical_json({k: v for k, v in trial["params"].items() if k != name})
            alike.setdefault(others, []).append(trial["objective"])
        groups = [group for group in alike.values() if len(group) > 1]
        if groups and all(len({*group}) == 1 for group in groups):
            found.append(name)
    return found
