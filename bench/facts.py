"""What a row says before its run has begun: task, method, seed and provenance."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from fedbench.bench.config import BENCHMARK_VERSION, RunConfig, canonical_json, config_id, row_id
from fedbench.bench.provenance import provenance

if TYPE_CHECKING:
    from fedbench.bench.execute import Origin


def facts(
    config: RunConfig,
    dataset_revision: str,
    partition_hash: str,
    origin: Origin,
    *,
    started_at: datetime,
    device: str,
) -> dict[str, Any]:
    """The columns that every row of a configuration has, however its run ends.

    Args:
        config: what is run.
        dataset_revision: of its data set.
        partition_hash: of who holds what; empty if that never became known.
        origin: preset, study, grid and command line, for the record.
        started_at: when the run began.
        device: where it ran.
    """
    data = config.data
    return {
        "row_id": row_id(config, dataset_revision),
        "config_id": config_id(config, dataset_revision),
        "benchmark_version": BENCHMARK_VERSION,
        "preset": origin.preset,
        "dataset": data.public_name,
        "dataset_revision": dataset_revision,
        "partition": data.partition,
        "alpha": None if data.partition in ("iid", "pathological") else data.alpha,
        "num_clients": data.num_clients,
        "participation": config.federation.participation,
        "num_rounds": config.federation.num_rounds,
        "local_epochs": config.client.local_epochs,
        "partition_hash": partition_hash,
        "method": config.spec,
        "backbone": config.model.backbone,
        "norm": config.model.norm,
        "config_json": canonical_json(config.model_dump(mode="json")),
        "tuned": origin.study_id is not None,
        "study_id": origin.study_id,
        "selection": "label-free" if origin.study_id else "default",
        "seed": config.seed,
        "started_at": started_at,
        "device": device,
        "grid": origin.grid,
        "argv": origin.argv,
        **provenance(),
    }
