"""Finished runs with their weights, and their encoders as files with a JSON card."""

import hashlib
import json
import logging
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedbench.bench.config import BENCHMARK_VERSION, ModelConfig
from fedbench.bench.config.schema import without_folder
from fedbench.bench.data.views.views import MEAN, STD, normalise
from fedbench.bench.execution.formats import hub, onnx, pt2, pth, safetensors
from fedbench.bench.experiment.common_options import as_path
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.method.blame import guarded
from fedbench.bench.nn.autoencoder import latent_encoder
from fedbench.bench.nn.backbones import make_backbone
from fedbench.bench.nn.freezing import plain_state
from fedbench.bench.nn.weights import SUFFIX, encoder_file, shipped_encoders
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store, open_store
from fedbench.bench.system import tensor_files
from fedbench.bench.system.errors import ConfigError, DataError, StoreError
from fedbench.bench.system.files import (
    atomic_write_bytes,
    atomic_write_text,
    user_path,
    write_new_folder,
)
from fedbench.bench.training.checkpoint import load_checkpoint
from fedbench.bench.training.layout import Binding
from fedbench.bench.training.personal import PersonalStore
from fedbench.bench.training.setup import Setup


@dataclass(frozen=True)
class TrainedRun:
    """A finished run with its weights, on the CPU."""

    row: Row
    setup: Setup
    binding: Binding  # the net, in eval mode, with the weights of the last round
    select: Callable[[int], None]  # puts a client's personal tensors, or the initial ones, into it
    trained: Container[int]  # clients that have personal tensors of their own


def load_run(store: Store, run_id: str, data_dir: Path | str | None = None) -> TrainedRun:
    """Read a finished run with its weights; `run_id` may be the beginning of its row id.

    Raises:
        StoreError: if the store has no such run, if it did not finish, or if no checkpoint is left.
        DataError: if the data set has changed since.
    """
    row = store.find(run_id)
    run_id = row.row_id
    if row.status == "diverged":
        raise StoreError(
            f"run {run_id} diverged after {row.rounds_done or 0} of {row.num_rounds} rounds and"
            " left no encoder; try a lower client.lr"
        )
    if row.status != "ok":
        raise StoreError(f"run {run_id} failed ({row.error}); `--retry-failed` runs it again")
    folder = store.cell_dir(store.key(row))
    checkpoint = load_checkpoint(folder, row.training_id or run_id)
    if checkpoint is None and row.rounds_done != 0:  # without rounds it is the net at its start
        raise StoreError(
            f"run {run_id} has no whole checkpoint in {str(folder)!r}; run it again into an empty"
            " store"
        )
    experiment = Experiment(row.config, data_dir=as_path(data_dir))
    if (revision := experiment.data.revision) != row.dataset_revision:
        older = row.benchmark_version != BENCHMARK_VERSION
        raise DataError(
            f"run {run_id} used revision {row.dataset_revision[:8]} of its data,"
            f" {row.config.data.name} is {revision[:8]} now"
            + (f"; for runs of that time install fedbench {row.package_version}" if older else "")
        )
    if experiment.partition.hash != row.partition_hash:
        raise StoreError(
            f"run {run_id} partitioned its data in another way than this fedbench does; install"
            f" fedbench {row.package_version}"
        )
    setup = experiment.setup
    binding = setup.bound()
    rounds: dict[int, int] = {}
    if checkpoint is not None:
        binding.check_frozen(checkpoint.state["frozen"])
        binding.server.data.copy_(checkpoint.tensors["server"])
        rounds = {int(k): r for k, r in checkpoint.state["personal_rounds"].items()}
    binding.net.eval()
    personal, first = PersonalStore(folder / "clients"), binding.personal.data.clone()

    def select(client_id: int) -> None:
        binding.personal.data.copy_(personal.latest(client_id, rounds, first))

    if not setup.evaluate_on_clients:
        select(0)  # a pooled run's one client
    return TrainedRun(row, setup, binding, select, rounds)


_log = logging.getLogger(__name__)
FORMAT = "fedbench-encoder-1"
_PREPROCESSING = {"normalised": "pixels / 255, then (x - 0.5) / 0.5", "unit": "pixels / 255"}


@dataclass(frozen=True)
class Exported:
    """An exported encoder: file or folder, its card, and the SHA-256 of its file of tensors."""

    file: Path
    card: Path
    sha256: str


