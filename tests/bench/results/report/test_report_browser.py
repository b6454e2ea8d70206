"""The report page in a browser: sorting, filtering, every number, a phone's width."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
from scipy import stats

import fedbench
from fedbench.bench.results.leaderboard.formats import plain_cells
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store

from .test_report import BROWSERS, MakeRow, page_of

STEPS = r"""
const all = (selector) => [...document.querySelectorAll(selector)];
const texts = (row) => [...row.cells].map((cell) => cell.textContent);
const rowsOf = (label) => all(`table[aria-label="${label}"] tbody tr`).map(texts);
const heads = (label) => all(`table[aria-label="${label}"] thead th`);
const head = (label, title) => heads(label).find((cell) => cell.textContent === title);
const search = (label, words) => {
  const input = document.querySelector(`input[aria-label="Filter ${label}"]`);
  input.value = words; input.dispatchEvent(new Event("input"));
  const found = rowsOf(label); input.value = ""; input.dispatchEvent(new Event("input"));
  return found;
};
const steps = () => {
  const out = { title: document.title, runs: rowsOf("Runs"), board: rowsOf("Leaderboard") };
  out.heads = heads("Runs").map((cell) => cell.textContent);
  out.filtered = search("Runs", "byol alpha=100").length;
  out.nothing = search("Runs", "nosuchword").length;
  head("Leaderboard", "method").querySelector("button").click();
  out.byMethod = rowsOf("Leaderboard"); out.sort = head("Leaderboard", "method").ariaSort;
  head("Leaderboard", "linear %").querySelector("button").click();
  out.byAccuracy = rowsOf("Leaderboard");
  out.charts = all("figure svg").length;
  out.marks = all("figure svg path, figure svg circle").length;
  out.focusable = all("th button, input, select, summary").every((n) => n.tabIndex === 0);
  out.wide = document.documentElement.scrollWidth - innerWidth;
  out.titles = all("figure:not([hidden]) h3").map((head) => head.textContent);
  const picture = document.querySelector("figure:has(#bytes) .plot > svg:last-child");
  const parsed = new DOMParser().parseFromString(svgText("a < b", [picture]), "image/svg+xml");
  const root = parsed.documentElement;
  out.svg = [root.tagName, root.querySelectorAll("path").length];
  out.svg.push(root.querySelector("title").textContent, /var\(/.test(root.outerHTML));
  out.csv = csvText(["a", "linear %"], [["=b,c", ["50.0", 0.5]], ["d", ""]]);
  choose("hide", "byol"); choose("metric", "knn_acc");
  out.link = location.hash;
  out.without = [rowsOf("Leaderboard").length, all(".methods summary")[0].textContent];
  const warned = () => all("p.warning:not([hidden])").map((each) => each.textContent);
  out.unwarned = warned(); choose("cell", "foo"); out.warned = warned();
  choose("hide"); choose("metric"); choose("cell");
  out.nolink = location.hash;
  for (const numbers of all("figure details")) numbers.open = true;
  return out;
};
addEventListener("load", () => setTimeout(() => {
  let out; try { out = steps(); } catch (error) { out = { failed: String(error.stack) }; }
  const pre = document.createElement("pre"); pre.id = "outcome";
  const finish = () => {
    const named = (table) => [table.ariaLabel, [...table.rows].map(texts)];
    const tables = Object.fromEntries(all("table").map(named));
    pre.textContent = JSON.stringify({ ...out, tables, errors });
  };
  setTimeout(() => { finish(); document.body.append(pre); }, 100);
}, 100));
"""
WATCH = """<script>const errors = [];
addEventListener("error", (event) => errors.push(event.message));
addEventListener("securitypolicyviolation", (event) => errors.push(event.violatedDirective));
for (const kind of ["error", "warn"]) console[kind] = (...words) => errors.push(words.join(" "));
</script>"""


def in_browser(file: Path, size: str = "1280,900") -> dict[str, Any]:
    """Run `STEPS` on the page in headless Chromium and return the result."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    text = file.read_text(encoding="utf-8")
    text = text.replace("<title>", f"{WATCH}<title>", 1)
    probe = file.with_name("probe.html")
    probe.write_text(text.replace("</body>", f"<script>{STEPS}</script></body>"), encoding="utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={size}"]
    options = ["--virtual-time-budget=5000", "--dump-dom", probe.as_uri()]
    environment = {**os.environ, "HOME": str(file.parent)}
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=120, env=environment
    )
    match = re.search(r'<pre id="outcome">(.*?)</pre>', done.stdout, re.S)
    assert match, done.stderr[-2000:]
    outcome: dict[str, Any] = json.loads(html.unescape(match[1]))
    assert "failed" not in outcome, outcome
    return outcome


