"""Whose fault it is, and whether training did what it should: methods with a common mistake."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedbench
from fedbench.bench.evaluation.metrics import main_metrics
from fedbench.bench.execution.run import run
from fedbench.bench.method import Loss
from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import PluginError
from fedbench.bench.terminal.show_runs import warnings
from fedbench.bench.testing import tiny_config, tiny_setup, train
from fedbench.methods.simclr import SimCLR

Hook = Callable[..., Loss]
right: Hook = SimCLR.loss


def finished(store: Path, workers: int = 1) -> fedbench.RunResult:
    return run(tiny_config("simclr"), store=store, workers=workers, device="cpu")


@pytest.fixture
def mistaken(monkeypatch: pytest.MonkeyPatch) -> Callable[[Hook], None]:
    return lambda hook: monkeypatch.setattr(SimCLR, "loss", hook)


def test_an_error_of_the_gradient_names_the_method(
    mistaken: Callable[[Hook], None], tmp_path: Path
) -> None:
    def loss(*given: Any) -> Loss:
        made = right(*given)
        root = made.total.exp()
        root = root * root.detach().add(root)  # keeps root for its gradient
        total = made.total.exp()
        product = total * total
        total.add_(1)
        return Loss(product + root, features=made.features)

    mistaken(loss)
    with pytest.raises(PluginError, match=r"method 'simclr': backward\(\) .* in place"):
        finished(tmp_path)


def failing(text: str) -> Hook:
    """Return a loss whose gradient raises a RuntimeError."""

    def fail(gradient: torch.Tensor) -> None:
        raise RuntimeError(text)

    def loss(*given: Any) -> Loss:
        made = right(*given)
        made.total.register_hook(fail)
        return made

    return loss


def test_a_limit_of_memory_is_not_the_methods(
    mistaken: Callable[[Hook], None], tmp_path: Path
) -> None:
    mistaken(failing("DefaultCPUAllocator: can't allocate memory: you tried 1 byte"))
    with pytest.raises(fedbench.FedbenchError, match="the limit of memory"):
        finished(tmp_path)


def test_an_error_of_a_gpu_stays_what_it_is(
    mistaken: Callable[[Hook], None], tmp_path: Path
) -> None:
    """So that its process, in which CUDA answers no call any more, is replaced."""
    mistaken(failing("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        train(tiny_setup(tiny_config("simclr")), tmp_path)


def test_a_part_that_the_loss_never_reaches_is_named(
    mistaken: Callable[[Hook], None], tmp_path: Path
) -> None:
    def loss(method: SimCLR, net: Any, batch: Any, client: Any) -> Loss:
        h = net.views(batch.views, "encoder")
        a, b = net.views([each.detach() for each in h], "projector")
        return Loss((a - b).square().mean(), features=h, projections=(a, b))

    assert finished(tmp_path / "right").row.without_gradient == []
    mistaken(loss)
    result = finished(tmp_path / "wrong")
    assert result.row.without_gradient == ["encoder"]
    assert (result.metrics["relative_movement"] or 0) > 0  # the decay of weights, and the projector
    assert any("never reached encoder" in line for line in warnings(result.row))
    board = fedbench.leaderboard(Store(tmp_path / "wrong")).to_frame()
    assert board["without_gradient"].tolist() == ["encoder"]
    assert "no gradient: encoder" in board["notes"][0]
    assert "no_gradient_encoder" not in main_metrics(result.metrics)


def states() -> tuple[Any, ...]:
    """The states of NumPy's and Python's global generators."""
    numpys = np.random.get_state(legacy=False)  # noqa: NPY002
    return repr(numpys), random.getstate()


def test_numpys_and_pythons_draws_repeat(mistaken: Callable[[Hook], None], tmp_path: Path) -> None:
    def loss(*given: Any) -> Loss:
        made = right(*given)
        weight = np.random.beta(0.2, 0.2) + random.random()  # noqa: NPY002
        return Loss(made.total * weight, features=made.features)

    mistaken(loss)
    before = states()
    first = finished(tmp_path / "first")
    assert states() == before
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    assert finished(tmp_path / "again").metrics == first.metrics
