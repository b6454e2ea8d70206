"""Clients that hold their images alone: messages as bytes, checked on arrival.

The engine `messages` trains clients of this machine as a federation does, so that a method's bytes
are seen on the wire. A message is a safetensors file: JSON values, tensors, and a checksum of both.
Nothing in it is code. A second program can speak it: `Request` and `Report` list the values;
`model` is the part of the server's vector that is sent down, `upload` what `VectorLayout.pack`
makes.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError
from torch import Tensor

from fedbench.bench.evaluation.objective import ClientScores, client_statistics
from fedbench.bench.evaluation.objectives.accumulator import Accumulator
from fedbench.bench.evaluation.objectives.scores import scored
from fedbench.bench.execution.engines import Simulation
from fedbench.bench.method import ACTIVATIONS, RoundPlan
from fedbench.bench.method.sharing import SENT_DOWN
from fedbench.bench.nn.compiled import CompiledParts
from fedbench.bench.system import tensor_files
from fedbench.bench.system.compute import all_finite
from fedbench.bench.system.errors import ConfigError, DataError
from fedbench.bench.training.client import ClientRunner, ClientSide, Task, Trained
from fedbench.bench.training.layout import Binding, VectorLayout
from fedbench.bench.training.ledger import Ledger
from fedbench.bench.training.setup import Setup

VERSION = 1
_LARGEST = 2**28  # bytes besides the model: of extras, whose shapes a method alone knows
_EXTRA = "extra/"
Kind = Literal["train", "pre-round", "score"]


class Values(BaseModel):
    """Values of a message; no unknown ones, and no conversion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    version: int = VERSION
    kind: Kind
    client: NonNegativeInt  # id, in the order of names


class Request(Values):
    """What a server asks of a client."""

    round_index: NonNegativeInt
    local_epochs: NonNegativeInt = 0
    optimizer: Literal["sgd", "adam"] | None = None
    lr: float | None = None
    max_steps: NonNegativeInt | None = None
    personal_round: NonNegativeInt | None = None  # which stored its own tensors; None = none did

    @property
    def task(self) -> Task:
        """The client's part of a round."""
        plan = RoundPlan(self.local_epochs, optimizer=self.optimizer, lr=self.lr)
        rest = {"pre_round": self.kind == "pre-round", "max_steps": self.max_steps}
        return Task(self.client, self.round_index, plan, self.personal_round, **rest)  # type: ignore[arg-type]


class Report(Values):
    """What a client answers, besides tensors; `loss` is None without a step or where not finite."""

    num_examples: NonNegativeInt
    num_steps: NonNegativeInt = 0
    loss: float | None = None
    finite: bool = True
    parts: Mapping[str, float] = {}
    stored_personal: bool = False
    without_gradient: tuple[str, ...] = ()
    scores: Mapping[str, float | None] = {}
    dim: NonNegativeInt = 0  # of the projections that the scores are of


V = TypeVar("V", bound=Values)


def opened(data: bytes, kind: type[V], sender: str, most: int) -> tuple[V, dict[str, Tensor]]:
    """Return the values and tensors of a message of at most so many bytes.

    Raises:
        DataError: one line, naming the sender, for whatever is wrong with it.
    """
    try:
        if len(data) > most:
            raise ValueError(f"it has {len(data):,} bytes, and at most {most:,} are due")
        values, tensors = tensor_files.decode(data)
        if (found := values.get("version")) != VERSION:
            raise ValueError(f"it is of version {found}, not {VERSION}; install the same fedbench")
        return kind.model_validate_json(json.dumps(values)), tensors
    except ValidationError as err:
        first = err.errors()[0]
        why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise refused(sender, why) from err
    except ValueError as err:
        raise refused(sender, str(err)) from err


def refused(sender: str, why: str) -> DataError:
    """Return the error for a message that is not as it should be."""
    return DataError(f"{sender}: its message is refused: {why}")


