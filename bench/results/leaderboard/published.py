"""Published numbers of the same method, data set, setting and probe as a row.

The tables are `leaderboards/papers/*.parquet`. Three papers, three kinds of split, norm and probe:
a published number is shown beside a row of the setting it was measured in, and never ranked.

Sources: Lubana et al. 2022 (Orchestra, O); Louizos et al. 2024 (mutual information, M); Arora 2023
(personalised autoencoders, A).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from fedbench.bench.results.leaderboard.comparability import SETTING, settings_of
from fedbench.bench.results.store.row import PaperCell, Row
from fedbench.bench.system.identity import content_id

_CLASS = ("paper", "dataset", "setting", "metric", *SETTING, "probe")


def class_id(cell: PaperCell) -> str:
    """Identity of a comparability class: numbers of one class may be compared with each other."""
    return content_id({name: getattr(cell, name) for name in _CLASS})


@lru_cache(maxsize=1)
def paper_cells() -> tuple[PaperCell, ...]:
    """All printed numbers, by table and in the order of print.

    Raises:
        StoreError: for a table that cannot be read.
    """
    from fedbench.bench.results.store.schema import decode

    folder = resources.files("fedbench.leaderboards").joinpath("papers")
    files = sorted(
        (f for f in folder.iterdir() if f.name.endswith(".parquet")), key=lambda f: f.name
    )
    return tuple(cell for file in files for cell in decode(file.read_bytes(), PaperCell))


def paper_ranks(cells: Sequence[PaperCell]) -> list[int | None]:
    """Rank each number among those of its table and class; 1 is the highest, ties share a rank.

    None for numbers that are no accuracies.
    """
    groups: dict[tuple[str, str], list[float]] = {}
    for cell in cells:
        groups.setdefault((cell.source, class_id(cell)), []).append(cell.value)
    return [
        1 + sum(other > cell.value for other in groups[cell.source, class_id(cell)])
        if cell.unit == "fraction"
        else None
        for cell in cells
    ]


@dataclass(frozen=True)
class Published:
    """One printed number.

    Attributes:
        value: the number, a fraction in [0, 1].
        spread: its spread, a fraction, or None where none is printed.
        spread_kind: what the spread is.
        n_seeds: seeds it is a mean of, or None where the paper does not say.
        source: table that prints it.
        setting: the table's name of the setting.
        note: what to know before comparing.
    """

    value: float
    spread: float | None
    spread_kind: str | None
    n_seeds: int | None
    source: str
    setting: str
    note: str


DATASETS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tinyimagenet": "TinyImageNet",
    "tinyimagenet200": "TinyImageNet",
}

METHODS: dict[str, dict[str, str]] = {
    "orchestra": {
        "simclr": "f-SimCLR",
        "simsiam": "f-SimSiam",
        "spectral": "f-SpecLoss",
        "byol": "f-BYOL",
        "rotpred": "RotPred (pred)",
        "orchestra": "Orchestra",
        "supervised": "FedAvg (sup)",
    },
    "mi": {
        "simclr": "Local SimCLR",
        "simclr+uv": "Federated SimCLR",
        "spectral": "Spectral CL",
        "spectral+uv": "Spectral CL + UV",
        "simsiam": "SimSiam",
        "simsiam+uv": "SimSiam + UV",
        "supervised": "Supervised",
        "featarc": "Local SimCLR + FeatARC",
        "semifed": "SemiFed",
        "semifed+uv": "SemiFed + UV",
        "cbafed": "CBAFed",
        "cbafed+uv": "CBAFed + UV",
    },
    "pfedae": {
        "pfedae": "pFedAE",
        "fedavg-ae": "FedAvg-AE",
        "single-ae": "Single Client",
        "central-ae": "AE-CenS",
        "orchestra": "Orchestra",
        "simclr": "f-SimCLR",
        "simsiam": "f-SimSiam",
        "spectral": "f-SpecLoss",
        "byol": "f-BYOL",
    },
}
"""For each paper, method specs to the names printed in its tables."""

_TABLES = {
    # 5 and 1 have the same means; 5 has the spreads. 7 has what clients send.
    "orchestra": ("orchestra_table5", "orchestra_table1", "orchestra_table7"),
    "mi": tuple(f"mi_table{n}" for n in (1, 2, 3, 4, 5, 6, 7)),
    "pfedae": ("pfedae_table4_1",),
}

_ORCHESTRA_METRICS = {
    "linear_paper_acc": ("linear", ""),
    "linear_acc": ("linear", "published with a 50-epoch probe, ours with cached features"),
    "finetune_1pct_acc": ("finetune_1pct", ""),
    "finetune_10pct_acc": ("finetune_10pct", ""),
}
_MLP_NOTE = "far above what plain autoencoders give"

_ORCHESTRA: dict[str, Any] = {
    "data.partition": "dirichlet-balanced",
    "data.alpha": 0.1,
    "data.train_subset": None,
    "data.test_subset": None,
    "model.backbone": "resnet18",
    "model.width": None,
    "model.norm": "batch",
    "federation.num_rounds": 100,
    "client.local_epochs": 10,
    "server.optimizer": "average",
}
_DEVICE = {"data.num_clients": 100, "federation.participation": 0.5, "client.batch_size": 16}
_SILO = {"data.num_clients": 10, "federation.participation": 1.0, "client.batch_size": 256}
_MI: dict[str, Any] = {
    "data.train_subset": None,
    "data.test_subset": None,
    "data.multiply_prior": True,
    "model.norm": "group",
    "model.width": None,
    "client.batch_size": 128,
    "client.local_epochs": 1,
    "server.optimizer": "adam",
    # Stated for TinyImageNet only; with no number for CIFAR, the same budget is asked for there.
    "federation.num_rounds": 50_000,
}
_MI_SHIFTS: dict[str, tuple[str, dict[str, Any]]] = {
    "hsu": ("label_skew", {"data.alpha": 0.1}),
    "rotation": ("covariate_shift", {"data.rotation_alpha": 0.1, "data.rotation_bins": 10}),
    "joint": (
        "joint_shift",
        {"data.alpha": 0.1, "data.rotation_alpha": 0.1, "data.rotation_bins": 10},
    ),
}
_MI_CLIENTS = {"CIFAR-10": 100, "CIFAR-100": 500, "TinyImageNet": 100}
_MI_COHORT = 10
_PFEDAE_METRIC = re.compile(r"mlp(_(?P<share>10pct|1pct))?(?P<local>_local)?_acc")
_PFEDAE: dict[str, Any] = {
    "data.num_clients": 10,
    "data.train_subset": None,
    "data.test_subset": None,
    "federation.participation": 1.0,
    "federation.num_rounds": 100,
    "client.batch_size": 256,
    "client.local_epochs": 1,
}


def published_number(row: Row, metric: str) -> Published | None:
    """Find the printed number for the method of a row in the setting of that row.

    The preset names the paper, and the configuration must still be the published one: a shortened
    run has no published number. Method hyperparameters are not compared.

    Args:
        row: any row; its `hub:` or `folder:` data set is known by the name of its folder.
        metric: column or key of `metrics_json`, for example `linear_acc`.
    """
    config = settings_of(row.config_json)
    dataset = DATASETS.get(dataset_name(row.dataset))
    if dataset is None or _other_probe(config, row.preset, metric):
        return None
    if config.get("privacy.clip") is not None:  # no paper has clipped changes
        return None
    if row.preset in ("cross-device", "cross-silo"):
        paper, printed_as = "orchestra", _orchestra(row.preset, config, metric)
    elif row.preset in ("mi", "mi-semi"):
        paper, printed_as = "mi", _mi(row, dataset, config, metric)
    elif row.preset == "pfedae":
        paper, printed_as = "pfedae", _pfedae(config, metric)
    else:
        return None
    method = METHODS[paper].get(row.method)
    if method == "Orchestra":
        method = _sent_by_orchestra(config)
    if printed_as is None or method is None:
        return None
    return _lookup(paper, dataset, method, *printed_as)


def dataset_name(name: str) -> str:
    """Return `cifar10` for `cifar10`, `CIFAR-10` and `hub:some/folder/cifar-10`."""
    last = name.split(":", 1)[-1].rstrip("/").rsplit("/", 1)[-1]
    return last.lower().replace("-", "").replace("_", "")


def _other_probe(config: Mapping[str, Any], preset: str, metric: str) -> bool:
    """True if the probe learns from other images than those of the papers."""
    few_labels = config.get("data.label_fraction", 0) not in (0, 1) and preset != "mi-semi"
    fewer_images = config.get("data.held_out", 0) > 0 and not metric.startswith("finetune")
    return few_labels or fewer_images


def _fits(config: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(config.get(key) == value for key, value in wanted.items())


def _orchestra(preset: str, config: Mapping[str, Any], metric: str) -> tuple[str, str, str] | None:
    wanted = _ORCHESTRA | (_DEVICE if preset == "cross-device" else _SILO)
    if config.get("data.label_fraction") and config.get("spec") != "supervised":
        return None
    whole = config.get("method.degeneracy", True) and config.get("method.target", True)
    if metric not in _ORCHESTRA_METRICS or not whole or not _fits(config, wanted):
        return None
    return (preset.replace("-", "_"), *_ORCHESTRA_METRICS[metric])


def _sent_by_orchestra(config: Mapping[str, Any]) -> str | None:
    """Printed name of Orchestra, which depends on what clients send; None for the control."""
    sent = config.get("method.representations", "centroids")
    budget = f"Orchestra(local-DP eps={config.get('method.epsilon')})"
    private = budget if config.get("method.delta") == 1e-3 else None
    names = {"centroids": "Orchestra", "memory": "Orchestra(no privacy / Reps)"}
    return private if sent == "private" else names.get(sent)


def _mi(
    row: Row, dataset: str, config: Mapping[str, Any], metric: str
) -> tuple[str, str, str] | None:
    shift, wanted = _MI_SHIFTS.get(row.partition, ("", {}))
    semi = row.preset == "mi-semi"
    wanted = _MI | wanted | {"data.num_clients": _MI_CLIENTS[dataset]}
    if semi:
        wanted |= {"data.label_fraction": 0.1}
    elif row.method != "supervised":
        wanted |= {"data.label_fraction": 0.0}
    backbone = "cct" if dataset == "TinyImageNet" else "resnet18"
    cohort = int(row.participation * row.num_clients + 1e-9)
    if not shift or metric != "linear_acc" or cohort != _MI_COHORT or not _fits(config, wanted):
        return None
    if not row.backbone.startswith(backbone):
        return None
    column = "linear_probe_10pct_client_labels" if semi else "linear_probe_all_client_labels"
    return shift, column, ""


def _pfedae(config: Mapping[str, Any], metric: str) -> tuple[str, str, str] | None:
    parts = _PFEDAE_METRIC.fullmatch(metric)
    if parts is None or not _fits(config, _PFEDAE):
        return None
    share, scope = parts["share"] or "linear", "local" if parts["local"] else "global"
    partition = config.get("data.partition")
    if partition in ("dirichlet-balanced", "dirichlet") and config.get("data.alpha") == 0.1:
        return "cross_silo_dirichlet0.1", f"{share}_{scope}_acc", _MLP_NOTE
    if partition == "pathological" and config.get("data.classes_per_client") == 2:
        return "cross_silo_pathological_2class", f"{share}_unstated_acc", _MLP_NOTE
    return None


def _lookup(
    paper: str, dataset: str, method: str, setting: str, column: str, note: str
) -> Published | None:
    for table in _TABLES[paper]:
        cell = _cell_at().get((table, dataset, setting, method, column))
        if cell is not None:
            return Published(
                value=cell.value,
                spread=cell.spread,
                spread_kind=cell.spread_kind,
                n_seeds=cell.n_seeds,
                source=table,
                setting=setting,
                note="; ".join(filter(None, (note, cell.note))),
            )
    return None


@lru_cache(maxsize=1)
def _cell_at() -> dict[tuple[str, str, str, str, str], PaperCell]:
    """Return all printed cells by (table, dataset, setting, method, metric)."""
    return {(c.source, c.dataset, c.setting, c.method, c.metric): c for c in paper_cells()}
