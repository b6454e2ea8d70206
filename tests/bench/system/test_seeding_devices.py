"""Randomness by purpose, one thread on request, and the choice of compute."""

import random
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from fedbench.bench.system.compute import choose_devices
from fedbench.bench.system.cores import usable_cores
from fedbench.bench.system.errors import ConfigError, ResourceError
from fedbench.bench.system.seeding import derive, drawn, scope, single_thread


def test_seeds_depend_on_every_part() -> None:
    parts = [
        (0, "a"), (1, "a"), (0, "b"), (0, "a", 0), (0, "a", 1), (0, "a", 0, 1), (0, "a", 1, 0),
        (0, "a", 11), (0, "a", 1, 1), (11, "a"), (1, "a", 1),
    ]  # fmt: skip
    seeds = [derive(*words) for words in parts]  # type: ignore[arg-type]
    assert len(set(seeds)) == len(parts)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seeds_never_change() -> None:
    # int(sha256("0/cohort/3")[:8], big-endian) >> 1: every stored row depends on it
    assert derive(0, "cohort", 3) == 1_940_773_744_370_067_784


def test_a_scope_seeds_and_restores_the_global_generators() -> None:
    """Also the second normal number, which numpy keeps of each pair."""

    def draw() -> tuple[float, ...]:
        of_numpy = np.random.randn(), np.random.rand()  # noqa: NPY002
        return torch.rand(1).item(), *of_numpy, random.random()

    draw()
    before = drawn()
    with scope(0, "init"):
        first = draw()
        assert drawn() != before
    assert drawn() == before
    with pytest.raises(ZeroDivisionError), scope(0, "init"):
        sum(draw()) / 0
    assert drawn() == before
    with scope(0, "init"):
        assert draw() == first
    with scope(0, "other"):
        assert not {*draw()} & {*first}


@pytest.mark.parametrize("draw", [partial(torch.rand, 1), np.random.randn, random.random])
def test_a_draw_from_each_global_generator_is_seen(draw: Callable[[], object]) -> None:
    before = drawn()
    draw()
    assert drawn() != before


def test_threads_are_restored() -> None:
    before = torch.get_num_threads()
    with single_thread():
        assert torch.get_num_threads() == 1
    with pytest.raises(KeyError), single_thread():
        raise KeyError
    assert torch.get_num_threads() == before


def test_devices_on_a_machine_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_devices("auto", 3) == ["cpu"] * 3
    assert choose_devices("cpu", None) == ["cpu"] * usable_cores()
    with pytest.raises(ResourceError, match="torch sees no GPU here; use --device cpu"):
        choose_devices("cuda", None)


def test_devices_on_a_machine_with_two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_devices("auto", None) == ["cuda:0", "cuda:1"]
    assert choose_devices("cuda", 3) == ["cuda:0", "cuda:1", "cuda:0"]
    assert choose_devices("cpu", 2) == ["cpu", "cpu"]


def test_bad_requests_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--device: .*'gpu'"):
        choose_devices("gpu", 1)
    with pytest.raises(ConfigError, match=r"--workers: .*0\b"):
        choose_devices("cpu", 0)
    with pytest.raises(ConfigError, match=r"--lanes: .*0\b"):
        choose_devices("cpu", None, 0)
