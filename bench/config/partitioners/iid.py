"""`iid`: clients that differ in nothing."""

from __future__ import annotations

import numpy as np

from fedbench.bench.config.partitioners.registry import PARTITIONERS, Examples, Owners, Partitioner


def iid(examples: Examples) -> Owners:
    """Shuffle and give out one by one: sizes differ by one at most, the first are larger."""
    count = len(examples.labels)
    owners = np.empty(count, np.int32)
    owners[examples.rng.permutation(count)] = np.arange(count) % examples.num_clients
    return owners


PARTITIONERS["iid"] = Partitioner(iid, source="nothing", may_leave_clients_empty=True)
