"""The methods that ship with fedbench; importing a module registers its method."""

from fedbench.methods import (
    byol,
    featarc,
    orchestra,
    rotpred,
    simclr,
    simsiam,
    spectral,
    supervised,
    uv,
)

__all__ = [
    "byol",
    "featarc",
    "orchestra",
    "rotpred",
    "simclr",
    "simsiam",
    "spectral",
    "supervised",
    "uv",
]
