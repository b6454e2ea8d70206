"""One colour and one symbol a method, on the page, in every chart and in README's pictures."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from zlib import crc32

COLOURS = (
    "#3c79f0", "#c3610d", "#0d919a", "#cf428c", "#239a19", "#8663e6", "#a4780e", "#0c8bbb",
    "#da4149", "#089678", "#b250c2", "#83870b", "#7489de", "#c77b2d", "#15a0b6", "#cf6a89",
    "#47a566", "#9e7ad1", "#ac8c0e", "#3797d7", "#d26e5b", "#0ba694", "#bd6fb2", "#829b36",
    "#615cbf", "#92600b", "#0d7793", "#b13d54", "#058057", "#884da9", "#796d03", "#136dbf",
    "#b04613", "#057c79", "#a34284", "#4a7c05",
)  # fmt: skip
"""Twelve hues at three lightnesses, 3 : 1 on white and on dark; symbols help the colour-blind."""
_FIXED = (
    "simclr", "orchestra", "swav", "spectral", "byol", "simsiam", "rotpred", "featarc", "ssd",
    "aligned", "fedsc", "supervised", "fedx", "mim", "lejepa", "cbafed", "semifed", "fedavg-ae",
    "pfedae", "central-ae", "single-ae",
)  # fmt: skip
# A new method goes to the end: a place is the colour by which readers know a method.
_PLACES = {name: place for place, name in enumerate(_FIXED)}
SYMBOLS: Mapping[str, Any] = {
    "circle": "o", "square": "s", "triangle": "^", "diamond": "D", "star": "*", "cross": "P",
    "wye": (3, 1, 180),
}  # fmt: skip
"""Symbols by their names in D3, as matplotlib has them."""
_APART = 140
"""Distance from which colours are told apart: orange and red of one lightness have 126."""


class Look(NamedTuple):
    """How a method is drawn."""

    colour: str
    symbol: str


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """Return colour and symbol of each of some methods; colours differ while there are enough.

    A shipped method has the same everywhere. Any other, such as `simclr+fedprox`, begins at a place
    that its name gives and takes the first colour that is told apart from those of the methods
    here; if none is, that which is farthest from them.

    >>> looks(["byol", "simclr"])["byol"]
    Look(colour='#239a19', symbol='star')
    """
    chosen: dict[str, int] = {}

    def apart(place: int) -> float:
        of = (math.dist(_scaled(place), _scaled(other)) for other in chosen.values())
        return min([_APART, *of])

    for method in sorted({*methods}, key=lambda name: (name not in _PLACES, name)):
        first = crc32(method.encode())
        order = [(first + step) % len(COLOURS) for step in range(len(COLOURS))]
        chosen[method] = _PLACES[method] if method in _PLACES else max(order, key=apart)
    return {method: Look(COLOURS[place], _symbol(place)) for method, place in chosen.items()}


def _scaled(place: int) -> tuple[float, ...]:
    """Return red, green and blue, weighted as eyes do: 2 : 4 : 3 in squares."""
    weights = (2, 4, 3)
    channels = bytes.fromhex(COLOURS[place][1:])
    return tuple(math.sqrt(w) * value for w, value in zip(weights, channels, strict=True))


def _symbol(place: int) -> str:
    """Return another symbol for neighbours, and for each of the three lightnesses of a hue."""
    return [*SYMBOLS][(place + 5 * (place // 12)) % len(SYMBOLS)]
