"""The linear probe on clients that took no part: of held-out images, with a skew of their own."""

from collections.abc import Collection

import numpy as np
import torch
from numpy.typing import NDArray

from fedbench.bench.data.labels import held_out
from fedbench.bench.data.partition import Partition, make_partition
from fedbench.bench.data.views.image_ops import rotate
from fedbench.bench.evaluation.features import check_finite, class_tensor, extract
from fedbench.bench.evaluation.probes import Encoded, fit_logistic
from fedbench.bench.system.errors import ConfigError
from fedbench.bench.system.seeding import numpy_generator
from fedbench.bench.training.setup import Setup


def unseen_accuracies(encoded: Encoded, protocols: Collection[str]) -> dict[str, float]:
    """Mean accuracy over unseen clients, and its standard deviation over them.

    The images of `data.held_out` are dealt to `evaluation.unseen_clients` by the run's partitioner,
    at `evaluation.unseen_alpha` (of labels and of rotations), with draws of its own: where clients
    rotate their images, unseen ones have other angles. The probe learns from the clients that
    trained, as `linear` does. As `unseen_linear_acc` and, of one encoder for all clients,
    `unseen_linear_acc_std`; nothing for the other data sets of `evaluation.transfer`.
    """
    setup = encoded.setup
    config = setup.config.evaluation
    if not config.unseen_clients or encoded.splits.dataset is not setup.dataset:
        return {}
    outside, partition = unseen_partition(setup)
    images = torch.from_numpy(np.array(setup.dataset.train_images[outside]))
    if partition.angles is not None:
        images = rotate(images, torch.from_numpy(np.nan_to_num(partition.angles)))
    features = extract(encoded.encode, images, device=encoded.device)
    check_finite("images of unseen clients", features)
    known, count = encoded.splits.train_labels, setup.dataset.num_classes
    fit = fit_logistic(encoded.train, known, num_classes=count, l2=config.linear_l2)
    truth = class_tensor(setup.dataset.train_labels[outside], "cpu")
    right = (fit.predict(features).cpu() == truth).double()
    held = [partition.client(k).astype(np.int64) for k in range(partition.num_clients)]
    of_clients = [right[torch.from_numpy(rows)].mean().item() for rows in held if len(rows)]
    found = {"unseen_linear_acc": float(np.mean(of_clients))}
    if encoded.client_id is None:
        found["unseen_linear_acc_std"] = float(np.std(of_clients))
    return found


def unseen_partition(setup: Setup) -> tuple[NDArray[np.int64], Partition]:
    """Return the positions (N,) of the images of unseen clients, and who holds which of these.

    Raises:
        ConfigError: if the images are too few for the run's partitioner.
    """
    config, labels = setup.config, setup.dataset.train_labels
    evaluation, seed = config.evaluation, config.seed
    outside = held_out(labels, config.data.held_out, seed)
    outside = outside[labels[outside] >= 0]
    change = {"num_clients": evaluation.unseen_clients, "held_out": 0.0, "min_client_size": 0}
    if evaluation.unseen_alpha is not None:
        change |= {"alpha": evaluation.unseen_alpha, "rotation_alpha": evaluation.unseen_alpha}
    data = config.data.model_copy(update=change)
    draws = int(numpy_generator(seed, "unseen-clients").integers(2**31))
    try:
        return outside, make_partition(labels[outside], setup.dataset.num_classes, data, draws)
    except ConfigError as err:
        raise ConfigError(
            f"evaluation.unseen_clients={evaluation.unseen_clients}, of the {len(outside):,}"
            f" images of data.held_out: {err}"
        ) from err
