"""Plugins of third parties: those that cannot be loaded, and those that `fedbench new` writes."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedbench.bench.results.store.store import Store
from fedbench.bench.system.errors import PluginError

from .conftest import Call, install

METHOD = '''
from fedbench.bench.method.registry import register
from fedbench.methods.supervised import Supervised

@register("{name}")
class {cls}(Supervised):
    """{name} in one line."""
'''


def install_methods(site: Path, **plugins: str) -> dict[str, str]:
    """Install a package `broken-pack` with one entry point per module."""
    install(site, "broken-pack", "fedbench.methods", {name: f"pack_{name}" for name in plugins})
    for name, code in plugins.items():
        (site / f"pack_{name}.py").write_text(code, encoding="utf-8")
    root = str(Path(__file__).resolve().parents[2])
    return {"PYTHONPATH": f"{site}:{root}"}


def test_a_broken_plugin_is_one_warning(shell: Call, tmp_path: Path) -> None:
    twice = METHOD.format(name="half", cls="Half") + METHOD.format(name="byol", cls="Byol")
    good = METHOD.format(name="good", cls="Good") + "    pair: tuple[float, int] = (0.9, 1)\n"
    idle = METHOD.format(name="idle", cls="Idle") + "    def needs(self): pass\n"
    torn = "import no_such\nmodule"
    env = install_methods(tmp_path / "site", good=good, half=twice, idle=idle, torn=torn)
    answer = shell("methods", "--json", env=env)
    assert answer.code == 0, answer.err
    records = {record["name"]: record for record in answer.json}
    assert {"good", "idle", "simclr", "byol"} <= set(records)
    assert records["good"]["fields"]["pair"]["kind"] == "list of number, whole number"
    assert "half" not in records  # the plugin's second line failed, so its first is undone
    assert "own" in records["byol"]["summary"] or "prediction" in records["byol"]["summary"]
    half, torn, idle = answer.err.splitlines()
    lines = {half: ("'half'", "'byol'"), torn: ("'torn'", "'no_such'"), idle: ("idle",)}
    assert all(word in line for line, words in lines.items() for word in words)
    unknown = shell("config", "half", env=env)
    assert (unknown.code, unknown.out) == (2, "")
    assert re.findall("plugin '(.*?)' of package", unknown.err.splitlines()[-1]) == ["half", "torn"]


def test_a_wrong_space_of_a_plugin_stops_its_own_commands_only(shell: Call, tmp_path: Path) -> None:
    """A line of the file names a field that the method has no longer."""
    env = install_methods(tmp_path / "site", own=METHOD.format(name="own", cls="Own"))
    space = "method: own\nspace:\n  method.gone: {type: float, low: 0.1, high: 0.2}\n"
    (tmp_path / "site" / "own.yaml").write_text(space, encoding="utf-8")
    for words in (["spaces"], ["explain", "client.lr"]):
        answer = shell(*words, "--json", env=env)
        assert answer.code == 0
        assert answer.json
        (line,) = answer.err.splitlines()
        assert all(word in line for word in ("own.yaml", "'method.gone'"))
    for words in (["spaces", "own"], ["tune", "own", "--dry-run"], ["explain", "client.lr", "own"]):
        assert shell(*words, env=env).code == 2


def test_a_plugin_that_is_installed_and_broken_is_not_said_to_be_missing(
    shell: Call, tmp_path: Path
) -> None:
    env = install_methods(tmp_path / "site", mymeth="def :")
    (tmp_path / "mymeth").mkdir()
    (tmp_path / "mymeth" / "pyproject.toml").write_text("fedbench.methods", encoding="utf-8")
    last = shell("config", "mymeth", env=env, cwd=tmp_path).err.splitlines()[-1]
    assert "pip install" not in last
    assert f"SyntaxError: invalid syntax ({tmp_path / 'site' / 'pack_mymeth.py'}, line 1)" in last
    other = shell("config", "mymeth", cwd=tmp_path)
    assert "pip install -e mymeth" in other.err


def test_a_run_knows_the_code_of_its_method(shell: Call, tmp_path: Path) -> None:
    """An edited loss is another run; a repetition names the cause."""
    scaled = METHOD.format(name="edited", cls="Edited") + (
        "    def loss(self, *given):\n        found = super().loss(*given)\n"
        "        return found.plus('more', {scale} * found.total)\n"
    )
    env = install_methods(tmp_path / "site", edited=scaled.format(scale=1))
    values: dict[str, Any] = {"federation.num_rounds": 1, "data.train_subset": 100}
    values |= {"model.width": 4, "evaluation.protocols": "[knn]"}
    words = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
    words += ["--workers", "1", "--store", str(tmp_path / "store"), "--json"]

    def run(code: str) -> Any:
        (tmp_path / "site" / "pack_edited.py").write_text(code, encoding="utf-8")
        answer = shell("run", "edited", *words, env=env)
        assert answer.code == 0, answer.err
        return answer

    first, other = run(scaled.format(scale=1)), run(scaled.format(scale=2) + "    # why\n")
    assert (first.json["outdated"], other.json["outdated"]) == ([], [first.json["run_id"]])
    assert other.json["run_id"] != first.json["run_id"]
    assert {*other.json["config"]["code"]} == {"edited"}
    store = ("--store", str(tmp_path / "store"), "--json")
    repeated = shell("reproduce", first.json["run_id"], *store, env=env)
    assert (repeated.code, repeated.json["verdict"]) == (4, "different")
    assert "edited" in repeated.json["reason"]
    assert "edited" in repeated.err.splitlines()[0]  # before it trains
    row = Store(tmp_path / "store").find(other.json["run_id"])
    assert row.environment["broken-pack"] == "1.0"
    repeated = shell("run", "edited", *words, "--again", env=env)
    assert (repeated.code, repeated.json["repeated"]["verdict"]) == (0, "same bits")
    assert repeated.json["outdated"] == [first.json["run_id"]]  # its code is not there any more
    assert [row.row_id for row in Store(tmp_path / "store").rows()] == [other.json["run_id"]]
    assert not (tmp_path / "store" / "cells" / first.json["run_id"]).exists()


def test_hooks_that_draw_globally_give_one_result(shell: Call, tmp_path: Path) -> None:
    """In two stores, by any number of workers."""
    code = METHOD.format(name="drawn", cls="Drawn") + (
        "    def loss(self, *given):\n        out = super().loss(*given)\n"
        "        return out.plus('more', (np.random.rand() + random.random()) * out.total)\n"
        "    def encode(self, net, images):\n"
        "        return super().encode(net, images) + np.random.rand()\n"
    )
    # As a new process has it: those of a test are copies of one.
    code = f"import os, random\nimport numpy as np\nnp.random.seed(os.getpid())\n{code}"
    env = install_methods(tmp_path / "site", drawn=code)
    values = {"federation.num_rounds": 1, "data.train_subset": 100, "model.width": 4}
    words = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
    metrics = []
    for workers in ("1", "2"):
        place = ("--workers", workers, "--store", str(tmp_path / workers), "--json")
        answer = shell("run", "drawn", *words, *place, env=env)
        assert answer.code == 0, answer.err
        metrics.append(answer.json["metrics"])
    assert metrics[0] == metrics[1]


def test_an_error_in_a_hook_is_the_plugins_and_has_its_place(shell: Call, tmp_path: Path) -> None:
    hook = "    def loss(self, *given):\n        return None * 2\n"
    short = "    def loss(self, net):\n        pass\n"
    changed = (
        "    def loss(self, net, *given):\n        out = super().loss(net, *given)\n"
        "        e = net['classifier'].weight.exp()\n        term = e.log().sum()\n"
        "        e.fill_(1.0)\n        return out.plus('more', term)\n"
    )
    bare = "    def loss(self, *given):\n        return super().loss(*given).total\n"
    named = {
        "wrong": (hook, "pack_wrong.py:9 in loss: TypeError"),
        "short": (short, "pack_short.py:8 in loss: TypeError"),
        "changed": (changed, "pack_changed.py:11 in loss: backward() of it needs a tensor"),
        "bare": (bare, "loss() must be a Loss (got Tensor)"),
    }
    codes = {n: METHOD.format(name=n, cls=n.title()) + code for n, (code, _) in named.items()}
    env = install_methods(tmp_path / "site", **codes)
    words = ("--set", "data.train_subset=100", "--workers", "1", "--store", tmp_path / "store")
    for name, (_, place) in named.items():
        answer = shell("run", name, *words, env=env)
        assert answer.code == PluginError.exit_code
        assert place in answer.err
        assert "this is a bug" not in answer.err


@pytest.mark.slow
def test_new_packages_work_and_pass_their_own_tests(shell: Call, tmp_path: Path) -> None:
    """Installed as a user would."""
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
