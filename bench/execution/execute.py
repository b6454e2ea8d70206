"""Execution of one run, from its configuration to its row; writes no store."""

import logging
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import psutil
import torch

from fedbench.bench.config import BENCHMARK_VERSION, RunConfig
from fedbench.bench.config.dotted import flatten
from fedbench.bench.data.labels import majority
from fedbench.bench.evaluation.collapse import movement
from fedbench.bench.evaluation.features import NonFiniteFeaturesError
from fedbench.bench.evaluation.metrics import MAJORITY, is_accuracy
from fedbench.bench.evaluation.probes import OnStep
from fedbench.bench.evaluation.protocols import probes
from fedbench.bench.evaluation.suite import evaluate, fill_statistics
from fedbench.bench.evaluation.transfer import metric_prefix, with_transfer
from fedbench.bench.evaluation.unseen import unseen_partition
from fedbench.bench.execution.arithmetic import arithmetic
from fedbench.bench.execution.audit import audit
from fedbench.bench.execution.engines import Where, engine
from fedbench.bench.execution.guarantees import check_privacy, columns
from fedbench.bench.experiment.code import packages
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.experiment.steps import local_steps
from fedbench.bench.method.ids import Ids
from fedbench.bench.results.store.row import METRICS, Row
from fedbench.bench.system import first_use
from fedbench.bench.system.errors import PluginError
from fedbench.bench.system.packages import DISTRIBUTION, installed_version
from fedbench.bench.system.regime import check_precision, reproducible
from fedbench.bench.training.checkpoint import newest_first
from fedbench.bench.training.history import History, RoundRecord
from fedbench.bench.training.record import never_reached
from fedbench.bench.training.setup import Setup
from fedbench.bench.training.timeline import check_fleet
from fedbench.bench.training.trainer import Diverged, OnClient, Trainer

OnRound = Callable[[RoundRecord, int], None]
"""Called after every round with its record and the number of rounds of the run."""

_PACKAGES = ("torch", "torchvision", "timm", "numpy", "ray", "optuna", "pyarrow", "scikit-learn")
_PROCESS = Path("/proc/self")
_log = logging.getLogger(__name__)


class Watcher(Protocol):
    """What follows a run, such as `fedbench.RunProgress`."""

    def start(self, config: RunConfig, devices: Sequence[str]) -> None:
        """Take the configuration and the device of each worker, before a run is executed."""

    def resume(self, done: int, total: int) -> None:
        """Take the rounds done and all rounds, if an earlier attempt is continued."""

    @property
    def client(self) -> OnClient:
        """Called whenever a client has ended its part of a round."""

    @property
    def probe(self) -> OnStep:
        """Called after steps of a long probe."""

    def __call__(self, record: RoundRecord, total: int) -> None:
        """Take the record of a round that has ended, and the number of rounds."""


@dataclass
class Paused(Exception):  # noqa: N818
    """Raised when a run has reached `Where.until_round`; its folder and checkpoint stay.

    Executing it again, with a later bound or none, gives the bits of a run that never paused.
    """

    metrics: Mapping[str, float]  # of the encoder after that round, by the names of a row
    rounds_done: int  # preparatory rounds included
    bytes: int  # sent so far, in both directions
    seconds: float  # of training, over all attempts


