"""Names that a shell offers, and the groups of options in the help."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
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
