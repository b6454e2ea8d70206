"""Parts that do something else on a GPU.

Not beside the tests of these parts: the fake GPU leaves a mark in the process, after which torch
no longer announces the first use of CUDA, which tests/bench/system waits for.
"""

from __future__ import annotations

import torch
from torch import nn

from fedbench.bench.method import net as net_module
from fedbench.bench.nn import optimizers
from fedbench.bench.nn.norms import BatchNorm1d
from tests.gpu.fake_gpu import CUDA, FakeGPU


def test_only_a_gpu_and_norms_that_can_take_views_at_once() -> None:
    with FakeGPU():
        here = torch.ones(3, 4), torch.zeros(3, 4)
        there = tuple(view.to(CUDA) for view in here)
        assert net_module._in_one_pass([BatchNorm1d(4)], there)
        assert not net_module._in_one_pass([BatchNorm1d(4)], here)
        assert not net_module._in_one_pass([BatchNorm1d(4)], (there[0], there[1][:2]))
        assert not net_module._in_one_pass([BatchNorm1d(4), nn.BatchNorm1d(4)], there)
        assert net_module._in_one_pass([], here)


def test_sgd_is_fused_on_a_gpu() -> None:
    def steps(device: torch.device) -> list[torch.Tensor]:
        rng = torch.Generator().manual_seed(0)
        tensors = [torch.randn(n, generator=rng).to(device).requires_grad_() for n in (5, 3)]
        optimizer = optimizers.SGD(tensors, lr=0.1, momentum=0.9, weight_decay=0.01)
        for last in (1, 2, 2, 2):  # the second has no momentum yet when the first has some
            for tensor in tensors[:last]:
                tensor.grad = tensor.detach() ** 2
            optimizer.step()
        return [tensor.detach().cpu() for tensor in tensors]

    with FakeGPU() as gpu:
        there = steps(CUDA)
        names = [name.partition(" ")[0] for name, _, _ in gpu.signature]
        assert names.count("_fused_sgd_") == 3
    torch.testing.assert_close(there, steps(torch.device("cpu")))
