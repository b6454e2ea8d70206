"""Records of a run: its result, or its plan and estimated cost."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.bench.config import RunConfig
from fedbench.bench.results.chance import NO_MARKS, marks
from fedbench.bench.results.store.row import METRICS, Row, per_gigabyte
from fedbench.bench.results.store.store import Store
from fedbench.bench.runs.compare import Reproduction
from fedbench.bench.system.notebooks import Shown
from fedbench.bench.training.checkpoint import newest_first
from fedbench.bench.training.steps import LocalSteps

if TYPE_CHECKING:
    from fedbench.bench.runs.estimate import Estimate

_COST = (
    "wall_seconds",
    "train_seconds",
    "bytes_up",
    "bytes_down",
    "peak_memory_bytes",
    "num_parameters",
    "rounds_done",
    "resumes",
)
_PRIVACY = ("revealing_messages", "smallest_group", "secure_sum", "epsilon", "delta", "epsilon_of")


@dataclass(frozen=True, repr=False)
class RunResult(Shown):
    """A finished run.

    Attributes:
        run_id: its row id; `export_encoder` and `fedbench export` take it.
        status: `ok`, or `diverged` when loss or weights stopped being finite.
        method: canonical method spec.
        metrics: accuracies in [0, 1]; None = not measured.
        cost: seconds, bytes and counts; keys as in the columns of the store, and
            `linear_acc_per_gb`, the linear-probe accuracy over 1e9 bytes in both directions.
        traffic: `{direction: {group: {messages, numbers, bytes, revealing, smallest}}}`.
        privacy: what messages reveal, and epsilon with the numbers behind it; keys as in the
            columns of the store.
        paths: `store`, and `run row curve checkpoint partition` where they exist, else None.
        at_chance: terms of the loss that ended at chance (`bench.results.chance`).
        stored_before: whether the store had it already, so that nothing was executed.
        measured_from: the run whose weights were evaluated; None if this run was trained.
        repeated: comparison with a repetition, with `again`; None if nothing was repeated.
        outdated: ids of runs of the same settings by code of packages that is not installed any
            more; with `again` they are deleted.
    """

    run_id: str
    status: str
    method: str
    preset: str
    seed: int
    config: RunConfig = field(repr=False)
    metrics: Mapping[str, float | None]
    cost: Mapping[str, float | int | None]
    traffic: Mapping[str, Any]
    privacy: Mapping[str, Any]
    paths: Mapping[str, str | None]
    collapsed: bool
    at_chance: tuple[str, ...]
    stored_before: bool
    measured_from: str | None
    row: Row = field(repr=False)
    repeated: Reproduction | None = field(default=None, repr=False)
    outdated: tuple[str, ...] = ()

    @classmethod
    def of(cls, row: Row, store: Store, *, stored_before: bool) -> RunResult:
        """The result of a run from its row and its folder in the store."""
        name = store.key(row)
        folder = store.cell_dir(name)
        files = {
            "run": folder,
            "row": store.root / "rows" / f"{name}.parquet",
            "curve": folder / "curve.parquet",
            "checkpoint": next(iter(newest_first(folder)), folder / "round"),
            "partition": folder / "partition.safetensors",
        }
        paths = {name: str(path) if path.exists() else None for name, path in files.items()}
        return cls(
            run_id=row.row_id,
            status=row.status,
            method=row.method,
            preset=row.preset,
            seed=row.seed,
            config=RunConfig.model_validate_json(row.config_json),
            metrics={name: getattr(row, name) for name in METRICS if name != "collapsed"}
            | json.loads(row.metrics_json or "{}"),
            cost={name: getattr(row, name) for name in _COST}
            | {"linear_acc_per_gb": per_gigabyte(row, row.linear_acc)},
            traffic=json.loads(row.traffic_json or "{}"),
            privacy={name: getattr(row, name) for name in _PRIVACY}
            | json.loads(row.privacy_json or "{}"),
            paths={"store": str(store.root), **paths},
            collapsed=bool(row.collapsed),
            at_chance=marks(store, [row]).get(row.row_id, NO_MARKS).at_chance,
            stored_before=stored_before,
            measured_from=row.measured_from,
            row=row,
        )

    def __repr__(self) -> str:
        measured = ("linear_acc", "knn_acc", "objective")
        shown = [
            (name, value) for name in measured if (value := self.metrics.get(name)) is not None
        ]
        figures = "".join(f", {name} {value:.4f}" for name, value in shown)
        return (
            f"<run {self.run_id[:8]}: {self.method}, preset {self.preset}, seed {self.seed},"
            f" {self.status}{figures}>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        """Return metrics before and after training, and costs."""
        before = {name: self.metrics.get(f"untrained_{name}") for name in self.metrics}
        lines: list[list[Any]] = [
            [name, value, before[name]]
            for name, value in self.metrics.items()
            if value is not None and not name.startswith("untrained_")
        ]
        costs = [[name, value, None] for name, value in self.cost.items() if value is not None]
        return ("figure", "value", "before training"), lines + costs

    def as_dict(self) -> dict[str, Any]:
        """The output of `fedbench run --json`: every field but the row."""
        plain = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "row"}
        again = None if self.repeated is None else self.repeated.as_dict()
        return plain | {"config": self.config.model_dump(mode="json"), "repeated": again}


@dataclass(frozen=True)
class RunPlan:
    """A run that has not been executed, with its estimated cost.

    Attributes:
        stored: whether the store has it already.
        measured_from: the run whose weights would be evaluated instead of training them once more;
            None if it would be trained.
        local_steps: of a client in a round, over all clients.
        without_effect: a line for each setting that changes nothing.
    """

    run_id: str
    stored: bool
    measured_from: str | None
    preset: str
    workers: int
    device: str
    local_steps: LocalSteps
    without_effect: tuple[str, ...]
    estimate: Estimate
    config: RunConfig = field(repr=False)
    store: Path

    def as_dict(self) -> dict[str, Any]:
        """The output of `fedbench run --dry-run --json`."""
        return {
            "run_id": self.run_id,
            "status": "stored" if self.stored else "planned",
            "measured_from": self.measured_from,
            "method": self.config.spec,
            "preset": self.preset,
            "seed": self.config.seed,
            "config": self.config.model_dump(mode="json"),
            "workers": self.workers,
            "device": self.device,
            "local_steps": self.local_steps.as_dict(),
            "without_effect": list(self.without_effect),
            "estimate": asdict(self.estimate),
            "paths": {"store": str(self.store)},
        }
