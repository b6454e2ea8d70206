"""What the commands and the Python calls hand back, and its shape as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench.bench.config import RunConfig
from fedbench.bench.results.row import per_gigabyte

if TYPE_CHECKING:
    import pandas as pd

    from fedbench.bench.data.partition import Partition
    from fedbench.bench.estimate import Estimate
    from fedbench.bench.results.leaderboard import Leaderboard
    from fedbench.bench.results.row import Row
    from fedbench.bench.runs import Finished

_MEASURED = (
    "objective",
    "align",
    "unif",
    "knn_acc",
    "linear_acc",
    "linear_paper_acc",
    "untrained_objective",
    "untrained_knn_acc",
    "untrained_linear_acc",
    "std_ratio",
    "effective_rank",
    "final_loss",
)
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


@dataclass(frozen=True)
class RunResult:
    """A finished run.

    Attributes:
        run_id: its row id; `export_encoder` and `fedbench export` take it.
        status: `ok`, or `diverged` when loss or weights stopped being finite.
        method: canonical method spec.
        preset: the preset that the configuration started from.
        seed: the run's seed.
        metrics: accuracies in [0, 1]; None = not measured.
        cost: seconds, bytes and counts; keys as in the columns of the store, and
            `linear_acc_per_gb`, the linear-probe accuracy over 1e9 bytes in both directions.
        traffic: `{direction: {group: {messages, numbers, bytes, revealing, smallest}}}`.
        privacy: what messages reveal and what holds of it; keys as in the columns of the store,
            and what stands behind epsilon.
        paths: `store`, and `run row curve checkpoint partition` where they exist, else None.
        collapsed: the detector's verdict on the final features.
        stored_before: whether the store had it already, so that nothing was executed.
        config: the configuration.
        row: the whole row of the store.
    """

    run_id: str
    status: str
    method: str
    preset: str
    seed: int
    metrics: Mapping[str, float | None]
    cost: Mapping[str, float | int | None]
    traffic: Mapping[str, Any]
    privacy: Mapping[str, Any]
    paths: Mapping[str, str | None]
    collapsed: bool
    stored_before: bool
    config: RunConfig = field(repr=False)
    row: Row = field(repr=False)

    @classmethod
    def of(cls, finished: Finished, store: Path) -> RunResult:
        """The result of a run that lies in a store."""
        row, folder = finished.row, finished.folder
        checkpoints = sorted(folder.glob("round-*.safetensors"))
        files = {
            "run": folder,
            "row": store / "rows" / f"{row.row_id}.parquet",
            "curve": folder / "curve.parquet",
            "checkpoint": checkpoints[-1] if checkpoints else folder / "round",
            "partition": folder / "partition.safetensors",
        }
        paths = {name: str(path) if path.exists() else None for name, path in files.items()}
        return cls(
            run_id=row.row_id,
            status=row.status,
            method=row.method,
            preset=row.preset,
            seed=row.seed,
            metrics={name: getattr(row, name) for name in _MEASURED}
            | json.loads(row.metrics_json or "{}"),
            cost={name: getattr(row, name) for name in _COST}
            | {"linear_acc_per_gb": per_gigabyte(row, row.linear_acc)},
            traffic=json.loads(row.traffic_json or "{}"),
            privacy={name: getattr(row, name) for name in _PRIVACY}
            | json.loads(row.privacy_json or "{}"),
            paths={"store": str(store), **paths},
            collapsed=bool(row.collapsed),
            stored_before=finished.stored_before,
            config=RunConfig.model_validate_json(row.config_json),
            row=row,
        )

    def as_dict(self) -> dict[str, Any]:
        """What `fedbench run --json` prints."""
        return {
            "run_id": self.run_id,
            "status": self.status,
            "method": self.method,
            "preset": self.preset,
            "seed": self.seed,
            "config": self.config.model_dump(mode="json"),
            "metrics": dict(self.metrics),
            "cost": dict(self.cost),
            "traffic": dict(self.traffic),
            "privacy": dict(self.privacy),
            "paths": dict(self.paths),
            "collapsed": self.collapsed,
            "stored_before": self.stored_before,
        }


@dataclass(frozen=True)
class RunPlan:
    """What a run would do.

    Attributes:
        run_id: the row id it would get.
        stored: whether the store has it already.
        preset: the preset that the configuration starts from.
        workers: processes that would train clients.
        device: where the server's part would run.
        estimate: cost, from measured parts of the run.
        config: the configuration.
        store: the store's folder.
    """

    run_id: str
    stored: bool
    preset: str
    workers: int
    device: str
    estimate: Estimate
    config: RunConfig = field(repr=False)
    store: Path

    def as_dict(self) -> dict[str, Any]:
        """What `fedbench run --dry-run --json` prints."""
        return {
            "run_id": self.run_id,
            "status": "stored" if self.stored else "planned",
            "method": self.config.spec,
            "preset": self.preset,
            "seed": self.config.seed,
            "config": self.config.model_dump(mode="json"),
            "workers": self.workers,
            "device": self.device,
            "estimate": asdict(self.estimate),
            "paths": {"store": str(self.store)},
        }


@dataclass(frozen=True)
class Ranking:
    """A leaderboard, and the files of the store that could not be read.

    Attributes:
        board: groups of comparable lines, best first.
        problems: one line per unreadable file; what it holds is missing from the board.
        nothing: why the board is empty, in one line; empty if it is not.
    """

    board: Leaderboard
    problems: tuple[str, ...]
    nothing: str = ""

    def as_dict(self) -> dict[str, Any]:
        """What `fedbench leaderboard --json` prints: `metric`, flat `rows`, and `across` cells."""
        across = [each.as_dict() for each in self.board.across()]
        return {**self.board.to_dict(), "across": across, "problems": list(self.problems)}

    def to_frame(self) -> pd.DataFrame:
        """One line per configuration, numbers unrounded."""
        from fedbench.bench.results.formats import to_frame

        return to_frame(self.board)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return str(self.to_frame().to_html())


@dataclass(frozen=True)
class Report:
    """A page that was written.

    Attributes:
        file: the page.
        num_rows: runs on it.
        num_studies: tuning studies on it.
        num_bytes: its size.
        problems: one line per unreadable file of the store; they are on the page, too.
    """

    file: Path
    num_rows: int
    num_studies: int
    num_bytes: int
    problems: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """What `fedbench report --json` prints."""
        return {**asdict(self), "file": str(self.file), "problems": list(self.problems)}


@dataclass(frozen=True)
class Deal:
    """How a data set was dealt to clients.

    Attributes:
        dataset: name of the data set.
        labels: what stood in for its labels, or None.
        partition: who holds which example.
        record: sizes and class counts, as `fedbench partition --json` prints them.
    """

    dataset: str
    labels: str | None
    partition: Partition = field(repr=False)
    record: Mapping[str, Any] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """What `fedbench partition --json` prints."""
        extra = {} if self.labels is None else {"labels": self.labels}
        return {"dataset": self.dataset, **self.record, **extra, "hash": self.partition.hash}


def method_records() -> list[dict[str, Any]]:
    """Every registered method and add-on with its fields, for listing."""
    from fedbench.bench import registry
    from fedbench.bench.guarantees import declared

    known = registry.entries()
    methods = [name for name, entry in known.items() if not entry.is_addon]
    return [
        {
            "name": entry.name,
            "kind": "add-on" if entry.is_addon else "method",
            "summary": entry.summary,
            "goes_with": None if entry.bases is None else entry.fits(methods),
            "aliases": [
                alias
                for alias, spec in registry.ALIASES.items()
                if spec.split("+")[-1] == entry.name
            ],
            "fields": {
                name: {
                    "default": info.get_default(call_default_factory=True),
                    "description": info.description or "",
                }
                for name, info in entry.cls.model_fields.items()
                if name != "base"
            },
            **declared(entry, methods),
        }
        for entry in known.values()
    ]
