"""Frozen tensors of an encoder: every process makes them alike, and no training changes them.

A module is marked whose own tensors, not those of its children, are frozen. A deep copy keeps the
mark, and so targets and second encoders are frozen where the first one is.
"""

from collections.abc import Iterable, Iterator

from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from fedbench.bench.system.errors import ConfigError

_MARK = "holds_frozen_tensors"
_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def freeze(modules: Iterable[nn.Module]) -> None:
    """Freeze the modules' own tensors; tensors of their children stay as they are."""
    for module in modules:
        vars(module)[_MARK] = True
        for parameter in module.parameters(recurse=False):
            parameter.requires_grad_(False)


def thaw(net: nn.Module) -> None:
    """Undo `freeze` everywhere in a net; freeze the parametrizations of weights, such as lora's."""
    for module in net.modules():
        if vars(module).pop(_MARK, False):
            for parameter in module.parameters(recurse=False):
                parameter.requires_grad_(True)
        if isinstance(module, ParametrizationList):
            for change in module:
                change.requires_grad_(False)


def is_frozen(module: nn.Module) -> bool:
    """Tell whether the tensors of the module itself are frozen."""
    return _MARK in vars(module)


def frozen_tensors(net: nn.Module) -> set[str]:
    """Return the `state_dict` names of all frozen tensors of a net."""
    return {n for n in net.state_dict() if is_frozen(net.get_submodule(n.rpartition(".")[0]))}


def freeze_all_but(encoder: nn.Module, trainable: str) -> None:
    """Freeze an encoder but for what `model.trainable` names: nothing, or its last units.

    Raises `ConfigError` if it has no more units than are to be trained.
    """
    parts, (kind, _, number) = units(encoder), trainable.partition(":")
    kept = int(number) if kind == "last" else 0
    if kept and kept >= len(parts):
        raise ConfigError(
            f"model.trainable: the encoder has {len(parts)} layers or blocks, and last:N"
            f" trains fewer (got {trainable}); all trains everything"
        )
    trained = {m for unit in parts[len(parts) - kept :] for part in unit for m in part.modules()}
    freeze(module for module in encoder.modules() if module not in trained)


def units(encoder: nn.Module) -> list[list[nn.Module]]:
    """Split an encoder into the units that `last:N` counts, in order.

    A unit is a child with parameters; children of a Sequential or ModuleList count one by one. A
    child with parameters of norms alone, or none, belongs to the unit before it.
    """
    parts: list[list[nn.Module]] = []
    for module in _opened(encoder):
        layers = (layer for layer in module.modules() if not isinstance(layer, _NORMS))
        if any(True for layer in layers for _ in layer.parameters(recurse=False)):
            parts.append([module])
        elif parts:
            parts[-1].append(module)
    return parts


def _opened(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, nn.Sequential | nn.ModuleList):
            yield from _opened(child)
        else:
            yield child


def plain_state(encoder: nn.Module) -> dict[str, Tensor]:
    """Return the `state_dict` with plain weights in place of parametrized ones, such as lora's."""
    state = {n: v for n, v in encoder.state_dict().items() if ".parametrizations." not in f".{n}"}
    for path, module in encoder.named_modules():
        for name in getattr(module, "parametrizations", ()):
            state[f"{path}.{name}".lstrip(".")] = getattr(module, name).detach()
    return state
