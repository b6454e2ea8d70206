"""Round loop of a run; it knows hooks and sharing rules, never a method's name."""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from fedbench.bench.method import Server, writes
from fedbench.bench.method.clipped_mean import ClippedMean
from fedbench.bench.system.compute import all_finite
from fedbench.bench.system.seeding import generator, scope, single_thread
from fedbench.bench.training.aggregate import server_update
from fedbench.bench.training.client import Task, Trained
from fedbench.bench.training.clients import Executor, Statistics
from fedbench.bench.training.drift import Drift
from fedbench.bench.training.history import ClientDone, RoundRecord, Spread
from fedbench.bench.training.ledger import Ledger
from fedbench.bench.training.personal import Private
from fedbench.bench.training.record import RoundTally
from fedbench.bench.training.run_state import RunState
from fedbench.bench.training.setup import Setup
from fedbench.bench.training.timeline import BUFFERED, Round, Timeline

OnClient = Callable[[ClientDone], None]
Evaluate = Callable[[int], Mapping[str, float]]
"""Returns the metrics of a round's record, from the number of rounds done."""


class Diverged(Exception):  # noqa: N818
    """Raised when a loss or a weight is no longer finite; the run ends with status `diverged`."""


class Trainer(RunState):
    """State of a run, and the step from one round to the next.

    The folder's last checkpoint is resumed. Two checkpoints are at least `checkpoint_seconds`
    apart; None = `default_seconds`.
    """

    def __init__(
        self,
        setup: Setup,
        folder: Path,
        identity: str,
        device: torch.device,
        statistics: Statistics,
        checkpoint_seconds: float | None = None,
        arithmetic: Mapping[str, str] | None = None,
        private: Private | None = None,
    ) -> None:
        super().__init__(setup, folder, identity, device, arithmetic, private)
        self.timeline = Timeline(setup, lambda: self.binding.net, self.layout)
        self._statistics = statistics
        least = default_seconds(self.total_rounds)
        self._between = least if checkpoint_seconds is None else checkpoint_seconds
        self._saved = time.monotonic()

    def rounds(
        self,
        executor: Executor,
        evaluate: Evaluate | None = None,
        on_client: OnClient | None = None,
        until: int | None = None,
    ) -> Iterator[RoundRecord]:
        """Run the remaining rounds, with a checkpoint after the last and, as due, after others.

        Args:
            executor: trains the clients.
            evaluate: makes the metrics of a round's record.
            on_client: called whenever a client has ended its part.
            until: rounds after which to stop, the preparatory ones included; None = all.

        Raises:
            Diverged: when a loss or a weight is no longer finite.
        """
        last = self.total_rounds if until is None else min(until, self.total_rounds)
        rounds = self.timeline.rounds(self.rounds_done)
        while self.rounds_done < last:
            with scope(self.setup.config.seed, "server-global", self.rounds_done):
                record = self._round(next(rounds), executor, evaluate, on_client)
            due = time.monotonic() - self._saved >= self._between or self.rounds_done == last
            self._records.append(record, sync=due)  # a checkpoint needs the rounds before it
            self.history.append(record)
            if due:
                self.save()
                self._saved = time.monotonic()
            yield record

    def _round(
        self,
        this: Round,
        executor: Executor,
        evaluate: Evaluate | None,
        on_client: OnClient | None,
    ) -> RoundRecord:
        began, index = time.perf_counter(), self.rounds_done
        tasks = [
            replace(t, personal_round=self.personal_rounds.get(t.client_id)) for t in this.tasks
        ]
        self.rounds_begun = index + 1  # privacy is spent by a round that diverges, too
        # Figures of drift would tell of single clients what client-level privacy hides.
        private = self.setup.config.privacy.clip is not None
        drift = None if private else Drift(self.layout, self.vector)
        kept = self.layout.averaged if self.setup.needs.single_uploads else ()
        tally = RoundTally(index, self.timeline.per_client, drift, kept)
        # Those that come too late or drop out have received the model.
        tally.exchanged.merge(self.timeline.per_client, "down", times=len(this.asked))
        try:
            if self.setup.needs.pre_round:
                self._pre_round(index, this, executor, tally.exchanged)
            steps_itself = writes(self.setup.method, "server_step")
            before = self.binding.named(self.layout.server) if steps_itself else {}
            update = server_update(self.setup, self.binding, index)
            uniform = self.setup.config.server.weighting == "uniform"
            # Clients come in the order of their ids, whoever is ready first: sums keep their bits.
            # On one thread: a second one would spin after each upload and slow the workers down.
            with single_thread():
                for trained, upload in self._train(index, executor, tasks):
                    tally.add(trained, upload)
                    _check(trained.finite, index, f"the loss of client {trained.client_id} is")
                    weight = 1 if uniform else trained.num_examples
                    weight *= bool(trained.num_steps)
                    update.fold(trained.client_id, weight, upload, trained.num_steps)
                    if trained.stored_personal:
                        self.personal_rounds[trained.client_id] = index
                    if on_client is not None:
                        on_client(ClientDone(index, len(tally.results), len(tasks)))
        finally:  # messages count even if the run ends here
            self.ledger.merge(tally.exchanged)
        with single_thread(), torch.no_grad():
            moved = {} if tally.drift is None else tally.drift.values()
            update.apply(self.vector, self.optimizer)
            rng = generator(self.setup.config.seed, "server", index)
            server = Server(index, rng, self.method_optimizers, self.restored, before=before)
            if isinstance(update.aggregator, ClippedMean):
                server.log["clipped"] = update.aggregator.num_clipped / max(1, len(tasks))
            self.binding.net.train()  # the last evaluation may have changed that
            # The server holds no client's tensors: its hook finds those that all started with.
            self.binding.personal.data.copy_(self.first_personal)
            with torch.enable_grad():
                self.setup.method.server_step(self.binding.net, tally.uploads, server)
            # After the hook too: a method's own step may diverge while every client's loss is fine.
            _check(all_finite(self.vector), index, "the global weights are")
        self.rounds_done = index + 1
        self.versions = {v: vector for v, vector in self.versions.items() if v in this.alive}
        self.train_seconds += time.perf_counter() - began
        metrics = evaluate(self.rounds_done) if evaluate is not None else {}
        seconds, simulated = time.perf_counter() - began, _simulated(this, index)
        others = {"metrics": metrics, "seconds": seconds, "drift": moved, "simulated": simulated}
        return tally.record(self._spread(tally), server.log, **others)

    def _train(
        self, index: int, executor: Executor, tasks: Sequence[Task]
    ) -> Iterator[tuple[Trained, Tensor]]:
        """Yield reports and uploads; of a buffered run, uploads as if their change were fresh.

        A change from the model x_v, s server steps ago, becomes x + (1 + s)^-exponent change: its
        part of the mean is then that of Nguyen et al. 2022, https://arxiv.org/abs/2106.06639.
        Averaged buffers stay as sent: a variance could turn negative.
        """
        if self.setup.config.federation.mode != BUFFERED:
            yield from executor.train(tasks, self.vector)
            return
        self.versions[index] = self.vector.clone()  # the server's step overwrites the vector
        exponent = self.setup.config.federation.staleness_exponent
        span = slice(0, self.layout.num_trained)
        for version, group in itertools.groupby(tasks, key=lambda task: task.version):
            assert version is not None
            start = self.versions[version][span].double()
            factor = (1 + index - version) ** -exponent
            for trained, upload in executor.train([*group], self.versions[version]):
                fresh = upload.to(self.device).double()
                fresh[span] = self.vector[span].double() + factor * (fresh[span] - start)
                yield trained, fresh

    def _pre_round(self, index: int, this: Round, executor: Executor, exchanged: Ledger) -> None:
        """Sum the cohort's pre-round statistics, and send the tensors that are made of them."""
        sums: dict[str, Tensor] = {}
        # Also of those that are late or drop out later: they answer before they train.
        personal, plan = self.personal_rounds, self.setup.plan(index)
        asking = [Task(k, index, plan, personal.get(k)) for k in this.asked]
        with single_thread():
            for asked in executor.pre_round(asking, self.vector):
                exchanged.merge(asked.wire)
                _check(asked.finite, index, f"what client {asked.client_id} sends before it is")
                for name, value in asked.extras.items():
                    sums[name] = sums.get(name, 0.0) + value.double()
        with single_thread(), torch.no_grad():
            # "survey" is what this was first called: another name would change the draws.
            there = {name: value.to(self.device) for name, value in sums.items()}
            server = Server(index, generator(self.setup.config.seed, "survey", index), {})
            self.setup.method.server_pre_round(self.binding.net.train(), there, server)
        exchanged.merge(self.timeline.resent, times=len(asking))

    def _spread(self, tally: RoundTally) -> Spread:
        """Return the spread after a round, of one client's net where nets differ."""
        measured = tally.measured
        stored = measured is not None and measured.stored_personal
        personal = (measured.client_id, tally.index) if measured and stored else None
        with single_thread():
            spread = self._statistics(self.binding, personal)
        self.binding.personal.data.copy_(self.first_personal)
        if spread is None:
            raise Diverged(f"round {tally.index + 1}: the features are not finite")
        return spread


def _check(finite: bool, index: int, what: str) -> None:
    if not finite:
        raise Diverged(f"round {index + 1}: {what} not finite")


def _simulated(this: Round, index: int) -> dict[str, float]:
    if this.seconds is None:
        return {}
    found = {"seconds": this.seconds, "asked": len(this.asked)}
    found |= {"late": this.late, "dropped": this.dropped}
    old = [index - task.version for task in this.tasks if task.version is not None]
    return found | ({"staleness": sum(old) / len(old)} if old else {})


def default_seconds(rounds: int) -> float:
    """Return the least time between checkpoints: 0 up to 1,000 rounds, then 10 seconds.

    Over tens of thousands of short rounds, waits for the disk would take longer than a crash costs.
    """
    return 0.0 if rounds <= 1000 else 10.0
