"""What authors of methods, add-ons, encoders, objectives, probes and data sets import.

A plugin needs no other module of fedbench. This is a whole method,

    from fedbench.plugin import Loss, Method, Needs, Net, nt_xent, projector, register

    @register("my-method")
    class MyMethod(Method):
        '''Views of an image are closer than views of two images.'''

        temperature: float = 0.5  # a hyperparameter: method.temperature

        def needs(self):
            return Needs(views=("simclr-o", "simclr-o"), min_batch=2)

        def build(self, backbone, data):
            head = projector(backbone, 128, 64)
            return Net({"encoder": backbone.make(), "projector": head})

        def loss(self, net, batch, client):
            h = net.views(batch.views, "encoder")  # 2 x (B, D)
            a, b = net.views(h, "projector")  # (B, 64)
            return Loss(nt_xent(a, b, self.temperature), features=h, projections=(a, b))

and this its test:

    from fedbench.plugin import MethodContract

    class TestMyMethod(MethodContract):
        spec = "my-method"

The docstring of `Method` says when each hook runs and what it may change. `fedbench new` writes the
package around a plugin.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedbench.bench.data.cache import CacheWriter
from fedbench.bench.evaluation.metrics import PROBES, Metric
from fedbench.bench.evaluation.objectives.base import (
    DirectionProducts,
    Directions,
    Frequencies,
    Moments,
    Objective,
    Pairs,
    Projections,
    Slices,
    Statistic,
    Sums,
    ViewScatter,
    noise_variance,
    score_of_sums,
    symmetric,
    triangle,
)
from fedbench.bench.evaluation.probes import Encoded
from fedbench.bench.evaluation.protocols import Probe
from fedbench.bench.method import *  # noqa: F403
from fedbench.bench.nn import *  # noqa: F403
from fedbench.bench.system.errors import DataError

if TYPE_CHECKING:
    from fedbench.bench.testing import BackboneContract, MethodContract, ObjectiveContract
else:

    def __getattr__(name: str) -> Any:
        """Load the contracts when a test asks for one: runs need none of what they import."""
        if not name.endswith("Contract"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module("fedbench.bench.testing"), name)


def __dir__() -> list[str]:
    """Return the names for plugins, without the modules that the doors have."""
    return __all__


# fmt: off
__all__ = [  # noqa: F405, RUF022 (in groups)
    # a method or an add-on
    "Method", "AddOn", "register", "writes", "Needs", "Labels", "DataSpec", "Size", "Net", "Loss",
    "RoundPlan", "RunConfig",
    # what hooks receive
    "Batch", "Client", "ClientData", "Server", "Upload",
    # who holds a tensor, and when it travels
    "Sharing", "Extra", "ACTIVATIONS", "averaged_parameters", "nothing_averaged",
    # averages of uploads
    "Aggregator", "Mean", "TrimmedMean", "Median", "Krum",
    # encoders and heads
    "Backbone", "CustomShape", "ViT", "ViTLayer", "patch_side", "patches", "sine_positions",
    "mlp", "projector", "freeze", "ImageDecoder", "group_normed", "latent_encoder", "latent_gap",
    # losses
    "info_nce", "nt_xent", "spectral_contrast", "clipped_spectral_contrast", "negative_cosine",
    "mutual_prediction", "consistency", "classification", "client_cross_entropy",
    "confident_cross_entropy", "accept", "balanced_thresholds", "sum_over_classes", "clip_length",
    "spread", "rotate90",
    # clusters
    "LocalClusters", "ClusterBudget", "assign_evenly", "sinkhorn", "cluster_locally",
    "cluster_globally", "cluster_privately", "random_units",
    # targets, memories, optimizers
    "TARGET_ENCODER", "add_targets", "copy_to_targets", "ema_update", "keep_within_round",
    "has_batch_norm", "restored_buffers", "Memory", "Optimizer", "SGD", "Adam",
    # objectives
    "Objective", "score_of_sums", "Projections", "Sums", "noise_variance", "triangle",
    "symmetric", "Statistic", "Pairs", "Directions", "DirectionProducts", "Moments",
    "ViewScatter", "Frequencies", "Slices",
    # probes
    "Probe", "Encoded", "Metric", "PROBES",
    # data sets
    "CacheWriter", "DataError",
    # errors
    "ConfigError", "PluginError",
    # tests
    "MethodContract", "BackboneContract", "ObjectiveContract",
]
# fmt: on
