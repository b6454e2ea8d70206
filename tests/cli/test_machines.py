"""Machines that lack what most have: a home folder, a torch that imports, a plain TMPDIR."""

import errno
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from fedbench.bench.tuning.ray.session import ray_environment, short_folder

from .conftest import Call


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
