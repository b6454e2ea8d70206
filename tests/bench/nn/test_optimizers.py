"""Optimizers without torch's compiler: same bits and same states as torch.optim."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedbench.bench.nn import optimizers

Make = Callable[[Any, list[torch.Tensor]], Any]
CASES: dict[str, Make] = {
    "sgd": lambda module, p: module.SGD(p, lr=0.1),
    "momentum": lambda module, p: module.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda module, p: module.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda module, p: module.Adam(p, lr=0.01, weight_decay=0.1),
}


def train(make: Make, modules: list[Any]) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Make three steps under each module in turn, passing the state on; tensor 2 skips one step."""
    rng = torch.Generator().manual_seed(0)
    tensors = [torch.randn(n, generator=rng).requires_grad_() for n in (5, 3)]
    state = None
    for turn, module in enumerate(modules):
        optimizer = make(module, tensors)
        if state is not None:
            optimizer.load_state_dict(state)
        for step in range(3):
            optimizer.zero_grad()
            assert all(tensor.grad is None for tensor in tensors)
            for tensor in tensors[: 1 if turn == step == 0 else 2]:
                (tensor**3).sum().backward()
            optimizer.param_groups[0]["lr"] *= 0.9
            optimizer.step()
        state = optimizer.state_dict()
    assert state is not None
    return [tensor.detach() for tensor in tensors], state


@pytest.mark.parametrize("case", CASES)
def test_bits_and_states_are_those_of_torch(case: str) -> None:
    make, fedbench, torchs = CASES[case], optimizers, torch.optim
    weights, state = train(make, [torchs, torchs])
    for modules in ([fedbench, fedbench], [fedbench, torchs], [torchs, fedbench]):
        other, other_state = train(make, modules)
        assert all(map(torch.equal, weights, other)), modules
        assert [g["lr"] for g in other_state["param_groups"]] == [state["param_groups"][0]["lr"]]
        assert other_state["param_groups"][0]["params"] == [0, 1]
        expected, actual = (
            {
                (i, name): value
                for i, values in each["state"].items()
                for name, value in values.items()
                if value is not None
            }
            for each in (state, other_state)
        )
        assert actual.keys() == expected.keys()
        assert all(torch.equal(actual[key], expected[key]) for key in actual)
