"""Rehearsal that finds uploads of single samples which a method does not declare.

It trains one client on random images, replaces one image after the other, and records which numbers
of the upload change. A tensor holds single samples if, for most images, some of its numbers change
with that image alone, whatever the tensor's name and sharing rule. (That every extra is declared at
all is checked at each message, by `sharing.check_sent`.)

The contract tests rehearse every method that ships. A method of another package is rehearsed before
each run as well: nobody can know whether its author runs the contract tests, and the count of
messages that reveal a single image goes into published rows.
"""

from collections.abc import Iterator
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


def audit_foreign(setup: Setup) -> None:
    """Audit a method to which another package, or the session, has brought a part."""
    if {*setup.config.spec.split("+")} & setup.config.code.keys():
        audit(setup)


def audit(setup: Setup) -> None:
    """Refuse a method that uploads undeclared single samples.

    Weights do not move in the rehearsal, so an image reaches a number of the upload only directly,
    not through training: what trained weights reveal is not measured.

    Raises:
        PluginError: naming the tensor, and how to declare it.
    """
    needs = setup.method.needs()
    growing = following_size(setup)
    for name, count in single_samples(setup).items():
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


def single_samples(setup: Setup) -> dict[str, int]:
    """Count, for each uploaded tensor and extra, the images that alone change some number of it."""
    with temporary_folder() as folder, single_thread():
        rehearsal = _Rehearsal(setup, folder)
        counts = [rehearsal.single_samples(index) for index in rehearsal.rounds()]
    return {name: max(c.get(name, 0) for c in counts) for one in counts for name in one}


def following_size(setup: Setup) -> set[str]:
    """Names of uploaded tensors and extras whose length depends on a client's number of images.

    They have a row for each image, even if it is centred, rounded or made of the label alone.
    """
    names: set[str] = set()
    with temporary_folder() as folder, single_thread():
        many, few = (_Rehearsal(setup, folder, count) for count in (_IMAGES, _FEWER))
        for round_index in many.rounds():
            first, second = many.sent(round_index), few.sent(round_index)
            names |= {n for n in first if len(first[n]) != len(second.get(n, ()))}
    return names


class _Rehearsal:
    """One client with random images, a narrow encoder, and weights that do not move."""

    def __init__(self, setup: Setup, folder: Path, num_images: int = _IMAGES) -> None:
        config, shape = setup.config, setup.spec.image_shape
        model, backbone = config.model, setup.backbone
        # With torch's first weights some units of so narrow a net answer to one image alone.
        narrow = ModelConfig(backbone="resnet8", width=_WIDTH, norm="group", init="he-fan-out")
        # A method whose widths follow the encoder's refuses the narrow one.
        with suppress(ConfigError), scope(0, "audit"):
            setup.method.build(make_backbone(narrow, shape[0]), setup.spec)
            model, backbone = narrow, make_backbone(narrow, shape[0])
        client = config.client.model_copy(
            update={"lr": _STANDSTILL, "batch_size": _BATCH, "keep_last_batch": True}
        )
        rng = numpy_generator(0, "audit")
        self._images = rng.integers(0, 256, (_IMAGES, *shape), dtype=np.uint8)
        self._others = rng.integers(0, 256, (_IMAGES, *shape), dtype=np.uint8)
        indices = np.arange(num_images, dtype=np.int64)
        self._setup = replace(
            setup,
            config=config.model_copy(update={"client": client, "model": model}),
            images=self._images,
            labels=_labels(setup.method.needs().labels, setup.spec.num_classes),
            partition=Partition(
                "iid", 1.0, 0, num_images, 2, indices, np.array([0, num_images], dtype=np.int64)
            ),
            backbone=backbone,
        )
        self._runner = ClientRunner(self._setup, torch.device("cpu"), folder)
        self._server = self._runner.binding.server.data.clone()
        self._personal = PersonalStore(folder)

    def rounds(self) -> Iterator[int]:
        """The first round, if it is a preparatory one, and the last."""
        preparatory = self._setup.method.needs().preparatory_rounds
        if preparatory:
            yield 0
        yield max(0, preparatory + self._setup.config.federation.num_rounds - 1)

    def single_samples(self, round_index: int) -> dict[str, int]:
        """The counts of `single_samples` for one round."""
        plain = self.sent(round_index)
        followed: dict[str, list[Tensor]] = {name: [] for name in plain}
        for image in range(_IMAGES):
            original = self._images[image].copy()
            self._images[image] = self._others[image]
            changed = self.sent(round_index)
            self._images[image] = original
            for name, before in plain.items():
                followed[name].append(_follows(before, changed.get(name)))
        counts = {}
        for name, rows in followed.items():
            follows = torch.stack(rows)  # (images, n)
            alone = follows & (follows.sum(dim=0) == 1)
            counts[name] = int(alone.any(dim=1).sum())
        return counts

    def sent(self, round_index: int) -> dict[str, Tensor]:
        """Return the client's upload of a round, every tensor as float64 (n,)."""
        layout, method = self._runner.layout, self._setup.method
        plan = method.plan_round(round_index, RoundPlan(1))
        out = torch.empty(layout.upload_size)
        task = Task(0, round_index, RoundPlan(min(1, plan.local_epochs)))
        self._personal.drop(0, round_index)  # else the result of the last call would come back
        asked, received = self._pre_round(task) if method.needs().pre_round else ({}, self._server)
        extras = self._runner.run(task, received, out).extras
        sent = {name: value.double().flatten() for name, value in extras.items()}
        for name, value in asked.items():
            sent[name] = torch.cat([sent.get(name, torch.empty(0)), value.flatten()])
        for slot in layout.server:
            if slot.stop <= layout.num_averaged:
                sent[slot.name] = out[slot.start : slot.stop].double()
        for slot, _, place in layout.row_places(0):
            sent[slot.name] = out[place].double()
        return sent

    def _pre_round(self, task: Task) -> tuple[dict[str, Tensor], Tensor]:
        """Return the client's answers, float64, and the server's vector after them."""
        empty = torch.empty(self._runner.layout.upload_size)
        answers = self._runner.run(replace(task, pre_round=True), self._server, empty).extras
        sums = {name: value.double() for name, value in answers.items()}
        binding, index = self._runner.binding, task.round_index
        with torch.no_grad():
            binding.server.data.copy_(self._server)
            server = Server(index, generator(self._setup.config.seed, "survey", index), {})
            self._setup.method.server_pre_round(binding.net, sums, server)
        return sums, binding.server.data.clone()


def _labels(visible: Labels, num_classes: int) -> np.ndarray:
    """Labels of two classes, or one; the second half is hidden where a method sees only some."""
    labels = np.arange(_IMAGES, dtype=np.int64) % (1 if num_classes == 1 else 2)
    if visible is Labels.NONE:
        labels[:] = -1
    elif visible is Labels.SOME:
        labels[_IMAGES // 2 :] = -1
    return labels


def _follows(before: Tensor, after: Tensor | None) -> Tensor:
    """Mask (n,) of the numbers that changed; all of them if the length did."""
    if after is None or after.shape != before.shape:
        return torch.ones(len(before), dtype=torch.bool)
    moved: Tensor = ~((after - before).abs() <= _MOVED)  # NaN counts as moved
    return moved
