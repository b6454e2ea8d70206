"""Server optimizers against scalar loops and against torch's Adam."""

import math
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from fedbench.bench.config import ServerConfig
from fedbench.bench.system.seeding import generator
from fedbench.bench.training.server_optimizers import OPTIMIZERS, server_optimizer

ROUNDS, SIZE = 5, 6


def changes() -> list[Tensor]:
    rng = generator(0, "changes")
    drawn = [torch.randn(SIZE, generator=rng).double() for _ in range(ROUNDS)]
    drawn[2][0] = 0.0  # a coordinate without a change
    return drawn


def start() -> Tensor:
    return torch.randn(SIZE, generator=generator(0, "theta"))


def run(config: ServerConfig) -> Tensor:
    theta, optimizer = start(), server_optimizer(config, SIZE, "cpu")
    for change in changes():
        optimizer.step(theta, change)
    return theta


def by_hand(rule: Callable[[float, float, dict[str, float]], float]) -> Tensor:
    """Step every coordinate; `rule` maps (theta, change, its memory) to the next theta."""
    result = []
    for index, value in enumerate(start().tolist()):
        memory = {"m": 0.0, "v": 0.0}
        for change in changes():
            value = rule(value, change[index].item(), memory)
        result.append(value)
    return torch.tensor(result)


def momentum(theta: float, d: float, s: dict[str, float]) -> float:
    s["m"] = 0.8 * s["m"] + d
    return theta + 0.5 * s["m"]


def adam_reddi(theta: float, d: float, s: dict[str, float]) -> float:
    s["m"] = 0.9 * s["m"] + 0.1 * d
    s["v"] = 0.99 * s["v"] + 0.01 * d * d
    return theta + 0.5 * s["m"] / (math.sqrt(s["v"]) + 1e-3)


def adam_flower(theta: float, d: float, s: dict[str, float]) -> float:
    s["t"] = s.get("t", 0) + 1
    rate: float = 0.5 * math.sqrt(1 - 0.99 ** (s["t"] + 1)) / (1 - 0.9 ** (s["t"] + 1))
    return theta + rate / 0.5 * (adam_reddi(theta, d, s) - theta)


def yogi(theta: float, d: float, s: dict[str, float]) -> float:
    s["m"] = 0.9 * s["m"] + 0.1 * d
    sign = (s["v"] > d * d) - (s["v"] < d * d)
    s["v"] -= 0.01 * d * d * sign
    return theta + 0.5 * s["m"] / (math.sqrt(s["v"]) + 1e-3)


def adagrad(theta: float, d: float, s: dict[str, float]) -> float:
    s["v"] += d * d
    return theta + 0.5 * d / (math.sqrt(s["v"]) + 1e-3)


def average(theta: float, d: float, s: dict[str, float]) -> float:
    return theta + 0.5 * d


@pytest.mark.parametrize("rule", [average, momentum, adam_reddi, adam_flower, yogi, adagrad])
def test_rules_equal_scalar_loops(rule: Callable[[float, float, Any], float]) -> None:
    name: Any = rule.__name__.replace("_", "-")
    config = ServerConfig(optimizer=name, lr=0.5, momentum=0.8)
    torch.testing.assert_close(run(config), by_hand(rule), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("lr", [1e-3, 0.1])
def test_adam_is_torchs_on_the_negated_change(lr: float) -> None:
    theta = torch.nn.Parameter(start())
    reference = torch.optim.Adam([theta], lr=lr)  # betas 0.9 and 0.999, epsilon 1e-8
    for change in changes():
        theta.grad = -change.float()
        reference.step()
    torch.testing.assert_close(run(ServerConfig(optimizer="adam", lr=lr)), theta.detach())


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_the_first_step_of_flowers_adam(rate: float) -> None:
    """As its release 1.42 makes it, for a change of 1: 0.0735 at a rate of 0.1.

    sqrt(1 - 0.99^2) / (1 - 0.9^2) = 0.7424598, times 0.1 / (0.1 + 0.001).
    """
    theta, config = torch.zeros(1), ServerConfig(optimizer="adam-flower", lr=rate)
    server_optimizer(config, 1, "cpu").step(theta, torch.ones(1, dtype=torch.float64))
    assert theta.item() == pytest.approx(0.7351087 * rate, rel=1e-6)


@pytest.mark.parametrize("name", ["momentum", "adam", "adam-flower", "yogi", "adagrad"])
def test_state_can_be_carried_over(name: Any) -> None:
    config = ServerConfig(optimizer=name, lr=0.1)
    theta, first = start(), server_optimizer(config, SIZE, "cpu")
    for change in changes()[:2]:
        first.step(theta, change)
    second = server_optimizer(config, SIZE, "cpu")
    for key, moment in first.state().items():
        second.state()[key].copy_(moment)
    second.step_count = first.step_count
    for change in changes()[2:]:
        second.step(theta, change)
    assert torch.equal(theta, run(config))


def test_a_step_of_one_lands_on_the_mean_exactly() -> None:
    """The mean of equal weights is that weight for changes of up to 2**28 times it."""
    target = torch.tensor([1.0, 1e-7, -3.3e7, 1e30])
    theta = torch.tensor([1e-12, 5.0, 0.1, -1.0])
    server_optimizer(ServerConfig(), 4, "cpu").step(theta, target.double() - theta.double())
    assert torch.equal(theta, target)


def test_every_optimizer_of_a_configuration_is_there() -> None:
    names = get_args(ServerConfig.model_fields["optimizer"].annotation)
    assert [*names] == [*OPTIMIZERS]


OTHER = {"momentum": 0.5, "beta1": 0.5, "beta2": 0.5, "epsilon": 0.5}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_reads_the_fields_that_it_names_and_no_others(name: Any) -> None:
    usual = run(ServerConfig(optimizer=name))

    def changes_nothing(field: str) -> bool:
        changed = ServerConfig.model_validate({"optimizer": name, field: OTHER[field]})
        return torch.equal(run(changed), usual)

    read = {field for field in OTHER if not changes_nothing(field)}
    assert read == {*OPTIMIZERS[name].reads}
