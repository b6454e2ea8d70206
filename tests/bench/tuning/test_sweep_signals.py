"""Sweeps that get a signal to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

SCRIPT = """
import sys
from pathlib import Path
from fedbench.bench.tuning.sweep import sweep
try:
    sweep("heterogeneity", store=sys.argv[1], methods=["simclr"], seeds=[0], concurrency=1,
          set={"client.local_epochs": 1000},
          on_progress=lambda event: print(type(event).__name__, flush=True))
except Exception as err:
    print(err)
    sys.exit(err.exit_code)
"""


@pytest.mark.slow
def test_a_terminated_sweep_says_so_and_leaves_nothing_running(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "s")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "Began\n"
        assert process.stdout.readline() == "CellProgress\n"
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=240)
    assert process.returncode == 143
    assert out.endswith("interrupted by SIGTERM; the same command continues\n")
    assert err == ""
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []
