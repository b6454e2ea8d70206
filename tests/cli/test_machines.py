"""`fedbench doctor`, and machines that lack what most have: a home, a torch that imports."""

import errno
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from fedbench.bench.system.numerics import measure
from fedbench.bench.tuning import doctor
from fedbench.bench.tuning.doctor import Check
from fedbench.bench.tuning.ray import nodes
from fedbench.bench.tuning.ray.nodes import NodeReport
from fedbench.bench.tuning.ray.session import ray_environment, short_folder

from .conftest import Call


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace Ray, which takes seconds to start; other tests start it."""

    def here() -> Iterator[Check]:
        yield Check("ray", "ok", "starts on this machine")

    monkeypatch.setattr(doctor, "_ray_here", here)


def test_a_machine_that_is_fine(call: Call, tmp_path: Path) -> None:
    store = tmp_path / "none"
    document = call("doctor", "--store", store, "--json").json
    assert document["ok"]
    checks = {check["name"]: check for check in document["checks"]}
    assert set(checks) >= {"python", "packages", "processor", "gpu", "data", "ray"}
    assert str(measure()) in checks["numeric platform"]["detail"]
    assert "simclr" in checks["methods"]["detail"]
    assert f"{store}: 0 rows" in checks["store"]["detail"]
    assert not store.exists()
    assert checks["python"]["detail"] in call("doctor", "--store", store).out


def test_what_is_missing_is_a_problem(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "PACKAGES", ("ray", "no-such-package"))
    answer = call("doctor", "--store", tmp_path)
    assert answer.code == 3
    assert "no-such-package" in answer.out
    (tmp_path / "file").write_text("")
    answer = call("doctor", "--store", tmp_path / "file", "--json")
    assert answer.code == 5
    assert not answer.json["ok"]
    nobody = call("doctor", "--store", tmp_path, "--address", "127.0.0.1:1")
    assert nobody.code == 3
    assert "127.0.0.1:1" in nobody.out


def test_runs_on_a_gpu_need_one(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    answer = call("doctor", "--store", tmp_path, "--gpu")
    assert answer.code == 3
    assert answer.out == ""
    assert "--gpu" in answer.err
    assert len(answer.err.splitlines()) == 1


def test_the_nodes_of_a_cluster(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = ["H100", "H100"]
    facts = {"host": "a", "memory_bytes": 64e9, "gpus": gpus}
    reports = [
        NodeReport("1", "10.0.0.1", {"CPU": 16, "GPU": 2}, facts),
        NodeReport(
            "2", "10.0.0.2", {"CPU": 8}, {**facts, "host": "b"}, ("torch is not installed",)
        ),
        NodeReport("3", "10.0.0.3", {"CPU": 8}, {**facts, "host": "c"}, (), ("numpy 1 (here 2)",)),
    ]

    monkeypatch.setattr(doctor, "ray_session", lambda *_: nullcontext())
    monkeypatch.setattr(doctor, "live_nodes", list)
    monkeypatch.setattr(doctor, "report_nodes", lambda nodes, gpus: reports)
    answer = call("doctor", "--store", tmp_path, "--address", "head:6379", "--json")
    assert answer.code == 3
    found = [check for check in answer.json["checks"] if check["name"].startswith("node ")]
    assert [(check["name"], check["status"]) for check in found] == [
        ("node a (10.0.0.1)", "ok"),
        ("node b (10.0.0.2)", "problem"),
        ("node c (10.0.0.3)", "warning"),
    ]
    assert "2 GPU" in found[0]["detail"]
    assert "torch" in found[1]["detail"]
    assert "numpy 1 (here 2)" in found[2]["detail"]


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user id without an entry in the list of users, as in many containers."""

    def unknown(name: object) -> None:
        raise KeyError(name)

    for name in ("getpwuid", "getpwnam"):
        monkeypatch.setattr(pwd, name, unknown)
    for name in ("HOME", "XDG_CACHE_HOME", "FEDBENCH_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("nobody")
def test_without_a_home_the_remedies_are_named(call: Call, tmp_path: Path) -> None:
    for words in (["datasets"], ["run", "simclr", "--dry-run"], ["data", "prepare", "digits"]):
        answer = call(*words)
        assert (answer.code, answer.out, answer.err.count("\n")) == (5, "", 1), words
        assert all(each in answer.err for each in ("HOME", "--data-dir", "FEDBENCH_DATA_DIR"))
    assert call("datasets", "--data-dir", tmp_path).code == 0
    answer = call("runs", "--store", "~somebody/x")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "HOME" in answer.err
    with ray_environment(tmp_path, private=False):  # Ray asks for one when it is imported
        assert Path.home() == tmp_path
    assert "HOME" not in os.environ


def test_a_home_that_is_read_only(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(self: Path, *args: object, **kwargs: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    monkeypatch.setattr(Path, "mkdir", read_only)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("FEDBENCH_DATA_DIR", raising=False)
    answer = call("data", "prepare", "digits")
    assert (answer.code, answer.err.count("\n")) == (5, 1)
    assert "Read-only" in answer.err
    assert all(each in answer.err for each in ("HOME", "--data-dir", "FEDBENCH_DATA_DIR"))


@pytest.mark.parametrize("command", ["config simclr", "doctor"])
def test_a_torch_that_does_not_import(command: str, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.13: none')\n")
    done = subprocess.run(
        [sys.executable, "-m", "fedbench", *command.split()],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert done.stderr.startswith("error: the package torch does not import: libcudart.so.13")
    assert "pip install --force-reinstall torch" in done.stderr


def test_rays_folder_has_a_name_of_plain_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray encodes names of its sockets as ASCII."""
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("ü").mkdir()
    monkeypatch.setattr("tempfile.tempdir", "ü")  # short enough
    assert short_folder() == Path("/tmp")
