"""Label-free figures of an encoder before training, beside which a search judges its trials."""

from __future__ import annotations

import torch

from fedbench.bench.config import RunConfig
from fedbench.bench.data.datasets import Dataset
from fedbench.bench.evaluation.calibration import fill_statistics
from fedbench.bench.evaluation.suite import evaluate
from fedbench.bench.system.compute import choose_devices
from fedbench.bench.system.regime import reproducible
from fedbench.bench.training.setup import Setup
from fedbench.bench.training.steps import partition_of


def untrained_figures(config: RunConfig, dataset: Dataset, device: str = "cpu") -> dict[str, float]:
    """Return objective and spread of a configuration's net before its first round.

    They are what a run reports as `untrained_…`, with batch-norm statistics filled. No label is
    read, and nothing is written.

    Args:
        config: the configuration; its seed draws weights, partition and views.
        dataset: its data set.
        device: `cpu` or `cuda`.
    """
    setup = Setup.of(config, dataset, partition_of(dataset, config))
    where = torch.device(choose_devices(device, 1)[0])
    with reproducible(where):
        net = setup.make_net()
        binding = setup.layout(net).bind(net, where)
        fill_statistics(setup, net, where)
        return evaluate(setup, binding, lambda client_id: None, (), where, one_encoder=True)
