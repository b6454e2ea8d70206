"""Rehearsal that finds uploads of single samples which a method does not declare.

It trains one client on random images, replaces one image after the other, and records which numbers
of the upload change. A tensor holds single samples if, for most images, some of its numbers change
with that image alone, whatever the tensor's name and sharing rule. (That every extra is declared at
all is checked at each message, by `sharing.check_sent`.)

The contract tests rehearse every method that ships, and each run one of another package.
"""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedbench.bench.config import ModelConfig
from fedbench.bench.data.partition import Partition
from fedbench.bench.method import Extra, Labels, RoundPlan, Server
from fedbench.bench.nn.backbones import make_backbone
from fedbench.bench.system.errors import ConfigError, PluginError
from fedbench.bench.system.scratch import temporary_folder
from fedbench.bench.system.seeding import generator, numpy_generator, scope, single_thread
from fedbench.bench.training.client import ClientRunner, Task
from fedbench.bench.training.personal import PersonalStore
from fedbench.bench.training.setup import Setup

_IMAGES, _BATCH = 8, 8
_FEWER = 6
_WIDTH = 16  # with 8 channels or fewer, oneDNN overruns its buffers at 64 x 64 pixels (torch 2.14)
_STANDSTILL = 1e-30  # a learning rate at which no weight of ordinary size moves in float32
_MOVED = 1e-12


def audit(setup: Setup) -> None:
    """Refuse a method that uploads undeclared single samples.

    Weights do not move in the rehearsal, so an image reaches a number of the upload only directly,
    not through training: what trained weights reveal is not measured.

    Raises:
        PluginError: naming the tensor, and how to declare it.
    """
    needs, (alone, growing) = setup.needs, rehearse(setup)
    for name, count in alone.items():
        extra = needs.extras.get(name, Extra())
        said = extra.per_sample or extra.group_size is not None or extra.budget is not None
        if said or name in needs.mean_gradients:
            continue
        if count > _IMAGES // 2:
            why = f"in which {count} of {_IMAGES} images of a rehearsal have numbers of their own"
        elif name in growing:
            why = "whose length follows the number of images"
        else:
            continue
        raise PluginError(
            f"method {setup.config.spec!r} uploads {name!r}, {why}, so it reveals single"
            " samples; keep it at the client, or declare it in needs():"
            f' extras={{"{name}": Extra(per_sample=True)}}'
        )


def rehearse(setup: Setup) -> tuple[dict[str, int], set[str]]:
    """Rehearse the first round, if it is a preparatory one, and the last.

    Returns by name of an uploaded tensor or extra how many images alone change some number of it;
    and the names of those whose length depends on the client's number of images. They have a row
    for each image, even if it is centred, rounded or made of the label alone.
    """
    alone, growing = dict[str, int](), set[str]()
    preparatory = setup.needs.preparatory_rounds
    last = max(0, preparatory + setup.config.federation.num_rounds - 1)
    with temporary_folder() as folder, single_thread():
        rehearsal = _Rehearsal(setup, folder)
        for index in {0, last} if preparatory else {last}:
            whole, fewer = rehearsal.sent(index), rehearsal.sent(index, _FEWER)
            growing.update(n for n in whole if len(whole[n]) != len(fewer.get(n, ())))
            for name, count in rehearsal.single_samples(index, whole).items():
                alone[name] = max(count, alone.get(name, 0))
    return alone, growing


