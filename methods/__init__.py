"""The methods that ship with fedbench; importing a module registers its method."""

from fedbench.methods import simclr, supervised, uv

__all__ = ["simclr", "supervised", "uv"]
