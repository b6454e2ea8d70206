"""Names that a shell offers, and the explanations of keys and methods."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedbench.bench.method import registry
from fedbench.bench.runs.presets import load_preset, preset_names
from fedbench.bench.terminal import completion

Call = Callable[..., Any]
STORE = Path(__file__).resolve().parents[2] / "leaderboards" / "results"


def test_offered_methods_are_the_registered_ones() -> None:
    entries = registry.entries()
    methods = sorted(name for name, entry in entries.items() if not entry.is_addon)
    addons = sorted(name for name, entry in entries.items() if entry.is_addon)
    assert completion.specs("") == methods
    assert completion.specs("simclr+") == [f"simclr+{name}" for name in addons]
    assert completion.spec_list("byol,simclr+u") == ["byol,simclr+uv"]


def test_offered_keys_and_presets() -> None:
    assert completion.keys("client.l") == ["client.local_epochs", "client.lr"]
    assert completion.settings("seed") == ["seed="]
    assert completion.presets("") == sorted(preset_names())
    assert completion.grids("het") == ["heterogeneity"]


def test_the_shell_gets_them_without_torch() -> None:
    code = "import sys, fedbench.cli as c\ntry: c.main([])\nexcept SystemExit: pass\n"
    code += "print('torch' in sys.modules, file=sys.stderr)"
    typed = f"fedbench show --store {STORE} "
    row = next((STORE / "rows").glob("*.parquet")).stem
    given = {
        "COMP_WORDS": typed + row[:10],
        "COMP_CWORD": "4",
        "_FEDBENCH_COMPLETE": "complete_bash",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [row]
    assert done.stderr.splitlines()[-1] == "False"


def test_help_is_grouped(call: Call) -> None:
    text = call("run", "--help").out
    headings = [line for line in text.splitlines() if line.endswith(":") and line[0] != " "]
    assert headings[:4] == ["Arguments:", "Options:", "Configuration:", "Places:"]
    assert headings[-1] == "Output:"
    assert text.index("Configuration:") < text.index("--preset") < text.index("Places:")
    assert "<str>" not in text


def test_explain_has_every_preset(call: Call) -> None:
    record = json.loads(call("explain", "client.lr", "--json").out)
    assert [meaning["owner"] for meaning in record["meanings"]] == [""]
    assert record["meanings"][0]["kind"] == "number > 0"
    always = {p["preset"]: p["value"] for p in record["presets"] if not p["where"]}
    for name in preset_names():
        assert always[name] == load_preset(name).values["client.lr"].value
    text = call("explain", "client.lr").out
    assert text.startswith("client.lr: client learning rate")
    assert "method=simclr" in text


def test_a_field_of_several_methods_has_a_meaning_for_each(call: Call) -> None:
    record = json.loads(call("explain", "method.temperature", "--json").out)
    assert {"simclr", "orchestra"} <= {meaning["owner"] for meaning in record["meanings"]}
    one = json.loads(call("explain", "method.uv.weight", "--json").out)
    assert [meaning["owner"] for meaning in one["meanings"]] == ["uv"]


@pytest.mark.parametrize(
    ("key", "hint"),
    [("lr", "'client.lr' or 'server.lr'"), ("client.lrr", "'client.lr'"), ("qqqq", "")],
)
def test_unknown_keys(key: str, hint: str, call: Call) -> None:
    answer = call("explain", key)
    assert answer.code == 2
    assert f"no configuration has {key!r}" in answer.err
    assert hint in answer.err


def test_methods_of_a_spec_shows_its_hyperparameters(call: Call) -> None:
    text = call("methods", "simclr+uv").out
    assert text.startswith("simclr: ")
    for key in ("method.temperature", "method.uv.weight"):
        assert key in text
    records = json.loads(call("methods", "simclr+uv", "--json").out)
    assert [record["name"] for record in records] == ["simclr", "uv"]
    assert call("methods", "simcrl").code == 2
