"""Damage the files of a small store, one at a time; no damaged byte may be used silently.

Run by hand; a short version is in `tests/test_torture.py`:

    python tests/torture/flips.py FOLDER DAMAGES

Every kind of file is made by the code that always makes it. One of its files is damaged: a bit
flipped, the end cut off, or a block of 512 bytes zeroed, at a place that is drawn; its time of
change stays as it was. Then it is read by the code that always reads it, which may give the same
values, give them after doing work again, or refuse with a `FedbenchError`. Other values are
"silent", other exceptions "tracebacks"; there must be none of either.
"""

import logging
import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.bench.data.datasets import load_dataset
from fedbench.bench.data.partition import make_partition
from fedbench.bench.data.rotated import rotated_images
from fedbench.bench.execution.export import export_encoder, load_encoder, load_run
from fedbench.bench.execution.figures import figures
from fedbench.bench.execution.run import run
from fedbench.bench.experiment.resolve import resolve
from fedbench.bench.results.report.content import geometries
from fedbench.bench.results.store import files
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import FedbenchError, StoreError
from fedbench.bench.testing import all_tensors, tiny_config, tiny_setup, train
from fedbench.bench.training.trainer import Trainer
from fedbench.bench.tuning.best import best_file, write_best

BLOCK = 512
SMALL = {"data__train_subset": 40, "data__num_clients": 2, "evaluation__protocols": ("knn",)}


@dataclass(frozen=True)
class Kind:
    """Files of one kind, and their reader.

    Attributes:
        folder: holds them; copied before it is damaged.
        pattern: glob of the files below the folder.
        use: reads a copy of the folder as fedbench does; equal results compare equal.
    """

    folder: Path
    pattern: str
    use: Callable[[Path], Any]


@contextmanager
def warnings_seen() -> Iterator[list[logging.LogRecord]]:
    """Collect fedbench's warnings instead of printing them."""
    logger, queue = logging.getLogger("fedbench"), BufferingHandler(10**6)
    queue.setLevel(logging.WARNING)
    logger.addHandler(queue)
    propagate, logger.propagate = logger.propagate, False
    try:
        yield queue.buffer
    finally:
        logger.removeHandler(queue)
        logger.propagate = propagate


def damage(path: Path, rng: random.Random) -> str:
    """Damage a file and return how."""
    before, data = path.stat(), bytearray(path.read_bytes())
    place = rng.randrange(len(data))
    how = rng.choices(("flip", "cut", "zero"), (6, 2, 2))[0]
    if how == "zero":
        place -= place % BLOCK
        if not any(data[place : place + BLOCK]):
            how = "flip"
    if how == "flip":
        data[place] ^= 1 << rng.randrange(8)
    elif how == "cut":
        del data[place:]
    else:
        data[place : place + BLOCK] = bytes(len(data[place : place + BLOCK]))
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return f"{how} at byte {place}"


def attack(
    kind: Kind, number: int, rng: random.Random, work: Path
) -> tuple[Counter[str], list[str]]:
    """Damage files of a kind one after another; return the outcomes, and lines about bad ones."""
    outcomes: Counter[str] = Counter()
    bad = []
    copy = work / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(kind.folder, copy)
    with warnings_seen() as first:
        expected = kind.use(copy)
    assert not first
    for _ in range(number):
        shutil.rmtree(copy)
        shutil.copytree(kind.folder, copy)
        path = rng.choice(sorted(copy.glob(kind.pattern)))
        where = f"{path.relative_to(copy)}: {damage(path, rng)}"
        files._load.cache_clear()  # of files by size and time, which damage may leave alone
        with warnings_seen() as warned:
            try:
                value = kind.use(copy)
                outcome = "silent" if value != expected else "redone" if warned else "unchanged"
            except FedbenchError:
                outcome = "refused"
            except Exception as err:
                outcome = "traceback"
                where += f": {type(err).__name__}: {err}"
        outcomes[outcome] += 1
        if outcome in ("silent", "traceback"):
            bad.append(f"{outcome}: {where}")
    return outcomes, bad


def check(problems: list[str]) -> None:
    """Raise what a command would warn of."""
    if problems:
        raise StoreError("; ".join(problems))


def reader_of(read: Callable[[Store], Any]) -> Callable[[Path], Any]:
    """Read records of a store; one that cannot be read is named and not used."""

    def use(folder: Path) -> Any:
        store = Store(folder)
        records = read(store)
        check(store.problems())
        return records

    return use


def result(trainer: Trainer) -> Any:
    """Return everything of a run that must not depend on damage."""
    history = [replace(record, seconds=0.0) for record in trainer.history]
    return all_tensors(trainer).tolist(), trainer.ledger, history


