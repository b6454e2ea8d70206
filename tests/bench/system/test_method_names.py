"""Names of methods are known without their code."""

import subprocess
import sys

import pytest

from fedbench.bench.method import registry
from fedbench.bench.system.errors import UnknownNameError
from fedbench.bench.system.method_names import check_spec, shipped


def test_files_have_the_names_that_the_registry_has() -> None:
    ours = {
        name: entry.is_addon
        for name, entry in registry.entries().items()
        if entry.cls.__module__.startswith("fedbench.methods.")
    }
    assert shipped() == ours


@pytest.mark.parametrize("spec", ["simclr", "SimCLR+nosuch", "fed-simclr", "uv", None])
def test_what_a_package_may_have_is_left_to_the_registry(spec: str | None) -> None:
    assert check_spec(spec) == spec


def test_a_wrong_name_is_refused_before_torch_is_loaded() -> None:
    code = (
        "import sys, fedbench.cli as c\n"
        "try: c.main(['run', 'moco'])\n"
        "except SystemExit as end: print(end.code, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n"
    assert done.stderr.startswith("error: unknown method 'moco' (known: aligned, byol,")
    with pytest.raises(UnknownNameError, match="did you mean 'simclr'"):
        check_spec("simcrl+uv")
