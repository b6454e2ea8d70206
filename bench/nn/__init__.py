"""Building blocks of methods: encoders, heads, losses, clusterings, targets, optimizers.

Everything here is independent of federation; a plugin imports it from this module.
"""

from fedbench.bench.nn.autoencoder import ImageDecoder, group_normed, latent_encoder, latent_gap
from fedbench.bench.nn.backbones import (
    Backbone,
    CustomShape,
    ViT,
    ViTLayer,
    patch_side,
    patches,
    sine_positions,
)
from fedbench.bench.nn.budget import ClusterBudget
from fedbench.bench.nn.clustering import (
    LocalClusters,
    assign_evenly,
    cluster_globally,
    cluster_locally,
    cluster_privately,
    random_units,
    sinkhorn,
)
from fedbench.bench.nn.heads import mlp, projector
from fedbench.bench.nn.losses import (
    accept,
    balanced_thresholds,
    classification,
    client_cross_entropy,
    clip_length,
    clipped_spectral_contrast,
    confident_cross_entropy,
    consistency,
    info_nce,
    mutual_prediction,
    negative_cosine,
    nt_xent,
    spectral_contrast,
    spread,
    sum_over_classes,
)
from fedbench.bench.nn.memory import Memory
from fedbench.bench.nn.optimizers import SGD, Adam, Optimizer
from fedbench.bench.nn.target import (
    TARGET_ENCODER,
    add_targets,
    copy_to_targets,
    ema_update,
    has_batch_norm,
    keep_within_round,
    restored_buffers,
)

__all__ = [
    "SGD",
    "TARGET_ENCODER",
    "Adam",
    "Backbone",
    "ClusterBudget",
    "CustomShape",
    "ImageDecoder",
    "LocalClusters",
    "Memory",
    "Optimizer",
    "ViT",
    "ViTLayer",
    "accept",
    "add_targets",
    "assign_evenly",
    "balanced_thresholds",
    "classification",
    "client_cross_entropy",
    "clip_length",
    "clipped_spectral_contrast",
    "cluster_globally",
    "cluster_locally",
    "cluster_privately",
    "confident_cross_entropy",
    "consistency",
    "copy_to_targets",
    "ema_update",
    "group_normed",
    "has_batch_norm",
    "info_nce",
    "keep_within_round",
    "latent_encoder",
    "latent_gap",
    "mlp",
    "mutual_prediction",
    "negative_cosine",
    "nt_xent",
    "patch_side",
    "patches",
    "projector",
    "random_units",
    "restored_buffers",
    "sine_positions",
    "sinkhorn",
    "spectral_contrast",
    "spread",
    "sum_over_classes",
]