def execute(
    experiment: Experiment,
    where: Where,
    on_round: OnRound | None = None,
    watcher: Watcher | None = None,
) -> Row:
    """Train and evaluate; resumes from the last checkpoint in the run's folder.

    A run whose loss or weights stop being finite ends early with status `diverged` and no metrics.

    Raises:
        Paused: after `Where.until_round`, unless the run ends there.
        FedbenchError: for data, configuration, device or store problems; and for a run with rounds
            and local epochs in which no client would make a step.
    """
    began, started_at = time.perf_counter(), datetime.now(UTC)
    device = where.devices[0]
    with suppress(OSError):  # Linux forgets the peak of the run before
        (_PROCESS / "clear_refs").write_text("5")
    local_steps(experiment).check()
    with reproducible(device):
        setup = prepared(experiment, device)
        if (start := setup.backbone.start) is not None and start.left_out:
            left_out = ", ".join(start.left_out)
            _log.warning("model.weights: the encoder has no classifier; left out %s", left_out)
        experiment.partition.save(where.folder / "partition.safetensors")
        run = _Run(experiment, setup, where)
        columns = facts(experiment, experiment.partition.hash, started_at, device)
        trainer = run.trainer
        taken_over = experiment.origin.measured_from is not None and trainer.rounds_done == run.last
        earlier_seconds = 0.0 if taken_over else trainer.train_seconds  # another run's time
        if watcher is not None and trainer.rounds_done and not taken_over:
            watcher.resume(trainer.rounds_done, trainer.total_rounds)
        columns |= run.finish(on_round, watcher)
        columns["environment"] |= run.circumstances()
    return Row(
        **columns,
        num_parameters=sum(p.numel() for p in trainer.binding.net.parameters()),
        platform=", then ".join(record["name"] for record in trainer.platforms),
        platforms=trainer.platforms,
        wall_seconds=earlier_seconds + time.perf_counter() - began,
        finished_at=datetime.now(UTC),
    )


def prepared(experiment: Experiment, device: str, passed: set[str] | None = None) -> Setup:
    """Return the setup of a run, with other sets to probe; refuse one that could not begin.

    `passed` is for a command that plans many runs: it gets the nets that were made here, of which
    each is made once. A method of another package is then rehearsed too, as its run does.

    Raises:
        FedbenchError: for whatever is known before the first round but `local_steps`.
    """
    config = experiment.config
    check_precision(config.client.precision, device)
    # Also imports those of other packages, whose files may change before the end.
    known = {word for probe in probes() for word in probe.protocols}
    if absent := {*config.evaluation.protocols} - known:
        words = ", ".join(sorted(absent))
        raise PluginError(f"evaluation.protocols: {words} cannot be loaded; see the warning")
    experiment.check_code()
    setup, transfer = experiment.setup, config.evaluation.transfer
    check_privacy(setup)
    check_fleet(setup)
    if config.evaluation.unseen_clients:
        unseen_partition(setup)
    key = f"{config.spec} {config.method} {config.model} {transfer} {setup.spec}"
    if passed is None or key not in passed:
        net = setup.make_net()
        setup.layout(net)
        if transfer:
            setup = with_transfer(setup, net, experiment.data.path.parent)
        if passed is not None:
            _audit_foreign(experiment, setup)
            passed.add(key)
    return setup


def _audit_foreign(experiment: Experiment, setup: Setup) -> None:
    """Audit a method to which another package, or the session, has brought a part.

    Nobody can know whether its author runs the contract tests, and the count of messages that
    reveal a single image goes into published rows.
    """
    if any(":" not in name for name in experiment.modules):
        audit(setup)


def untrained_figures(experiment: Experiment, device: str = "cpu") -> dict[str, float]:
    """Return objective and spread of a net before its first round, as a run's `untrained_…`.

    The seed draws weights, partition and views. No label is read, and nothing is written.
    """
    setup, where = experiment.setup, torch.device(device)
    experiment.check_code()
    with reproducible(where):
        binding = setup.bound(where)
        fill_statistics(setup, binding.net, where)
        return evaluate(setup, binding, lambda client_id: None, (), where, one_encoder=True)


def points_of(folder: Path, at_least: int = 0) -> list[dict[str, Any]]:
    """Return the rounds in a run's folder, at least so many, flat as in a curve."""
    return [flatten(record.as_dict()) for record in History(folder).read(at_least)]


