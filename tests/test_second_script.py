"""The independent second script agrees with what the first ones print, to the last digit."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SIGNED = r"([+−-]?\d+\.\d+)"


@pytest.fixture(scope="module")
def second() -> str:
    command = [sys.executable, str(ROOT / "docs" / "studies" / "second.py")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.extended
def test_the_board(second: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```text\n +alpha 0\.1.*?^```", readme, re.DOTALL | re.MULTILINE)
    printed = r"^## Board cifar10, alpha .*?^ties:\n(?:  \S[^\n]*\n)+"
    tables = re.findall(printed, second, re.DOTALL | re.MULTILINE)
    assert len(tables) == 3
    groups: list[dict[str, set[str]]] = [{} for _ in tables]
    for line in shown.splitlines()[3:-1]:
        method, *_ = line.split()
        cells = re.findall(r"([\d.]+)±([\d.]+) ([a-f]*)", line)
        for table, (mean, half, letters), ties in zip(tables, cells, groups, strict=True):
            other = re.findall(rf"^ *{method} +([\d.]+) +([\d.]+)", table, re.MULTILINE)[0]
            assert [*map(float, other)] == pytest.approx([float(mean), float(half)], abs=0.055)
            for letter in letters:
                ties.setdefault(letter, set()).add(method)
    for table, ties in zip(tables, groups, strict=True):
        listed = table.partition("ties:")[2].strip().splitlines()
        assert [{*map(str.strip, names.split(","))} for names in listed] == [
            *map(ties.get, "abcdef"[: len(listed)])
        ]


@pytest.mark.extended
def test_the_claims(second: str) -> None:
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    found = {
        (float(difference), float(half))
        for difference, half in re.findall(
            rf"^ *\S.* \d+ +\d+ +{SIGNED} +(\d+\.\d+) +[\d.]+ +\d\.\d+ ", second, re.MULTILINE
        )
    }
    tested = re.findall(rf"^\| .* − .* \| {SIGNED} ± (\d+\.\d+) \| [\d.e-]+ \| \d", page, re.M)
    assert len(tested) >= 15
    for difference, half in tested:
        assert (float(difference.replace("−", "-")), float(half)) in found


@pytest.mark.extended
def test_the_confirmation(second: str) -> None:
    """Orders and regrets that no draw decides; verdicts, whose draws differ between the scripts."""
    page = (ROOT / "docs" / "studies" / "confirmation.md").read_text(encoding="utf-8")
    number = r"([−-]?\d\.\d\d)"
    shown = re.findall(
        rf"^\| `(\S+)` \| {number} \[.*\] \| {number} \| {number} \| {number} \| {number} \|",
        page,
        re.M,
    )
    part = second.partition("## Confirmation: tau by cell")[2]
    assert len(shown) == 5
    for rule, *printed in shown:
        mean, aligned, simsiam, featarc, lejepa = (float(v.replace("−", "-")) for v in printed)
        (found,) = re.findall(
            rf"^ *{re.escape(rule)} +{number} +{number} +{number} +{number}$", part, re.M
        )
        assert [*map(float, found)] == [aligned, featarc, lejepa, simsiam]
        (overall,) = re.findall(
            rf"^ *{re.escape(rule)} +{number} ",
            second.partition("## Confirmation: tau, its gap")[2][:900],
            re.M,
        )
        assert float(overall) == mean
    regrets = dict(
        re.findall(rf"^\| `(\S+)` \| {number} \[.* \| {number} \|$", page, re.M)
        and [
            (rule, last)
            for rule, _, last in re.findall(
                rf"^\| `(\S+)` \| {number} \[.* \| {number} \|$", page, re.M
            )
        ]
    )
    names, means = (
        line.split() for line in re.findall(r"^ +preset +board.*$|^mean +[\d. ]+$", part, re.M)[:2]
    )
    header = (
        " ".join(names)
        .replace("halving by loss", "halving")
        .replace("4 random by loss", "4")
        .split()
    )
    of = dict(zip(header, map(float, means[1:]), strict=True))
    assert {rule: float(v) for rule, v in regrets.items()} == {rule: of[rule] for rule in regrets}
    verdicts = re.findall(r"^\| H\d `(\S+)` > `(\S+)` .* \| (\w+) \|$", page, re.M)
    assert len(verdicts) == 4
    for first, other, verdict in verdicts:
        assert re.search(rf"^ *{re.escape(first)} +{re.escape(other)} .* {verdict}$", part, re.M)
