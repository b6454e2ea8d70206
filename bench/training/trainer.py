"""Round loop of a run; it knows hooks and sharing rules, never a method's name."""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from fedbench.bench.config import RunConfig
from fedbench.bench.method import Mean, RoundPlan, Server, Upload
from fedbench.bench.nn.optimizers import Optimizer
from fedbench.bench.system import first_use
from fedbench.bench.system.compute import all_finite
from fedbench.bench.system.errors import StoreError
from fedbench.bench.system.files import sweep_temporary
from fedbench.bench.system.numerics import measure
from fedbench.bench.system.regime import TF32
from fedbench.bench.system.seeding import generator, single_thread
from fedbench.bench.training.aggregate import ServerUpdate, declared_aggregator, optimized_size
from fedbench.bench.training.checkpoint import Checkpoint, checkpoints, save_checkpoint
from fedbench.bench.training.client import Task, Trained
from fedbench.bench.training.drift import Drift
from fedbench.bench.training.history import ClientDone, History, RoundRecord
from fedbench.bench.training.layout import Binding
from fedbench.bench.training.ledger import Ledger
from fedbench.bench.training.personal import PersonalStore
from fedbench.bench.training.privacy import ClippedMean
from fedbench.bench.training.server_optimizer import ServerOptimizer
from fedbench.bench.training.setup import Setup

_log = logging.getLogger(__name__)

Monitor = Callable[[Binding], tuple[float, float, float, bool] | None]
"""Measures the net after a round and puts it into eval mode for that.

Returns `std_ratio`, `effective_rank`, `projection_std_ratio` and `collapsed` as `RoundRecord` has
them, or None if the features are not finite.
"""

OnClient = Callable[[ClientDone], None]


class Executor(Protocol):
    """Trains the clients of a round, here or in other processes."""

    def train(self, tasks: Sequence[Task], server: Tensor) -> Iterator[tuple[Trained, Tensor]]:
        """Yield each client's report and its upload, (upload_size,), in the order of the tasks.

        `server`, (server_size,), is read only; an upload is valid until the next one is asked for.
        """


class Diverged(Exception):  # noqa: N818
    """Raised when a loss or a weight is no longer finite; the run ends with status `diverged`."""