class _Rehearsal:
    """One client with random images, a narrow encoder, and weights that do not move."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        config, shape = setup.config, setup.spec.image_shape
        model, backbone = config.model, setup.backbone
        # With torch's first weights some units of so narrow a net answer to one image alone.
        narrow = ModelConfig(backbone="resnet8", width=_WIDTH, norm="group", init="he-fan-out")
        # A method whose widths follow the encoder's refuses the narrow one.
        with suppress(ConfigError), scope(0, "audit"):
            setup.method.build(make_backbone(narrow, shape[0]), setup.spec)
            model, backbone = narrow, make_backbone(narrow, shape[0])
        # Compiling takes a minute, and its check would count as that of the run's own net.
        update = {"lr": _STANDSTILL, "batch_size": _BATCH, "keep_last_batch": True}
        client = config.client.model_copy(update={**update, "compile": False})
        rng = numpy_generator(0, "audit")
        self._images = rng.integers(0, 256, (_IMAGES, *shape), dtype=np.uint8)
        self._others = rng.integers(0, 256, (_IMAGES, *shape), dtype=np.uint8)
        self._setup = replace(
            setup,
            config=config.model_copy(update={"client": client, "model": model}),
            images=self._images,
            labels=shown_labels(setup.needs.labels, _IMAGES, min(2, setup.spec.num_classes)),
            partition=alike(_IMAGES),
            backbone=backbone,
        )
        self._runner = ClientRunner(self._setup, torch.device("cpu"), folder)
        self._server = self._runner.binding.server.data.clone()
        self._personal = PersonalStore(folder)

    def single_samples(self, index: int, plain: dict[str, Tensor]) -> dict[str, int]:
        """Count the images that alone change some number of what is sent, `plain`, in a round."""
        followed: dict[str, list[Tensor]] = {name: [] for name in plain}
        for image, other in enumerate(self._others):
            original = self._images[image].copy()
            self._images[image] = other
            changed = self.sent(index)
            self._images[image] = original
            for name, before in plain.items():
                followed[name].append(_follows(before, changed.get(name)))
        rows = {name: torch.stack(each) for name, each in followed.items()}  # (images, n)
        alone = {name: follows & (follows.sum(dim=0) == 1) for name, follows in rows.items()}
        return {name: int(mask.any(dim=1).sum()) for name, mask in alone.items()}

    def sent(self, index: int, num_images: int = _IMAGES) -> dict[str, Tensor]:
        """Return what a client of so many images sends in a round, every tensor float64 (n,)."""
        runner, method = self._runner, self._setup.method
        runner.setup = replace(self._setup, partition=alike(num_images))
        epochs = method.plan_round(index, RoundPlan(1)).local_epochs
        task = Task(0, index, RoundPlan(min(1, epochs)))
        out = torch.empty(runner.layout.upload_size)
        self._personal.drop(0, index)  # else the result of the last call would come back
        server, asked = self._server, {}
        if self._setup.needs.pre_round:
            answers = runner.run(replace(task, pre_round=True), server, out).extras
            asked = {name: value.double() for name, value in answers.items()}
            with torch.no_grad():
                runner.binding.server.data.copy_(server)
                told = Server(index, generator(self._setup.config.seed, "survey", index), {})
                method.server_pre_round(runner.binding.net, asked, told)
            server = runner.binding.server.data.clone()
        extras = runner.run(task, server, out).extras
        sent = {name: value.double().flatten() for name, value in extras.items()}
        for name, value in asked.items():
            sent[name] = torch.cat([sent.get(name, torch.empty(0)), value.flatten()])
        for slot in runner.layout.averaged:
            sent[slot.name] = out[slot.start : slot.stop].double()
        for slot, _, place in runner.layout.row_places(0):
            sent[slot.name] = out[place].double()
        return sent


def alike(num_images: int, num_clients: int = 1, num_classes: int = 2) -> Partition:
    """Return a partition in which each client has all images."""
    indices = np.tile(np.arange(num_images, dtype=np.int64), num_clients)
    offsets = np.arange(num_clients + 1, dtype=np.int64) * num_images
    return Partition("iid", 1.0, 0, num_images, num_classes, indices, offsets)


def shown_labels(visible: Labels, count: int, num_classes: int) -> np.ndarray:
    """Return labels (count,) in turn; the second half is hidden where a method sees only some."""
    labels = np.arange(count, dtype=np.int64) % max(1, num_classes)
    if visible is Labels.NONE:
        labels[:] = -1
    elif visible is Labels.SOME:
        labels[count // 2 :] = -1
    return labels


def _follows(before: Tensor, after: Tensor | None) -> Tensor:
    """Mask (n,) of the numbers that changed; all of them if the length did."""
    if after is None or after.shape != before.shape:
        return torch.ones(len(before), dtype=torch.bool)
    moved: Tensor = ~((after - before).abs() <= _MOVED)  # NaN counts as moved
    return moved
