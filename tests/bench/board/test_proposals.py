"""The workflow that checks proposed results, by its own script, and the form of all workflows."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from fedbench.bench.results.store.store import Store

from .conftest import Run

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / ".github" / "check-results.sh"
BIN = Path(sys.executable).parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def store(folder: Path, *entries: Run) -> Path:
    made = Store(folder)
    for entry in entries:
        made.write_row(entry.row)
        made.write_curve(entry.row.row_id, entry.points)
    return folder


def checked(base: Path, proposed: Path) -> tuple[int, str]:
    """Run the script as the workflow does; its exit code and its comment."""
    comment = base.parent / "comment.md"
    path = os.pathsep.join((str(BIN), os.environ["PATH"]))
    command = [str(SCRIPT), str(base), str(proposed), str(comment)]
    done = subprocess.run(command, env={**os.environ, "PATH": path}, check=False)
    return done.returncode, comment.read_text()


@pytest.mark.slow
def test_honest_results_are_compared_with_the_board(
    honest: tuple[Run, ...], tmp_path: Path
) -> None:
    base, proposed = store(tmp_path / "base", honest[0]), store(tmp_path / "proposed", *honest)
    code, comment = checked(base, proposed)
    assert code == 0, comment
    assert "No rank has changed" in comment


def removed(proposed: Path) -> str:
    path = next(proposed.glob("rows/*.parquet"))
    path.unlink()
    return path.name


def added(proposed: Path) -> str:
    (proposed / "conftest.py").write_text("raise SystemExit")
    return "conftest.py"


def linked(proposed: Path) -> str:
    (proposed / "rows" / "0.parquet").symlink_to("/etc/passwd")
    return "rows/0.parquet"


@pytest.mark.parametrize("change", [removed, added, linked])
def test_other_changes_are_refused_unread(
    change: Callable[[Path], str], honest: tuple[Run, ...], tmp_path: Path
) -> None:
    base = store(tmp_path / "base", honest[0])
    proposed = tmp_path / "proposed"
    shutil.copytree(base, proposed)
    name = change(proposed)
    code, comment = checked(base, proposed)
    assert code == 1
    assert name in comment


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_pins_its_actions_and_has_few_rights(path: Path) -> None:
    text = path.read_text()
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] in ({}, {"contents": "read"})
    assert "pull_request_target" not in workflow[True]  # YAML 1.1 reads `on` so
    uses = re.findall(r"uses: (\S+)", text)
    assert uses
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", each) for each in uses)
    for each in re.findall(r"run: (.*)", text):
        assert "github.event" not in each  # nobody's text becomes a command
    if "workflow_run" in workflow[True]:  # it may write, so it takes no code
        assert not [each for each in uses if "checkout" in each]