@guarded()
def export_encoder(
    run_id: str,
    file: Path | str,
    *,
    store: Store | Path | str | None = None,
    data_dir: Path | str | None = None,
) -> Exported:
    """Write an encoder by the ending of a file, with a card `<name>.json` in the same folder.

    `.safetensors` is for `load_encoder`. `.pt2`, for `torch.export.load`, and `.onnx` need no
    fedbench: uint8 images (B, C, H, W) -> features (B, D). `.pth` is a state dict under the names
    of torchvision and timm, for images as the card's preprocessing says. A name without an ending
    is a new folder for the Hugging Face Hub, whose README.md is the card.

    The card holds the architecture, the preprocessing, and the run's configuration and metrics.

    Args:
        run_id: a row id, or an unambiguous beginning of it; or what `load_encoder` takes.
        file: ends in one of these four, or in none.
        store: see `open_store`.
        data_dir: cache of data sets; None = the default one.

    Raises:
        StoreError: if the store has no such run, or no checkpoint of it, or it diverged.
        ConfigError: if `file` has another ending, a folder exists, or the format cannot hold this.
        ResourceError: if packages for `.onnx` are missing.

    >>> from fedbench.bench.testing import demo_store, new_folder
    >>> run_id, folder = demo_store().rows()[0].row_id, new_folder()
    >>> export_encoder(run_id, f"{folder}/encoder.safetensors", store=demo_store()).card.name
    'encoder.json'
    """
    file = user_path(file)
    if file.suffix not in {*FORMATS, ""}:
        endings = f"{', '.join(FORMATS)}, or in nothing for a folder"
        raise ConfigError(f"cannot export to {file.name!r}: the name must end in {endings}")
    card_file = file.with_suffix(".json")
    if not file.suffix and file.exists():
        raise ConfigError(f"{str(file)!r} exists; choose another name")
    if file.suffix and card_file.exists() and FORMAT not in card_file.read_text("utf-8", "replace"):
        raise ConfigError(
            f"{str(card_file)!r}, where the card goes, is another file; choose another name"
        )
    if run_id.endswith(SUFFIX) or "@" in run_id:
        card, tensors = _read(run_id)
    else:
        card, tensors = _of_run(load_run(open_store(store), run_id, data_dir))
    encoder = _built(run_id, card, tensors)
    if not file.suffix:
        files = hub(encoder, card, tensors, "cc0-1.0" if "@" in run_id else "unknown")
        write_new_folder(file, files)
        data = files["model.safetensors"]
        return Exported(file, file / "README.md", hashlib.sha256(data).hexdigest())
    data = FORMATS[file.suffix](encoder, card, tensors)
    atomic_write_bytes(file, data)
    atomic_write_text(card_file, json.dumps(card, indent=2, sort_keys=True) + "\n")
    return Exported(file, card_file, hashlib.sha256(data).hexdigest())


FORMATS = {SUFFIX: safetensors, ".pt2": pt2, ".onnx": onnx, ".pth": pth}
"""Ending of a file -> what writes an encoder with its card and tensors so."""


def _of_run(run: TrainedRun) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the card and the tensors of a run's encoder."""
    row, setup, net = run.row, run.setup, run.binding.net
    config = setup.config
    if row.collapsed:
        _log.warning("the encoder of %s has collapsed: its features hardly differ", row.row_id)
    if setup.evaluate_on_clients:
        raise StoreError(
            f"run {row.row_id} has one encoder per client and no global one to export; train one"
            " that is averaged, such as simclr's with model.norm=batch"
        )
    tensors = {k: v.clone().contiguous() for k, v in plain_state(net["encoder"]).items()}
    pixels = setup.needs.pixels
    with torch.no_grad():
        feature_dim = net["encoder"](torch.zeros(1, *setup.spec.image_shape)).shape[1]
    dumped = config.model_dump(mode="json")
    dumped["data"]["name"] = config.data.public_name
    dumped["evaluation"]["transfer"] = [*map(without_folder, config.evaluation.transfer)]
    dumped["model"]["weights"] = config.model.weights and Path(config.model.weights).name
    card = {
        "format": FORMAT,
        "run_id": row.row_id,
        "model": {k: v for k, v in dumped["model"].items() if k != "trainable"},  # none is frozen
        "image_shape": list(setup.spec.image_shape),
        "feature_dim": feature_dim,
        "pixels": pixels,
        "preprocessing": _PREPROCESSING[pixels],
        "class_names": list(setup.dataset.class_names),
        "config": dumped,
        "metrics": {k: getattr(row, k) for k in ("objective", "knn_acc", "linear_acc")},
    }
    return card, tensors


