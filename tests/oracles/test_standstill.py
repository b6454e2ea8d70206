"""A run in which no weight moved is reported, whatever the method, like one that collapsed.

Ten of eleven clients hold one image, fewer than a batch, so that a cohort of one of them makes no
step: seed 1 draws two of these in two rounds, seed 0 the large client in one of the two.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedbench.bench.evaluation.collapse import movement
from fedbench.bench.method import Batch, Client, Loss, Net
from fedbench.bench.results.leaderboard.formats import to_markdown
from fedbench.bench.results.leaderboard.leaderboard import Leaderboard
from fedbench.bench.results.store.row import Row
from fedbench.bench.terminal.show_runs import warnings
from fedbench.bench.testing import tiny_config, tiny_setup, train
from fedbench.bench.training.record import never_reached
from fedbench.methods.simclr import SimCLR
from tests.bench.results.conftest import build_row, rank


def run(
    spec: str, folder: Path, *, clients: int = 11, large: int = 0, cohort: int = 1, **values: Any
) -> tuple[int, Row]:
    """Train two rounds; client `large` holds all images but one for each of the others.

    Returns how often a client made no step, and the row of the movement.
    """
    shares = [[image] for image in range(clients)]
    shares[large] = [*range(clients, 80)]
    config = tiny_config(
        spec,
        data__num_clients=clients,
        federation__participation=cohort / clients,
        client__keep_last_batch=False,
        model__norm="group",  # no statistics that a training without steps would leave empty
        **values,
    )
    trainer = train(tiny_setup(config, shares=shares), folder)
    row = build_row(config, further={"relative_movement": movement(trainer)})
    return sum(record.idle_clients for record in trainer.history), row


@pytest.mark.parametrize("spec", ["simclr", "pfedae", "simclr+fedu2", "simclr+scaffold"])
def test_a_run_in_which_nobody_made_a_step_warns(tmp_path: Path, spec: str) -> None:
    idle, row = run(spec, tmp_path, seed=1)
    assert (idle, row.further["relative_movement"]) == (2, 0)
    assert len(warnings(row)) == 1


@pytest.mark.parametrize("spec", ["simclr", "pfedae"])
def test_a_run_in_which_somebody_made_a_step_does_not(tmp_path: Path, spec: str) -> None:
    idle, row = run(spec, tmp_path, seed=0)
    assert (idle, warnings(row)) == (1, [])


def test_weights_that_moved_on_the_last_client_alone_have_moved(tmp_path: Path) -> None:
    """`pfedae` averages nothing that clients train: each client has weights of its own."""
    idle, row = run("pfedae", tmp_path, clients=3, large=2, cohort=3)
    assert (idle, warnings(row)) == (2 * 2, [])


def test_a_leaderboard_marks_the_line_as_it_marks_collapse() -> None:
    """The same row but for its movement: its entry and its text differ. Old rows say nothing."""

    def board(**further: float) -> Leaderboard:
        metrics = further
        return rank([build_row(linear_acc=0.1, collapsed=False, further=metrics)])

    moved, still = board(relative_movement=0.3), board(relative_movement=0.0)
    assert to_markdown(moved) == to_markdown(board())
    assert to_markdown(moved) != to_markdown(still)
    assert moved.to_dict() != still.to_dict()
    # Biases start at 0 and move by any rate: no other weight feels a rate of 1e-30.
    assert to_markdown(board(relative_movement=1e-29)) == to_markdown(still)


def test_a_rate_that_moves_biases_alone_moves_nothing(tmp_path: Path) -> None:
    _, row = run("simclr", tmp_path, clients=1, client__lr=1e-30)
    assert 0 < row.further["relative_movement"] < 1e-7
    assert row.unmoved
    assert warnings(row)


@pytest.mark.parametrize(
    ("values", "rounds"),
    [({"client__optimizer": "adam"}, None), ({"server__optimizer": "adam"}, None), ({}, 1)],
)
def test_a_part_that_decay_alone_moves_is_known_after_an_interruption_and_in_lanes(
    values: dict[str, Any], rounds: int | None, tmp_path: Path
) -> None:
    class Detached(SimCLR):
        """Stops the gradient between encoder and projector by mistake."""

        def loss(self, net: Net, batch: Batch, client: Client) -> Loss:
            h = net.views(batch.views, "encoder")
            a, b = net.views(tuple(x.detach() for x in h), "projector")
            return Loss((a - b).square().mean(), features=h, projections=(a, b))

    config = tiny_config("simclr", client__weight_decay=1e-3, client__batch_size=8, **values)
    setup = replace(tiny_setup(config), method=Detached())
    if rounds is not None:
        train(setup, tmp_path, rounds=rounds)
    trainer = train(setup, tmp_path, lanes=None if values else 2)
    assert trainer.resumes == (rounds is not None)
    assert never_reached(trainer.history) == ["encoder"]
    assert all(record.drift["encoder"]["norm"] > 0 for record in trainer.history)


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        ("simclr", {"model__trainable": "heads"}),
        ("simclr", {"model__trainable": "last:1"}),
        ("simclr+lora", {}),
        ("simclr", {"federation__num_rounds": 0}),
        ("simclr", {"model__norm": "batch-local"}),
        ("byol", {"method__update": "frozen-predictor"}),  # the server puts it back
        ("featarc", {}),  # has frozen copies, broadcast
        ("orchestra", {}),  # begins with a round of 0 epochs
        ("pfedae", {}),  # a part of the server's, and personal ones
    ],
)
def test_what_is_frozen_on_purpose_is_not_said_to_lack_a_gradient(
    spec: str, values: dict[str, Any], tmp_path: Path
) -> None:
    assert never_reached(train(tiny_setup(tiny_config(spec, **values)), tmp_path).history) == []
