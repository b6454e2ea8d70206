"""Packages that `fedbench new` writes, installed as a user would."""

import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Call


@pytest.mark.slow
def test_packages_work_and_pass_their_own_tests(shell: Call, tmp_path: Path) -> None:
    made = {"method": "my-method", "objective": "my-score", "backbone": "my-net"}
    for kind, name in made.items():
        answer = shell("new", kind, name, "--json", cwd=tmp_path)
        assert answer.code == 0, answer.err
        assert all((tmp_path / path).is_file() for path in answer.json)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    site, packages = tmp_path / "site", [str(tmp_path / name) for name in made.values()]
    subprocess.run([*pip, "--target", str(site), *packages], check=True)
    env = {"PYTHONPATH": str(site)}
    values = {"model.backbone": "my-net", "evaluation.objectives": "[my-score]"}
    values |= {"data.train_subset": "100", "federation.num_rounds": "1"}
    words = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
    yaml = shell("config", "my-method", *words, "--yaml", cwd=tmp_path, env=env)
    (tmp_path / "mine.yaml").write_text(yaml.out, encoding="utf-8")
    words = ["my-method", "--config", "mine.yaml", "--workers", "1", "--json"]
    run = shell("run", *words, cwd=tmp_path, env=env)
    assert run.code == 0, run.err
    assert "my_score" in run.json["metrics"]
    shown = shell("show", run.json["run_id"], "--json", cwd=tmp_path, env=env).json["config"]
    assert {"code.my-method", "code.backbones:my-net", "code.objectives:my-score"} <= {*shown}
    space = shell("spaces", "--json", cwd=tmp_path, env=env)
    assert any(record["spec"] == "my-method" for record in space.json), space.err
    tests = [str(path) for name in made.values() for path in (tmp_path / name).rglob("test_*.py")]
    # The templates' tensors; what any method passes for lanes and interruptions is not theirs.
    chosen = "not TestMyMethod or reaches or pure or complete"
    words = ["-q", "-p", "no:cacheprovider", "-k", chosen, *tests]
    tested = shell(*words, cwd=tmp_path, env=env, program=pytest.main)
    assert tested.code == 0, tested.out


def test_nothing_is_overwritten(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    answer = call("new", "method", "here")
    assert answer.code == 2
    assert "here" in answer.err
    assert not any((tmp_path / "here").iterdir())
