"""Ray is loaded when cells run; if it does not start, a resource is missing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from fedbench.bench.system.errors import ResourceError
from fedbench.bench.tuning.ray.session import Interrupted, ray_session


def test_what_ray_raises_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: Any) -> None:
        raise Exception("The current node timed out during startup.")  # as ray/_private/node.py

    monkeypatch.setattr("ray.init", init)
    with pytest.raises(ResourceError, match="timed out"), ray_session():
        raise AssertionError("it has started")


def test_a_sigterm_while_ray_starts_has_our_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: Any) -> None:
        import ray

        # As `ray.init` does before anything else.
        ray._private.utils.set_sigterm_handler(lambda number, frame: sys.exit(number))
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("ray.init", init)
    with pytest.raises(Interrupted) as raised, ray_session():
        raise AssertionError("it goes on")
    assert raised.value.exit_code == 143


def test_planning_loads_no_ray() -> None:
    code = "import sys, fedbench.bench.tuning.study, fedbench.bench.tuning.sweep;"
    subprocess.run([sys.executable, "-c", f"{code} sys.exit('ray' in sys.modules)"], check=True)
