"""Fixtures that run the command in this process or a new one, and a store with one run."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fedbench.cli import main


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Answer]:
    """Run the command in this process, through its real entry point."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def run(*words: object) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert isinstance(stop.value.code, int)
        return Answer(stop.value.code, out, err)

    return run


@pytest.fixture(scope="session")
def shell() -> Callable[..., Answer]:
    """Run the command as a new process, with its output in pipes."""
    root = str(Path(__file__).resolve().parents[2])

    def run(
        *words: object, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> Answer:
        done = subprocess.run(
            [sys.executable, "-m", "fedbench", *map(str, words)],
            capture_output=True,
            encoding="utf-8",
            cwd=cwd,
            env={**os.environ, "PYTHONUTF8": "1", "PYTHONPATH": root, **(env or {})},
            timeout=240,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Store with the run `finished`, only read; its path has a blank and a letter beyond ASCII."""
    return tmp_path_factory.mktemp("my störe")


@pytest.fixture(scope="session")
def finished(store: Path) -> Answer:
    """Row of one `fedbench run`, started in another directory."""
    tiny = ("--set", "federation.num_rounds=1", "--set", "data.train_subset=200")
    words = ["run", "simclr", *tiny, "--workers", "1", "--device", "cpu", "--json"]
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(store.parent),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as stop,
    ):
        main([*words, "--store", str(store)])
    assert isinstance(stop.value.code, int)
    return Answer(stop.value.code, out.getvalue(), err.getvalue())


@pytest.fixture
def copy(finished: Answer, store: Path, tmp_path: Path) -> Path:
    """Copy of the store with one finished run, to write to."""
    assert finished.code == 0, finished.err
    return Path(shutil.copytree(store, tmp_path / "my cöpy"))
