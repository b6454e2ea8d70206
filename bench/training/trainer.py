"""The round loop: it knows hooks and sharing rules, never a method's name."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from fedbench.bench.method import RoundPlan, Server, Upload
from fedbench.bench.nn.optimizers import Optimizer
from fedbench.bench.system.compute import all_finite
from fedbench.bench.system.files import sweep_temporary
from fedbench.bench.system.seeding import generator, single_thread
from fedbench.bench.training.aggregate import Aggregate, Protection, optimized_size
from fedbench.bench.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from fedbench.bench.training.client import Task, Trained
from fedbench.bench.training.history import History, RoundRecord
from fedbench.bench.training.layout import Binding, Layout
from fedbench.bench.training.ledger import Ledger
from fedbench.bench.training.personal import PersonalStore
from fedbench.bench.training.server_optimizer import ServerOptimizer
from fedbench.bench.training.setup import Setup


class Spread(Protocol):
    """How far apart features are; `evaluation.collapse.Collapse` says what each figure means."""

    @property
    def std_ratio(self) -> float:
        """Of the features."""

    @property
    def effective_rank(self) -> float:
        """Of the features."""

    @property
    def projection_std_ratio(self) -> float:
        """Of the projections."""

    @property
    def collapsed(self) -> bool:
        """Whether features or projections have collapsed."""


Monitor = Callable[[Binding], Spread | None]
"""Looks at the net after a round, in eval mode; None if its features are not finite."""


class Executor(Protocol):
    """Trains the clients of a round and hands results back in the order of the tasks."""

    def train(self, tasks: Sequence[Task], server: Tensor) -> Iterator[tuple[Trained, Tensor]]:
        """One result per task: what the client reports, and its upload."""


class Diverged(Exception):  # noqa: N818
    """A loss or a weight is not finite any more; the run ends here with that status."""


class Trainer:
    """A run's state between rounds, and the step from one round to the next.

    Args:
        setup: the run.
        folder: for checkpoints, personal tensors and the history.
        row_id: identity of the run; a checkpoint of another run is refused.
        device: of the server.
        monitor: looks at the net after every round.
    """

    def __init__(
        self, setup: Setup, folder: Path, row_id: str, device: torch.device, monitor: Monitor
    ) -> None:
        self.setup, self.folder, self.row_id, self.device = setup, folder, row_id, device
        net = setup.make_net()
        self.layout: Layout = setup.layout(net)
        self.binding: Binding = self.layout.bind(net, device)
        self.vector = self.binding.server.data
        self.initial = self.vector.clone()
        self.first_personal = self.binding.personal.data.clone()
        self._optimizer = ServerOptimizer(setup.config.server, optimized_size(self.layout), device)
        self._method_optimizers: dict[str, Optimizer] = {}
        self._restored: dict[str, dict[str, Any]] = {}
        self.ledger = Ledger()
        self._declared = setup.method.needs().extras
        self._per_client = Ledger.of_client(self.layout, self._declared)
        self.personal_rounds: dict[int, int] = {}
        self._personal = PersonalStore(folder / "clients")
        self._history = History(folder)
        self.rounds_done = 0
        self.rounds_begun = 0
        self.resumes = 0
        self.train_seconds = 0.0
        self.history: list[RoundRecord] = []
        sizes = setup.partition.sizes
        self._holders = [k for k in range(len(sizes)) if sizes[k] > 0]
        self._monitor = monitor
        self._resume()

    @property
    def total_rounds(self) -> int:
        """Configured rounds and the method's preparatory ones."""
        preparatory = self.setup.method.needs().preparatory_rounds
        return self.setup.config.federation.num_rounds + preparatory

    def rounds(
        self,
        executor: Executor,
        evaluate: Callable[[int], Mapping[str, float]] | None = None,
    ) -> Iterator[RoundRecord]:
        """Do the rounds that are left, with a checkpoint after each.

        Args:
            executor: where clients train.
            evaluate: called after a round with the number of rounds done; its result goes into the
                round's record.

        Raises:
            Diverged: when a loss or a weight is not finite any more.
        """
        while self.rounds_done < self.total_rounds:
            record = self._round(self.rounds_done, executor, evaluate)
            self._history.append(record)
            self.history.append(record)
            self._checkpoint()
            yield record

    def _round(
        self,
        index: int,
        executor: Executor,
        evaluate: Callable[[int], Mapping[str, float]] | None,
    ) -> RoundRecord:
        began = time.perf_counter()
        config, method = self.setup.config, self.setup.method
        plan = self._plan(index)
        cohort = self._cohort(index, plan)
        aggregate = Aggregate(self.layout, self.device, self._protection(index))
        exchanged = Ledger()
        exchanged.merge(self._per_client.one_way("down"), times=len(cohort))
        self.rounds_begun = index + 1
        uploads: list[Upload] = []
        results: list[Trained] = []
        tasks = [Task.of(plan, index, k, self.personal_rounds.get(k)) for k in cohort]
        # One thread: a second one would spin after each upload, in the way of the workers.
        try:
            with single_thread():
                for trained, upload in executor.train(tasks, self.vector):
                    exchanged.merge(trained.wire)
                    if trained.num_steps:  # whoever has not trained has no weights to send
                        exchanged.merge(self._per_client.one_way("up"))
                    if not trained.finite:
                        lost = f"the loss of client {trained.client_id} is not finite"
                        raise Diverged(f"round {index + 1}: {lost}")
                    aggregate.fold(trained.client_id, self._weight(trained), upload)
                    uploads.append(self._upload(trained, upload))
                    results.append(trained)
                    if trained.stored_personal:
                        self.personal_rounds[trained.client_id] = index
        finally:  # what was sent was sent, even if the run ends here
            self.ledger.merge(exchanged)
        with single_thread(), torch.no_grad():
            aggregate.apply(self.vector, self._optimizer)
            server = Server(
                index,
                generator(config.seed, "server", index),
                self._method_optimizers,
                self._restored,
            )
            if config.privacy.clip is not None:
                server.log["clipped"] = aggregate.num_clipped / max(1, len(cohort))
            self.binding.net.train()  # whatever the last evaluation left
            self.binding.personal.data.copy_(self.first_personal)
            with torch.enable_grad():
                method.server_step(self.binding.net, uploads, server)
            if not all_finite(self.vector):
                raise Diverged(f"round {index + 1}: the global weights are not finite")
        self.rounds_done = index + 1
        self.train_seconds += time.perf_counter() - began
        metrics = evaluate(self.rounds_done) if evaluate is not None else {}
        seconds = time.perf_counter() - began
        return self._record(index, results, exchanged, server.log, metrics, seconds)

    def _plan(self, index: int) -> RoundPlan:
        default = RoundPlan(self.setup.config.client.local_epochs)
        return self.setup.method.plan_round(index, default)

    def cohort(self, index: int) -> list[int]:
        """The clients that take part in a round, whether it is over or not."""
        return self._cohort(index, self._plan(index))

    def _cohort(self, index: int, plan: RoundPlan) -> list[int]:
        pool = self._holders
        if plan.cohort == "labelled":
            labels, partition = self.setup.labels, self.setup.partition
            pool = [k for k in pool if (labels[partition.client(k)] >= 0).any()]
        if plan.cohort == "all":
            return pool
        rng = generator(self.setup.config.seed, "cohort", index)
        if self.setup.config.privacy.clip is not None:  # independent draws are what is accounted
            taken = torch.rand(len(pool), generator=rng) < self.participation(index)
            return [k for k, takes_part in zip(pool, taken.tolist(), strict=True) if takes_part]
        drawn = torch.randperm(len(pool), generator=rng)
        return sorted(pool[i] for i in drawn[: self.setup.config.cohort_size].tolist())

    def participation(self, index: int) -> float:
        """The probability that a client takes part in a round, under client-level privacy."""
        everybody = self._plan(index).cohort == "all"
        return 1.0 if everybody else self.setup.config.federation.participation

    def _protection(self, index: int) -> Protection | None:
        config, privacy = self.setup.config, self.setup.config.privacy
        if privacy.clip is None:
            return None
        return Protection(
            before=self.vector,
            clip=privacy.clip,
            noise=privacy.noise_multiplier * privacy.clip,
            expected_clients=self.participation(index) * config.data.num_clients,
            rng=generator(config.seed, "privacy", index),
        )

    def _weight(self, trained: Trained) -> float:
        if trained.num_steps == 0:
            return 0.0
        by_examples = self.setup.config.server.weighting == "examples"
        return float(trained.num_examples) if by_examples else 1.0

    def _upload(self, trained: Trained, upload: Tensor) -> Upload:
        weights = {}
        if self.setup.method.needs().single_uploads:
            for slot in self.layout.server:
                if slot.stop <= self.layout.num_averaged:
                    weights[slot.name] = upload[slot.start : slot.stop].view(slot.shape).clone()
        return Upload(trained.client_id, trained.num_examples, trained.extras, weights)

    def _record(
        self,
        index: int,
        results: Sequence[Trained],
        exchanged: Ledger,
        log: Mapping[str, float],
        metrics: Mapping[str, float],
        seconds: float,
    ) -> RoundRecord:
        steps = sum(result.num_steps for result in results)
        stepped = [result for result in results if result.num_steps]
        means = {
            name: sum(r.parts.get(name, 0.0) * r.num_steps for r in stepped) / steps
            for name in sorted({name for r in stepped for name in r.parts})
        }
        if results and results[0].stored_personal:  # encoders differ: look at one that trained
            own = self._personal.load(results[0].client_id, index)
            self.binding.personal.data.copy_(own)
        with single_thread():
            spread = self._monitor(self.binding)
        self.binding.personal.data.copy_(self.first_personal)
        if spread is None:
            raise Diverged(f"round {index + 1}: the features are not finite")
        loss = sum(r.loss * r.num_steps for r in stepped) / steps if steps else math.nan
        return RoundRecord(
            round_index=index,
            loss=loss if math.isfinite(loss) else None,
            parts={**means, **log},
            cohort_size=len(results),
            idle_clients=len(results) - len(stepped),
            num_steps=steps,
            bytes_up=exchanged.bytes_up,
            bytes_down=exchanged.bytes_down,
            traffic=exchanged.as_dict(),
            std_ratio=spread.std_ratio,
            effective_rank=spread.effective_rank,
            projection_std_ratio=spread.projection_std_ratio,
            collapsed=spread.collapsed,
            metrics=metrics,
            seconds=seconds,
        )

    def _checkpoint(self) -> None:
        tensors = {"server": self.vector}
        tensors |= {f"server-optimizer/{k}": v for k, v in self._optimizer.state().items()}
        groups = {}
        states = {name: each.state_dict() for name, each in self._method_optimizers.items()}
        for name, state in {**self._restored, **states}.items():
            groups[name] = state["param_groups"]
            for parameter, values in state["state"].items():
                for key, value in values.items():
                    tensors[f"method-optimizer/{name}/{parameter}/{key}"] = torch.as_tensor(value)
        state = {
            "row_id": self.row_id,
            "server_steps": self._optimizer.step_count,
            "method_optimizers": groups,
            "ledger": self.ledger.as_dict(),
            "personal_rounds": self.personal_rounds,
            "resumes": self.resumes,
            "train_seconds": self.train_seconds,
        }
        save_checkpoint(self.folder, Checkpoint(self.rounds_done, tensors, state))

    def _resume(self) -> None:
        for place in (self.folder, self.folder / "clients"):
            sweep_temporary(place, older_than=0)  # nobody else is at this run
        found = load_checkpoint(self.folder, self.row_id)
        self.history = self._history.rewind(found.rounds_done if found else 0)
        if found is None:
            return
        self.rounds_done = self.rounds_begun = found.rounds_done
        state = found.state
        self.vector.copy_(found.tensors["server"])
        moments = {k: found.tensors[f"server-optimizer/{k}"] for k in self._optimizer.state()}
        self._optimizer.load(moments, state["server_steps"])
        for name, groups in state["method_optimizers"].items():
            self._restored[name] = {"param_groups": groups, "state": {}}
        for key, value in found.tensors.items():
            if key.startswith("method-optimizer/"):
                _, name, parameter, leaf = key.split("/")
                self._restored[name]["state"].setdefault(int(parameter), {})[leaf] = value
        self.ledger = Ledger.from_dict(state["ledger"])
        self.personal_rounds = {int(k): r for k, r in state["personal_rounds"].items()}
        self.resumes = state["resumes"] + 1
        self.train_seconds = state["train_seconds"]
