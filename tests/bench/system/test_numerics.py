from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
import torch

from fedbench.bench.system.instruction_sets import caps_for, caps_of
from fedbench.bench.system.numerics import _with_onednn_log, measure

x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="caps instruction sets of x86")
SHOW = """
import json
from dataclasses import asdict
from fedbench.bench.system.numerics import measure
print("before", flush=True)
print(json.dumps(asdict(measure())))
"""


def measured_with(**env: str) -> dict[str, str]:
    """Record of a new process with these environment variables."""
    done = subprocess.run(
        [sys.executable, "-c", SHOW], env={**os.environ, **env}, capture_output=True, check=True
    )
    first, second = done.stdout.decode().splitlines()  # none of oneDNN's log
    assert first == "before"
    record = json.loads(second)
    assert isinstance(record, dict)
    return record


def test_the_record_is_stable() -> None:
    here = measure()
    assert asdict(here) == measured_with(OMP_NUM_THREADS="3")
    threads = torch.get_num_threads()
    keep = [torch.empty(17 * size) for size in range(1, 30)]  # other addresses
    for _ in range(3):
        measure.cache_clear()
        with torch.no_grad():
            assert measure() == here
    assert (torch.get_num_threads(), len(keep)) == (threads, 29)


def test_the_text_tells_records_apart() -> None:
    here = measure()
    assert str(here).startswith(f"{platform.machine()} ")
    assert f"torch {torch.__version__}, cpu, " in str(here)
    for name in asdict(here):
        assert str(replace(here, **{name: "other"})) != str(here)


CAPS = {  # variable, read once when a process starts, and field
    ("ONEDNN_MAX_CPU_ISA", "SSE41"): "onednn",
    ("ATEN_CPU_CAPABILITY", "default"): "aten",
    ("OPENBLAS_CORETYPE", "Nehalem"): "numpy_blas",
}


@pytest.mark.slow
@x86
def test_other_instruction_sets_are_another_platform() -> None:
    here, capped = asdict(measure()), measured_with(**{name: value for name, value in CAPS})
    assert all(capped[field] != here[field] for field in CAPS.values())
    assert capped["fingerprint"] != here["fingerprint"]


def test_text_of_others_on_stdout_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    os.write(1, b"before\n")
    lines, result = _with_onednn_log(lambda: str(os.write(1, b"meanwhile\n")))
    os.write(1, b"after\n")
    assert (lines, result) == ([], "10")
    assert capfd.readouterr() == ("before\nmeanwhile\nafter\n", "")


RECORD = {
    **{"architecture": "x86_64", "device": "cpu", "aten": "AVX2"},
    **{"onednn": "brg_conv_fwd:avx, jit_1x1:avx2", "numpy_blas": "openblas 0.3.30 Haswell"},
}


@pytest.mark.parametrize(
    ("changes", "caps"),
    [
        ({}, ("avx2", "AVX2", "Haswell")),  # the newest that oneDNN chose
        ({"onednn": "jit:sse41", "aten": "DEFAULT"}, ("default", "SSE41", "Haswell")),
        (
            {"onednn": "jit:avx512_core", "numpy_blas": "openblas 0.3.30 SkylakeX"},
            ("avx2", "AVX512_CORE", "SkylakeX"),
        ),
        ({"onednn": "jit:avx512_core_amx"}, None),  # no variable of ours stops there
        ({"onednn": "none"}, None),
        ({"aten": "ZVECTOR"}, None),
        ({"device": "cuda NVIDIA H100"}, None),
        ({"architecture": "arm64"}, None),
        ({"numpy_blas": "openblas 0.3.30 Haswell, openblas 0.3.31 Zen"}, None),
        ({"numpy_blas": "openblas 0.3.30 Haswell, mkl 2024 Haswell"}, None),
        ({"numpy_blas": "openblas 0.3.30"}, None),
        ({"numpy_blas": ""}, None),
    ],
)
def test_the_variables_that_a_record_asks_for(
    changes: dict[str, str], caps: tuple[str, str, str] | None
) -> None:
    names = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE")
    expected = {} if caps is None else dict(zip(names, caps, strict=True))
    assert caps_of({**RECORD, **changes}) == expected
    assert caps_of({}) == {}


def test_no_caps_lead_to_a_platform_that_is_not_of_this_machine() -> None:
    here = asdict(measure())
    assert caps_for({**here, "device": "cuda"}) == {}
    assert caps_for({**here, "architecture": "arm64"}) == {}
    assert caps_for({**here, "torch": "0.1"}) == {}
    assert caps_for({**here, "onednn": "jit:rvv", "aten": "RVV"}) == {}
    assert caps_for({**here, "fingerprint": "0" * 64}) == {}
