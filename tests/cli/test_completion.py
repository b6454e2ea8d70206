"""Names that a shell offers, and the groups of options in the help."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fedbench.bench.method import registry
from fedbench.bench.runs.presets import preset_names
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
    line: Any = SimpleNamespace(params={}, args=["simclr+uv"])
    empty: Any = SimpleNamespace(params={}, args=[])
    assert completion.keys(line, "client.l") == ["client.local_epochs", "client.lr"]
    assert completion.settings(line, "method.uv.t") == ["method.uv.temperature="]
    assert "method.ema_decay=" not in completion.settings(line, "")
    assert "method.ema_decay=" in completion.settings(empty, "method.")
    assert completion.presets("") == sorted(preset_names())
    assert completion.grids("het") == ["heterogeneity"]


def test_the_shell_gets_other_names_without_torch() -> None:
    code = "import sys, fedbench.cli as c\ntry: c.main([])\nexcept SystemExit: pass\n"
    code += "print('torch' in sys.modules, file=sys.stderr)"
    row = next((STORE / "rows").glob("*.parquet")).stem
    for typed, offered in (
        (f"fedbench show --store {STORE} {row[:10]}", [row]),
        ("fedbench tune simclr --sampler s", ["sobol"]),
    ):
        given = {
            "COMP_WORDS": typed,
            "COMP_CWORD": str(len(typed.split()) - 1),
            "_FEDBENCH_COMPLETE": "complete_bash",
        }
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **given},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == offered
        assert done.stderr.splitlines()[-1] == "False"


def test_help_is_grouped(call: Call) -> None:
    text = call("run", "--help").out
    headings = [line for line in text.splitlines() if line.endswith(":") and line[0] != " "]
    assert headings[:4] == ["Arguments:", "Options:", "Configuration:", "Places:"]
    assert headings[-1] == "Output:"
    assert text.index("Configuration:") < text.index("--preset") < text.index("Places:")
    assert "<str>" not in text
    assert text.index("--lanes") < text.index("Configuration:")  # one run has no runs at a time
    assert "Configuration:" not in call("runs", "--help").out  # its --preset is a filter