class Trainer:
    """State of a run between rounds, and the step from one round to the next.

    The folder holds checkpoints, personal tensors and the history. Its last checkpoint is resumed;
    one of another `training_id` than `identity` is refused. Two checkpoints are at least
    `checkpoint_seconds` apart; None = `default_seconds`.
    """

    def __init__(
        self,
        setup: Setup,
        folder: Path,
        identity: str,
        device: torch.device,
        monitor: Monitor,
        checkpoint_seconds: float | None = None,
    ) -> None:
        self.setup, self.folder, self.identity, self.device = setup, folder, identity, device
        net = setup.make_net()
        self.layout = setup.layout(net)
        self.binding = self.layout.bind(net, device)
        self.vector = self.binding.server.data
        self.initial = self.vector.clone()
        self._frozen = self.binding.frozen_hash
        self.first_personal = self.binding.personal.data.clone()
        self._optimizer = ServerOptimizer(setup.config.server, optimized_size(self.layout), device)
        self._method_optimizers: dict[str, Optimizer] = {}
        self._restored: dict[str, dict[str, Any]] = {}
        self.ledger = Ledger()
        self._per_client = Ledger.of_client(
            self.layout,
            setup.method.needs().extras,
            single=declared_aggregator(setup.method).single_uploads,
        )
        self._resent = Ledger.resent(self.layout, setup.method.needs().pre_round)
        self.personal_rounds: dict[int, int] = {}
        self._earlier_rounds: dict[int, int] = {}  # files that only the last but one names
        self._replaced: dict[int, int] = {}  # will be that after the next checkpoint
        self._personal = PersonalStore(folder / "clients")
        self._history = History(folder)
        self.rounds_done = self.rounds_begun = self.resumes = 0
        self._after = 0  # rounds done at the last checkpoint
        tf32 = setup.config.client.precision == TF32
        self.platforms = [measure(device.type, tf32).as_dict()]
        self.train_seconds = 0.0
        self.history: list[RoundRecord] = []
        sizes = setup.partition.sizes
        self._holders = [k for k in range(len(sizes)) if sizes[k] > 0]
        self._monitor = monitor
        first_use.begin_run()
        self._resume()
        least = default_seconds(self.total_rounds)
        self._between = least if checkpoint_seconds is None else checkpoint_seconds
        self._saved = time.monotonic()

    @property
    def total_rounds(self) -> int:
        """Number of configured rounds and the method's preparatory ones."""
        preparatory = self.setup.method.needs().preparatory_rounds
        return self.setup.config.federation.num_rounds + preparatory

    def rounds(
        self,
        executor: Executor,
        evaluate: Callable[[int], Mapping[str, float]] | None = None,
        on_client: OnClient | None = None,
        until: int | None = None,
    ) -> Iterator[RoundRecord]:
        """Run the remaining rounds, with a checkpoint after the last and, as due, after others.

        Args:
            executor: trains the clients.
            evaluate: returns the metrics of a round's record, from the number of rounds done.
            on_client: called whenever a client has ended its part.
            until: rounds after which to stop, the preparatory ones included; None = all.

        Raises:
            Diverged: when a loss or a weight is no longer finite.
        """
        last = self.total_rounds if until is None else min(until, self.total_rounds)
        while self.rounds_done < last:
            record = self._round(self.rounds_done, executor, evaluate, on_client)
            due = time.monotonic() - self._saved >= self._between
            due = due or self.rounds_done == last
            self._history.append(record, sync=due)  # a checkpoint needs the rounds before it
            self.history.append(record)
            if due:
                self._checkpoint()
                self._saved = time.monotonic()
            yield record

    def _round(
        self,
        index: int,
        executor: Executor,
        evaluate: Callable[[int], Mapping[str, float]] | None,
        on_client: OnClient | None,
    ) -> RoundRecord:
        began = time.perf_counter()
        config, method = self.setup.config, self.setup.method
        plan = self._plan(index)
        cohort = self._cohort(index, plan)
        default = (
            self._clipped_mean(index) if config.privacy.clip is not None else self._mean(index)
        )
        held = self.vector[: self.layout.num_averaged]
        update = ServerUpdate(self.layout, self.device, method.aggregator(default, held, index))
        # Its figures would tell of single clients what client-level privacy hides.
        drift = None if config.privacy.clip is not None else Drift(self.layout, self.vector)
        exchanged = Ledger()
        exchanged.merge(self._per_client, "down", times=len(cohort))
        self.rounds_begun = index + 1
        uploads: list[Upload] = []
        results: list[Trained] = []
        tasks = [Task(k, index, plan, self.personal_rounds.get(k)) for k in cohort]
        before: dict[str, Tensor] = {}
        try:
            if method.needs().pre_round:
                self._pre_round(index, tasks, executor, exchanged)
            if method.needs().before:
                before = self.binding.named(self.layout.server)
            # On one thread: a second one would spin after each upload and slow the workers down.
            with single_thread():
                for trained, upload in executor.train(tasks, self.vector):
                    exchanged.merge(trained.wire)
                    if trained.num_steps:  # without a step there are no weights to send
                        exchanged.merge(self._per_client, "up")
                    if not trained.finite:
                        lost = f"the loss of client {trained.client_id} is not finite"
                        raise Diverged(f"round {index + 1}: {lost}")
                    by_examples = config.server.weighting == "examples"
                    weight = trained.num_examples if by_examples else 1
                    update.fold(trained.client_id, weight * bool(trained.num_steps), upload)
                    if drift is not None and trained.num_steps:
                        drift.add(upload)
                    uploads.append(self._upload(trained, upload))
                    results.append(trained)
                    if trained.stored_personal:
                        self._replace_personal(trained.client_id, index)
                    if on_client is not None:
                        on_client(ClientDone(index, len(results), len(cohort)))
        finally:  # messages count even if the run ends here
            self.ledger.merge(exchanged)
        with single_thread(), torch.no_grad():
            moved = {} if drift is None else drift.values()
            update.apply(self.vector, self._optimizer)
            server = Server(
                index,
                generator(config.seed, "server", index),
                self._method_optimizers,
                self._restored,
                before=before,
            )
            if isinstance(default, ClippedMean):
                server.log["clipped"] = default.num_clipped / max(1, len(cohort))
            self.binding.net.train()  # the last evaluation may have changed that
            self.binding.personal.data.copy_(self.first_personal)
            with torch.enable_grad():
                method.server_step(self.binding.net, uploads, server)
            if not all_finite(self.vector):
                raise Diverged(f"round {index + 1}: the global weights are not finite")
        self.rounds_done = index + 1
        self.train_seconds += time.perf_counter() - began
        metrics = evaluate(self.rounds_done) if evaluate is not None else {}
        seconds = time.perf_counter() - began
        return self._record(index, results, exchanged, server.log, metrics, seconds, moved)

    def _pre_round(
        self, index: int, tasks: Sequence[Task], executor: Executor, exchanged: Ledger
    ) -> None:
        """Sum the cohort's pre-round statistics, and send the tensors that are made of them."""
        method, config = self.setup.method, self.setup.config
        sums: dict[str, Tensor] = {}
        with single_thread():
            for asked, _ in executor.train(
                [replace(t, pre_round=True) for t in tasks], self.vector
            ):
                exchanged.merge(asked.wire)
                if not asked.finite:
                    lost = f"what client {asked.client_id} sends before it is not finite"
                    raise Diverged(f"round {index + 1}: {lost}")
                for name, value in asked.extras.items():
                    sums[name] = sums.get(name, 0.0) + value.double()
        with single_thread(), torch.no_grad():
            net = self.binding.net.train()
            server = Server(index, generator(config.seed, "survey", index), {})
            method.server_pre_round(net, {n: v.to(self.device) for n, v in sums.items()}, server)
        exchanged.merge(self._resent, times=len(tasks))

    def _mean(self, index: int) -> Mean:
        """Return the mean of a round, with the method's factors."""
        method, needs = self.setup.method, self.setup.method.needs()
        slots = {slot.name: slot for slot in self.layout.averaged}
        spans = {name: slice(slot.start, slot.stop) for name, slot in slots.items()}
        unweighted = [spans[name] for name in needs.unweighted]
        if not needs.weighs:
            return Mean(unweighted)
        # What each client adds the same to is no tensor of its model: a control variate.
        names = [name for name in slots if name not in needs.unweighted]
        received = {name: self.binding.net.tensor(name).detach() for name in names}

        def weigh(upload: Tensor) -> Iterator[tuple[slice, float]]:
            sent = {name: slots[name].of(upload) for name in names}
            for name, factor in method.weigh(sent, received, index).items():
                yield spans[name], factor

        return Mean(unweighted, weigh)

    def _replace_personal(self, client_id: int, index: int) -> None:
        """Note that a client's file of a round counts; what both checkpoints name stays."""
        if (before := self.personal_rounds.get(client_id)) is not None:
            if client_id in self._replaced:  # no checkpoint names the file between
                self._personal.drop(client_id, before)
            else:
                self._replaced[client_id] = before
        self.personal_rounds[client_id] = index

    def _plan(self, index: int) -> RoundPlan:
        default = RoundPlan(self.setup.config.client.local_epochs)
        return self.setup.method.plan_round(index, default)

    def cohort(self, index: int) -> list[int]:
        """Return the clients that take part in a round, past or future, ascending."""
        return self._cohort(index, self._plan(index))

    def _cohort(self, index: int, plan: RoundPlan) -> list[int]:
        pool = self._holders
        if plan.cohort == "labelled":
            labels, partition = self.setup.labels, self.setup.partition
            pool = [k for k in pool if (labels[partition.client(k)] >= 0).any()]
        if plan.cohort == "all":
            return pool
        return drawn(self.setup.config, pool, index)

    def participation(self, index: int) -> float:
        """Return the probability that a client takes part in a round with client-level privacy."""
        if self._plan(index).cohort == "all":
            return 1.0
        return self.setup.config.federation.participation

    def _clipped_mean(self, index: int) -> ClippedMean:
        config, privacy = self.setup.config, self.setup.config.privacy
        assert privacy.clip is not None
        return ClippedMean(
            before=self.vector[: self.layout.num_averaged],
            clip=privacy.clip,
            noise=privacy.noise_multiplier * privacy.clip,
            expected_clients=self.participation(index) * config.data.num_clients,
            rng=generator(config.seed, "privacy", index),
        )

    def _upload(self, trained: Trained, upload: Tensor) -> Upload:
        slots = self.layout.averaged if self.setup.method.needs().single_uploads else ()
        weights = {slot.name: slot.of(upload).clone() for slot in slots}
        return Upload(
            trained.client_id, trained.num_examples, trained.num_steps, trained.extras, weights
        )

    def _record(
        self,
        index: int,
        results: Sequence[Trained],
        exchanged: Ledger,
        log: Mapping[str, float],
        metrics: Mapping[str, float],
        seconds: float,
        drift: Mapping[str, Mapping[str, float]],
    ) -> RoundRecord:
        steps = sum(result.num_steps for result in results)
        stepped = [result for result in results if result.num_steps]
        means = {
            name: sum(r.parts.get(name, 0.0) * r.num_steps for r in stepped) / steps
            for name in sorted({name for r in stepped for name in r.parts})
        }
        measured = next(iter(stepped or results), None)
        if measured and measured.stored_personal:  # encoders differ: measure one that trained
            personal = self._personal.load(measured.client_id, index)
            self.binding.personal.data.copy_(personal)
        with single_thread():
            spread = self._monitor(self.binding)
        self.binding.personal.data.copy_(self.first_personal)
        if spread is None:
            raise Diverged(f"round {index + 1}: the features are not finite")
        std_ratio, effective_rank, projection_std_ratio, collapsed = spread
        loss = sum(r.loss * r.num_steps for r in stepped) / steps if steps else math.nan
        logged = {name: v.item() if isinstance(v, Tensor) else v for name, v in log.items()}
        return RoundRecord(
            round_index=index,
            loss=loss if math.isfinite(loss) else None,
            parts={**means, **logged},
            cohort_size=len(results),
            idle_clients=len(results) - len(stepped),
            num_steps=steps,
            bytes_up=exchanged.bytes_up,
            bytes_down=exchanged.bytes_down,
            traffic=exchanged.as_dict(),
            std_ratio=std_ratio,
            effective_rank=effective_rank,
            projection_std_ratio=projection_std_ratio,
            collapsed=collapsed,
            metrics=metrics,
            seconds=seconds,
            drift=drift,
        )

    def _checkpoint(self) -> None:
        tensors = {"server": self.vector}
        for name, value in self._optimizer.state().items():
            tensors[f"server-optimizer/{name}"] = value
        # A restored optimizer may not be in use yet.
        in_use = {name: made.state_dict() for name, made in self._method_optimizers.items()}
        optimizers = {**self._restored, **in_use}
        for name, optimizer_state in optimizers.items():
            for parameter, values in optimizer_state["state"].items():
                for key, value in values.items():
                    tensors[f"method-optimizer/{name}/{parameter}/{key}"] = torch.as_tensor(value)
        state = {
            "row_id": self.identity,
            "server_steps": self._optimizer.step_count,
            "method_optimizers": {n: s["param_groups"] for n, s in optimizers.items()},
            "ledger": self.ledger.as_dict(),
            "personal_rounds": self.personal_rounds,
            "resumes": self.resumes,
            "platforms": self.platforms,
            "train_seconds": self.train_seconds,
            "after": self._after,
            "switched_off": first_use.switched_off(),
            "frozen": self._frozen,
        }
        save_checkpoint(self.folder, Checkpoint(self.rounds_done, tensors, state))
        self._after = self.rounds_done
        for client_id, round_index in self._earlier_rounds.items():
            self._personal.drop(client_id, round_index)
        self._earlier_rounds, self._replaced = self._replaced, {}

    def _resume(self) -> None:
        for folder in (self.folder, self.folder / "clients"):
            sweep_temporary(folder)
        usable = filter(self._has_personal, checkpoints(self.folder, self.identity))
        checkpoint = next(usable, None)
        self.history = self._history.rewind(checkpoint.rounds_done if checkpoint else 0)
        if checkpoint is None:
            return
        tensors, state = checkpoint.tensors, checkpoint.state
        if tensors["server"].shape != self.vector.shape:
            raise StoreError(
                f"{self.folder}: its checkpoint holds {tensors['server'].numel():,} numbers, the"
                f" method has {self.vector.numel():,} now; its code has changed: delete the folder"
            )
        self.binding.check_frozen(state.get("frozen"))
        self.rounds_done = self.rounds_begun = self._after = checkpoint.rounds_done
        self.vector.copy_(tensors["server"])
        for name, moment in self._optimizer.state().items():
            moment.copy_(tensors[f"server-optimizer/{name}"])
        self._optimizer.step_count = state["server_steps"]
        for name, groups in state["method_optimizers"].items():
            self._restored[name] = {"param_groups": groups, "state": {}}
        for path, value in tensors.items():
            if path.startswith("method-optimizer/"):
                _, name, parameter, key = path.split("/")
                self._restored[name]["state"].setdefault(int(parameter), {})[key] = value
        self.ledger = Ledger.from_dict(state["ledger"])
        self.personal_rounds = {int(k): index for k, index in state["personal_rounds"].items()}
        self.resumes = state["resumes"] + 1
        earlier = state["platforms"]
        self.platforms = earlier if earlier[-1:] == self.platforms else earlier + self.platforms
        self.train_seconds = state["train_seconds"]
        first_use.switch_off(state.get("switched_off", {}))
        for client_id, stored in self._personal.rounds().items():
            older = [r for r in stored if r < self.personal_rounds.get(client_id, 0)]
            for round_index in older[:-1]:
                self._personal.drop(client_id, round_index)
            if older:
                self._earlier_rounds[client_id] = older[-1]

    def _has_personal(self, checkpoint: Checkpoint) -> bool:
        """Return False, with a warning, if a client's file is lost that an earlier one replaces.

        Going back a checkpoint, that client trains again. Older files have no such remedy; the
        error that names it comes when they are read.
        """
        after = checkpoint.state["after"]
        for client_id, index in checkpoint.state["personal_rounds"].items():
            if index >= after and not self._personal.intact(int(client_id), index):
                _log.warning(
                    "%s: tensors of client %s after round %d are missing or damaged; going back %s",
                    self.folder,
                    client_id,
                    index + 1,
                    "one round" if after == checkpoint.rounds_done - 1 else f"to round {after}",
                )
                return False
        return True


def drawn(config: RunConfig, pool: Sequence[int], index: int) -> list[int]:
    """Return the clients of `pool` that take part in a round which samples its cohort, ascending.

    Under client-level privacy the draws are independent, since that is what is accounted for.
    """
    rng = generator(config.seed, "cohort", index)
    if config.privacy.clip is not None:
        taken = torch.rand(len(pool), generator=rng) < config.federation.participation
        return [k for k, takes_part in zip(pool, taken.tolist(), strict=True) if takes_part]
    order = torch.randperm(len(pool), generator=rng)
    return sorted(pool[i] for i in order[: config.cohort_size].tolist())


def default_seconds(rounds: int) -> float:
    """Return the least time between checkpoints: 0 up to 1,000 rounds, then 10 seconds.

    Over tens of thousands of short rounds, waits for the disk would take longer than a crash costs.
    """
    return 0.0 if rounds <= 1000 else 10.0
