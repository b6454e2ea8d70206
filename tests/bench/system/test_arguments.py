"""Functions whose keyword arguments are fields of shared dataclasses."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from fedbench.bench.system.arguments import grouped


@dataclass(frozen=True)
class Paint:
    """Colours.

    Attributes:
        colour: name of the colour.
        coats: layers of it,
            at least one.
    """

    colour: str = "red"
    coats: int = 1


@dataclass(frozen=True)
class Varnish(Paint):
    """Paint with a finish.

    Attributes:
        shine: in [0, 1].
    """

    shine: float = 0.5


@grouped
def paint(what: str, *, varnish: Varnish, dry: bool = False) -> tuple[str, Varnish, bool]:
    """Paint a thing.

    Args:
        what: the thing.
        varnish: its surface.
        dry: wait for it.
    """
    return what, varnish, dry


def test_fields_are_keywords() -> None:
    assert paint("door") == ("door", Varnish(), False)
    assert paint("door", shine=1.0, dry=True) == ("door", Varnish(shine=1.0), True)


def test_signature_and_docstring_list_the_fields() -> None:
    parameters = inspect.signature(paint).parameters
    assert list(parameters) == ["what", "colour", "coats", "shine", "dry"]
    assert parameters["coats"].default == 1
    assert parameters["shine"].annotation is float
    assert paint.__name__ == "paint"
    assert paint.__doc__ == (
        "Paint a thing.\n\nArgs:\n    what: the thing.\n    colour: name of the colour.\n"
        "    coats: layers of it,\n        at least one.\n    shine: in [0, 1].\n"
        "    dry: wait for it."
    )
