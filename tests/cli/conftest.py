"""Fixtures that run the command in this process or a new one, and a store with one run."""

import contextlib
import io
import json
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fedbench.cli import main

Env = Mapping[str, str]
Call = Callable[..., Any]
TINY = ("--set", "federation.num_rounds=1", "--set", "data.train_subset=200")
QUICK = (*TINY, "--workers", "1", "--device", "cpu")


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.out, self.err
        return json.loads(self.out)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """Run the command in this process, through its real entry point."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    return _answer


def _answer(*words: object) -> Answer:
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as stop,
    ):
        main([*map(str, words)])
    assert isinstance(stop.value.code, int)
    texts = (each.buffer.getvalue().decode() for each in (out, err))
    return Answer(stop.value.code, *texts)


def _become(
    program: Callable[[list[str]], int], words: list[str], folder: Path, cwd: Path, env: Env
) -> None:
    """Be the program, with its output in two files and with the variables of `env` alone."""
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path[:0] = env["PYTHONPATH"].split(os.pathsep)
    sys.exit(program(words))


def install(site: Path, name: str, group: str, points: Mapping[str, str]) -> None:
    """Install the metadata of a package, laid out like pip's, with these entry points."""
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"[{group}]", *(f"{point} = {target}" for point, target in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))


@pytest.fixture(scope="session")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Answer]:
    """Run the command, or another program, as a new process, with its output in files.

    It is forked from a process that has imported what takes seconds, and no plugin.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["fedbench.methods", "fedbench.bench.execution.run", "scipy.stats"]
    )
    root = str(Path(__file__).resolve().parents[2])

    def run(
        *words: object,
        cwd: Path | None = None,
        env: Env | None = None,
        program: Callable[[list[str]], int] = main,
    ) -> Answer:
        folder = tmp_path_factory.mktemp("output")
        variables = {**os.environ, "PYTHONPATH": root, **(env or {})}
        given = (program, [*map(str, words)], folder, cwd or Path.cwd(), variables)
        process = context.Process(target=_become, args=given)
        process.start()
        try:
            process.join()
        finally:  # also at the time limit of the test
            process.kill()
        assert process.exitcode is not None
        out, err = ((folder / name).read_text(encoding="utf-8") for name in ("out", "err"))
        return Answer(process.exitcode, out, err)

    return run


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Store with the run `finished`, only read; its path has a blank and a letter beyond ASCII."""
    return tmp_path_factory.mktemp("my störe")


@pytest.fixture(scope="session")
def finished(store: Path) -> Answer:
    """Row of one `fedbench run`, started in another directory."""
    with contextlib.chdir(store.parent):
        return _answer("run", "simclr", *QUICK, "--json", "--store", store)


@pytest.fixture
def copy(finished: Answer, store: Path, tmp_path: Path) -> Path:
    """Copy of the store with one finished run, to write to."""
    assert finished.code == 0, finished.err
    return Path(shutil.copytree(store, tmp_path / "my cöpy"))
