"""Building blocks of methods: encoders, heads, losses, clusterings, targets, optimizers.

Everything here is independent of federation; methods of other packages import it from
`fedbench.plugin`.
"""

from fedbench.bench.nn.autoencoder import ImageDecoder as ImageDecoder
from fedbench.bench.nn.autoencoder import group_normed as group_normed
from fedbench.bench.nn.autoencoder import latent_encoder as latent_encoder
from fedbench.bench.nn.autoencoder import latent_gap as latent_gap
from fedbench.bench.nn.backbones import Backbone as Backbone
from fedbench.bench.nn.backbones import CustomShape as CustomShape
from fedbench.bench.nn.backbones import ViT as ViT
from fedbench.bench.nn.backbones import ViTLayer as ViTLayer
from fedbench.bench.nn.backbones import patch_side as patch_side
from fedbench.bench.nn.backbones import patches as patches
from fedbench.bench.nn.backbones import sine_positions as sine_positions
from fedbench.bench.nn.budget import ClusterBudget as ClusterBudget
from fedbench.bench.nn.clustering import LocalClusters as LocalClusters
from fedbench.bench.nn.clustering import assign_evenly as assign_evenly
from fedbench.bench.nn.clustering import cluster_globally as cluster_globally
from fedbench.bench.nn.clustering import cluster_locally as cluster_locally
from fedbench.bench.nn.clustering import cluster_privately as cluster_privately
from fedbench.bench.nn.clustering import random_units as random_units
from fedbench.bench.nn.clustering import sinkhorn as sinkhorn
from fedbench.bench.nn.freezing import freeze as freeze
from fedbench.bench.nn.heads import mlp as mlp
from fedbench.bench.nn.heads import projector as projector
from fedbench.bench.nn.losses import accept as accept
from fedbench.bench.nn.losses import balanced_thresholds as balanced_thresholds
from fedbench.bench.nn.losses import classification as classification
from fedbench.bench.nn.losses import client_cross_entropy as client_cross_entropy
from fedbench.bench.nn.losses import clip_length as clip_length
from fedbench.bench.nn.losses import clipped_spectral_contrast as clipped_spectral_contrast
from fedbench.bench.nn.losses import confident_cross_entropy as confident_cross_entropy
from fedbench.bench.nn.losses import consistency as consistency
from fedbench.bench.nn.losses import info_nce as info_nce
from fedbench.bench.nn.losses import mutual_prediction as mutual_prediction
from fedbench.bench.nn.losses import negative_cosine as negative_cosine
from fedbench.bench.nn.losses import nt_xent as nt_xent
from fedbench.bench.nn.losses import spectral_contrast as spectral_contrast
from fedbench.bench.nn.losses import spread as spread
from fedbench.bench.nn.losses import sum_over_classes as sum_over_classes
from fedbench.bench.nn.memory import Memory as Memory
from fedbench.bench.nn.optimizers import SGD as SGD
from fedbench.bench.nn.optimizers import Adam as Adam
from fedbench.bench.nn.optimizers import Optimizer as Optimizer
from fedbench.bench.nn.target import TARGET_ENCODER as TARGET_ENCODER
from fedbench.bench.nn.target import add_targets as add_targets
from fedbench.bench.nn.target import copy_to_targets as copy_to_targets
from fedbench.bench.nn.target import ema_update as ema_update
from fedbench.bench.nn.target import has_batch_norm as has_batch_norm
from fedbench.bench.nn.target import keep_within_round as keep_within_round
from fedbench.bench.nn.target import restored_buffers as restored_buffers
