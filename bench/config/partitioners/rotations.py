"""`rotation` and `joint`: clients see their images rotated by angles from a few bins."""

import numpy as np

from fedbench.bench.config.partitioners.by_label import hsu
from fedbench.bench.config.partitioners.dirichlet import log_dirichlet
from fedbench.bench.config.partitioners.given import iid
from fedbench.bench.config.partitioners.registry import (
    PARTITIONERS,
    Angles,
    Examples,
    Owners,
    Partitioner,
)
from fedbench.bench.system.seeding import numpy_generator

_CHUNK = 1 << 18


def draw_angles(
    owners: Owners, examples: Examples, alpha: float, num_bins: int, multiply_prior: bool
) -> Angles:
    """Draw one angle per image from the partition's seed; all methods and rounds use it.

    A circle is cut into equal bins. Each client has Dirichlet weights over them, of
    concentration alpha, or with `multiply_prior` alpha / bins; each of its images gets a bin by
    these weights and an angle uniform in it.

    Source: Louizos et al. 2024, https://arxiv.org/abs/2405.02081, covariate shift (10 bins of 36
    degrees, concentration 0.1, "one or two bins per client", which holds only when 0.1 is
    multiplied by the uniform prior over bins, the default here).
    """
    num_clients, seed = examples.num_clients, examples.seed
    concentration = alpha / num_bins if multiply_prior else alpha
    rng = numpy_generator(seed, "partition/rotation-bins")
    weights = log_dirichlet(rng, concentration, (num_clients, num_bins), axis=1)
    np.cumsum(np.exp(weights, out=weights), axis=1, out=weights)
    edges = weights[:, :-1]  # the last bin takes what rounding leaves
    choice = numpy_generator(seed, "partition/rotation-choice").random(len(owners))
    bins = np.empty(len(owners), np.int64)
    for first in range(0, len(owners), _CHUNK):
        part = slice(first, first + _CHUNK)
        bins[part] = (choice[part, None] >= edges[owners[part]]).sum(axis=1)
    del weights, edges, choice  # so that a million clients fit into 1 GB
    width = 360.0 / num_bins
    within = numpy_generator(seed, "partition/rotation-angles").random(len(owners))
    angles = ((bins + within) * width).astype(np.float32)
    # float32 may round an angle up to the next bin's first one
    edge = np.nextafter(((bins + 1) * width).astype(np.float32), np.float32(0))
    angles = np.minimum(angles, edge)
    used = owners >= 0
    angles[~used] = np.nan
    angles.flags.writeable = False

    cells = np.unique(owners[used].astype(np.int64) * num_bins + bins[used])
    ends = np.searchsorted(cells, np.arange(1, num_clients + 1) * num_bins)
    in_order = (cells % num_bins).tolist()
    starts = [0, *ends[:-1].tolist()]
    return angles, [in_order[a:b] for a, b in zip(starts, ends.tolist(), strict=True)]


PARTITIONERS["rotation"] = Partitioner(
    iid, "nothing", angles_by="alpha", may_leave_clients_empty=True
)
PARTITIONERS["joint"] = Partitioner(hsu, angles_by="rotation_alpha")