@pytest.fixture(scope="module")
def written(make_row: MakeRow, tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Path]:
    return page_of(make_row, tmp_path_factory.mktemp("rep ort"))


@pytest.fixture(scope="module")
def opened(written: tuple[Store, Path]) -> dict[str, Any]:
    return in_browser(written[1])


@pytest.mark.browser
def test_in_a_browser(written: tuple[Store, Path], opened: dict[str, Any]) -> None:
    store, out = written[0], opened
    assert out["errors"] == []
    assert out["title"].startswith("fedbench")
    assert (out["filtered"], out["nothing"]) == (3, 0)
    assert out["charts"] >= 12
    assert out["titles"] == [
        *("Methods and cells", "Ranking of a cell", "Along an axis"),
        *("Accuracy against bytes", "Accuracy against minutes", "Mean ranks"),
        *("Over rounds and bytes", "Objective against accuracy"),
        *("Angles between classes", "Map of test features", "Tuning history"),
        *("Parallel coordinates of trials", "Objective against accuracy of trials"),
    ]
    assert out["svg"] == ["svg", ANY, "a < b", False]
    assert out["svg"][1] >= 3
    assert out["csv"] == 'a,linear\n"\'=b,c",0.5\nd,\n'
    assert out["link"] == "#hide=byol&metric=knn_acc"
    assert out["nolink"] in ("", "#")
    assert out["unwarned"] == []
    assert out["warned"] == ["Not on this page, so that the first of the list is shown: Cell foo."]
    # Three cells: a title each, two methods of three; of the runs that failed, their two lines.
    assert out["without"] == [len(out["board"]) - 3, "Methods: 4 of 5"]
    assert out["marks"] > 40
    assert out["focusable"]
    assert out["wide"] <= 0
    assert out["sort"] == "ascending"

    rows = store.rows()
    assert len(out["runs"]) == len(rows)
    place = {name: index for index, name in enumerate(out["heads"])}
    for row, cells in zip(rows, out["runs"], strict=True):
        assert cells[place["run"]] == row.row_id
        assert cells[place["error"]] == (row.error or "")
        for title, value in (("linear %", row.linear_acc), ("k-NN %", row.knn_acc)):
            shown = "" if value is None else f"{value * 100:.1f}"
            assert cells[place[title]] == shown

    titles = [cells for cells in out["board"] if len(cells) == 1]
    assert len(titles) == 3

    def groups(table: list[list[str]]) -> list[list[str]]:
        methods: list[list[str]] = []
        for cells in table:
            if len(cells) == 1:
                methods.append([])
            elif cells[0]:  # ranked
                methods[-1].append(cells[1])
        return methods

    # Best first; by name; and by accuracy again: always within a class.
    assert groups(out["board"])[1] == ["supervised", "byol", "simclr"]
    assert groups(out["byMethod"])[1] == ["byol", "simclr", "supervised"]
    assert groups(out["byAccuracy"])[1] == ["supervised", "byol", "simclr"]


def cells_of_a_run(row: Row) -> dict[str, str]:
    """Expected text of a row on the page, computed independently."""

    def shown(value: float | None, scale: float, digits: int) -> str:
        return "" if value is None else f"{value * scale:.{digits}f}"

    return {
        "run": row.row_id,
        "status": row.status,
        "method": row.method,
        "preset": row.preset,
        "data": row.dataset,
        "partition": row.partition,
        "alpha": f"{row.alpha:g}",
        "clients": str(row.num_clients),
        "participation": f"{row.participation:g}",
        "rounds": str(row.num_rounds),
        "epochs": str(row.local_epochs),
        "seed": str(row.seed),
        "linear %": shown(row.linear_acc, 100, 1),
        "k-NN %": shown(row.knn_acc, 100, 1),
        "objective": shown(row.objective, 1, 3),
        "untrained k-NN %": shown(row.untrained_knn_acc, 100, 1),
        "MB up": shown(row.bytes_up, 1e-6, 1),
        "MB down": shown(row.bytes_down, 1e-6, 1),
        "seconds": shown(row.wall_seconds, 1, 1),
        "device": row.device or "",
        "started": row.started_at.isoformat(timespec="seconds"),
        "error": row.error or "",
    }


