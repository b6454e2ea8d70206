"""Absurd numbers, paths that are no UTF-8, raw control characters."""

from pathlib import Path

import pytest

from fedbench.bench.config.yaml_files import load_yaml
from fedbench.bench.terminal.console import note
from fedbench.bench.terminal.tables import show_table

from .conftest import Call


def test_yaml_that_a_terminal_must_not_show(call: Call, tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text('data.name: "folder:/tmp/a\\u202eb\\x1b\\tc"\n')
    second.write_text(call("config", "simclr", "--yaml", "--config", first).out)
    assert second.read_text().isascii()
    assert load_yaml(second)["data"]["name"] == "folder:/tmp/a\u202eb\x1b\tc"


def test_no_control_character_reaches_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rich adds its own colours, but shows `[red]` and the cells' characters as text."""
    cells = [["[red]x[/red]", "\x1b[2J\x07\u202ea\nb"]]
    show_table(["method", "notes"], cells, title="\x1b]0;t\x07")
    plain = capsys.readouterr().out
    assert r"\x1b[2J\x07\u202ea\nb" in plain
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    show_table(["method", "notes"], cells, title="t")
    drawn = capsys.readouterr().out
    assert "[red]x[/red]" in drawn
    assert r"\x1b[2J\x07\u202ea\nb" in drawn
    assert "\x07" not in drawn
    assert "\x1b[2J" not in drawn
    note("error: \x1b[31m")
    assert "\x1b" not in capsys.readouterr().err
