"""One colour a method, on the page and in every chart."""

from collections.abc import Iterable
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


def places(methods: Iterable[str]) -> dict[str, int]:
    """Return the place in `COLOURS` of each of some methods, different while there are enough.

    A shipped method has the same everywhere. Any other, such as `simclr+fedprox`, begins at a place
    that its name gives and takes the first that no method here has.

    >>> places(["byol", "simclr"])
    {'byol': 4, 'simclr': 0}
    """
    chosen: dict[str, int] = {}
    for method in sorted({*methods}, key=lambda name: (name not in _PLACES, name)):
        first = _PLACES.get(method, crc32(method.encode()) % len(COLOURS))
        order = [(first + step) % len(COLOURS) for step in range(len(COLOURS))]
        free = (place for place in order if place not in chosen.values())
        chosen[method] = first if method in _PLACES else next(free, first)
    return chosen
