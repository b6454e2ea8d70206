"""Names of methods without their code, which loads torch: a wrong one is refused at once."""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from fedbench.bench.system.errors import UnknownNameError

GROUP = "fedbench.methods"
"""Group of entry points of methods; fedbench's own entry names the package of this name."""
ALIASES: Mapping[str, str] = {"local-simclr": "simclr", "fed-simclr": "simclr+uv"}
"""Other names of method specs."""
_MEANT = {
    "fedavg": "; FedAvg's average is every method's: supervised is FedAvg with labels, simclr and"
    " others learn without, fedavg-ae trains an autoencoder",
}
"""Name that many look for -> what they may mean."""
_REGISTERED = re.compile(r'^@register\("([^"]+)"', re.MULTILINE)


def unknown_method(name: str, known: Iterable[str], more: str = "") -> UnknownNameError:
    """Return the error for a name of no method; `more` is the end of its message.

    A package of this name that lies here was not installed.
    """
    more = _MEANT.get(name, "") + more
    with suppress(OSError, ValueError):  # most names are of no folder
        text = (Path(name) / "pyproject.toml").read_text("utf-8", "replace")
        if name and GROUP in text and name not in entry_points(group=GROUP).names:
            more += f"; its package is here, but not installed: pip install -e {name}"
    return UnknownNameError("method", name, [*known, *ALIASES], more)


@cache
def shipped() -> dict[str, bool]:
    """Map each name that ships to whether it is an add-on; reads the files, imports nothing."""
    found = find_spec(GROUP)
    folders = [] if found is None else found.submodule_search_locations or []
    texts = [file.read_text("utf-8") for place in folders for file in Path(place).glob("*.py")]
    return {name: "(AddOn):" in text for text in texts for name in _REGISTERED.findall(text)}


def check_spec(spec: str | None) -> str | None:
    """Return a method spec; refuse a method that no installed package can have.

    Where other packages bring methods, the registry has the answer.

    Raises:
        UnknownNameError: with the nearest names.
    """
    method = (spec or "").partition("+")[0].lower()
    others = any(point.value != GROUP for point in entry_points(group=GROUP))
    names = shipped()
    if spec is not None and not others and method not in names and method not in ALIASES:
        raise unknown_method(method, (name for name in names if not names[name]))
    return spec
