"""SGD and Adam with torch's own arithmetic, without the start of its compiler.

Making any `torch.optim.Optimizer` imports `torch._dynamo`: two to three seconds in every process.
These two call the functions under `torch.optim.SGD` and `torch.optim.Adam` directly; their steps
have the same bits, and their state dictionaries the same form, so that either can go on where the
other stopped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd


class Optimizer(Protocol):
    """What the harness asks of an optimizer: these two and every `torch.optim.Optimizer` have it.

    Attributes:
        param_groups: settings of each group of parameters, such as `lr`.
    """

    param_groups: list[dict[str, Any]]

    def step(self) -> Any:
        """Move the parameters along their gradients."""

    def zero_grad(self) -> None:
        """Forget the gradients."""

    def state_dict(self) -> dict[str, Any]:
        """`{"state": {index: {name: tensor}}, "param_groups": […]}`."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""


_UNUSED = {"maximize": False, "foreach": None, "fused": None, "differentiable": False}
"""Settings that `torch.optim` wants to find in a state that it goes on from."""


class _Plain(ABC):
    """One group of parameters and what the steps before have left of each."""

    def __init__(self, parameters: Iterable[Tensor], **settings: Any) -> None:
        self._parameters = list(parameters)
        self._state: list[dict[str, Tensor]] = [{} for _ in self._parameters]
        self.param_groups: list[dict[str, Any]] = [
            {"params": self._parameters, **settings, **_UNUSED}
        ]

    @torch.no_grad()
    def step(self) -> None:
        """One step of all parameters that have a gradient."""
        chosen = [i for i, each in enumerate(self._parameters) if each.grad is not None]
        if chosen:
            parameters = [self._parameters[i] for i in chosen]
            gradients = [each.grad for each in parameters if each.grad is not None]
            self._step(parameters, gradients, [self._state[i] for i in chosen])

    @abstractmethod
    def _step(
        self, parameters: list[Tensor], gradients: list[Tensor], states: list[dict[str, Tensor]]
    ) -> None: ...

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for each in self._parameters:
            each.grad = None

    def state_dict(self) -> dict[str, Any]:
        """As `torch.optim.Optimizer.state_dict`: tensors are not copied."""
        settings = {k: v for k, v in self.param_groups[0].items() if k != "params"}
        group = {**settings, "params": list(range(len(self._parameters)))}
        state = {i: dict(each) for i, each in enumerate(self._state) if each}
        return {"state": state, "param_groups": [group]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from another optimizer's state, with this one's settings where it names none."""
        settings = {k: v for k, v in state_dict["param_groups"][0].items() if k != "params"}
        self.param_groups[0].update(settings)
        for index, values in state_dict["state"].items():
            own = self._parameters[index]
            self._state[index] = {
                name: value.clone() if name == "step" else value.to(own, copy=True)
                for name, value in values.items()
                if value is not None
            }


class SGD(_Plain):
    """`torch.optim.SGD` with momentum, weight decay and Nesterov's form."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        *,
        nesterov: bool = False,
    ) -> None:
        super().__init__(
            parameters,
            lr=lr,
            momentum=momentum,
            dampening=0.0,
            weight_decay=weight_decay,
            nesterov=nesterov,
        )

    def _step(
        self, parameters: list[Tensor], gradients: list[Tensor], states: list[dict[str, Tensor]]
    ) -> None:
        group = self.param_groups[0]
        buffers = [state.get("momentum_buffer") for state in states]
        sgd(
            parameters,
            gradients,
            buffers,
            lr=group["lr"],
            momentum=group["momentum"],
            weight_decay=group["weight_decay"],
            nesterov=group["nesterov"],
            dampening=group["dampening"],
            maximize=False,
        )
        for state, buffer in zip(states, buffers, strict=True):
            if buffer is not None:
                state["momentum_buffer"] = buffer


class Adam(_Plain):
    """`torch.optim.Adam`; weight decay is added to the gradient."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            parameters,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=False,
            capturable=False,
            decoupled_weight_decay=False,
        )

    def _step(
        self, parameters: list[Tensor], gradients: list[Tensor], states: list[dict[str, Tensor]]
    ) -> None:
        for own, state in zip(parameters, states, strict=True):
            if not state:
                state["step"] = torch.tensor(0.0)
                for name in ("exp_avg", "exp_avg_sq"):
                    state[name] = torch.zeros_like(own, memory_format=torch.preserve_format)
        group = self.param_groups[0]
        beta1, beta2 = group["betas"]
        adam(
            parameters,
            gradients,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
