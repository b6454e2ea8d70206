"""Environment variables that make a processor compute as an older one does.

Libraries choose their code by the processor's instruction sets, and each of them has a variable
that caps the choice. Whether the bits are then those of another numeric platform is not known from
names: a new process measures it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict

from fedbench.bench.system.numerics import measure

_ATEN = {"DEFAULT": "default", "AVX2": "avx2", "AVX512": "avx512"}
_ONEDNN = {"sse41": "SSE41", "avx": "AVX", "avx2": "AVX2", "avx512_core": "AVX512_CORE"}


def caps_for(record: Mapping[str, str]) -> dict[str, str]:
    """Return variables under which a new process on this machine has a numeric platform's bits.

    Takes some seconds: a process is started to measure it.

    Args:
        record: of the platform, as rows have it; one of x86 without a GPU.

    Returns:
        The variables and their values; empty if these caps do not lead to that platform, which
        includes other versions of the libraries.
    """
    wanted = {name: value for name, value in record.items() if name != "name"}
    caps = _caps(wanted)
    here = asdict(measure())
    fixed = here.keys() - {"aten", "onednn", "numpy_blas", "fingerprint"}
    if not caps or {name: wanted.get(name) for name in fixed} != {
        name: here[name] for name in fixed
    }:
        return {}
    done = subprocess.run(
        [sys.executable, "-P", "-m", __name__],
        env={**os.environ, **caps},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    # A processor without these instructions ends the process by a signal.
    if done.returncode or json.loads(done.stdout.splitlines()[-1]) != wanted:
        return {}
    return caps


def _caps(record: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that lead to the names in a record; empty if one of them has none."""
    if record.get("architecture") != "x86_64" or record.get("device") != "cpu":
        return {}
    sets = {*re.findall(r"sse41|avx\w*", record["onednn"])}
    kernels = {part.split()[-1] for part in record["numpy_blas"].split(", ")}
    known = sets <= _ONEDNN.keys() and record["aten"] in _ATEN
    if (
        not known
        or not sets
        or len(kernels) != 1
        or not record["numpy_blas"].startswith("openblas")
    ):
        return {}
    return {
        "ATEN_CPU_CAPABILITY": _ATEN[record["aten"]],
        "ONEDNN_MAX_CPU_ISA": _ONEDNN[max(sets, key=list(_ONEDNN).index)],
        "OPENBLAS_CORETYPE": kernels.pop(),
    }


if __name__ == "__main__":
    print(json.dumps(asdict(measure())))
