"""Names of people who submit or reproduce rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from fedbench.bench.system.errors import ConfigError

_LONGEST = 200


@dataclass(frozen=True)
class Person:
    """A name as its bearer writes it, and an ORCID iD or None."""

    name: str
    orcid: str | None = None

    def __post_init__(self) -> None:
        """Refuse texts that do not fit on a line."""
        for text in (self.name, self.orcid or "-"):
            if not text.strip() or not text.isprintable() or len(text) > _LONGEST:
                raise ConfigError(
                    f"--by, --orcid: a name is 1 to {_LONGEST} printable characters (got {text!r})"
                )

    @property
    def identity(self) -> str:
        """Text that is equal for one person: the ORCID iD, else the name without case."""
        return self.orcid or " ".join(self.name.casefold().split())

    def __str__(self) -> str:
        return self.name if self.orcid is None else f"{self.name} ({self.orcid})"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def person(name: str | None, orcid: str | None = None) -> Person | None:
    """Return who is named; None without a name.

    Raises:
        ConfigError: for an ORCID iD without a name, and as `Person`.
    """
    if name is None and orcid is not None:
        raise ConfigError("--orcid needs --by NAME")
    return None if name is None else Person(name, orcid)


def person_from(value: Any) -> Person | None:
    """Return the person in a JSON value, as `Person.as_dict` wrote it; None for null.

    Raises:
        ConfigError: for any other value.
    """
    if value is None:
        return None
    texts = value if isinstance(value, dict) else {}
    name, orcid = texts.get("name"), texts.get("orcid")
    if not isinstance(name, str) or not isinstance(orcid, str | None):
        raise ConfigError(f"no name and ORCID iD: {str(value)[:60]!r}")
    return Person(name, orcid)