def check_method(setup: Setup) -> None:
    """Refuse what needs more of a client than these messages carry.

    Raises:
        ConfigError: with the reason.
    """
    needs, settings = setup.needs, setup.config.evaluation
    objectives = scored(settings.objectives, noise=settings.objective_noise is not None)
    reasons = {
        "an objective is not one sum of each client": any(o.exchanges > 1 for o in objectives),
        "it trains on the pooled images of all clients": needs.pooled,
        "activations cross at every step": ACTIVATIONS in needs.extras,
    }
    if why := next((why for why, holds in reasons.items() if holds), ""):
        raise ConfigError(f"{setup.config.spec!r} cannot be trained by messages, since {why}")


class Messages:
    """Writes and reads the messages of a run."""

    def __init__(self, setup: Setup, layout: VectorLayout) -> None:
        self._needs, self._layout, settings = setup.needs, layout, setup.config.evaluation
        self._scored = scored(settings.objectives, noise=settings.objective_noise is not None)
        self._sent = max((s.stop for s in layout.server if s.rule in SENT_DOWN), default=0)
        names = setup.needs.pre_round
        self._again = [slice(s.start, s.stop) for s in layout.server if s.name in names]
        self._most = 4 * (self._sent + layout.upload_size) + _LARGEST

    def request(self, kind: Kind, task: Task, server: Tensor) -> bytes:
        """Return a request with the server's vector, (server_size,).

        A client that has answered before this round gets what is new since then alone.
        """
        plan = {"local_epochs": task.plan.local_epochs, "optimizer": task.plan.optimizer}
        of_round = {"client": task.client_id, "round_index": task.round_index}
        rest = {"lr": task.plan.lr, "max_steps": task.max_steps}
        rest["personal_round"] = task.personal_round
        values = Request(kind=kind, **of_round, **plan, **rest)  # type: ignore[arg-type]
        if kind == "train" and self._again:
            tensors = {"again": torch.cat([server[span] for span in self._again])}
        else:
            tensors = {"model": server[: self._sent]}
        return tensor_files.encode(values.model_dump(), tensors)

    def read_request(self, data: bytes, server: Tensor) -> Request:
        """Return a request, and write what it brings into a vector like the server's."""
        values, tensors = opened(data, Request, "the server", self._most)
        if values.kind == "train" and self._again:
            size = sum(span.stop - span.start for span in self._again)
            at, given = 0, self._tensor(tensors, "again", size, "the server")
            for span in self._again:
                server[span] = given[at : at + span.stop - span.start]
                at += span.stop - span.start
        else:
            server[: self._sent] = self._tensor(tensors, "model", self._sent, "the server")
        return values

    def answer(self, request: Request, trained: Trained, upload: Tensor) -> bytes:
        """Return a client's answer; without a step there are no weights to send."""
        report = Report(
            kind=request.kind,
            client=trained.client_id,
            num_examples=trained.num_examples,
            num_steps=trained.num_steps,
            loss=trained.loss if math.isfinite(trained.loss) else None,
            finite=trained.finite,
            parts={name: value for name, value in trained.parts.items() if math.isfinite(value)},
            stored_personal=trained.stored_personal,
            without_gradient=trained.without_gradient,
        )
        tensors = {f"{_EXTRA}{name}": value for name, value in trained.extras.items()}
        if trained.num_steps:
            tensors["upload"] = upload
        return tensor_files.encode(report.model_dump(), tensors)

    def read_answer(
        self, data: bytes, kind: Kind, task: Task, held: int, sender: str
    ) -> tuple[Trained, Tensor]:
        """Return a client's report and its upload; `held` are the images that it has.

        Raises:
            DataError: one line, naming the sender, for anything that was not asked for.
        """
        report, tensors = opened(data, Report, sender, self._most)
        asked = (kind, task.client_id)
        if (report.kind, report.client) != asked or report.num_examples > held:
            raise refused(sender, f"it answers another question than {kind} of {held} images")
        steps = report.num_steps
        upload = torch.zeros(self._layout.upload_size)
        if steps:
            upload = self._tensor(tensors, "upload", len(upload), sender, finite=report.finite)
        extras = {
            name.removeprefix(_EXTRA): value
            for name, value in tensors.items()
            if name.startswith(_EXTRA)
        }
        if unknown := {*tensors} - {*(f"{_EXTRA}{name}" for name in self._needs.extras), "upload"}:
            raise refused(sender, f"nobody asked for {min(unknown)!r}")
        if bad := [n for n, v in extras.items() if report.finite and not all_finite(v)]:
            raise refused(sender, f"{_EXTRA}{bad[0]} has NaN or infinity")
        wire = Ledger()
        wire.add_extras(extras, self._needs.extras)
        trained = Trained(
            client_id=report.client,
            num_examples=report.num_examples,
            num_steps=steps,
            loss=math.nan if report.loss is None else report.loss,
            finite=report.finite,
            parts=report.parts,
            stored_personal=report.stored_personal,
            without_gradient=report.without_gradient,
        )
        return replace(trained, extras=extras, wire=wire), upload

    def read_scores(
        self, data: bytes, client_id: int, sender: str
    ) -> tuple[ClientScores, dict[str, Tensor], int]:
        """Return a client's scores, its sums, and the numbers of a projection.

        Raises:
            DataError: one line, naming the sender, for anything that was not asked for.
        """
        report, tensors = opened(data, Report, sender, self._most)
        fields = {*ClientScores._fields}
        asked = ("score", client_id, fields)
        if (report.kind, report.client, {*report.scores}) != asked or not report.dim:
            raise refused(sender, f"it has no {', '.join(sorted(fields))}")
        like = Accumulator(self._scored, 1)
        like.add(torch.ones(1, report.dim), torch.ones(1, report.dim))
        if {n: v.shape for n, v in tensors.items()} != {n: v.shape for n, v in like.sums.items()}:
            raise refused(sender, f"its sums must be {', '.join(like.sums) or 'none'}")
        if not all(v.dtype == torch.float64 and all_finite(v) for v in tensors.values()):
            raise refused(sender, "its sums must be finite numbers of double precision")
        return ClientScores(**report.scores), tensors, report.dim  # type: ignore[arg-type]

    @staticmethod
    def _tensor(
        tensors: Mapping[str, Tensor], name: str, size: int, sender: str, *, finite: bool = True
    ) -> Tensor:
        value = tensors.get(name)
        if value is None or value.dtype != torch.float32 or value.shape != (size,):
            found = "nothing" if value is None else f"{value.dtype} {list(value.shape)}"
            raise refused(sender, f"{name!r} must be torch.float32 [{size}] (got {found})")
        if finite and not all_finite(value):
            raise refused(sender, f"{name!r} has NaN or infinity")
        return value


