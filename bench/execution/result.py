"""Records of a run: its result, or its plan and estimated cost."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fedbench.bench.config import RunConfig
from fedbench.bench.execution.compare import Reproduction
from fedbench.bench.execution.estimate import Estimate
from fedbench.bench.experiment.steps import LocalSteps
from fedbench.bench.results.chance import NO_MARKS, marks
from fedbench.bench.results.store.row import COSTS, METRICS, Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.training.checkpoint import newest_first

if TYPE_CHECKING:
    import pandas as pd

_PRIVACY = ("revealing_messages", "smallest_group", "secure_sum", "epsilon", "delta", "epsilon_of")


@dataclass(frozen=True, repr=False)
class RunResult:
    """A finished run; keys of `cost` and `privacy` are columns of the store, most of them."""

    run_id: str  # its row id; `export_encoder` and `fedbench export` take it
    status: str  # `ok`, or `diverged` when loss or weights stopped being finite
    method: str  # canonical method spec
    preset: str
    seed: int
    config: RunConfig = field(repr=False)
    metrics: Mapping[str, float | None]  # accuracies in [0, 1]; None = not measured
    # also `linear_acc_per_gb`, accuracy over 1e9 bytes, and `simulated_hours` of the devices
    cost: Mapping[str, float | int | None]
    traffic: Mapping[str, Any]  # {direction: {group: {messages, numbers, bytes, revealing, …}}}
    privacy: Mapping[str, Any]  # what messages reveal, and epsilon with the numbers behind it
    paths: Mapping[str, str | None]  # `store`, and `run row curve checkpoint partition` or None
    collapsed: bool
    at_chance: tuple[str, ...]  # terms of the loss that ended at chance (`bench.results.chance`)
    stored_before: bool  # in the store already, so that nothing was executed
    measured_from: str | None  # the run whose weights were evaluated; None if this was trained
    row: Row = field(repr=False)
    repeated: Reproduction | None = field(default=None, repr=False)  # with `again`
    outdated: tuple[str, ...] = ()  # runs of code that is gone; with `again` they are deleted

    @classmethod
    def of(cls, row: Row, store: Store, *, stored_before: bool) -> Self:
        """The result of a run from its row and its folder in the store."""
        name = store.key(row)
        folder = store.cell_dir(name)
        files: dict[str, Path | None] = {
            "run": folder,
            "row": store.root / "rows" / f"{name}.parquet",
            "curve": folder / "curve.parquet",
            "checkpoint": next(iter(newest_first(folder)), None),
            "partition": folder / "partition.safetensors",
        }
        paths = {n: str(path) if path and path.exists() else None for n, path in files.items()}
        gigabytes, accuracy = ((row.bytes_up or 0) + (row.bytes_down or 0)) / 1e9, row.linear_acc
        per_gb = accuracy / gigabytes if accuracy is not None and gigabytes else None
        alike = ("status", "method", "preset", "seed", "config", "traffic", "measured_from")
        return cls(
            **{name: getattr(row, name) for name in alike},
            run_id=row.row_id,
            metrics={name: getattr(row, name) for name in METRICS if name != "collapsed"}
            | row.further,
            cost={name: getattr(row, name) for name in (*COSTS, "num_parameters")}
            | {"linear_acc_per_gb": per_gb, "simulated_hours": row.metrics.get("simulated_hours")},
            privacy={name: getattr(row, name) for name in _PRIVACY} | row.privacy,
            paths={"store": str(store.root), **paths},
            collapsed=bool(row.collapsed),
            at_chance=marks(store, [row]).get(row.row_id, NO_MARKS).at_chance,
            stored_before=stored_before,
            row=row,
        )

    @property
    def curve(self) -> "pd.DataFrame":
        """A line for each round: loss, bytes, and metrics where the round was evaluated."""
        import pandas as pd

        name = self.run_id if self.paths["row"] is None else Path(self.paths["row"]).stem
        return pd.DataFrame(Store(Path(str(self.paths["store"]))).curve(name))

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

    def as_dict(self) -> dict[str, Any]:
        """The output of `fedbench run --json`: every field but the row."""
        plain = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "row"}
        again = None if self.repeated is None else self.repeated.as_dict()
        return plain | {"config": self.config.model_dump(mode="json"), "repeated": again}


@dataclass(frozen=True)
class RunPlan:
    """A run that has not been executed, with its estimated cost."""

    run_id: str
    stored: bool  # in the store already
    measured_from: str | None  # run whose weights would be evaluated; None if it would be trained
    preset: str
    workers: int
    device: str
    local_steps: LocalSteps  # of a client in a round, over all clients
    without_effect: tuple[str, ...]  # a line for each setting that changes nothing
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
