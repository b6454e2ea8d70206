"""A run knows its numeric platform by what it computes itself on fixed images."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import fedbench
from fedbench.bench.execution.arithmetic import arithmetic
from fedbench.bench.execution.compare import judge
from fedbench.bench.experiment.experiment import Experiment
from fedbench.bench.results.store.replicas import known_apart
from fedbench.bench.results.store.row import Row
from fedbench.bench.testing import tiny_config
from fedbench.bench.training.platforms import ARITHMETIC, parts_apart
from fedbench.bench.training.setup import Setup

CPU = torch.device("cpu")


def setup_of(spec: str, **values: Any) -> Setup:
    return Experiment(tiny_config(spec, **values)).setup


@pytest.mark.parametrize("spec", ["simclr", "orchestra", "pfedae", "cbafed", "fedsc"])
def test_hashes_repeat_and_cover_training_and_scores(spec: str) -> None:
    setup = setup_of(spec)
    state = torch.get_rng_state()
    hashes = arithmetic(setup, CPU)
    assert hashes.keys() == {"training", "scores"}
    assert arithmetic(setup, CPU) == hashes
    assert torch.equal(torch.get_rng_state(), state)


def test_a_round_that_draws_nobody_has_hashes() -> None:
    """Client-level privacy draws each client by itself."""
    setup = setup_of("simclr", privacy__clip=0.5, federation__participation=0.001)
    assert not len(setup.cohort(0, setup.plan(0)))
    assert arithmetic(setup, CPU).keys() == {"training", "scores"}


def test_hashes_do_not_depend_on_the_data() -> None:
    setup = setup_of("simclr")
    other = replace(setup, images=255 - setup.images)
    assert arithmetic(other, CPU) == arithmetic(setup, CPU)


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"server__optimizer": "adam"}, ["training"]),
        ({"client__lr": 0.011}, ["training"]),
        ({"model__width": 6}, ["scores", "training"]),
        ({"evaluation__objectives": ["rankme"]}, ["scores"]),
    ],
)
def test_what_a_run_computes_is_in_them(values: dict[str, Any], parts: list[str]) -> None:
    records = [[{ARITHMETIC: arithmetic(setup_of("simclr", **v), CPU)}] for v in ({}, values)]
    assert parts_apart(*records) == parts


def test_another_square_root_is_another_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """As two processors that MKL's vector functions serve: the name of the platform stays."""
    setup, real = setup_of("simclr", client__optimizer="adam"), torch.Tensor.sqrt

    def rounded_down(tensor: torch.Tensor) -> torch.Tensor:
        root = real(tensor)
        return torch.nextafter(root, torch.zeros_like(root))

    before = arithmetic(setup, CPU)
    monkeypatch.setattr(torch.Tensor, "sqrt", rounded_down)
    after = arithmetic(setup, CPU)
    assert after["training"] != before["training"]


def test_a_step_that_is_not_finite_has_no_hash() -> None:
    assert arithmetic(setup_of("simclr", client__lr=1e30), CPU).keys() == {"scores"}


@pytest.fixture(scope="module")
def row(tmp_path_factory: pytest.TempPathFactory) -> Row:
    store = tmp_path_factory.mktemp("store")
    made = fedbench.run(tiny_config("simclr"), store=store, workers=1, device="cpu").row
    return made.model_copy(update={"git_sha": "0123456789ab"})  # not that of a tree with edits


def elsewhere(row: Row, parts: Sequence[str], **changes: Any) -> Row:
    """Return the row of a processor of the same name that computes some parts otherwise."""
    record = row.platforms[0]
    hashes = {**record[ARITHMETIC], **dict.fromkeys(parts, "0" * 16)}
    return row.model_copy(update={"platforms": [{**record, ARITHMETIC: hashes}], **changes})


def test_other_bits_of_another_arithmetic_are_no_contradiction(row: Row) -> None:
    assert row.objective is not None
    close = {"objective": row.objective * (1 + 1e-6)}
    again = elsewhere(row, parts=["scores"], **close)
    assert known_apart(row, again)
    found = judge(row, again, [row], 10**6)
    assert (found.verdict, found.parts_apart) == ("within seed spread", ("scores",))
    same = judge(row, row.model_copy(update=close), [row], 10**6)
    assert (same.verdict, same.parts_apart) == ("different", ())


@pytest.mark.parametrize(
    ("then", "now"), [("0123456789ab", "ba9876543210"), ("0123456789ab-dirty",) * 2]
)
def test_an_edit_of_the_code_is_no_other_processor(row: Row, then: str, now: str) -> None:
    row = row.model_copy(update={"git_sha": then})
    again = elsewhere(row, ["training"], objective=0.1, git_sha=now)
    assert not known_apart(row, again)
    found = judge(row, again, [row], 10**6)
    assert (found.verdict, found.parts_apart) == ("different", ("training",))
    assert found.reason == "the code may have changed, and so compute training otherwise"


def test_a_loss_differs_only_where_training_does(row: Row) -> None:
    assert row.final_loss is not None
    other = {"final_loss": row.final_loss * (1 + 1e-6)}
    found = judge(row, elsewhere(row, parts=["scores"], **other), [row], 10**6)
    assert found.verdict == "different"
    assert found.reason == "final_loss differs, and both processors train alike"
    found = judge(row, elsewhere(row, parts=["training", "scores"], **other), [row], 10**6)
    assert found.verdict == "within seed spread"


def test_rows_without_hashes_are_compared_by_the_name(row: Row) -> None:
    (record,) = row.platforms
    old = row.model_copy(
        update={"platforms": [{k: v for k, v in record.items() if k != ARITHMETIC}]}
    )
    assert not known_apart(old, elsewhere(row, parts=["training"]))