def kinds(work: Path) -> dict[str, Kind]:
    """Make the files of all kinds below a folder; their kinds by name."""
    made: dict[str, Kind] = {}
    store = Store(work / "store")
    finished = run(tiny_config("orchestra", **SMALL), store=store, workers=1, device="cpu")
    row = finished.row
    for seed in range(70):  # so many that leaderboard.parquet is read in their place
        store.write_row(row.model_copy(update={"row_id": f"{seed:020x}", "seed": seed}))
    store.refresh()
    for number in range(4):
        params = {"client.lr": 0.1 / (number + 1)}
        store.write_trial("study", number, {"status": "ok", "objective": 0.5, "params": params})
    meta: dict[str, Any] = {"spec": "simclr", "preset": "demo", "study_id": "study"}
    meta |= {"best": {"params": params}, "cautions": [], "trials": 4}
    store.write_study("study", meta)
    write_best(best_file(store, "study"), meta)
    figures([row.row_id], work / "figures", store=store)
    export = work / "export"
    export.mkdir()
    export_encoder(row.row_id, export / "encoder.safetensors", store=store)
    cell = f"cells/{row.row_id}"

    one = work / "one"
    alone = Store(one)
    for number in range(3):
        alone.write_row(row.model_copy(update={"row_id": f"{number:020x}", "seed": number}))
    made["rows"] = Kind(one, "rows/*.parquet", reader_of(Store.rows))
    made["leaderboard.parquet"] = Kind(store.root, "leaderboard.parquet", reader_of(Store.rows))
    studies = work / "studies"
    shutil.copytree(store.root / "trials", studies / "trials")
    made["trials"] = Kind(studies, "trials/study/*.parquet", reader_of(lambda s: s.trials("study")))
    made["study.json"] = Kind(studies, "trials/study/study.json", lambda f: Store(f).study("study"))
    made["best.yaml"] = Kind(
        studies,
        "trials/study/best.yaml",
        lambda f: resolve("simclr", config_files=[best_file(Store(f), "study")]).config,
    )
    whole = work / "whole"
    shutil.copytree(store.root / cell, whole / cell)
    Store(whole).write_row(row)

    def weights(folder: Path) -> Any:
        loaded = load_run(Store(folder), row.row_id)
        return loaded.binding.server.data.tolist(), loaded.setup.client_partition

    def maps(folder: Path) -> Any:
        records, problems = geometries(Store(folder), [row.row_id])
        check(problems)
        return records

    made["curve.parquet"] = Kind(
        whole, f"{cell}/curve.parquet", lambda f: Store(f).curve(row.row_id)
    )
    made["geometry.json"] = Kind(whole, f"{cell}/geometry.json", maps)
    made["checkpoint of a finished run"] = Kind(whole, f"{cell}/round-*.safetensors", weights)
    made["exported encoder"] = Kind(
        export,
        "encoder.safetensors",
        lambda f: {
            name: value.tolist()
            for name, value in load_encoder(f / "encoder.safetensors").state_dict().items()
        },
    )

    for name, spec, values in (
        ("orchestra", "orchestra", {}),
        ("pfedae", "pfedae", {"model__width": 4}),
        ("byol, personal target", "byol", {"method__target": "personal"}),
        ("byol, fedu", "byol", {"method__update": "fedu", "method__target": "personal"}),
    ):
        setup = tiny_setup(tiny_config(spec, federation__num_rounds=3, **{**SMALL, **values}))
        folder = work / spec / name
        rounds = setup.config.federation.num_rounds + setup.needs.preparatory_rounds
        trainer = train(setup, folder, rounds=rounds - 1)  # one is left

        def resumed(copy: Path, setup: Any = setup) -> Any:
            return result(train(setup, copy))

        made[f"checkpoints, {name}"] = Kind(folder, "round-*.safetensors", resumed)
        made[f"rounds, {name}"] = Kind(folder, "history.jsonl", resumed)
        if trainer.personal_rounds:
            made[f"clients, {name}"] = Kind(folder, "clients/*.safetensors", resumed)

    data = work / "data"

    def images(folder: Path) -> Any:
        opened = load_dataset("digits", folder)
        arrays = (opened.train_images, opened.train_labels, opened.test_images, opened.test_labels)
        return opened.revision, opened.class_names, [array.tobytes() for array in arrays]

    images(data)
    made["data cache, arrays"] = Kind(data, "digits/*.npy", images)
    made["data cache, meta.json"] = Kind(data, "digits/meta.json", images)
    shift = tiny_config("simclr", data__partition="rotation", data__train_subset=None).data
    turned = work / "turned"

    def rotated(folder: Path) -> Any:
        opened = load_dataset("digits", folder)
        shares = make_partition(opened.train_labels, opened.num_classes, shift, 0)
        return np.asarray(rotated_images(opened, shares)).tobytes()

    rotated(turned)
    made["rotated images"] = Kind(turned, "digits/rotated-*.safetensors", rotated)
    return made


if __name__ == "__main__":
    work = Path(sys.argv[1])
    for name, kind in kinds(work).items():
        print(name, *attack(kind, int(sys.argv[2]), random.Random(name), work), flush=True)
