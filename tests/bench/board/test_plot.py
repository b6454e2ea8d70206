"""Charts draw the numbers of the board, and a method has one colour in all of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex

import fedbench
import fedbench.plot
from fedbench.bench.results.leaderboard.studies import StudyView
from fedbench.bench.results.report.colours import SYMBOLS, looks
from fedbench.bench.results.store.store import Store
from tests.bench.results.conftest import seeds_of

METHODS = ("simclr", "lejepa", "spectral", "byol", "orchestra")  # of README's picture
A, B = [0.50, 0.52, 0.48], [0.46, 0.49, 0.43]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path)
    for alpha, shift in ((0.1, 0.0), (1.0, 0.1)):
        values = {"simclr": [a + shift for a in A], "byol": [b + shift for b in B]}
        for row in seeds_of(values, alpha=alpha, bytes_up=2_000_000, bytes_down=1_000_000):
            store.write_row(row)
            points = [{"round_index": i, "loss": 4.0 - i, "bytes_up": 1, "bytes_down": 1}
                      for i in range(row.num_rounds)]  # fmt: skip
            store.write_curve(row.row_id, points)
    return store


def lines(figure: Any) -> dict[str, Any]:
    """Return the lines of a chart by their names in its legend."""
    drawn = (container for axes in figure.axes for container in axes.containers)
    return {container.get_label(): container.lines[0] for container in drawn}


def test_accuracy_is_drawn_against_alpha_in_the_colours_of_the_methods(store: Store) -> None:
    figure = fedbench.plot.accuracy(fedbench.leaderboard(store))
    drawn = lines(figure)
    np.testing.assert_allclose(drawn["simclr"].get_ydata(orig=False), [50, 60])
    np.testing.assert_allclose(drawn["byol"].get_ydata(orig=False), [46, 56])
    for method, line in drawn.items():
        look = looks([method])[method]
        assert (to_hex(line.get_color()), line.get_marker()) == (look.colour, SYMBOLS[look.symbol])
    with pytest.raises(fedbench.UnknownNameError):
        fedbench.plot.accuracy(fedbench.leaderboard(store), "participation")


def test_cost_curves_and_loss_have_the_values_of_the_rows(store: Store, tmp_path: Path) -> None:
    ranking = fedbench.leaderboard(store)
    (megabytes,) = lines(fedbench.plot.cost(ranking, setting="alpha 0.1"))["byol"].get_xdata(
        orig=False
    )
    assert megabytes == pytest.approx(3.0)
    curves = lines(fedbench.plot.curves(ranking, setting="alpha 1", store=store))
    np.testing.assert_allclose(curves["simclr"].get_ydata(orig=False), [60])
    places = [curves[method].get_xdata(orig=False)[0] for method in ("simclr", "byol")]
    assert places[1] - places[0] > 0.05  # both of one round; one interval hides not the other
    losses = fedbench.plot.loss(ranking, store=store)
    np.testing.assert_allclose(np.asarray(losses.axes[0].lines[0].get_ydata())[:2], [4, 3])
    for ending in ("svg", "png"):
        losses.savefig(tmp_path / f"loss.{ending}")
    assert losses._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(fedbench.ConfigError):
        fedbench.plot.curves(ranking, "hours", store=store)


def search(score: Callable[[int], float], diverged: int = 0) -> Any:
    """Draw a study of eight learning rates at two batch sizes, and higher rates that diverged."""
    trials = tuple(
        {"number": i, "status": "ok", "objective": score(i % 8),
         "params": {"client.batch_size": 16 * (1 + i // 8), "client.lr": 10.0 ** (i % 8 - 7)}}
        for i in range(16)
    )  # fmt: skip
    trials += tuple(
        {"number": 16 + i, "status": "diverged", "objective": None,
         "params": {"client.batch_size": 16, "client.lr": 10.0 ** (1 + i)}}
        for i in range(diverged)
    )  # fmt: skip
    study = StudyView("s", "simclr", "demo", "tpe", None, None, 7, 7.0, (), (), trials, (), 0.0, 0)
    return fedbench.plot.search(study)


def test_search_finds_the_hyperparameter_that_matters() -> None:
    """The objective is the learning rate's logarithm: all of its variance is explained by it."""
    alike = search(lambda _: 0.5)  # nothing explains what does not vary
    assert [axes.get_title() for axes in alike.axes] == ["batch_size", "lr"]
    first, second = search(float).axes
    assert first.get_title().startswith("lr · ")
    assert int(first.get_title()[5:-1]) > 90 > 10 > int(second.get_title().split()[-1][:-1])
    assert first.get_xscale() == "log"
    assert not first.lines


def test_search_has_a_panel_for_a_value_that_always_fails() -> None:
    """And no cross for a trial that was stopped early, which has an objective."""
    trials = (
        {"number": 0, "status": "ok", "objective": 0.1, "params": {"server.optimizer": "average"}},
        {"number": 1, "status": "error", "objective": None, "params": {"server.optimizer": "yogi"}},
        {"number": 2, "status": "pruned", "objective": 0.2, "params": {"server.optimizer": "adam"}},
    )
    study = StudyView("s", "simclr", "demo", "tpe", None, None, 7, 7.0, (), (), trials, (), 0.0, 0)
    figure = fedbench.plot.search(study)
    assert "1 trials · × 1 without an objective" in figure.get_suptitle()
    (crosses,) = figure.axes[0].lines
    assert np.asarray(crosses.get_xdata()).tolist() == ["yogi"]


def test_search_shows_trials_that_diverged() -> None:
    figure = search(float, diverged=3)
    first = figure.axes[0]
    assert (
        "16 trials · × 3 without an objective · share of variance by fANOVA"
        in figure.get_suptitle()
    )
    (crosses,) = first.lines
    assert np.asarray(crosses.get_xdata()).tolist() == [10.0, 100.0, 1000.0]
    assert first.get_xlim()[1] > 1000


def test_a_partition_is_drawn_as_its_counts() -> None:
    summary = fedbench.partition(preset="demo", labels="balanced:400:4")
    axes = fedbench.plot.partition(summary).axes[0]
    heights = [[bar.get_height() for bar in container] for container in axes.containers]
    np.testing.assert_array_equal(np.transpose(heights), summary.record["class_counts"])


def test_shipped_methods_have_different_colours_whatever_stands_beside_them() -> None:
    chosen = looks(["simclr+fedprox", "my-method", "byol", "ssd", "simclr"])
    assert chosen["simclr"] == looks(["simclr"])["simclr"]
    assert len({look.colour for look in chosen.values()}) == len(chosen)


def test_no_other_method_looks_like_one_beside_it() -> None:
    """Orchestra is of orange, beside which a red is too near; names choose among the others."""
    found = {looks(["simclr", "orchestra", f"method-{i}"])[f"method-{i}"] for i in range(200)}
    colours = {look.colour for look in found}
    assert colours.isdisjoint({"#c3610d", "#da4149", "#b04613", "#c77b2d", "#d26e5b"})
    assert len(colours) > 15
    assert len({looks([name])[name].symbol for name in METHODS}) == len(METHODS)
