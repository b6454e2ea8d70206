"""Published numbers of the same method, data set, setting and probe as a row.

The tables are `leaderboards/papers/*.parquet`. Each paper has its kind of split, norm and probe: a
published number is shown beside a row of exactly the setting it was measured in, and never
ranked. What a number fixes of a configuration is a column, which leaderboards/fields.py writes.

Sources: Lubana et al. 2022 (Orchestra, O); Louizos et al. 2024 (mutual information, M); Arora 2023
(personalised autoencoders, A); for the methods after them Rehman et al. 2023 (L-DAWA), Fang et al.
2025 (SSD), Han et al. 2022 (FedX) and the tables of FedMAR.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any

from fedbench.bench.config import BENCHMARK_VERSION
from fedbench.bench.config.dotted import flatten
from fedbench.bench.results.leaderboard.data_names import dataset_name, known_name
from fedbench.bench.results.store.row import PaperCell
from fedbench.bench.results.store.settings import completed


@lru_cache(maxsize=1)
def paper_cells() -> tuple[PaperCell, ...]:
    """All printed numbers, by table and in the order of print.

    Raises:
        StoreError: for a table that cannot be read.
    """
    from fedbench.bench.results.store.schema import decode

    folder = resources.files("fedbench.leaderboards").joinpath("papers")
    files = {f.name: f for f in folder.iterdir() if f.name.endswith(".parquet")}
    return tuple(c for name in sorted(files) for c in decode(files[name].read_bytes(), PaperCell))


PUBLISHED = ("value", "spread", "spread_kind", "n_seeds", "source", "setting", "note")
"""Columns of a printed number that leaderboards show."""

_PREFERRED = "orchestra_table5"
"""Its means are those of table 1 and in part of 2, 6 and 7; it alone has spreads."""

_CACHED = "published with a 50-epoch probe, ours with cached features"
_BEST_KNN = "published at the checkpoint with the best k-NN on test images, ours at the last round"
_MLP_NOTE = "far above what plain autoencoders give"
_MEASURED: dict[str, Mapping[str, str]] = {
    "linear": {"linear_paper_acc": "", "linear_acc": _CACHED},
    "linear_cached": {"linear_acc": _BEST_KNN},
    "finetune_1pct": {"finetune_1pct_acc": ""},
    "finetune_10pct": {"finetune_10pct_acc": ""},
    "linear_probe_all_client_labels": {"linear_acc": ""},
    "linear_probe_10pct_client_labels": {"linear_acc": ""},
    "linear_global_acc": {"mlp_acc": _MLP_NOTE},
    "10pct_global_acc": {"mlp_10pct_acc": _MLP_NOTE},
    "1pct_global_acc": {"mlp_1pct_acc": _MLP_NOTE},
    "linear_local_acc": {"mlp_local_acc": _MLP_NOTE},
    "10pct_local_acc": {"mlp_10pct_local_acc": _MLP_NOTE},
    "1pct_local_acc": {"mlp_1pct_local_acc": _MLP_NOTE},
    "linear_unstated_acc": {"mlp_acc": _MLP_NOTE, "mlp_local_acc": _MLP_NOTE},
    "10pct_unstated_acc": {"mlp_10pct_acc": _MLP_NOTE, "mlp_10pct_local_acc": _MLP_NOTE},
    "1pct_unstated_acc": {"mlp_1pct_acc": _MLP_NOTE, "mlp_1pct_local_acc": _MLP_NOTE},
}
"""Columns of the tables -> metrics that measure the same, and what to know before comparing."""


def published_number(row: Any, metric: str) -> PaperCell | None:
    """Find the printed number for the method of a row in exactly the setting of that row.

    Every field of the configuration that the paper fixes has the paper's value; fields that it
    leaves open may have any. A row of an older version that lacks a fixed field has no number, and
    neither has one on a data set whose content is not known. What to know before comparing is in
    the note.
    """
    cells = _cells_of().get((known_name(row.dataset), row.method))
    if cells is None:
        return None
    settings = json.loads(row.config_json)
    defaults_known = row.benchmark_version == BENCHMARK_VERSION
    values = completed(settings) if defaults_known else flatten(settings)
    for cell, fixed in cells:
        note = _MEASURED.get(cell.metric, {}).get(metric)
        if note is not None and all(
            name in values and values[name] in allowed for name, allowed in fixed.items()
        ):
            return cell.model_copy(update={"note": "; ".join(filter(None, (note, cell.note)))})
    return None


_Fixed = Mapping[str, Sequence[Any]]


@lru_cache(maxsize=1)
def _cells_of() -> Mapping[tuple[str | None, str], Sequence[tuple[PaperCell, _Fixed]]]:
    """Return, by (`dataset_name`, spec), printed numbers and the values that fields may have."""
    cells: dict[tuple[str | None, str], list[tuple[PaperCell, _Fixed]]] = {}
    for cell in sorted(paper_cells(), key=lambda cell: cell.source != _PREFERRED):
        if cell.spec is not None and cell.fixed_json is not None:
            values = json.loads(cell.fixed_json).items()
            fixed = {name: v if isinstance(v, list) else [v] for name, v in values}
            key = dataset_name(cell.dataset), cell.spec
            cells.setdefault(key, []).append((cell, fixed))
    return cells
