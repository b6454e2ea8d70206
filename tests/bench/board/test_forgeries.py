"""Forgeries: each is refused by the named check, which names what it found.

The forger is able: files, hashes, cards and the manifest are made anew after each change, and where
the configuration is changed, so are the ids that follow from it.
"""

import os
import re
import zipfile
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fedbench.bench.board.boards import leaderboard
from fedbench.bench.board.bundle import Run, files_of, pack, write_manifest, zipped
from fedbench.bench.board.checks import Checker, Claim, Problem, blank, check_configuration
from fedbench.bench.board.verify import _text, submit, verify_bundle
from fedbench.bench.config import RunConfig
from fedbench.bench.execution.execute import derived
from fedbench.bench.execution.run import run
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.experiment.fields import canonical
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.schema import read_table, table_bytes
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.checksums import json_with_checksum, parse_json
from fedbench.bench.system.errors import ConfigError, StoreError
from fedbench.bench.testing import tiny_config
from tests.bench.results.conftest import build_row
from tests.specs import flip

from .conftest import elsewhere

Forge = Callable[[Run, Run], Run]
"""From the row of seed 0 and that of seed 1, which the board has, to a forged one."""


def with_row(entry: Run, **columns: Any) -> Run:
    return replace(entry, row=Row(**(dict(entry.row) | columns)))


def with_config(entry: Run, **columns: Any) -> Run:
    """Change fields of the configuration, named with `__` for the dot, and all ids with them."""
    body, given = deepcopy(entry.row.settings), {}
    for name, value in columns.items():
        section, _, key = name.partition("__")
        if key and section in body:
            body[section][key] = value
        elif section in body:
            body[section] = value
        else:
            given[name] = value
    config = RunConfig.model_validate(body)
    revision = given.get("dataset_revision", entry.row.dataset_revision)
    follows = derived(config, revision)
    return with_row(entry, settings=body, **(follows | given))


