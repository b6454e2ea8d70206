"""The methods that ship with fedbench; importing a module registers its method."""

from fedbench.methods import (  # noqa: F401
    byol,
    cbafed,
    central_ae,
    featarc,
    fedavg_ae,
    orchestra,
    pfedae,
    rotpred,
    semifed,
    simclr,
    simsiam,
    single_ae,
    spectral,
    supervised,
    uv,
)
