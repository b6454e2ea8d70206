"""Orchestra's clustering on a fake GPU: recorded, it has the bits of the CPU and hardly waits."""

from unittest import mock

import pytest
import torch
from torch import Tensor

from fedbench.bench.nn import clustering
from fedbench.bench.nn.clustering import cluster_globally
from fedbench.bench.system import first_use
from tests.gpu.fake_gpu import CUDA, FakeGPU, FakeGraph
from tests.specs import unit

STEPS = 6


@pytest.fixture(autouse=True)
def _each_by_itself() -> None:
    first_use.begin_run()
    clustering._recorded_moves.cache_clear()


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return unit(30, 8, name="points").to(dtype), unit(5, 8, name="centroids").to(dtype)


@pytest.mark.parametrize(
    ("strength", "dtype"),
    [(25.0, torch.float32), (60.0, torch.float32), (25.0, torch.float64)],  # of 60 the kernel is
)
def test_recorded_steps_have_the_bits_of_plain_ones(strength: float, dtype: torch.dtype) -> None:
    points, start = inputs(dtype)
    expected = cluster_globally(points, start, strength=strength, steps=STEPS)
    with FakeGPU():
        there = points.to(CUDA), start.to(CUDA)
        for _ in range(2):  # the second time everything is replayed
            moved = cluster_globally(*there, strength=strength, steps=STEPS)
            assert moved.dtype == dtype
            assert torch.equal(moved.cpu(), expected)
            assert torch.equal(there[1].cpu(), start)
    assert first_use.agreed() == {first_use.RECORDED_CLUSTERING}
    assert first_use.switched_off() == {}


def test_the_host_waits_only_to_learn_whether_sinkhorn_has_ended() -> None:
    points, start = inputs()
    with FakeGPU() as gpu:
        there = points.to(CUDA), start.to(CUDA)
        cluster_globally(*there, steps=STEPS)
        gpu.reset()
        cluster_globally(*there, steps=STEPS)
    # Sinkhorn asks after 1, 11, ..., 91 of 100 scalings.
    assert [*gpu.waits] == ["_local_scalar_dense @ nn/clustering.py:_Scaling.run"]
    assert STEPS <= gpu.waits.total() <= 10 * STEPS
    assert gpu.signature[0][0].startswith("linalg_vector_norm")  # of what it is given
    assert not any("addmm_" in name for name, *_ in gpu.signature)  # steps are replayed


def test_a_recording_that_differs_or_fails_is_left_out() -> None:
    points, start = inputs()
    expected = cluster_globally(points, start, steps=STEPS)

    def fail(self: FakeGraph, *_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    for name, broken in (("replay", lambda self: None), ("replay", fail), ("record", fail)):
        first_use.begin_run()
        clustering._recorded_moves.cache_clear()
        with FakeGPU(), mock.patch.object(FakeGraph, name, broken):
            before = torch.cuda.current_stream()
            moved = cluster_globally(points.to(CUDA), start.to(CUDA), steps=STEPS)
            assert torch.equal(moved.cpu(), expected)
            assert torch.cuda.current_stream() is before
        assert [*first_use.switched_off()] == [first_use.RECORDED_CLUSTERING]