class _Run:
    """A run that is being trained and evaluated."""

    def __init__(self, experiment: Experiment, setup: Setup, where: Where) -> None:
        self._experiment, self.setup, self._where = experiment, setup, where
        self._on_step: OnStep = lambda *_: None
        self._device = torch.device(where.devices[0])
        hashes, make = arithmetic(setup, self._device), engine(where.engine_name)
        self.clients = make(experiment, setup, where, lambda *step: self._on_step(*step))

        def begin() -> Trainer:
            return Trainer(
                setup,
                where.folder,
                experiment.ids.training,
                self._device,
                self.clients.statistics,
                where.checkpoint_seconds,
                hashes,
                self.clients.private,
            )

        self.trainer = begin()
        self.last = self.trainer.total_rounds  # round after which it ends or pauses
        if where.until_round is not None:
            preparatory = setup.needs.preparatory_rounds
            self.last = min(self.last, preparatory + where.until_round)
        if self.trainer.rounds_done > self.last:  # a state that is past cannot be measured
            for path in newest_first(where.folder):
                path.unlink(missing_ok=True)
            self.trainer = begin()

    def finish(self, on_round: OnRound | None, watcher: Watcher | None) -> dict[str, Any]:
        """Do the rounds that are left and evaluate; return the columns that follow from it."""
        on_client = None if watcher is None else watcher.client
        if watcher is not None:
            self._on_step = watcher.probe
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)  # of the cell before
        trainer, config = self.trainer, self.setup.config
        total, last = trainer.total_rounds, self.last

        def watch(done: int) -> Mapping[str, float]:
            found = self._evaluate() if config.evaluates_after(done, total) else {}
            if config.evaluation.online:
                found |= self.clients.online(trainer.binding)
            return found

        try:
            if trainer.rounds_done < last:
                with closing(self.clients):
                    self.clients.start(trainer.layout)
                    _audit_foreign(self._experiment, self.setup)  # while the workers get ready
                    for record in trainer.rounds(self.clients, watch, on_client, last):
                        if on_round is not None:
                            on_round(record, last)
            # Measured last: before the rounds it would keep the first of them waiting.
            untrained = self._untrained() if last == total else {}
            final = self._evaluate()
        except (Diverged, NonFiniteFeaturesError):
            final = {}
        if "objective" not in final:  # no number that is not finite is among the metrics
            return {"status": "diverged", **self._cost()}
        if last < total:
            sent = trainer.ledger.bytes_up + trainer.ledger.bytes_down
            loss = trainer.history[-1].loss
            figures = final if loss is None else {**final, "final_loss": loss}
            raise Paused(figures, trainer.rounds_done, sent, trainer.train_seconds)
        return {"status": "ok", **self._metrics(final, untrained), **self._cost()}

    def circumstances(self) -> dict[str, str | int]:
        """Return for the row's environment: lanes, shortcuts that a GPU got wrong, its memory."""
        found = dict(self.clients.circumstances)
        if self._where.engine is not None:
            found["engine"] = self._where.engine
        if off := first_use.switched_off():
            found["switched_off"] = "; ".join(f"{name}: {why}" for name, why in off.items())
        if self._device.type == "cuda":
            found["peak_gpu_memory_bytes"] = torch.cuda.max_memory_allocated(self._device)
        return found

    def _untrained(self) -> dict[str, float]:
        """Metrics of the encoder before training; the trained weights stay."""
        if not self.setup.config.evaluation.untrained:
            return {}
        vector = self.trainer.vector
        trained = vector.clone()
        vector.copy_(self.trainer.initial)
        metrics = self._evaluate(first=True)
        vector.copy_(trained)
        return metrics

    def _evaluate(self, *, first: bool = False) -> dict[str, float]:
        """Metrics of the present weights, before the `first` round or after those done."""
        trainer = self.trainer
        rounds = 0 if first else trainer.rounds_done
        trainer.binding.personal.data.copy_(trainer.first_personal)
        return self.clients.evaluate(trainer.binding, trainer.personal_rounds, rounds, first=first)

    def _metrics(
        self, final: Mapping[str, float], untrained: Mapping[str, float]
    ) -> dict[str, Any]:
        history = self.trainer.history
        measured = {**final, **{f"untrained_{name}": value for name, value in untrained.items()}}
        metrics: dict[str, Any] = {name: measured.get(name) for name in METRICS}
        # Where encoders differ, `collapsed` is the share of clients whose encoder has collapsed.
        metrics["collapsed"] = final["collapsed"] >= 0.5 if "collapsed" in final else None
        metrics["final_loss"] = history[-1].loss if history else None
        further = {name: value for name, value in measured.items() if name not in metrics}
        further["relative_movement"] = movement(self.trainer)
        further |= {f"no_gradient_{part}": 1.0 for part in never_reached(history)}
        further["idle_clients"] = float(sum(record.idle_clients for record in history))
        if any(map(is_accuracy, measured)):
            further |= {f"{at}{MAJORITY.name}": share for at, share in self._majorities().items()}
        if seconds := [r.simulated["seconds"] for r in history if r.simulated]:
            further["simulated_hours"] = sum(seconds) / 3600
        return {**metrics, "further": further}

    def _majorities(self) -> dict[str, float]:
        """Share of the class of most test images where it is far above others, by its prefix."""
        sets = {"": self.setup.dataset} | {metric_prefix(d): d for d in self.setup.transfer}
        found = {at: majority(d.test_labels, d.num_classes) for at, d in sets.items()}
        return {at: each[1] for at, each in found.items() if each is not None}

    def _cost(self) -> dict[str, Any]:
        trainer = self.trainer
        return {
            "train_seconds": trainer.train_seconds,
            "bytes_up": trainer.ledger.bytes_up,
            "bytes_down": trainer.ledger.bytes_down,
            **columns(trainer),
            "peak_memory_bytes": _peak_memory_bytes(),
            "rounds_done": trainer.rounds_done,
            "resumes": trainer.resumes,
        }


