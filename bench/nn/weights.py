"""Weights that an encoder starts from: a safetensors file, known by the hash of its bytes.

It is what `fedbench export` writes, or a state dict of timm or torchvision.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from fedbench.bench.config import ModelConfig
from fedbench.bench.system.checksums import has_checksum
from fedbench.bench.system.errors import ConfigError, DataError, UnknownNameError, nearest
from fedbench.bench.system.files import user_path

SUFFIX = ".safetensors"
_SHIPPED = re.compile(r"[\w+-]+@[\w-]+")
_COUNTER = "num_batches_tracked"  # of batch norm, which nets here do not keep


@dataclass(frozen=True)
class Weights:
    """Content of a file."""

    sha256: str  # of its bytes
    tensors: Mapping[str, Tensor]  # by name; those of floating point as float32
    model: ModelConfig | None  # of the run, if the file is an exported encoder


@dataclass(frozen=True)
class Start:
    """First weights of an encoder."""

    tensors: Mapping[str, Tensor]  # by the names of the encoder's `state_dict`
    left_out: tuple[str, ...]  # the classifier's tensors in the file, which the encoder has not


def shipped_encoders() -> dict[str, Path]:
    """Return the encoders that come with fedbench: METHOD@PRESET -> file; README.md lists them."""
    folder = Path(str(resources.files("fedbench.leaderboards"))) / "encoders"
    return {path.stem: path for path in sorted(folder.glob(f"*{SUFFIX}"))}


def encoder_file(name: Path | str) -> Path:
    """Return the file of an encoder: a path, or the name of one that comes with fedbench."""
    path = user_path(name)
    if path.exists() or not _SHIPPED.fullmatch(str(name)):
        return path
    if str(name) not in (shipped := shipped_encoders()):
        raise UnknownNameError("encoder", str(name), shipped)
    return shipped[str(name)]


def read_weights(config: ModelConfig) -> Weights:
    """Read the file that a model starts from; the last two are remembered.

    Raises `DataError` if it cannot be read, is torn or altered, is no safetensors file, has a
    number that is not finite, or is not the file of `weights_sha256`; `UnknownNameError` if no
    encoder of this name comes with fedbench.
    """
    path, wanted = encoder_file(config.weights or ""), config.weights_sha256
    try:
        state = path.stat()
        weights = _read(path, state.st_mtime_ns, state.st_size)  # anew if the file has changed
    except OSError as err:
        known = "" if wanted is None else f", SHA-256 {wanted},"
        raise DataError(
            f"model.weights: {str(path)!r}{known} cannot be read ({err.strerror}); put that file"
            " there"
        ) from err
    if wanted not in (None, weights.sha256):
        raise DataError(
            f"model.weights: {str(path)!r} has SHA-256 {weights.sha256}, and this run starts from"
            f" {wanted}; put that file there, or set model.weights_sha256=null for a run from"
            " this one"
        )
    return weights


@lru_cache(maxsize=2)
def _read(path: Path, changed: int, size: int) -> Weights:
    data = path.read_bytes()
    try:
        checked = has_checksum(data)
    except ValueError as err:
        raise DataError(
            f"model.weights: {str(path)!r} is torn or altered: {err}; copy or export it again"
        ) from err
    try:
        tensors = load(data)
        # A safetensors file is the length of its header in 8 bytes, the header, and the numbers.
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        entry = header.get("__metadata__", {}).get("fedbench")
        model = None
        if entry is not None and checked:
            card = json.loads(entry)["values"]["card"]
            model = ModelConfig.model_validate(card["model"])
    except (SafetensorError, KeyError, TypeError, ValueError) as err:
        reason = " ".join(str(err).split()) if not isinstance(err, KeyError) else f"no {err}"
        raise DataError(
            f"model.weights: {str(path)!r} is neither an exported encoder nor a state dict as"
            f" safetensors.torch.save_file writes it ({reason})"
        ) from err
    values = {k: v.float() if v.is_floating_point() else v for k, v in tensors.items()}
    for name, value in sorted(values.items()):
        if not bool(torch.isfinite(value).all()):
            raise DataError(f"model.weights: {name!r} in {str(path)!r} has NaN or infinity in it")
    return Weights(hashlib.sha256(data).hexdigest(), values, model)


def start_of(config: ModelConfig, encoder: nn.Module, classifier: Sequence[str]) -> Start:
    """Return the first weights of an encoder, maybe on torch's meta device, from its model's file.

    `classifier` names parts that a state dict may have and the encoder has not. Raises
    `ConfigError` if names or shapes differ, or an exported encoder had other settings, else as
    `read_weights`.
    """
    weights, file = read_weights(config), Path(config.weights or "").name
    given, on_top = dict(weights.tensors), list[str]()
    wanted = {k: v for k, v in encoder.state_dict().items() if not k.endswith(_COUNTER)}
    if weights.model is not None:
        _check_settings(weights.model, config, encoder, file)
        # With a linear layer on top, for latents, unless it is a sequence itself.
        if {n[:2] for n in given} == {"0.", "1."} and not wanted.keys() <= given.keys():
            on_top = sorted(name for name in given if name[0] == "1")
            given = {name[2:]: value for name, value in given.items() if name[0] == "0"}
    constant = {name for name, _ in encoder.named_buffers()} - wanted.keys()
    heads = tuple(f"{name}." for name in classifier)
    left_out = sorted(name for name in given.keys() - wanted.keys() if name.startswith(heads))
    ignored = {*left_out, *constant, *(name for name in given if name.endswith(_COUNTER))}
    tensors = {name: value for name, value in given.items() if name not in ignored}
    if problem := next(_misfits(tensors, wanted), ""):
        raise ConfigError(f"model.weights: {file} does not fit {config.backbone}: {problem}")
    return Start(tensors, (*on_top, *left_out))


def _check_settings(theirs: ModelConfig, ours: ModelConfig, encoder: nn.Module, file: str) -> None:
    """Refuse an exported encoder that was made under other settings; name them."""
    norms = nn.GroupNorm | nn.modules.batchnorm._BatchNorm
    normed = any(isinstance(module, norms) for module in encoder.modules())

    def settings(model: ModelConfig) -> dict[str, object]:
        values: dict[str, object] = {"backbone": model.backbone, "stem_stride": model.stem_stride}
        if theirs.width is not None and ours.width is not None:
            values["width"] = model.width
        if normed:
            values["norm"] = model.norm.partition("-")[0]
            values["norm_groups"] = model.norm_groups if model.norm == "group" else None
        return values

    mine = settings(ours)
    if other := {k: v for k, v in settings(theirs).items() if v not in (None, mine[k])}:
        words = " ".join(f"model.{name}={value}" for name, value in other.items())
        raise ConfigError(f"model.weights: {file} was exported with {words}; set that")


def _misfits(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield what a file and an encoder lack of each other, and tensors of different shapes."""
    for side, there, here in (("it", wanted, given), ("the encoder", given, wanted)):
        if names := sorted(there.keys() - here.keys()):
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            close = nearest(names[0], here)
            hint = f" (nearest: {close!r})" if close else ""
            yield f"{side} has no {names[0]!r}{more}{hint}"
    for name, value in wanted.items():
        theirs, ours = ("x".join(map(str, each.shape)) for each in (given[name], value))
        if theirs != ours:
            yield f"{name!r} is {theirs} in the file and {ours} in the encoder"
