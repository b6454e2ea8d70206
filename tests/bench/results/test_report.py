"""The page: its numbers are the store's, it needs nothing else, and it works in a browser."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import fedbench
from fedbench.bench.config import DataConfig, RunConfig
from fedbench.bench.errors import ConfigError, StoreError
from fedbench.bench.report.series import columns
from fedbench.bench.results.formats import UNEQUAL_BUDGETS, plain_cells
from fedbench.bench.results.row import Row
from fedbench.bench.results.store import Store

MakeRow = Callable[..., Row]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
EVIL = "</script><script>document.title='taken'</script><b>&amp;"


def fill(store: Store, make_row: MakeRow) -> None:
    """Three methods, three alphas, three seeds, curves, a study, a failed and a diverged run."""
    for alpha in (0.1, 1.0, 100.0):
        for index, spec in enumerate(("simclr", "byol", "supervised")):
            for seed in range(3):
                accuracy = 0.3 + 0.1 * index + 0.013 * seed**2 + alpha / 1e4
                config = RunConfig(spec=spec, seed=seed, data=DataConfig(alpha=alpha))
                row = make_row(
                    config,
                    linear_acc=accuracy,
                    knn_acc=accuracy - 0.05,
                    objective=accuracy / 3,
                    untrained_knn_acc=0.2,
                    bytes_up=1_234_567,
                    bytes_down=2_345_678,
                    wall_seconds=12.34 + seed,
                    rounds_done=10,
                    hardware="x86_64, 2 cores",
                    device="cpu",
                )
                store.write_row(row)
                point = {"round_index": 4, "bytes_up": 5, "bytes_down": 6, "metrics.knn_acc": 0.25}
                store.write_curve(row.row_id, [point])
    store.write_row(make_row(RunConfig(spec="shaky"), status="diverged"))
    store.write_row(make_row(RunConfig(spec="broken"), status="error", error=EVIL))
    folder = store.cell_dir(row.row_id)
    (folder / "geometry.json").write_text(json.dumps(geometry(row)))
    for number in range(5):
        record = {"status": "ok", "seeds": [0], "params": {"client.lr": 0.1}, "seconds": 2.0}
        watched = {"knn_acc": 0.5 + 0.01 * number**2}
        store.write_trial("study", number, {**record, "objective": number / 10, "watched": watched})
    store.write_study("study", {"spec": "simclr", "preset": "demo", "sampler": "tpe"})


@pytest.fixture(scope="module")
def written(make_row: MakeRow, tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Path]:
    root = tmp_path_factory.mktemp("rep ort")
    store, file = Store(root / "störe"), root / "page.html"
    fill(store, make_row)
    assert fedbench.report(file, store).num_rows == 29
    return store, file


def data_of(file: Path) -> dict[str, Any]:
    text = file.read_text(encoding="utf-8")
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    data: dict[str, Any] = json.loads(found)
    return data


def unpack(column: Any) -> list[Any]:
    return column if isinstance(column, list) else [column["d"][place] for place in column["i"]]


def test_every_run_is_on_the_page_with_the_stores_numbers(written: tuple[Store, Path]) -> None:
    store, file = written
    runs = {name: unpack(column) for name, column in data_of(file)["runs"].items()}
    rows = store.rows()
    for name, values in runs.items():
        if name != "started_at":
            assert values == [getattr(row, name) for row in rows]


def test_tables_are_the_leaderboards(written: tuple[Store, Path]) -> None:
    store, file = written
    data = data_of(file)
    for metric in ("linear_acc", "knn_acc", "objective"):
        board = fedbench.leaderboard(store, metric=metric).board
        shown = data["boards"][metric]["groups"]
        assert [group["title"] for group in shown] == [group.title for group in board.groups]
        for group, expected in zip(shown, board.groups, strict=True):
            title = {"linear_acc": "linear %", "knn_acc": "k-NN %", "objective": "objective"}
            place = group["header"].index(title[metric])
            cells = [row[place] for row in group["rows"]]
            assert [c[1] for c in cells] == [line.mean for line in expected.lines]
            assert group["best"] == [bool(line.best) for line in expected.lines]
    (sweep,) = data["sweeps"]["linear_acc"]
    assert (sweep["axis"], len(sweep["points"])) == ("alpha", 9)


def test_curves_and_studies(written: tuple[Store, Path]) -> None:
    data = data_of(written[1])
    curves = [{k: unpack(v) for k, v in c.items()} for c in data["curves"].values()]
    knn = [i for i, m in enumerate(curves[0]["metric"]) if m == "knn_acc"]
    assert [curves[0]["round"][i] for i in knn][:3] == [0, 5, 10]
    assert [curves[0]["mean"][i] for i in knn][:2] == pytest.approx([0.2, 0.25])
    (study,) = data["studies"]
    assert (study["best"], study["best_objective"], study["seconds"]) == (4, 0.4, 10.0)
    assert study["correlations"][0]["n"] == 5
    assert study["correlations"][0]["spearman"] == pytest.approx(1.0)
    assert len(unpack(data["papers"]["printed"])) == 499


def test_the_page_needs_nothing_else(written: tuple[Store, Path]) -> None:
    store, file = written
    text = file.read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert not re.search(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=", text)
    assert len(text) < 1_000_000
    assert EVIL not in text
    assert f"{store.root}" not in text
    before = file.read_bytes()
    fedbench.report(file, store)
    assert file.read_bytes() == before


def test_unreadable_files_are_on_the_page(store: Store, make_row: MakeRow, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    store.write_row(make_row(linear_acc=0.5))
    (store.root / "rows" / f"{'0' * 20}.parquet").write_bytes(b"torn")
    assert len(fedbench.report(file, store).problems) == 1
    assert "not a whole Parquet file" in data_of(file)["problems"][0]


def test_the_page_says_that_tuning_budgets_differ(
    store: Store, make_row: MakeRow, tmp_path: Path
) -> None:
    for spec, trials in (("simclr", 24), ("byol", 4)):
        config = RunConfig(spec=spec)
        store.write_row(make_row(config, linear_acc=0.5, tuned=True, study_id=spec))
        study = {"spec": spec, "trials": trials, "seeds_per_trial": 2, "finished_at": "2026-01-02"}
        store.write_study(spec, study)
    fedbench.report(tmp_path / "page.html", store)
    (group,) = data_of(tmp_path / "page.html")["boards"]["linear_acc"]["groups"]
    notes = [row[group["header"].index("notes")] for row in group["rows"]]
    assert sorted(notes) == ["tuned in 48 runs, descriptive", "tuned in 8 runs, descriptive"]
    assert group["note"] == UNEQUAL_BUDGETS


def geometry(row: Row) -> dict[str, Any]:
    histogram = {"median": 80.0, "mean": 81.0, "edges": [0.0, 90.0, 180.0], "counts": [3, 1]}
    points = {"points": [[0.5, 1.5], [2.0, 3.0]], "labels": [0, 1], "class_names": ["a", "b"]}
    kinds = {"plain": histogram, "centred": histogram}
    named = {"run_id": row.row_id, "title": row.method, "setting": "demo", "clients": []}
    return {**named, "angles": kinds, "map": points}


def test_angles_and_maps_where_there_are(store: Store, make_row: MakeRow, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    for seed in range(2):
        row = make_row(RunConfig(seed=seed), linear_acc=0.5)
        store.write_row(row)
        text = json.dumps(geometry(row)) if seed == 0 else "{}"
        store.cell_dir(row.row_id).mkdir(parents=True)
        (store.cell_dir(row.row_id) / "geometry.json").write_text(text)
    (problem,) = fedbench.report(file, store).problems
    assert "geometry.json" in problem
    (found,) = data_of(file)["geometry"]
    assert found["angles"]["plain"]["counts"] == [3, 1]
    assert found["map"]["points"] == [[0.5, 1.5], [2.0, 3.0]]


def test_wrong_use(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store at"):
        fedbench.report(tmp_path / "page.html", store)
    store.root.mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"ends in \.html"):
        fedbench.report(tmp_path / "page.pdf", store)
    assert fedbench.report(tmp_path / "empty.html", store).num_rows == 0


def test_columns_store_texts_once() -> None:
    found = columns([{"a": "x", "b": 1.5}, {"a": "x", "b": None}, {"a": "x", "b": 2}], ["a", "b"])
    assert found == {"a": {"d": ["x"], "i": [0, 0, 0]}, "b": [1.5, None, 2]}


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
    """What the page comes to in headless Chromium after `STEPS`."""
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
    found = re.search(r'<pre id="outcome">(.*?)</pre>', done.stdout, re.S)
    assert found, done.stderr[-2000:]
    outcome: dict[str, Any] = json.loads(html.unescape(found[1]))
    assert "failed" not in outcome, outcome
    return outcome


@pytest.fixture(scope="module")
def opened(written: tuple[Store, Path]) -> dict[str, Any]:
    return in_browser(written[1])


@pytest.mark.browser
def test_in_a_browser(written: tuple[Store, Path], opened: dict[str, Any]) -> None:
    store, out = written[0], opened
    assert out["errors"] == []
    assert out["title"].startswith("fedbench")
    assert (out["filtered"], out["nothing"]) == (3, 0)
    assert out["charts"] >= 6
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
        found: list[list[str]] = []
        for cells in table:
            if len(cells) == 1:
                found.append([])
            elif cells[0]:  # ranked
                found[-1].append(cells[1])
        return found

    # Best first; by name; and by accuracy again: always within a class.
    assert groups(out["board"])[1] == ["supervised", "byol", "simclr"]
    assert groups(out["byMethod"])[1] == ["byol", "simclr", "supervised"]
    assert groups(out["byAccuracy"])[1] == ["supervised", "byol", "simclr"]


def cells_of_a_run(row: Row) -> dict[str, str]:
    """What the page should say of a row, written apart from it."""

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
    found = [dict(zip(heads, each, strict=True)) for each in cells if len(each) > 1]
    lines = fedbench.leaderboard(store).board.lines
    expected = [{name: plain_cells(line).get(name, "") for name in heads} for line in lines]
    for each, line in zip(expected, lines, strict=True):
        if line.knn_acc_mean is not None:  # trapezia of 0.2 at round 0, 0.25 at 5, the final at 10
            each["area %"] = f"{(0.2 + 2 * 0.25 + line.knn_acc_mean) / 4 * 100:.1f}"
    assert sorted(map(str, found)) == sorted(map(str, expected))

    def numbers(label: str) -> list[list[str]]:
        return sorted(tables[f"{label}: numbers"][1:])

    means, curves = [], []
    for alpha in (0.1, 1.0, 100.0):
        for spec in ("simclr", "byol", "supervised"):
            own = [row for row in rows if (row.method, row.alpha) == (spec, alpha)]
            linear = [row.linear_acc or 0.0 for row in own if row.status == "ok"]
            low, high = stats.t.interval(0.95, 2, np.mean(linear), stats.sem(linear))
            shown = [f"{value * 100:.1f}" for value in (float(np.mean(linear)), low, high)]
            means.append([spec, f"{alpha:g}", *shown, "3"])
    assert numbers("Accuracy along an axis") == sorted(means)
    for spec in ("simclr", "byol", "supervised"):  # of the first class: untrained, stored, final
        own = [row for row in rows if (row.method, row.alpha) == (spec, 0.1)]
        knn = [row.knn_acc or 0.0 for row in own if row.status == "ok"]
        low, high = stats.t.interval(0.95, 2, np.mean(knn), stats.sem(knn))
        curves.append([spec, "0", "0.000", "20.0", "20.0", "20.0", "3"])
        curves.append([spec, "5", "1.100e-8", "25.0", "25.0", "25.0", "3"])
        final = [f"{value * 100:.1f}" for value in (float(np.mean(knn)), low, high)]
        curves.append([spec, "10", f"{(1_234_567 + 2_345_678) / 1e9:#.4g}", *final, "3"])
    assert numbers("Accuracy over rounds or bytes") == sorted(curves)
    assert [each[:2] for each in numbers("Objective against accuracy")] == [
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
    (machine,) = [each for each in tables["Machines"][1:] if each[1] == "cpu"]
    assert machine[4:7] == ["27", f"{hours:.2f}", f"{27 * 3_580_245 / 1e9:.2f}"]


@pytest.mark.browser
def test_on_a_phone(written: tuple[Store, Path]) -> None:
    assert in_browser(written[1], "500,900")["wide"] <= 0
