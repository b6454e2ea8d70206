"""The methods that ship with fedbench; importing a module registers its method."""

from fedbench.methods import (
    byol,
    central_ae,
    featarc,
    fedavg_ae,
    orchestra,
    pfedae,
    rotpred,
    simclr,
    simsiam,
    single_ae,
    spectral,
    supervised,
    uv,
)

__all__ = [
    "byol",
    "central_ae",
    "featarc",
    "fedavg_ae",
    "orchestra",
    "pfedae",
    "rotpred",
    "simclr",
    "simsiam",
    "single_ae",
    "spectral",
    "supervised",
    "uv",
]
