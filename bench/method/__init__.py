"""The interface of method plugins: hooks, their records, and the registry.

A plugin imports from here and from `fedbench.bench.nn`. Start with the docstring of `Method`; its
hooks say when they run and what they may change. `register` puts a method into the registry.
"""

from fedbench.bench.config import RunConfig, Size
from fedbench.bench.data.batches import Batch, ClientData
from fedbench.bench.data.views.image_ops import rotate90
from fedbench.bench.method.base import (
    AddOn,
    Client,
    DataSpec,
    Labels,
    Loss,
    Method,
    Needs,
    RoundPlan,
    Server,
    Upload,
)
from fedbench.bench.method.net import Net
from fedbench.bench.method.registry import register
from fedbench.bench.method.sharing import (
    ACTIVATIONS,
    Extra,
    Sharing,
    averaged_parameters,
    nothing_averaged,
)
from fedbench.bench.system.errors import ConfigError, PluginError

__all__ = [
    "ACTIVATIONS",
    "AddOn",
    "Batch",
    "Client",
    "ClientData",
    "ConfigError",
    "DataSpec",
    "Extra",
    "Labels",
    "Loss",
    "Method",
    "Needs",
    "Net",
    "PluginError",
    "RoundPlan",
    "RunConfig",
    "Server",
    "Sharing",
    "Size",
    "Upload",
    "averaged_parameters",
    "nothing_averaged",
    "register",
    "rotate90",
]
