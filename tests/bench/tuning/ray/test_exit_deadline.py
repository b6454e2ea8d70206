"""A process that hangs after a signal ends, and names the signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedbench.bench.tuning.ray.session import exit_deadline

SCRIPT = """
import signal, sys, time
from fedbench.bench.tuning.ray.session import exit_deadline
seen = []
for name in (signal.SIGINT, signal.SIGTERM):
    signal.signal(name, lambda *_: seen.append(1))
with exit_deadline(float(sys.argv[1])):
    print("ready", flush=True)
    while sys.argv[2] == "hang":
        time.sleep(60)
    while not seen:
        time.sleep(0.01)
print("left", flush=True)
time.sleep(float(sys.argv[1]) + 0.5)
"""


@pytest.mark.parametrize(
    ("signum", "what", "code", "said"),
    [
        (signal.SIGTERM, "hang", 143, "interrupted by SIGTERM; the same command continues\n"),
        (signal.SIGINT, "hang", 130, "interrupted by SIGINT; the same command continues\n"),
        (signal.SIGTERM, "leave", 0, ""),
    ],
)
def test_a_hanging_process_ends(signum: signal.Signals, what: str, code: int, said: str) -> None:
    root = str(Path(__file__).resolve().parents[4])
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "3" if what == "leave" else "0.3", what],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signum)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (code, "left\n" if code == 0 else "", said)


def test_nothing_happens_without_a_signal() -> None:
    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    with exit_deadline(0.01):
        time.sleep(0.05)
    assert signal.set_wakeup_fd(before) == before
