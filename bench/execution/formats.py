"""Encoders in formats that need no fedbench: torch.export, ONNX, timm, torchvision, the Hub."""

import io
import json
import re
from collections.abc import Mapping
from importlib import resources
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from fedbench.bench.nn.foreign import LIBRARIES
from fedbench.bench.system import tensor_files
from fedbench.bench.system.errors import ConfigError, ResourceError
from fedbench.bench.system.packages import install_extra
from fedbench.bench.system.seeding import generator

_CHECKED, _BATCH = 100, 33  # images; the last batch has one
_TOLERANCE = 1e-5  # between features; where the largest is above 1, a share of it
_TORCHVISION = (  # our names of a ResNet-18's parts -> those of torchvision and timm
    (r"stem\.", "conv1."),
    (r"stem_norm\.", "bn1."),
    (r"blocks\.(\d+)\.", lambda found: "layer{}.{}.".format(*(divmod(int(found[1]) + 2, 2)))),
    (r"\.norm([12])\.", r".bn\1."),
    (r"\.shortcut\.", ".downsample."),
)
Card = Mapping[str, Any]
Tensors = Mapping[str, Tensor]


def safetensors(encoder: nn.Module, card: Card, tensors: Tensors) -> bytes:
    """Return a safetensors file with the card in its header, for `load_encoder`."""
    return tensor_files.encode({"card": card}, tensors)


def pt2(encoder: nn.Module, card: Card, tensors: Tensors) -> bytes:
    """Return a program for `torch.export.load`, with the card as the extra file `card.json`."""
    file = io.BytesIO()
    torch.export.save(_trace(encoder, card), file, extra_files={"card.json": json.dumps(card)})
    return file.getvalue()


def onnx(encoder: nn.Module, card: Card, tensors: Tensors) -> bytes:
    """Return an ONNX model `images` -> `features`, after comparing it with torch on 100 images.

    Raises `ResourceError` if the extra `export` is not installed, `ConfigError` for an operator
    that ONNX lacks, or features that differ by 1e-5 or, if some are above 1, that share of them.
    """
    if missing := [n for n in ("onnx", "onnxscript", "onnxruntime") if find_spec(n) is None]:
        raise ResourceError(f".onnx needs {', '.join(missing)}: {install_extra('export')}")
    import onnxruntime

    program = _trace(encoder, card)
    (shape,) = [n.meta["val"].shape for n in program.graph.nodes if n.name == "images"]
    axes = ((0, "batch"), (2, "height"), (3, "width"))
    sizes = {axis: name for axis, name in axes if not str(shape[axis]).isdigit()}
    named: Any = {"input_names": ["images"], "output_names": ["features"], "verbose": False}
    try:
        made = torch.onnx.export(program, dynamo=True, dynamic_shapes=(sizes,), **named)
        assert made is not None
        model = made.model_proto
        for side in model.graph.input[0].type.tensor_type.shape.dim:
            if side.dim_param.isdigit():  # torch 2.14's name of a fixed one, which takes any length
                side.dim_value = int(side.dim_param)
        model.metadata_props.add(key="card", value=json.dumps(card))
        data: bytes = model.SerializeToString()
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    except Exception as err:  # whatever the converter and its optimiser raise
        raise ConfigError(f"ONNX cannot express this encoder ({_reason(err)}); write .pt2") from err
    shown = (_CHECKED, *card["image_shape"])
    images = torch.randint(256, shown, dtype=torch.uint8, generator=generator(0, "export"))
    for batch in images.split(_BATCH):
        expected = encoder(batch).detach()
        (features,) = session.run(None, {"images": batch.numpy()})
        error = float((torch.from_numpy(features) - expected).abs().max())
        if not error <= _TOLERANCE * max(1.0, float(expected.abs().max())):
            raise ConfigError(f"features by ONNX differ from torch's by {error:.1g}; write .pt2")
    return data


def hub(encoder: nn.Module, card: Card, tensors: Tensors, licence: str) -> dict[str, bytes]:
    """Return the files of a model on the Hugging Face Hub: name -> content.

    `config.json`, for timm, is among them for its own nets and ResNets of torchvision.
    """
    (library, _, net), shape = card["model"]["backbone"].rpartition(":"), card["image_shape"]
    files = {"encoder.pt2": pt2(encoder, card, tensors)}
    files["model.safetensors"] = safetensors(encoder, card, tensors)
    loads = ["import torch", 'encoder = torch.export.load("encoder.pt2").module()']
    known = library == "timm" or (library == "torchvision" and net.startswith("resnet"))
    if known and not any(name.startswith("0.") for name in tensors):
        mean, std = (0.5, 0.5) if card["pixels"] == "normalised" else (0.0, 1.0)
        given = {"input_size": shape, "mean": [mean] * shape[0], "std": [std] * shape[0]}
        theirs = getattr(encoder.get_submodule("backbone"), "pretrained_cfg", {})
        given |= {"num_classes": 0, "fixed_input_size": theirs.get("fixed_input_size", False)}
        described = {"architecture": net, "pretrained_cfg": given}
        files["config.json"] = json.dumps(described).encode()
        loads += ["import timm  # whose nets take images that were prepared as below"]
        loads += ['net = timm.create_model("hf-hub:OWNER/NAME", pretrained=True)']
    readme = (resources.files(__package__) / "hub.md").read_text("utf-8")
    library = "timm" if "config.json" in files else "pytorch"
    metrics = {n: "not measured" if v is None else f"{v:.4g}" for n, v in card["metrics"].items()}
    told = {**card, "licence": licence, "library": library, "metrics": metrics}
    filled = readme.format(loads="\n".join(loads), **told)
    return {**files, "README.md": filled.encode()}


def pth(encoder: nn.Module, card: Card, tensors: Tensors) -> bytes:
    """Return a state dict for `torch.load`, under the names of torchvision and timm.

    Raises `ConfigError` for nets that neither library has.
    """
    name, width = card["model"]["backbone"], card["model"].get("width")
    ours = name == "resnet18" and width in (None, 64)
    if not (ours or name.startswith(LIBRARIES)) or any(n.startswith("0.") for n in tensors):
        raise ConfigError(
            f"torchvision and timm have no net as this one ({name}, width {width},"
            f" {card['feature_dim']} features); write .pt2, which needs no class"
        )
    renamed = dict(tensors)
    for pattern, new in _TORCHVISION if ours else ():
        renamed = {re.sub(pattern, new, key): value for key, value in renamed.items()}
    torch.save(renamed, file := io.BytesIO())
    return file.getvalue()


def _trace(encoder: nn.Module, card: Card) -> torch.export.ExportedProgram:
    """Trace an encoder for any number of images, of all heights and widths that it takes.

    Raises `ConfigError` if torch.export cannot.
    """
    images = torch.zeros(2, *card["image_shape"], dtype=torch.uint8)
    sizes = {0: torch.export.Dim("batch"), 2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO}
    try:
        with torch.no_grad():
            program = torch.export.export(encoder, (images,), dynamic_shapes=(sizes,))
    except Exception as err:  # whatever a plugin's code and torch raise
        raise ConfigError(
            f"torch.export cannot trace this encoder ({_reason(err)}); write .safetensors, or"
            " change its code"
        ) from err
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine
    return program


def _reason(err: BaseException) -> str:
    """Return the first line of the error behind an error, or its type."""
    while isinstance(err.__cause__, Exception):
        err = err.__cause__
    return next(
        (line.strip() for line in str(err).splitlines() if line.strip()), type(err).__name__
    )
