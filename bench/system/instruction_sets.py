"""Environment variables that make a processor compute as an older one does.

Libraries choose their code by the processor's instruction sets, and each of them has a variable
that caps the choice. Whether another numeric platform has the same bits then is not known from
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
"""Instruction sets to values of `ONEDNN_MAX_CPU_ISA`, the oldest first."""

_OPENBLAS = re.compile(r"openblas [\d.]+ (\w+)")
_CAPPED = {"aten", "onednn", "numpy_blas", "fingerprint"}
"""Fields of a platform that the variables change."""


def caps_for(record: Mapping[str, str]) -> dict[str, str]:
    """Return variables under which a new process on this machine has a numeric platform's bits.

    Takes some seconds: a process is started to measure it.

    Args:
        record: of the platform, as rows have it.

    Returns:
        The variables and their values; empty if no caps lead to that platform: on other
        architectures than x86, with a GPU, with other versions of the libraries, or if the
        fingerprint differs all the same.
    """
    wanted = {name: value for name, value in record.items() if name != "name"}
    caps, here = caps_of(wanted), asdict(measure())
    if not caps or any(wanted.get(name) != here[name] for name in here.keys() - _CAPPED):
        return {}
    done = subprocess.run(
        [sys.executable, "-P", "-m", __name__],
        env={**os.environ, **caps},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:  # a processor without these instructions ends the process by a signal
        return {}
    # Libraries may have written lines before, as under ONEDNN_VERBOSE.
    return caps if json.loads(done.stdout.splitlines()[-1]) == wanted else {}


def caps_of(record: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that lead to the names in a record; empty if one of them has none."""
    aten = _ATEN.get(record.get("aten", ""))
    sets = {*re.findall(r"sse41|avx\w*", record.get("onednn", ""))}
    libraries = record.get("numpy_blas", "").split(", ")
    found = [match[1] for part in libraries if (match := _OPENBLAS.fullmatch(part))]
    if record.get("architecture") != "x86_64" or record.get("device") != "cpu":
        return {}
    if aten is None or not sets or not sets <= _ONEDNN.keys():
        return {}
    if len(found) < len(libraries) or len({*found}) != 1:
        return {}
    return {
        "ATEN_CPU_CAPABILITY": aten,
        "ONEDNN_MAX_CPU_ISA": _ONEDNN[max(sets, key=list(_ONEDNN).index)],
        "OPENBLAS_CORETYPE": found[0],
    }


if __name__ == "__main__":
    print(json.dumps(asdict(measure())))
