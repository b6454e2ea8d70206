import json
import os
import platform
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict

import pytest
import torch

from fedbench.bench.system.numerics import measure, measured
from tests.contract.expected_runs import CAPPED

SHOW = """
import json
from dataclasses import asdict
from fedbench.bench.system.numerics import measure
print("before", flush=True)
print(json.dumps(asdict(measure())))
"""


def measured_with(env: Mapping[str, str], without: Collection[str] = ()) -> dict[str, str]:
    """Record of a new process with these environment variables, and without others of ours."""
    kept = {name: value for name, value in os.environ.items() if name not in without}
    done = subprocess.run(
        [sys.executable, "-c", SHOW], env={**kept, **env}, capture_output=True, check=True
    )
    first, second = done.stdout.decode().splitlines()  # none of oneDNN's log
    assert first == "before"
    record = json.loads(second)
    assert isinstance(record, dict)
    return record


def test_the_record_is_stable() -> None:
    here = measure()
    assert asdict(here) == measured_with({"OMP_NUM_THREADS": "3"})
    threads = torch.get_num_threads()
    keep = [torch.empty(17 * size) for size in range(1, 30)]  # other addresses
    for _ in range(3):
        measured.cache_clear()
        with torch.no_grad():
            assert measure() == here
    assert (torch.get_num_threads(), len(keep)) == (threads, 29)


def test_another_precision_of_products_is_another_platform() -> None:
    here = measure()
    torch.set_float32_matmul_precision("medium")  # as Lightning advises
    try:
        assert (here.precision, measure().precision) == ("ieee", "bf16")
    finally:
        torch.set_float32_matmul_precision("highest")
    assert measure() == here


@pytest.mark.skipif(platform.machine() != "x86_64", reason="caps instruction sets of x86")
def test_two_instruction_sets_are_two_platforms() -> None:
    here, capped = measured_with({}, without=CAPPED), measured_with(CAPPED)
    if here["aten"] == capped["aten"]:
        pytest.skip("this processor has no instruction set to cap")
    assert all(here[part] != capped[part] for part in ("onednn", "aten", "numpy_blas"))