def facts(
    experiment: Experiment, partition_hash: str, started_at: datetime, device: str
) -> dict[str, Any]:
    """The columns that every row of a configuration has, however its run ends."""
    config, origin, data = experiment.config, experiment.origin, experiment.data
    return {
        **derived(config, data.revision),
        **vars(origin),
        "dataset": data.name,
        "dataset_revision": data.revision,
        "partition_hash": partition_hash,
        "settings": config.model_dump(mode="json"),
        "tuned": origin.study_id is not None,
        "selection": "label-free" if origin.study_id else "default",
        "started_at": started_at,
        "device": device,
        "git_sha": git_sha(),
        "package_version": installed_version(DISTRIBUTION) or "unknown",
        "environment": _environment() | packages(experiment.modules),
        "hardware": _hardware(),
    }


def derived(config: RunConfig, dataset_revision: str) -> dict[str, Any]:
    """The columns that follow from a configuration and the revision of its data."""
    data, ids = config.data, Ids.of(config, dataset_revision)
    return {
        "row_id": ids.row,
        "config_id": ids.config,
        "training_id": ids.training,
        "benchmark_version": BENCHMARK_VERSION,
        "partition": data.partition,
        "alpha": data.alpha_read,
        "num_clients": data.num_clients,
        "participation": config.federation.participation,
        "num_rounds": config.federation.num_rounds,
        "local_epochs": config.client.local_epochs,
        "method": config.spec,
        "backbone": config.model.backbone,
        "norm": config.model.norm,
        "seed": config.seed,
    }


@cache
def _environment() -> dict[str, str]:
    """Versions of Python, the system and the packages that results depend on."""
    env = {"python": platform.python_version(), "platform": platform.platform()}
    for name in _PACKAGES:
        if (installed := installed_version(name)) is not None:
            env[name] = installed
    if torch.version.cuda:
        env["cuda"] = torch.version.cuda
    return env


def _hardware() -> str:
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    parts = [f"{platform.machine()}, {cores} cores, {psutil.virtual_memory().total / 1e9:.0f} GB"]
    if count := torch.cuda.device_count():
        # Asking for the name starts CUDA, and a process that only writes rows leaves GPUs alone.
        started = torch.cuda.is_initialized()
        parts.append(f"{count} x {torch.cuda.get_device_name(0) if started else 'GPU'}")
    return "; ".join(parts)


@cache
def git_sha() -> str | None:
    """Return the commit of the checkout that this code runs from; None for a wheel."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _peak_memory_bytes() -> int:
    """Largest resident size of this process in the run; workers are not counted.

    Where the system has no `/proc`, it is that of the process so far.
    """
    with suppress(OSError, IndexError):  # `getrusage` of a new program has what its parent had
        return int((_PROCESS / "status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