class Encoder(nn.Module):
    """An exported encoder with its preprocessing: uint8 images (B, C, H, W) -> features (B, D).

    Attributes:
        card: architecture, preprocessing, configuration and metrics, as in the JSON card.
    """

    def __init__(self, card: Mapping[str, Any], backbone: nn.Module) -> None:
        super().__init__()
        self.card = dict(card)
        self.backbone = backbone

    def forward(self, images: Tensor) -> Tensor:
        """uint8 images (B, C, H, W) -> float32 features (B, D)."""
        wanted = self.card["image_shape"][0]
        given: tuple[int, ...] = tuple(getattr(images, "shape", ()))
        if getattr(images, "dtype", None) != torch.uint8 or len(given) != 4 or given[1] != wanted:
            raise TypeError(
                f"images must be a uint8 tensor (B, {wanted}, H, W), got {type(images).__name__}"
                f" {given} of {getattr(images, 'dtype', 'no dtype')}"
            )
        x = normalise(images.float() / 255)
        if self.card["pixels"] == "unit":
            x = x * STD + MEAN  # there and back as in the run, for the same bits
        return self.backbone(x)  # type: ignore[no-any-return]


def load_encoder(file: Path | str) -> Encoder:
    """Read an exported encoder, in eval mode on the CPU; needs no store and no data set.

    Args:
        file: a path, or the name of an encoder that comes with fedbench: `simclr@laptop`.

    Raises:
        DataError: if the file is missing or not an exported encoder.
        UnknownNameError: if no encoder of this name comes with fedbench.

    >>> encoder = load_encoder("simclr@laptop")
    >>> encoder(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape
    torch.Size([2, 64])
    """
    return _built(str(encoder_file(file)), *_read(file))


def _read(file: Path | str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the card and the tensors of an exported encoder; see `load_encoder`."""
    path = encoder_file(file)
    try:
        values, tensors = tensor_files.read(path)
        card = values["card"]
        if card["format"] != FORMAT:
            raise DataError(f"{path}: format {card['format']!r} is not {FORMAT!r}; update fedbench")
        # Encoders that ship were exported when runs had other ids.
        card["run_id"] = _run_ids().get(card["run_id"], card["run_id"])
    except FileNotFoundError as err:
        near = get_close_matches(str(file), shipped_encoders(), 3, 0.4) or ["simclr@laptop"]
        raise DataError(
            f"{str(path)!r}: no such file; encoders such as {', '.join(near)} come with fedbench"
        ) from err
    except (OSError, KeyError, TypeError, ValueError) as err:
        reason = " ".join(str(err).split())
        raise DataError(f"{str(path)!r} is not an encoder exported by fedbench ({reason})") from err
    return card, tensors


def _built(name: str, card: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Encoder:
    """Make an encoder as its card says, in eval mode; `DataError` with `name` if it cannot be."""

    def make() -> nn.Module:
        return latent_encoder(make_backbone(model, channels, (height, width)), feature_dim)

    try:
        model = ModelConfig.model_validate(card["model"])
        channels, height, width = map(int, card["image_shape"])
        feature_dim = int(card["feature_dim"])
        with torch.device("meta"):  # without memory: a stranger's card may ask for any
            shapes = {name: value.shape for name, value in make().state_dict().items()}
    except (ConfigError, KeyError, RuntimeError, TypeError, ValueError, OverflowError) as err:
        reason = " ".join(str(err).split())
        raise DataError(f"{name!r}: its card describes no encoder ({reason})") from err
    counted = {name for name in shapes if name.endswith("num_batches_tracked")}
    given = {name: value.shape for name, value in tensors.items()}
    if shapes != {name: shapes[name] for name in counted} | given:
        raise DataError(f"{name!r}: its tensors do not fit its card; export it again")
    backbone = make()
    backbone.load_state_dict(tensors, strict=False)  # runs keep no counters of batch norm
    return Encoder(card, backbone).eval()


@cache
def _run_ids() -> Mapping[str, str]:
    """Return ids of runs that the encoders that ship were exported with -> those of today."""
    file = resources.files("fedbench.leaderboards").joinpath("encoders/run-ids.json")
    ids: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
    return ids
