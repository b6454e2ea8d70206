"""Ray is loaded when cells run; if it does not start, a resource is missing."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from fedbench.bench.system.errors import ResourceError
from fedbench.bench.tuning.ray.session import ray_session


@pytest.mark.parametrize(
    "error",
    [
        Exception("The current node timed out during startup."),  # as ray/_private/node.py has it
        RuntimeError("no space left"),
    ],
)
def test_what_ray_raises_at_its_start(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: Any) -> None:
        raise error

    monkeypatch.setattr("ray.init", init)
    with (
        pytest.raises(ResourceError, match=f"Ray does not start: {error}; `fedbench doctor`"),
        ray_session(),
    ):
        raise AssertionError("it has started")


def test_a_mistake_of_ours_is_not_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.init", {}.__getitem__)
    with pytest.raises(TypeError), ray_session():
        raise AssertionError("it has started")


def test_planning_loads_no_ray() -> None:
    code = "import sys, fedbench.bench.tuning.study, fedbench.bench.tuning.sweep;"
    subprocess.run([sys.executable, "-c", f"{code} sys.exit('ray' in sys.modules)"], check=True)
