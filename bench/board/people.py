"""Names of people who submit or reproduce rows."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, ValidationError
from pydantic.dataclasses import dataclass

from fedbench.bench.system.errors import ConfigError


def _one_line(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError("a name must be printable characters on one line")
    return text


Line = Annotated[str, Field(max_length=200), AfterValidator(_one_line)]


@dataclass(frozen=True)
class Person:
    """A name as its bearer writes it, and an ORCID iD or None."""

    name: Line
    orcid: Line | None = None

    @property
    def identity(self) -> str:
        """Text that is equal for one person: the ORCID iD, else the name without case."""
        return self.orcid or " ".join(self.name.casefold().split())

    def __str__(self) -> str:
        return self.name if self.orcid is None else f"{self.name} ({self.orcid})"


def person(name: str | None, orcid: str | None = None) -> Person | None:
    """Return who is named; None without a name.

    Raises:
        ConfigError: for an ORCID iD without a name, or a text that is not 1 to 200 printable
            characters.
    """
    if name is None:
        if orcid is not None:
            raise ConfigError("--orcid needs --by NAME")
        return None
    try:
        return Person(name, orcid)
    except ValidationError as err:
        option = "--orcid" if err.errors()[0]["loc"][0] == "orcid" else "--by"
        raise ConfigError(
            f"{option} must be 1 to 200 printable characters (got {(name, orcid)})"
        ) from err