def own_part(setup: Setup, client_id: int) -> Setup:
    """Return a client's setup: the images and labels of the others are not in it."""
    chosen, ids = setup.partition.client(client_id), np.arange(setup.partition.num_clients + 1)
    images, labels = setup.images[chosen], setup.labels[chosen]
    partition = replace(
        setup.partition,
        num_examples=len(chosen),
        indices=np.arange(len(chosen)),
        offsets=np.where(ids > client_id, len(chosen), 0),
        angles=None,
        rotation_bins=None,
    )
    held = replace(
        setup.dataset,
        train_images=images,
        train_labels=labels,
        test_images=images[:0],
        test_labels=labels[:0],
        train_clients=None,
    )
    return setup.with_other(
        dataset=held,
        client_partition=partition,
        partition=partition,
        images=images,
        known_labels=labels,
        labels=labels,
        transfer=(),
    )


class Node:
    """A client with its images: it answers messages, one after another.

    Args:
        setup: of its own images alone (`own_part`).
        device: where it trains.
        folder: private.
        parts: where `client.compile`, the compiled parts of another node; None = new ones.
    """

    def __init__(
        self,
        setup: Setup,
        device: torch.device,
        folder: Path,
        parts: CompiledParts | None = None,
    ) -> None:
        self._setup, self._device, self._folder = setup, device, folder
        self._runner = ClientRunner(setup, device, folder, parts=parts)
        self._messages = Messages(setup, self._runner.layout)
        self._received = torch.zeros(self._runner.layout.server_size)
        self._upload = torch.empty(self._runner.layout.upload_size)
        self._first = self._runner.binding.personal.data.clone()

    def answer(self, data: bytes) -> bytes:
        """Return the answer to a message of the server.

        Raises:
            DataError: for a message that is not as it should be.
        """
        request = self._messages.read_request(data, self._received)
        if request.kind == "score":
            return self._score(request)
        trained = self._runner.run(request.task, self._received, self._upload)
        return self._messages.answer(request, trained, self._upload)

    @torch.no_grad()
    def _score(self, request: Request) -> bytes:
        setup, config, binding = self._setup, self._setup.config.evaluation, self._runner.binding
        binding.server.data.copy_(self._received)
        if self._runner.layout.personal_size:
            side, stored = ClientSide(setup, request.client, self._folder), request.personal_round
            own = self._first if stored is None else side.tensors(stored)
            binding.personal.data.copy_(own)
        embed = setup.method.embed if config.objective_on == "projector" else setup.method.encode
        sums = Accumulator(scored(config.objectives, noise=config.objective_noise is not None), 1)
        embedding = partial(embed, binding.net.eval())
        images = np.arange(len(setup.images))
        given = (setup.images, setup.config, self._device, sums)
        (scores,) = client_statistics(embedding, [(request.client, images)], *given)
        found, of = scores._asdict(), {"kind": "score", "client": request.client}
        report = Report(num_examples=len(images), dim=sums.dim, scores=found, **of)  # type: ignore[arg-type]
        return tensor_files.encode(report.model_dump(), sums.sums)


