"""SGD and Adam with torch's own arithmetic, without the start of its compiler.

Making any `torch.optim.Optimizer` imports `torch._dynamo`: two to three seconds in every process.
These two call the functions under torch's; bits of steps and forms of states are the same.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from fedbench.bench.system import first_use


class Optimizer(Protocol):
    """Interface of an optimizer; these two and every `torch.optim.Optimizer` have it."""

    param_groups: list[dict[str, Any]]  # settings, such as `lr`

    def step(self) -> Any: ...  # noqa: D102
    def zero_grad(self) -> None: ...  # noqa: D102
    def state_dict(self) -> dict[str, Any]: ...  # noqa: D102
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...  # noqa: D102


_UNUSED = {"maximize": False, "foreach": None, "fused": None, "differentiable": False}
"""Settings that `torch.optim` requires in a state that it loads."""


class _Plain:
    """One group of parameters and the state that earlier steps left for each."""

    def __init__(self, parameters: Iterable[Tensor], **settings: Any) -> None:
        self._parameters = list(parameters)
        self._state: list[dict[str, Tensor]] = [{} for _ in self._parameters]
        self.param_groups: list[dict[str, Any]] = [
            {"params": self._parameters, **settings, **_UNUSED}
        ]

    def _moved(self) -> tuple[list[Tensor], list[Tensor], list[dict[str, Tensor]]]:
        """Return the parameters that have a gradient, their gradients and states."""
        pairs = zip(self._parameters, self._state, strict=True)
        moved = [(p, p.grad, state) for p, state in pairs if p.grad is not None]
        return [p for p, _, _ in moved], [g for _, g, _ in moved], [s for _, _, s in moved]

    def _settings(self, *names: str) -> dict[str, Any]:
        return {name: self.param_groups[0][name] for name in names}

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state in the form of `torch.optim.Optimizer`; tensors are not copied."""
        settings = {k: v for k, v in self.param_groups[0].items() if k != "params"}
        group = {**settings, "params": list(range(len(self._parameters)))}
        state = {index: dict(values) for index, values in enumerate(self._state) if values}
        return {"state": state, "param_groups": [group]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from another optimizer's state and settings; what it lacks stays as it is."""
        settings = {k: v for k, v in state_dict["param_groups"][0].items() if k != "params"}
        self.param_groups[0].update(settings)
        for index, values in state_dict["state"].items():
            parameter = self._parameters[index]
            # Steps are counted on the CPU, as in torch, which would wait for a count on a GPU.
            self._state[index] = {
                name: value.clone() if name == "step" else value.to(parameter, copy=True)
                for name, value in values.items()
                if value is not None
            }


class SGD(_Plain):
    """`torch.optim.SGD` with momentum, weight decay and Nesterov's form; fused on a GPU."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        *,
        nesterov: bool = False,
    ) -> None:
        settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(parameters, **settings, nesterov=nesterov, dampening=0.0)

    def restart(self) -> None:
        """Set all momentum to zero, in place; the next step has the bits of a first one."""
        if self.param_groups[0]["momentum"]:
            for parameter, state in zip(self._parameters, self._state, strict=True):
                buffer = state.setdefault("momentum_buffer", torch.empty_like(parameter.detach()))
                buffer.zero_()

    @torch.no_grad()
    def step(self) -> None:
        """Move all parameters that have a gradient."""
        parameters, gradients, states = self._moved()
        if not parameters:
            return
        names = "lr", "momentum", "weight_decay", "nesterov", "dampening", "maximize"
        settings = self._settings(*names)
        before = [state.get("momentum_buffer") for state in states]

        def move(fused: bool) -> list[Tensor | None]:
            buffers = list(before)
            sgd(parameters, gradients, buffers, fused=fused, **settings)
            return buffers

        held = [buffer for buffer in before if buffer is not None]
        if parameters[0].is_cuda and len(held) in (0, len(before)):
            # One pass over memory instead of four. On CPUs bits might change, on some processors.
            # Torch's fused form takes momenta of all parameters or of none.
            buffers = first_use.checked(
                first_use.FUSED_SGD,
                partial(move, True),
                partial(move, False),
                lambda moved: {"new momenta": [b for b in moved if b is not None]},
                lambda: {"weights": parameters, "momenta": held},
                first_use.ELEMENTWISE,
            )
        else:
            buffers = move(False)
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
        off = dict.fromkeys(("amsgrad", "capturable", "decoupled_weight_decay"), False)
        given = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(parameters, **given, **off)

    @torch.no_grad()
    def step(self) -> None:
        """Move all parameters that have a gradient."""
        parameters, gradients, states = self._moved()
        for parameter, state in zip(parameters, states, strict=True):
            if not state:
                state["step"] = torch.tensor(0.0)
                for name in ("exp_avg", "exp_avg_sq"):
                    state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        beta1, beta2 = self.param_groups[0]["betas"]
        adam(
            parameters,
            gradients,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            beta1=beta1,
            beta2=beta2,
            **self._settings("lr", "weight_decay", "eps", "amsgrad", "maximize"),
        )
