"""Names of people who submit or reproduce rows, and signatures by `ssh-keygen -Y`."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedbench.bench.system.errors import ConfigError, ResourceError

_NAMESPACE = "fedbench"
_ORCID = re.compile(r"\d{4}-\d{4}-\d{4}-\d{3}[\dX]")
_LONGEST = 200


@dataclass(frozen=True)
class Person:
    """A name as its bearer writes it, and an ORCID iD or None."""

    name: str
    orcid: str | None = None

    def __post_init__(self) -> None:
        """Refuse names that do not fit on a line, and ORCID iDs whose check digit is wrong."""
        if not self.name.strip() or not self.name.isprintable() or len(self.name) > _LONGEST:
            raise ConfigError(
                f"--by: a name is 1 to {_LONGEST} printable characters (got {self.name!r})"
            )
        if self.orcid is not None and not is_orcid(self.orcid):
            raise ConfigError(
                f"--orcid: {self.orcid!r} is no ORCID iD; it has the form 0000-0002-1825-0097, and"
                " the last character is a check digit"
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
        raise ConfigError("--orcid needs --by NAME beside it")
    return None if name is None else Person(name, orcid)


def person_from(value: Any) -> Person | None:
    """Return the person in a JSON value, as `Person.as_dict` wrote it; None for null.

    Raises:
        ConfigError: for any other value.
    """
    if value is None:
        return None
    if not isinstance(value, dict) or set(value) != {"name", "orcid"}:
        raise ConfigError(f"no name and ORCID iD: {str(value)[:60]!r}")
    name, orcid = value["name"], value["orcid"]
    if not isinstance(name, str) or not isinstance(orcid, str | None):
        raise ConfigError(f"no name and ORCID iD: {str(value)[:60]!r}")
    return Person(name, orcid)


def is_orcid(text: str) -> bool:
    """Return True for an ORCID iD whose check digit fits (ISO 7064, MOD 11-2).

    >>> is_orcid("0000-0002-1825-0097"), is_orcid("0000-0002-1825-0098")
    (True, False)
    """
    if not _ORCID.fullmatch(text):
        return False
    total = 0
    for digit in text.replace("-", "")[:-1]:
        total = (total + int(digit)) * 2
    rest = (12 - total % 11) % 11
    return text[-1] == ("X" if rest == 10 else str(rest))


def signature_of(file: Path) -> Path:
    """Return the path of a file's signature, which need not exist."""
    return file.with_name(f"{file.name}.sig")


def sign(file: Path, key: Path) -> Path:
    """Sign a file with an SSH key, and return the signature's path.

    Args:
        file: any file.
        key: the private key, or the public one of a key that an agent holds.

    Raises:
        ConfigError: if `ssh-keygen` does not take the key.
        ResourceError: without `ssh-keygen`.
    """
    target = signature_of(file)
    target.unlink(missing_ok=True)
    command = ["-Y", "sign", "-f", str(key.expanduser()), "-n", _NAMESPACE, str(file)]
    done = _ssh_keygen(command)
    if done.returncode or not target.exists():
        raise ConfigError(f"--sign {str(key)!r}: ssh-keygen says: {_last(done.stderr)}")
    return target


def signing_key(file: Path) -> str | None:
    """Return the fingerprint of the key that signed a file; None if it has no signature.

    Raises:
        ConfigError: for a signature of other bytes.
        ResourceError: without `ssh-keygen`.
    """
    signature = signature_of(file)
    if not signature.exists():
        return None
    if signature.is_symlink() or not signature.is_file():  # ssh-keygen would wait for a pipe
        raise ConfigError(f"{signature.name} is no plain file")
    command = ["-Y", "check-novalidate", "-n", _NAMESPACE, "-s", str(signature)]
    done = _ssh_keygen(command, file.read_bytes())
    found = re.search(r"SHA256:\S+", done.stdout)
    if done.returncode or found is None:
        raise ConfigError(f"{signature.name} does not sign {file.name}")
    return found[0]


def _ssh_keygen(words: list[str], data: bytes = b"") -> subprocess.CompletedProcess[str]:
    program = shutil.which("ssh-keygen")
    if program is None:
        raise ResourceError("signatures need ssh-keygen, which comes with OpenSSH; install it")
    done = subprocess.run([program, *words], input=data, capture_output=True, check=False)
    texts = (stream.decode(errors="replace") for stream in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, *texts)


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "nothing"
