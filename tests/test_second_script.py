"""The independent second script agrees with what the first ones print, to the last digit."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedbench

ROOT = Path(__file__).resolve().parent.parent
RULES = ("objective", "sep", "loss", "loss+sep", "objective+sep")
SIGNED = r"([+−-]?\d+\.\d+)"


@pytest.fixture(scope="module")
def second() -> str:
    command = [sys.executable, str(ROOT / "leaderboards" / "studies" / "second.py")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.extended
def test_the_board(second: str) -> None:
    """Means, intervals and ties are those of `fedbench leaderboard`."""
    store = ROOT / "leaderboards" / "results"
    board = fedbench.leaderboard(store, preset="laptop", dataset="cifar10").as_dict()["rows"]
    tables = re.findall(
        r"^## Board cifar10, alpha (\S+)\n(.*?)^ties:\n((?:  \S[^\n]*\n)+)",
        second,
        re.DOTALL | re.M,
    )
    assert [float(alpha) for alpha, *_ in tables] == [0.1, 1.0, 100.0]
    for alpha, table, ties in tables:
        lines = [r for r in board if (r["alpha"], r["num_rounds"]) == (float(alpha), 12)]
        assert len(lines) == len(table.splitlines()) - 1 == 11
        groups: dict[str, set[str]] = {}
        for line in lines:
            shown = re.findall(rf"^ *{line['method']} +([\d.]+) +([\d.]+)", table, re.MULTILINE)[0]
            expected = 100 * line["mean"], 50 * (line["ci95_high"] - line["ci95_low"])
            assert [*map(float, shown)] == pytest.approx(expected, abs=0.0051)
            groups.setdefault(line["ties"], set()).add(line["method"])
        listed = [{*map(str.strip, names.split(","))} for names in ties.splitlines()]
        assert listed == [*groups.values()]


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
    """Orders, regrets and verdicts; intervals and p have other draws in either script."""
    page = (ROOT / "leaderboards" / "studies" / "confirmation" / "README.md").read_text(
        encoding="utf-8"
    )
    tables = [
        [line.split() for line in part.splitlines()[1:]]
        for part in second.partition("## Confirmation: ")[2].split("\n\n## Confirmation: ")
    ]
    orders, of_methods, hypotheses, regrets = tables
    taus = {rule: numbers for rule, *numbers in of_methods[1:]}
    lost = dict(zip(RULES, next(line for line in regrets if line[0] == "mean")[3:8], strict=True))
    by_rule = {line[0]: line for line in orders[1:] if line}
    line = r"^\| `(\S+)` \| (\S+) \[.*?\] " + r"\| (\S+) " * 6 + r"\|$"
    shown = re.findall(line, page, re.MULTILINE)
    assert {rule for rule, *_ in shown} == {*RULES}
    for rule, mean, *of_method, four, all_trials in shown:
        aligned, simsiam, featarc, lejepa = (value.replace("−", "-") for value in of_method)
        assert taus[rule] == [aligned, featarc, lejepa, simsiam]
        assert [mean, four, all_trials] == [by_rule[rule][1], by_rule[rule][-3], lost[rule]]
    verdicts = re.findall(r"^\| H\d `(\S+)` > `(\S+)` .* \| (\w+) \|$", page, re.MULTILINE)
    assert [(line[0], line[1], line[-1]) for line in hypotheses[1:5]] == verdicts
