"""Probes by the words of `evaluation.protocols`: from fedbench and from other packages."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint

from fedbench.bench.config.schema import PROBES
from fedbench.bench.evaluation.features import class_tensor
from fedbench.bench.evaluation.metrics import (
    BALANCED_KNN,
    BALANCED_LINEAR,
    KNN,
    LINEAR,
    LINEAR_PAPER,
    Metric,
    register,
)
from fedbench.bench.evaluation.probes import (
    ANGLES,
    FEW_SHOT,
    MLP,
    Encoded,
    angle_summary,
    balanced_accuracy,
    few_shot,
    knn_predictions,
    probe_accuracies,
)
from fedbench.bench.evaluation.sgd import FINETUNE, finetune_accuracies, linear_probe_paper
from fedbench.bench.evaluation.theory import THEORY, theory
from fedbench.bench.evaluation.unseen import unseen_accuracies
from fedbench.bench.system.errors import PluginError
from fedbench.bench.system.plugins import load, load_all


@dataclass(frozen=True)
class Probe:
    """A measurement of a frozen encoder."""

    protocols: tuple[str, ...]  # words of `evaluation.protocols` that ask for it
    # takes the encoder and the run's protocols; values that are not finite are dropped
    measure: Callable[[Encoded, Collection[str]], Mapping[str, float]]
    metrics: tuple[Metric, ...] = ()  # what it gives; variants of an accuracy need no other


def _knn(encoded: Encoded, protocols: Collection[str]) -> dict[str, float]:
    config, splits = encoded.setup.config.evaluation, encoded.splits
    predicted = knn_predictions(
        encoded.train,
        splits.train_labels,
        encoded.test,
        num_classes=splits.num_classes,
        neighbours=config.knn_neighbours,
        temperature=config.knn_temperature,
    )
    right = predicted == class_tensor(splits.test_labels, predicted.device)
    value = right.sum().item() / len(right)
    return {"knn_acc": value, **balanced_accuracy("knn", right, splits)}


SHIPPED = (
    Probe(("angles",), lambda encoded, _: angle_summary([encoded.angles]), ANGLES),
    Probe(("knn",), _knn, (KNN, BALANCED_KNN)),
    Probe(("linear", "mlp", "local"), probe_accuracies, (LINEAR, BALANCED_LINEAR, MLP)),
    Probe(("linear-paper",), linear_probe_paper, (LINEAR_PAPER,)),
    Probe(("few-shot",), few_shot, FEW_SHOT),
    Probe(("finetune",), finetune_accuracies, FINETUNE),
    Probe(("theory",), theory, THEORY),
    Probe(("linear",), unseen_accuracies),
)


@cache
def probes() -> tuple[Probe, ...]:
    """Return all probes, other packages' last, under the protocol that is their entry point's name.

    A plugin that cannot be loaded, or whose metric is taken, is left out with a warning.
    """
    return (*map(_registered, SHIPPED), *load_all(PROBES, _plugin).values())


def _plugin(point: EntryPoint) -> Probe:
    probe = load(point)
    if not isinstance(probe, Probe) or probe.protocols != (point.name,):
        raise PluginError(f"it is no Probe of the protocol {point.name!r}")
    return _registered(probe)


def _registered(probe: Probe) -> Probe:
    for metric in probe.metrics:
        register(metric)
    return probe
