"""A run from configuration to row, and the store around it."""

from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from fedbench.bench.config.schema import PROTOCOLS
from fedbench.bench.evaluation.objective import client_statistics
from fedbench.bench.evaluation.sgd import FRACTIONS
from fedbench.bench.evaluation.suite import evaluate, scored_clients
from fedbench.bench.execution.engines import Where
from fedbench.bench.execution.execute import Paused, execute
from fedbench.bench.execution.run import forget_cell, run
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.results.store.row import FINAL_METRICS, Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.testing import tiny_config, tiny_setup, train
from fedbench.bench.training.history import RoundRecord
from tests.specs import TIMES, setup_of


def result(row: Row) -> dict[str, Any]:
    return row.model_dump(exclude=TIMES)


def test_a_run_pauses_goes_back_and_continues(tmp_path: Path) -> None:
    config = tiny_config("orchestra", federation__num_rounds=3)  # one preparatory round besides

    def to(end: int | None, folder: str) -> Any:
        where = Where(tmp_path / folder, until_round=end)
        try:
            return execute(Experiment(config), where)
        except Paused as paused:
            return paused

    first, second = to(1, "a"), to(2, "a")
    assert (first.rounds_done, second.rounds_done) == (2, 3)
    assert first.metrics != second.metrics
    assert to(1, "a").metrics == first.metrics  # a state that is past comes from the start
    assert {**result(to(None, "a")), "environment": {}} == {**result(to(3, "b")), "environment": {}}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
def test_the_peak_of_memory_is_that_of_the_run(tmp_path: Path) -> None:
    """Not of what the process, or the program that started it, held before."""
    large = 2**29
    assert len(b"x" * large) == large  # gone again
    row = execute(Experiment(tiny_config("supervised", federation__num_rounds=1)), Where(tmp_path))
    held = psutil.Process().memory_info().rss
    assert abs((row.peak_memory_bytes or 0) - held) < large / 2


def test_a_run_becomes_a_row_and_is_not_run_again(tmp_path: Path) -> None:
    store, seen = Store(tmp_path / "store"), []
    config = tiny_config("simclr+uv")

    def watch(record: RoundRecord, total: int) -> None:
        seen.append((record.round_index, total))

    first = run(config, store=store, workers=1, on_round=watch)
    row = first.row
    assert not first.stored_before
    shown = f"<run {row.row_id[:8]}: simclr+uv, preset custom, seed 0, ok, linear_acc 0."
    assert repr(first).startswith(shown)
    assert seen == [(0, 2), (1, 2)]
    assert (row.status, row.method, row.rounds_done, row.resumes) == ("ok", "simclr+uv", 2, 0)
    for name in (
        *FINAL_METRICS,
        "untrained_objective",
        "untrained_knn_acc",
        "untrained_linear_acc",
    ):
        if name != "linear_paper_acc":
            assert getattr(row, name) is not None, name
    assert row.further["relative_movement"] > 0
    again = run(config, store=store, workers=1, on_round=watch)
    assert again.stored_before
    assert again.row == row
    assert len(seen) == 2
    folder = store.cell_dir(row.row_id)
    assert len(list(folder.glob("round-*"))) == 1  # what export reads
    assert (folder / "curve.parquet").exists()
    forget_cell(store, row.row_id)
    assert not folder.exists()


@pytest.mark.parametrize("spec", ["simclr", "pfedae"])
def test_a_run_broken_off_anywhere_ends_with_the_same_row(tmp_path: Path, spec: str) -> None:
    """The files of clients' tensors and optimizers are the same as well."""
    few = {"evaluation__every": 1, "evaluation__protocols": ["knn"]}
    config = tiny_config(spec, federation__num_rounds=3, **few)
    whole = execute(Experiment(config), Where(tmp_path / "whole"))

    class StopError(Exception):
        pass

    def stop(record: RoundRecord, total: int) -> None:
        raise StopError

    for _ in range(2):
        with pytest.raises(StopError):
            execute(Experiment(config), Where(tmp_path / "cut"), stop)
    resumed = execute(Experiment(config), Where(tmp_path / "cut"))
    assert resumed.resumes == 2
    assert result(resumed) == result(whole)
    files = [
        {path.name: path.read_bytes() for path in (tmp_path / name).glob("clients/*")}
        for name in ("whole", "cut")
    ]
    assert files[0] == files[1]
    assert len(files[0]) == (2 * 4 if spec == "pfedae" else 0)  # two rounds of each client


def test_single_rounds_are_evaluated_where_they_are_named(tmp_path: Path) -> None:
    """As an interval evaluates them, but counted without Orchestra's preparatory round."""
    curves = []
    for name, fields in (("named", {"rounds": [2, 3]}), ("all", {"every": 1})):
        keys: dict[str, Any] = {f"evaluation__{field}": value for field, value in fields.items()}
        keys |= {"evaluation__protocols": [], "evaluation__untrained": False}
        store = Store(tmp_path / name)
        config = tiny_config("orchestra", federation__num_rounds=3, **keys)
        row = run(config, store=store, workers=1).row
        curves.append([point.get("metrics.objective") for point in store.curve(row.row_id)])
    named, every = curves
    assert named == [None, None, *every[-2:]]
    assert every[-1] is None  # the end of a run is not a point in between
    assert None not in every[:-1]