def with_points(entry: Run, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Run:
    return replace(entry, points=tuple(change(dict(point)) for point in entry.points))


def with_metrics(entry: Run, **numbers: float) -> Run:
    return with_row(entry, further=entry.row.further | numbers)


def half_of_all_traffic(entry: Run) -> Run:
    """Halve the ledger everywhere: in each round, in the sums, and in the row."""

    def halved(name: str, value: Any) -> Any:
        return value // 2 if name.endswith(("bytes", "numbers", "_up", "_down")) else value

    entry = with_points(
        entry, lambda point: {n: v if v is None else halved(n, v) for n, v in point.items()}
    )
    traffic = deepcopy(entry.row.traffic)
    for flows in traffic.values():
        for flow in flows.values():
            flow.update({name: halved(name, value) for name, value in flow.items()})
    return with_row(
        entry,
        bytes_up=(entry.row.bytes_up or 0) // 2,
        bytes_down=(entry.row.bytes_down or 0) // 2,
        traffic=traffic,
    )


def of_another_method(entry: Run) -> Run:
    return with_config(
        entry, spec="byol", method=tiny_config("byol").method | {"projection_dim": 128}
    )


OTHER_PLATFORM = "arm64 neon, onednn acl, torch 2.14.1, cpu, 01234567"
FORGERIES: tuple[tuple[str, str, Forge], ...] = (
    ("metrics", "linear_acc", lambda a, _: with_row(a, linear_acc=0.51234)),  # of part of an image
    ("metrics", "objective", lambda a, _: with_row(a, objective=0.9)),
    ("metrics", "mlp_acc", lambda a, _: with_metrics(a, mlp_acc=1.5)),
    ("metrics", "linear_local_acc", lambda a, _: with_metrics(a, linear_local_acc=1.5)),
    ("metrics", "untrained_mlp_acc", lambda a, _: with_metrics(a, untrained_mlp_acc=1.5)),
    ("metrics", "mlp_acc", lambda a, _: with_metrics(a, mlp_acc=0.51234)),
    ("metrics", "mlp_acc", lambda a, _: with_points(a, lambda p: p | {"metrics.mlp_acc": 1.5})),
    ("rounds", "final_loss", lambda a, _: with_row(a, final_loss=0.1)),
    ("rounds", "std_ratio", lambda a, _: with_row(a, std_ratio=0.99)),
    ("rounds", "120", lambda a, _: with_config(a, federation=rounds(120))),
    ("rounds", "1000000", lambda a, _: with_config(a, federation=rounds(10**6))),
    ("rounds", "at most 2", lambda a, _: with_config(a, federation=rounds(12, 0.2))),
    ("rounds", "final_loss", lambda a, b: replace(a, points=b.points)),  # of another seed
    ("rounds", "11 rounds", lambda a, _: replace(a, points=a.points[:3] + a.points[4:])),
    ("configuration", "seed", lambda a, _: with_row(a, seed=7)),
    ("configuration", "selection", lambda a, _: with_row(a, selection="label-free")),
    ("configuration", "benchmark_version", lambda a, _: with_row(a, benchmark_version="4")),
    ("configuration", "cifar100", lambda a, _: with_row(a, dataset="cifar100")),
    ("configuration", "data.num_clients", lambda a, _: with_config(a, data__num_clients=10**6)),
    ("configuration", "0" * 12, lambda a, _: with_config(a, dataset_revision="0" * 64)),
    ("configuration", "method.x", lambda a, _: with_config(a, method=of_method(a) | {"x": 1})),
    ("ledger", "bytes_up", lambda a, _: with_row(a, bytes_up=1_000_000)),
    ("ledger", "revealing_messages", lambda a, _: with_row(a, revealing_messages=3)),
    ("ledger", "epsilon", lambda a, _: with_row(a, epsilon=1.0, delta=1e-5, epsilon_of="a client")),
    ("ledger", "num_parameters", lambda a, _: with_config(a, model__width=2048)),  # too large a net
    ("ledger", "num_parameters", lambda a, _: of_another_method(a)),
    ("ledger", "encoder", lambda a, _: with_points(a, lambda p: p | {"idle_clients": 1})),
    ("ledger", "numbers", lambda a, _: half_of_all_traffic(a)),
    ("code", "git_sha", lambda a, _: with_row(a, git_sha=f"{a.row.git_sha}-dirty")),
    ("environment", "arm64 neon", lambda a, _: with_row(a, platform=OTHER_PLATFORM)),
    # Better numbers for a run that the board has.
    ("copies", "knn_acc", lambda _, b: with_row(b, linear_acc=0.5, knn_acc=0.45)),
)
"""The check that refuses, what it names, and the forgery."""


def rounds(number: int, participation: float = 0.5) -> dict[str, Any]:
    return {"num_rounds": number, "participation": participation}


def of_method(entry: Run) -> dict[str, Any]:
    return dict(entry.row.settings["method"])


@pytest.fixture(scope="module")
def board(honest: tuple[Run, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Store with the row of seed 1."""
    folder = tmp_path_factory.mktemp("board")
    pack(honest[1:2], None, folder)
    return folder


def found(folder: Path, board: Path) -> tuple[Problem, ...]:
    result = verify_bundle(folder, board)
    assert result.ok == (not result.problems)
    return result.problems


def test_honest_rows_pass(honest: tuple[Run, ...], board: Path, tmp_path: Path) -> None:
    pack(honest, None, tmp_path)
    result = verify_bundle(tmp_path, board)
    assert result.problems == ()
    assert {check.check: check.passed for check in result.checks} == {
        **dict.fromkeys(("files", "configuration", "code", "rounds", "ledger"), 3),
        **dict.fromkeys(("metrics", "environment"), 3),
        "copies": 1,
        "partition": 0,  # no images here
    }


def test_another_folder_of_the_same_images_is_no_contradiction(honest: tuple[Run, ...]) -> None:
    row = with_row(honest[0], dataset="folder:a").row
    for name, refused in (("folder:b", False), ("npz:a", False), ("cifar10", True)):
        data = blank(name, (3, 32, 32), 10, 1, 1)
        claim = Claim(row, (), canonical(row.config), data, None)  # type: ignore[arg-type]
        assert bool([*check_configuration(claim)]) is refused


def of_plugin(entry: Run, code: Mapping[str, str]) -> Run:
    body = {**entry.row.settings, "spec": "not-here", "code": dict(code)}
    columns = derived(RunConfig.model_validate(body), entry.row.dataset_revision)
    env = {**entry.row.environment, "their-package": "1.2"}
    texts = {"settings": body, "environment": env}
    return with_row(entry, **columns, **texts)


def test_missing_code_is_no_contradiction(
    honest: tuple[Run, ...], board: Path, tmp_path: Path
) -> None:
    """Checks of a plugin's rows are not made where it is not installed."""
    known = of_plugin(honest[0], {"not-here": "0" * 16})
    pack([known, honest[1]], None, tmp_path / "plugin")
    result = verify_bundle(tmp_path / "plugin", board)
    assert result.problems == ()
    counts = {check.check: (check.passed, check.unchecked) for check in result.checks}
    assert counts["ledger"] == counts["configuration"] == (1, 1)
    assert all("their-package 1.2" in c.reason for c in result.checks if c.unchecked)
    assert "their-package 1.2" in _text("0" * 64, [known.row], None)
    pack([known], None, tmp_path / "alone")
    assert verify_bundle(tmp_path / "alone", board, rerun=1).reruns == ()
    pack([of_plugin(honest[0], {})], None, tmp_path / "unknown")  # no package brought it
    (problem,) = found(tmp_path / "unknown", board)
    assert problem.check == "configuration"


@pytest.mark.parametrize(("check", "reason", "forge"), FORGERIES)
def test_a_forged_row(
    check: str, reason: str, forge: Forge, honest: tuple[Run, ...], board: Path, tmp_path: Path
) -> None:
    pack([forge(honest[0], honest[1])], None, tmp_path)
    problems = found(tmp_path, board)
    assert any(reason in each.problem for each in problems if each.check == check), problems


@pytest.mark.parametrize(
    ("name", "check"), [("metrics.mlp_acc", "metrics"), ("simulated.asked", "ledger")]
)
def test_an_infinite_number_of_a_curve(name: str, check: str, honest: tuple[Run, ...]) -> None:
    checker = Checker()
    checker(with_points(honest[0], lambda point: point | {name: inf}))
    assert {problem.check for problem in checker.problems} == {check}


def accuracy_above_one(folder: Path, row_id: str) -> None:
    path = folder / files_of(row_id)[0]
    table = read_table(path.read_bytes())
    position = table.schema.get_field_index("metric.linear_acc")
    table = table.set_column(position, table.schema.field("metric.linear_acc"), pa.array([1.2]))
    path.write_bytes(table_bytes(table, alone=True))
    write_manifest(folder, None)


def curve_of(folder: Path, row_id: str) -> Path:
    return folder / files_of(row_id)[1]


def listed(folder: Path, **content: Any) -> None:
    """Change what the manifest says, and its checksum with it."""
    path = folder / "manifest.json"
    path.write_text(json_with_checksum(parse_json(path.read_text()) | content))


def bomb(folder: Path, row_id: str) -> None:
    """Some kilobytes that unpack to 320 MB."""
    table = pa.table({"loss": np.zeros(4 * 10**7)})
    curve_of(folder, row_id).write_bytes(table_bytes(table))
    write_manifest(folder, None)


def pipe(folder: Path, row_id: str) -> None:
    curve_of(folder, row_id).unlink()
    os.mkfifo(curve_of(folder, row_id))


def device(folder: Path, row_id: str) -> None:
    path = folder / files_of(row_id)[0]
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("forge", "named"),
    [
        (bomb, "curve.parquet"),
        (pipe, "curve.parquet"),
        (device, "rows/"),
        (accuracy_above_one, "linear_acc"),
        (lambda folder, run: flip(curve_of(folder, run), 500), "curve.parquet"),
        (lambda folder, run: curve_of(folder, run).unlink(), "curve.parquet"),
        (lambda folder, _: flip(folder / "manifest.json", 500), "manifest.json"),
        (lambda folder, _: listed(folder, rows=["0" * 20]), "is of no row that it lists"),
        (lambda folder, _: listed(folder, format=2), "format"),
        (lambda folder, _: (folder / "rows" / "notes.txt").touch(), "rows/notes.txt"),
    ],
)
def test_forged_files(
    forge: Callable[[Path, str], None],
    named: str,
    honest: tuple[Run, ...],
    board: Path,
    tmp_path: Path,
) -> None:
    pack(honest[:1], None, tmp_path)
    forge(tmp_path, honest[0].row.row_id)
    (problem,) = found(tmp_path, board)
    assert problem.check == "files"
    assert named in problem.problem


def test_what_is_no_bundle(tmp_path: Path) -> None:
    text, archive = tmp_path / "text.zip", tmp_path / "other.zip"
    text.write_text("rows")
    archive.write_bytes(zipped({"../rows": b""}))
    for place, named in (
        (text, "no .zip that can be read"),
        (archive, "holds '../rows', no file of a bundle"),
        (tmp_path, "it has no manifest.json"),
        (tmp_path / "none", "there is no bundle"),
        (tmp_path / ("x" * 300), "too long"),
    ):
        with pytest.raises(StoreError, match=re.escape(named)):
            verify_bundle(place, tmp_path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_a_damaged_archive_of_another_program(compression: int, tmp_path: Path) -> None:
    file = tmp_path / "damaged.zip"
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("manifest.json", "all work and no play " * 1000)
    for place in range(60, 120):
        flip(file, place)
        with pytest.raises(StoreError, match=r"no \.zip that can be read"):
            verify_bundle(file, tmp_path)
        flip(file, place)


def test_runs_that_cannot_be_submitted(honest: tuple[Run, ...], tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    first, second, _ = (entry.row for entry in honest)
    failed = build_row(tiny_config("byol"), status="error", error="no memory")
    for row in (first, second, failed):  # the second has no curve
        store.write_row(row)
    store.write_curve(first.row_id, honest[0].points)
    packed = submit(store=store, every=True, file=tmp_path / "one.zip")
    assert packed.rows == (first.row_id,)
    left_out = sorted(packed.left_out, key=len)
    assert ["no memory" in left_out[0], "no curve" in left_out[1]] == [True, True]
    with pytest.raises(StoreError, match="no memory"):
        submit([first.row_id, failed.row_id], store)
    with pytest.raises(ConfigError, match="is there already"):
        submit([first.row_id], store, file=tmp_path)
    other = elsewhere(honest[0]).row
    store.write_replica(other)
    store.write_curve(store.key(other), honest[0].points)
    both = submit(store=store, every=True, file=tmp_path / "one.zip")  # of one platform
    assert (both.id, "another platform" in " ".join(both.left_out)) == (packed.id, True)


def test_a_proposal_asks_for_images_that_others_do_not_have(honest: tuple[Run, ...]) -> None:
    row = honest[0].row
    own = row.model_copy(update={"dataset": "folder:shapes", "dataset_revision": "0" * 64})
    texts = [_text("0" * 64, [each], None) for each in (row, own)]
    assert ["folder:shapes: PUBLIC ADDRESS" in text for text in texts] == [False, True]


def test_the_partition_of_another_seed(tmp_path: Path) -> None:
    """Where the labels are here, the data are partitioned again."""
    store = Store(tmp_path / "store")
    row = run(tiny_config("simclr"), store=store, workers=1, device="cpu").row
    other = tiny_config("simclr", seed=1)
    made = Experiment(other).partition.hash
    assert made != row.partition_hash
    forged = row.model_copy(update={"git_sha": None, "partition_hash": made})
    pack([Run(forged, tuple(store.curve(row.row_id)))], None, tmp_path / "bundle")
    (problem,) = found(tmp_path / "bundle", tmp_path / "no board")
    assert problem.check == "partition"
    assert row.partition_hash in problem.problem


def nothing_crosses(entry: Run) -> Run:
    """Leave activations out everywhere, with their bytes."""
    said = deepcopy(entry.row.traffic)
    traffic = {d: {g: f for g, f in said[d].items() if g != "activations"} for d in said}

    def cleared(point: dict[str, Any]) -> dict[str, Any]:
        known = {name: value for name, value in point.items() if value is not None}
        for direction in ("up", "down"):
            gone = f"traffic.{direction}.activations"
            known[f"bytes_{direction}"] -= known.get(f"{gone}.bytes", 0)
            known = {name: value for name, value in known.items() if not name.startswith(gone)}
        return known

    sums = {f"bytes_{d}": sum(f["bytes"] for f in flows.values()) for d, flows in traffic.items()}
    hidden = {"revealing_messages": 0, "smallest_group": None, **sums}
    points = with_points(entry, cleared)
    return with_row(points, traffic=traffic, **hidden)


def test_activations_that_are_left_out(tmp_path: Path) -> None:
    """The method's table says that activations cross."""
    store = Store(tmp_path / "store")
    row = run(tiny_config("pfedae"), store=store, workers=1, device="cpu").row
    assert row.revealing_messages
    known = row.model_copy(update={"git_sha": None})
    entry = Run(known, tuple(store.curve(row.row_id)))
    pack([entry], None, tmp_path / "true")
    assert found(tmp_path / "true", tmp_path / "no board") == ()
    pack([nothing_crosses(entry)], None, tmp_path / "forged")
    problems = found(tmp_path / "forged", tmp_path / "no board")
    assert {problem.check for problem in problems} == {"ledger"}
    assert "activations" in problems[0].problem


def test_a_label_free_choice_carries_its_study(
    honest: tuple[Run, ...], board: Path, tmp_path: Path
) -> None:
    store = Store(tmp_path / "a")
    trial = {"number": 0, "status": "ok", "params": {"client.lr": 0.1}, "objective": 0.5}
    store.write_trial("mine", 0, trial)
    meta = {"study_id": "mine", "spec": "simclr", "preset": "demo", "trials": 1}
    meta |= {"config": {"data": {"name": "cifar10"}}, "seeds_per_trial": 1}
    store.write_study("mine", meta | {"finished_at": "2026-11-23"})
    tuned = with_row(honest[0], selection="label-free", tuned=True, study_id="mine")
    pack([tuned], None, tmp_path / "bundle", store)
    assert found(tmp_path / "bundle", board) == ()
    (line,) = leaderboard(tmp_path / "bundle").board.entries
    assert any(note.startswith("tuned in 1 runs") for note in line.notes)
