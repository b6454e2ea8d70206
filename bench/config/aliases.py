"""Other names of method specs."""

from collections.abc import Mapping

ALIASES: Mapping[str, str] = {"local-simclr": "simclr", "fed-simclr": "simclr+uv"}


def aliases_of(name: str) -> list[str]:
    """Return the aliases whose spec ends in a method or add-on."""
    return [alias for alias, spec in ALIASES.items() if spec.split("+")[-1] == name]