class Messaging(Simulation):
    """Engine `messages`: clients of this process, reached by messages alone."""

    def start(self, layout: VectorLayout) -> None:
        """As `Clients.start`."""
        return

    def __init__(self, *run: Any) -> None:
        super().__init__(*run)
        check_method(self._setup)
        self._messages = Messages(self._setup, self._setup.layout(self._setup.make_net()))
        self._nodes: dict[int, Node] = {}  # of those that have answered, and train next
        self._parts = CompiledParts(self._setup.config.client.precision)
        self._rounds: Mapping[int, int] = {}
        self._ask, self._wire = self._scores, {"wire_bytes_up": 0, "wire_bytes_down": 0}

    @property
    def circumstances(self) -> dict[str, str | int]:
        """Bytes of all messages of rounds since the last start, beside those of the ledger."""
        return dict(self._wire)

    def train(self, tasks: Sequence[Task], server: Tensor) -> Iterator[tuple[Trained, Tensor]]:
        """As `Executor.train`."""
        for task in tasks:
            kind: Kind = "pre-round" if task.pre_round else "train"
            request = self._messages.request(kind, task, server)
            answer = self.deliver(task.client_id, request)
            if not task.pre_round:
                del self._nodes[task.client_id]  # memory must not grow with the clients
            self._wire["wire_bytes_down"] += len(request)
            self._wire["wire_bytes_up"] += len(answer)
            held, sender = self._held(task.client_id), f"client {task.client_id}"
            yield self._messages.read_answer(answer, kind, task, held, sender)

    def evaluate(
        self, binding: Binding, personal_rounds: Mapping[int, int], rounds: int, *, first: bool
    ) -> dict[str, float]:
        """As `Clients.evaluate`; scores are computed by clients, with tensors of their own."""
        self._rounds = {} if first else personal_rounds
        return super().evaluate(binding, personal_rounds, rounds, first=first)

    def deliver(self, client_id: int, message: bytes) -> bytes:
        """Return a client's answer to a message."""
        if client_id not in self._nodes:
            own = own_part(self._setup, client_id)
            self._nodes[client_id] = Node(own, self._device, self._folder, self._parts)
        return self._nodes[client_id].answer(message)

    def _held(self, client_id: int) -> int:
        return int(self._setup.partition.sizes[client_id])

    def _scores(
        self, binding: Binding, clients: Sequence[int], sums: Accumulator
    ) -> list[ClientScores]:
        found = []
        for k in clients:
            task = Task(k, 0, RoundPlan(0), self._rounds.get(k))
            answer = self.deliver(k, self._messages.request("score", task, binding.server.data))
            scores, parts, dim = self._messages.read_scores(answer, k, f"client {k}")
            del self._nodes[k]
            sums.merge(parts, dim)
            found.append(scores)
        return found