def test_no_round_at_all_measures_the_untrained_encoder(tmp_path: Path) -> None:
    row = execute(Experiment(tiny_config("simclr", federation__num_rounds=0)), Where(tmp_path))
    assert (row.status, row.final_loss, row.bytes_up) == ("ok", None, 0)
    assert row.objective == row.untrained_objective
    assert row.further["relative_movement"] == 0


def test_personal_encoders_move_and_are_scored_on_their_own_clients_images(tmp_path: Path) -> None:
    config = tiny_config("single-ae", evaluation__protocols=["mlp", "local"])
    row = execute(Experiment(config), Where(tmp_path))
    values = row.further
    assert values["relative_movement"] > 0
    names = {"linear_local_acc", "mlp_acc", "mlp_local_acc"}
    assert names | {f"{name}_std" for name in names} | {f"untrained_{n}" for n in names} < set(
        values
    )
    assert row.linear_acc is not None
    assert row.knn_acc is None


def test_clients_that_no_cohort_has_drawn_do_not_count(tmp_path: Path) -> None:
    config = tiny_config("single-ae", federation__num_rounds=1, federation__participation=0.25)
    values = execute(Experiment(config), Where(tmp_path)).further
    assert values["linear_acc_std"] == 0  # of one of four


def test_the_objective_reads_no_label(tmp_path: Path) -> None:
    """Other labels in the data set give the same numbers when no protocol runs."""
    config = tiny_config("simclr")
    setup = tiny_setup(config)
    swapped = (np.array(setup.dataset.train_labels) + 1) % 10
    evaluations = []
    for index, other in enumerate((setup, tiny_setup(config, train_labels=swapped))):
        trainer = train(other, tmp_path / str(index))
        evaluations.append(
            evaluate(other, trainer.binding, lambda k: None, (), torch.device("cpu"))
        )
    assert evaluations[0] == evaluations[1]
    assert not [name for name in evaluations[0] if name.endswith("_acc")]


def test_scores_are_made_of_the_drawn_clients_only(tmp_path: Path) -> None:
    setup = setup_of("simclr")
    net, cpu = train(setup, tmp_path).binding, torch.device("cpu")
    everyone = evaluate(setup, net, lambda k: None, (), cpu)
    for count in (1, 2, 99):
        other = setup_of("simclr", evaluation__objective_clients=count)
        drawn = scored_clients(other)
        assert len(drawn) == min(count, 4)
        found = evaluate(other, net, lambda k: None, (), cpu)
        alone = client_statistics(
            lambda x: setup.method.embed(net.net, x),
            [(k, setup.client_partition.client(k).astype(np.int64)) for k in drawn],
            setup.images,
            setup.config,
            cpu,
        )
        assert found["align"] == pytest.approx(np.mean([one.align for one in alone]), abs=1e-7)
        assert found["objective_bytes"] == everyone["objective_bytes"] * len(drawn) / 4
    assert found == everyone
    single = {"evaluation__objective_clients": 1}
    assert len({scored_clients(setup_of("simclr", seed=s, **single))[0] for s in range(6)}) > 1
    personal = tiny_config("simclr", model__norm="batch-local", evaluation__objective_clients=1)
    assert scored_clients(tiny_setup(personal)) == [0, 1, 2, 3]


def test_images_without_any_label_train(tmp_path: Path) -> None:
    for index, image in enumerate(load_digits().images[:40]):
        Image.fromarray((15 * image).astype(np.uint8)).save(tmp_path / f"{index}.png")
    config = tiny_config(
        "simclr",
        data__name=f"folder:{tmp_path}",
        data__train_subset=None,
        data__test_subset=None,
        evaluation__protocols=[],
    )
    row = run(config, store=tmp_path / "store", workers=1, data_dir=tmp_path / "cache").row
    assert (row.status, row.linear_acc) == ("ok", None)
    assert row.objective is not None


def test_hidden_labels_reach_no_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other labels in where of the hidden ones change no weight and no metric of any protocol."""
    for fraction in FRACTIONS:
        monkeypatch.setitem(FRACTIONS, fraction, (2, 8, 1))
    config = tiny_config("simclr", data__label_fraction=0.25)
    setup = tiny_setup(config)
    labels = np.array(setup.dataset.train_labels)
    hidden = setup.known_labels < 0
    assert hidden.sum() == 60
    labels[hidden] = (labels[hidden] + 1 + np.arange(60) % 8) % 10
    protocols = [name for name in PROTOCOLS if name != "local"]  # it deals test images
    evaluations = []
    for index, other in enumerate((setup, tiny_setup(config, train_labels=labels))):
        trainer = train(other, tmp_path / str(index), rounds=1)
        binding = trainer.binding
        evaluations.append(evaluate(other, binding, lambda k: None, protocols, torch.device("cpu")))
    assert evaluations[0] == evaluations[1]
    assert {"knn_acc", "linear_acc", "linear_paper_acc", "finetune_1pct_acc"} <= set(evaluations[0])
