"""Encoders of timm and torchvision, by the names that they have there, without their classifiers.

Images reach a net in the size that they have: where a library takes an image size the net is made
for it, and a net that cannot take it is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from fedbench.bench.config import ModelConfig
from fedbench.bench.nn.norms import batch_norms
from fedbench.bench.system.errors import ConfigError, ResourceError, nearest
from fedbench.bench.system.packages import install_extra

ImageShape = tuple[int, int, int]  # (C, H, W)
LIBRARIES = ("timm:", "torchvision:")
"""Beginnings of the names of such nets."""
_OWN = ("width", "stem_stride", "init")
"""Fields of the model that such a net decides itself."""


@dataclass(frozen=True)
class ForeignShape:
    """An encoder of another library for images of one shape."""

    name: str  # `timm:NAME` or `torchvision:NAME`
    image_shape: ImageShape  # (C, H, W)
    width: int  # length D of a feature vector
    has_batch_norm: bool  # whether a pass mixes the examples of a batch
    classifier: tuple[str, ...]  # names of its parts that were left out

    def make(self) -> nn.Module:
        """Make one, (B, C, H, W) -> (B, D), with the first weights of its library."""
        return _made(self.name, self.image_shape)[0]


def foreign_shape(config: ModelConfig, image_shape: ImageShape) -> ForeignShape:
    """Return the shape of the backbone that a configuration names.

    Raises `ResourceError` if timm is not installed, and `ConfigError` if the library has no such
    net, if the net does not give one vector for each image of this shape, or for a setting that it
    cannot follow.
    """
    name, fields = config.backbone, ModelConfig.model_fields
    if own := [field for field in _OWN if getattr(config, field) != fields[field].default]:
        given = ", ".join(f"model.{field}={getattr(config, field)}" for field in own)
        default = " ".join(
            f"model.{f}={'null' if f == 'width' else fields[f].default}" for f in own
        )
        raise ConfigError(f"{given}: {name} has its own; set {default}")
    shape = _inspected(name, image_shape)
    if config.norm == "group" and shape.has_batch_norm:
        raise ConfigError(
            f"model.norm: must be batch or batch-local with {name}, which has batch norm that"
            " cannot be exchanged (got group)"
        )
    return shape


def libraries_with(name: str) -> list[str]:
    """Return the nets of installed libraries that have a name, as `torchvision:resnet50`."""
    installed = [library for library in reversed(LIBRARIES) if find_spec(library[:-1]) is not None]
    return [f"{each}{name}" for each in installed if name in _nets(each[:-1])]


def _nets(library: str) -> list[str]:
    """Return the names of a library's nets: no detectors, no quantized nets."""
    package = _package(library)
    only = {} if library == "timm" else {"module": package}
    return list(package.list_models(**only))


@cache
def _inspected(name: str, image_shape: ImageShape) -> ForeignShape:
    """Make a net without memory (torch's meta device); see what two images give in training."""
    with torch.device("meta"):
        net, classifier = _made(name, image_shape)
        try:
            features = net.train()(torch.empty(2, *image_shape))
        except Exception as err:  # whatever a library raises for a size that it does not take
            raise _not_taken(name, image_shape, err) from err
    if not isinstance(features, Tensor) or features.dim() != 2:
        got = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ConfigError(
            f"model.backbone: {name} gives {got} for two images, and an encoder gives one vector"
            " each, (2, D); choose another"
        )
    return ForeignShape(
        name, image_shape, features.shape[1], bool(batch_norms(net)), tuple(classifier)
    )


def _made(name: str, image_shape: ImageShape) -> tuple[nn.Module, list[str]]:
    """Make a net without its classifier; return it and the names of the parts left out."""
    library, _, entry = name.partition(":")
    package = _package(library)
    known = _nets(library)
    if entry not in known:
        close = nearest(entry, known)
        hint = "" if close is None else f"; did you mean '{library}:{close}'?"
        raise ConfigError(
            f"model.backbone: {library} has no net {entry!r}{hint} (its {len(known):,} nets:"
            f" {library}{'' if library == 'timm' else '.models'}.list_models())"
        )
    try:
        made = _of_timm if library == "timm" else _of_torchvision
        net, classifier = made(package, entry, image_shape)
    except NotImplementedError as err:  # torch's, of nets that read values, such as RegNets
        reason = "reads its weights while it is made, when there are none yet"
        raise ConfigError(f"model.backbone: {name} {reason}; choose another") from err
    except Exception as err:
        raise _not_taken(name, image_shape, err) from err
    for module in net.modules():
        # As in all encoders here, a pass is a function of its input: no dropout, no dropped paths.
        dropped = {"drop_prob", "drop_rate"}
        if isinstance(module, nn.Dropout) or type(module).__name__ == "StochasticDepth":
            dropped = {"p"}
        vars(module).update(dict.fromkeys(dropped & vars(module).keys(), 0.0))
        # Tables of indices are constants: neither sent nor averaged. `Net` drops the counter.
        for n, buffer in module._buffers.items():
            if buffer is not None and not buffer.is_floating_point() and n != "num_batches_tracked":
                module._non_persistent_buffers_set.add(n)
    return net, classifier


def _of_timm(timm: Any, name: str, image_shape: ImageShape) -> tuple[nn.Module, list[str]]:
    channels, *size = image_shape

    def make(**sized: Any) -> nn.Module:
        return timm.create_model(  # type: ignore[no-any-return]
            name, pretrained=False, num_classes=0, in_chans=channels, **sized
        )

    net = _sized(make, img_size=tuple(size))
    embed = getattr(net, "patch_embed", None)
    patch = getattr(getattr(embed, "proj", None), "stride", getattr(embed, "patch_size", None))
    if isinstance(patch, tuple) and any(n % p for n, p in zip(size, patch, strict=True)):
        raise ValueError(
            "its patches of {}x{} do not divide them; set data.image_size".format(*patch)
        )
    classifier = getattr(net, "pretrained_cfg", {}).get("classifier") or ()
    return net, [classifier] if isinstance(classifier, str) else [*classifier]


def _of_torchvision(models: Any, name: str, image_shape: ImageShape) -> tuple[nn.Module, list[str]]:
    channels, height, width = image_shape
    if channels != 3:
        raise ValueError("torchvision's nets take 3 channels")

    def make(**sized: Any) -> nn.Module:
        return models.get_model(name, weights=None, **sized)  # type: ignore[no-any-return]

    net = _sized(make, image_size=height) if height == width else make()
    linear = [path for path, part in net.named_modules() if isinstance(part, nn.Linear)]
    if not linear:
        raise ValueError("its classifier is no linear layer on features")
    net.set_submodule(linear[-1], nn.Identity())
    return net, linear[-1:]


def _sized(make: Callable[..., nn.Module], **size: Any) -> nn.Module:
    """Make a net for images of one size; without the size if its maker has no such parameter."""
    try:
        return make(**size)
    except TypeError:
        return make()


def _not_taken(name: str, image_shape: ImageShape, err: Exception) -> ConfigError:
    images = "x".join(map(str, image_shape))
    reason = " ".join(str(err).partition("\n")[0].split()) or type(err).__name__
    return ConfigError(f"model.backbone: {name} does not take images of {images}: {reason}")


def _package(library: str) -> Any:
    try:
        return import_module("timm" if library == "timm" else "torchvision.models")
    except ImportError as err:
        raise ResourceError(
            f"model.backbone: {library} is not installed: {install_extra('timm')}"
        ) from err