@pytest.mark.browser
def test_every_number_in_the_browser_is_the_stores(
    written: tuple[Store, Path], opened: dict[str, Any]
) -> None:
    store, tables = written[0], opened["tables"]
    rows = store.rows()
    heads, *runs = tables["Runs"]
    assert [dict(zip(heads, cells, strict=True)) for cells in runs] == list(
        map(cells_of_a_run, rows)
    )

    heads, *cells = tables["Leaderboard"]
    lines_shown = [dict(zip(heads, entry, strict=True)) for entry in cells if len(entry) > 1]
    board = fedbench.leaderboard(store).board
    lines = board.entries
    expected = [{name: cells.get(name, "") for name in heads} for cells in map(plain_cells, lines)]
    for texts, entry in zip(expected, lines, strict=True):
        if entry.knn_acc_mean is not None:  # trapezia of 0.2 at round 0, 0.25 at 5, the final at 10
            texts["area %"] = f"{(0.2 + 2 * 0.25 + entry.knn_acc_mean) / 4 * 100:.1f}"
    assert sorted(map(str, lines_shown)) == sorted(map(str, expected))

    def numbers(label: str) -> list[list[str]]:
        return sorted(tables[f"{label}: numbers"][1:])

    means, curves = [], []
    for alpha in (0.1, 1.0, 100.0):
        for spec in ("simclr", "byol", "supervised"):
            selected = [row for row in rows if (row.method, row.alpha) == (spec, alpha)]
            linear = [row.linear_acc or 0.0 for row in selected if row.status == "ok"]
            low, high = stats.t.interval(0.95, 2, np.mean(linear), stats.sem(linear))
            shown = [f"{value * 100:.1f}" for value in (float(np.mean(linear)), low, high)]
            means.append([spec, f"{alpha:g}", *shown, "3"])
    assert numbers("Along an axis") == sorted(means)
    for spec in ("simclr", "byol", "supervised"):  # of the first class: untrained, stored, final
        selected = [row for row in rows if (row.method, row.alpha) == (spec, 0.1)]
        knn = [row.knn_acc or 0.0 for row in selected if row.status == "ok"]
        low, high = stats.t.interval(0.95, 2, np.mean(knn), stats.sem(knn))
        curves.append([spec, "0", "0.000", "20.0", "20.0", "20.0", "3"])
        curves.append([spec, "5", "1.100e-8", "25.0", "25.0", "25.0", "3"])
        final = [f"{value * 100:.1f}" for value in (float(np.mean(knn)), low, high)]
        curves.append([spec, "10", f"{(1_234_567 + 2_345_678) / 1e9:#.4g}", *final, "3"])
    assert numbers("Over rounds and bytes") == sorted(curves)
    assert [entry[:2] for entry in numbers("Objective against accuracy")] == [
        ["byol", "3"],
        ["simclr", "3"],
        ["supervised", "3"],
    ]
    trials = tables["Trials of study"]
    assert trials[0] == [
        *("trial", "objective", "knn_acc", "seconds", "seeds", "values", "status", "error")
    ]
    assert trials[1:] == [
        [str(n), f"{n / 10:.4f}", f"{50 + n**2}.0", "2.0", "1", "client.lr=0.1", "ok", ""]
        for n in range(5)
    ]
    done = [row for row in rows if row.device]
    hours = sum(row.wall_seconds or 0.0 for row in done) / 3600
    (machine,) = [entry for entry in tables["Machines"][1:] if entry[1] == "cpu"]
    assert machine[4:7] == ["27", f"{hours:.2f}", f"{27 * 3_580_245 / 1e9:.2f}"]


@pytest.mark.browser
def test_on_a_phone(written: tuple[Store, Path]) -> None:
    assert in_browser(written[1], "500,900")["wide"] <= 0
