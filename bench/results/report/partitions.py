"""Labels that each client holds, from partitions that are made again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedbench.bench.data.datasets import cached_dataset
from fedbench.bench.data.partition import make_partition, summary
from fedbench.bench.results.store.row import Row
from fedbench.bench.system.errors import FedbenchError
from fedbench.bench.system.identity import canonical_json

MAX_CLIENTS = 40
"""Clients in a chart, the first by number."""
MAX_PARTITIONS = 24
"""Partitions on a page."""


def partitions(
    rows: Sequence[Row], data_dir: Path | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return label counts of clients, one record a partition, and a line for each not known.

    Of seeds with the same data and settings the lowest is shown.

    Args:
        rows: of the store.
        data_dir: folder of the data caches; None = the usual one.
    """
    by_settings: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: row.seed):
        settings = json.loads(row.config_json)["data"]
        fields = {k: v for k, v in settings.items() if k not in ("name", "label_fraction")}
        by_settings.setdefault(canonical_json([row.dataset_revision, fields]), row)
    records, missing = [], []
    for row in [*by_settings.values()][:MAX_PARTITIONS]:
        not_shown = f"Clients of {row.dataset} are not shown"
        try:
            dataset = cached_dataset(row.dataset_revision, data_dir)
            if dataset is None:
                missing.append(
                    f"{not_shown}: its labels are not in the data cache, or of another revision;"
                    " fedbench data prepare fills the cache."
                )
                continue
            labels, (data, seed) = dataset.train_labels, (row.config.data, row.config.seed)
            clients = dataset.train_clients
            found = summary(
                make_partition(labels, dataset.num_classes, data, seed, clients), labels
            )
        except FedbenchError as error:
            missing.append(f"{not_shown}, {row.partition} partition: {error}")
            continue
        alpha = "" if row.alpha is None else f" · alpha {row.alpha:g}"
        title = f"{row.dataset} · {len(labels):,} images · {row.partition} partition{alpha}"
        records.append(
            {
                "title": f"{title} · {found['num_clients']:,} clients · seed {row.seed}",
                "num_clients": found["num_clients"],
                "class_names": list(dataset.class_names),
                "counts": found["class_counts"][:MAX_CLIENTS],
                "classes_per_client": found["classes_per_client"]["ge_1pct_mean"],
            }
        )
    return records, list(dict.fromkeys(missing))
