"""Names of methods are known without their code."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedbench.bench.method import registry
from fedbench.bench.system.errors import UnknownNameError
from fedbench.bench.system.method_names import check_spec, shipped, unknown_method
from fedbench.bench.terminal.scaffold import write_start


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


def test_a_package_that_lies_here_is_said_to_be_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_start("method", "my-loss", tmp_path / "my-loss")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    monkeypatch.chdir(tmp_path)
    assert str(unknown_method("my-loss", ["simclr"])).endswith("pip install -e my-loss")
    for name in ("other", "x" * 300, "a\0b"):  # the last two name no file on any system
        assert "pip" not in str(unknown_method(name, ["simclr"]))
