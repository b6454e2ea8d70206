"""Targets of the Makefile do what `make help` says, with the environment that runs the tests.

The site is built in test_docs.py, works of `make bench` run in test_perf.py; `make test` runs this.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedbench.cli import main

from .test_readme import environment_of, load

ROOT = Path(__file__).resolve().parent.parent


def make(*words: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> str:
    """Run a target as from a shell, even where `make test` runs this; nothing is installed."""
    venv = os.path.relpath(sys.prefix, cwd)  # make takes no blanks in names, as a clone's may have
    if " " in venv:
        (cwd / "venv").symlink_to(sys.prefix)
        venv = "venv"
    here = [f"VENV={venv}", "-o", f"{venv}/.installed", "-o", f"{venv}/.docs"]
    shell = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make", *here, *words],
        cwd=cwd,
        env={**shell, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def fedbench_lines() -> list[list[str]]:
    """Return the arguments of each `fedbench` that `make demo` runs."""
    lines = [shlex.split(line) for line in make("-n", "demo").splitlines()]
    return [words[1:] for words in lines if Path(words[0]).name == "fedbench"]


def test_help_names_every_target() -> None:
    phony = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    named = [line[:16].split() for line in make("help").splitlines()]
    assert sorted(name for names in named for name in names) == sorted(phony[0].split())


def test_ci_runs_every_target() -> None:
    """By a line of .ci/run or by a test, of which some are `extended`; an alias is one of two."""
    script, workflow = (
        set(re.findall(r"^ *(?:- run: )?make ([a-z-]+)$", path.read_text("utf-8"), re.MULTILINE))
        for path in (ROOT / ".ci" / "run", ROOT / ".github" / "workflows" / "ci.yml")
    )
    assert script == workflow == {"test", "test-extended"}
    tests = "".join(path.read_text("utf-8") for path in sorted((ROOT / "tests").glob("test_*.py")))
    run = script | set(re.findall(r"""\bmake(?:\(|", )"([a-z][a-z-]*)\"""", tests))
    aliases = re.findall(r"^([a-z -]+):.*##", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert len(aliases) > 6
    assert [names for names in aliases if not run & set(names.split())] == []


def test_every_test_is_in_one_run_of_ci() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]
    options = settings["ini_options"]["addopts"]
    assert [word for word in options if word.startswith("-m")] == ["-m=not extended"]
    lines = make("-n", "test"), make("-n", "test-extended")
    assert [re.findall(r"-m pytest.* -m (\w+)", line) for line in lines] == [[], ["extended"]]


def test_an_installation_shows_a_line_and_errors_but_no_warning_of_pip(tmp_path: Path) -> None:
    """A folder of a user's settings that lacks a package is a warning, once for each package."""
    lines = subprocess.run(
        ["make", "-n", "-f", ROOT / "Makefile", f"{tmp_path}/.installed", f"VENV={tmp_path}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert 'echo "installing into' in lines
    (words,) = re.findall(r" -m (pip install .*) --editable", lines)
    done = subprocess.run(
        [sys.executable, "-m", *words.split(), "no-such-package"],
        env=os.environ | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "missing")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert {line.partition(":")[0] for line in done.stderr.splitlines()} == {"ERROR"}


def test_the_lines_of_make_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each can be planned; an estimate would run rounds."""
    for name, value in environment_of(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("fedbench.bench.tuning.executor.Executor.cost", lambda *_: None)
    lines = fedbench_lines()
    assert [words[0] for words in lines] == ["tune", "sweep", "leaderboard"]
    for words in lines:
        if words[0] == "leaderboard":  # there is no store yet
            continue
        with pytest.raises(SystemExit) as stop:
            main([*words, "--dry-run"])
        assert not stop.value.code, capsys.readouterr().err


def test_the_demo_ends_in_what_was_seen() -> None:
    """The interval of `a`, 58 to 82 %, holds its untrained encoder's 60 %."""
    boards = {
        0.1: {"a": line(0.70, 0.12, 0.10), "b": line(0.78, 0.02, 0.15)},
        100.0: {"b": line(0.79, 0.01, 0.16)},
    }
    said = load("demo").sentence(boards)
    assert "2 of 3 encoders" in said
    assert "few classes b 78.0 ± 2.0 % and a 70.0 ± 12.0 % (untrained 61.5 %)" in said
    assert "alike b 79.0 ± 1.0 % (untrained 63.0 %)" in said


def line(mean: float, half: float, gain: float) -> SimpleNamespace:
    return SimpleNamespace(mean=mean, ci95_low=mean - half, ci95_high=mean + half, gain=gain)


@pytest.mark.slow
@pytest.mark.extended
def test_make_demo(tmp_path: Path) -> None:
    said = make("demo", env=environment_of(tmp_path))
    assert "best trial" in said
    assert said.splitlines()[-1].startswith("What you saw")


def test_make_format_and_clean(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    file = tmp_path / "x.py"
    file.write_text('"""One."""\nimport json\nimport  ast\nprint( ast,json )\n')
    make("format", cwd=tmp_path)
    assert file.read_text() == '"""One."""\n\nimport ast\nimport json\n\nprint(ast, json)\n'
    kept, made = tmp_path / "leaderboards" / "rows", tmp_path / "docs" / "_build" / "html"
    for folder in (kept, made, tmp_path / ".venv"):
        folder.mkdir(parents=True)
    subprocess.run(["make", "clean"], cwd=tmp_path, capture_output=True, check=True)
    assert kept.is_dir()
    assert not made.exists()
    assert not (tmp_path / ".venv").exists()
