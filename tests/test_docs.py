"""The documentation site; its build refuses pages without a place and runs the tutorials."""

import importlib.util
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import fedbench
from fedbench.bench.data.views.recipes import VIEWS
from fedbench.bench.method import registry
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.settings import KEYS
from fedbench.bench.results.store.store import Store
from fedbench.bench.testing import MethodContract, tiny_config, tiny_setup, train
from perf import neighbours
from tests.browser import in_browser

from .test_makefile import make
from .test_readme import blocks, load

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PACKAGES = ("sphinx", "furo", "myst_nb")


def test_pages_and_entries_of_the_log_are_short() -> None:
    """Scripts write four of them. Entries of the log are dated, newest first."""
    written = {"claims.md", "papers.md", "configuration.md", "neighbours.md"}
    written |= {"generated", "_build"}
    pages = [page for page in DOCS.rglob("*.md") if not {*page.parts} & written]
    assert sum(len(page.read_text("utf-8").split()) for page in pages) <= 20_000
    log = (ROOT / "leaderboards" / "studies" / "log.md").read_text("utf-8")
    entries = re.findall(r"^## (\d{4}-\d\d-\d\d) · (.*?)(?=^## |\Z)", log, re.DOTALL | re.MULTILINE)
    assert len(entries) == log.count("\n## ") > 40
    assert [day for day, _ in entries] == sorted((day for day, _ in entries), reverse=True)
    assert max(len(text.split()) for _, text in entries) <= 200


def test_the_page_of_neighbours_is_what_its_script_writes() -> None:
    text = (DOCS / "neighbours.md").read_text("utf-8")
    for line in neighbours.LINES:
        assert f"\n| {line.package} | {line.call} | {line.ours} | " in text
    for name, formula, _, _ in neighbours.STEPS:
        shown = ", ".join(f"{step:.4f}" for step in neighbours.our_steps(name))
        assert re.search(rf"^\| `{name}` \| {re.escape(formula)} \|.*\| {shown} \|$", text, re.M)


def test_every_method_is_described_with_its_source() -> None:
    text = load("pages").methods_page()
    for name, entry in registry.entries().items():
        section = text.partition(f"\n### `{name}`\n")[2].partition("\n### ")[0]
        assert entry.summary in section
        assert f"(../../{Path(entry.source).resolve().relative_to(ROOT).as_posix()})" in section


def test_every_view_has_a_picture() -> None:
    assert {file.stem for file in (DOCS / "static" / "views").iterdir()} == {*VIEWS}


def test_the_addons_of_the_page_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry.entries()))
    text = (DOCS / "plugins.md").read_text("utf-8")
    for code in (block for block in blocks("python", text) if "(AddOn)" in block):
        exec(code, {"__name__": "fedbench.page"})
    contract = MethodContract()
    contract.spec = "simclr+floor"
    contract.test_chance_is_stated_for_every_logged_term(tmp_path)
    config = tiny_config("simclr+bounded", method__bounded__bound=0.25, federation__num_rounds=1)
    bounded = train(tiny_setup(config), tmp_path / "bounded")
    assert 0 < float((bounded.vector - bounded.initial).norm()) <= 0.25


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Row], Path]:
    """Rows of the repository, two lines with three seeds each, and the pages about them."""
    root = tmp_path_factory.mktemp("results")
    shipped, store = Store(ROOT / "leaderboards" / "results"), Store(root / "store")
    rows = [row for row in shipped.rows() if row.grid == "participation" and row.seed < 3]
    rows = [row for row in rows if row.participation == 0.5 and row.method != "byol"]
    for row in rows:
        store.write_row(row)
        store.write_curve(row.row_id, shipped.curve(row.row_id))
    load("results_pages").write(root / "pages" / "generated" / "results", store)
    return rows, root / "pages"


def test_every_number_leads_to_a_run_that_has_its_command(kept: tuple[list[Row], Path]) -> None:
    pages = kept[1] / "generated" / "results"
    texts = {path.stem: path.read_text("utf-8") for path in pages.iterdir()}
    assert texts.keys() == {"board", "methods", "simclr", "orchestra"}
    links = re.findall(r'href="(\w+)\.html#([\w-]+)">', texts["board"])
    assert len(links) >= 2 * 6
    for page, anchor in links:
        assert f'<a id="{anchor}">' in texts[page]
    for row in kept[0]:
        line = re.search(rf'^.*id="row-{row.row_id[:8]}".*$', texts[row.method], re.MULTILINE)
        assert line is not None
        assert f"`fedbench run {row.method} --preset {row.preset} " in line[0]
        assert f" --seed {row.seed}`" in line[0]
        assert f"| {100 * (row.linear_acc or 0):.1f} |" in line[0]
    assert "[How simclr works](../methods.md#simclr)" in texts["simclr"]


def test_the_list_of_columns_is_that_of_json(kept: tuple[list[Row], Path]) -> None:
    """Beside them a line has the columns of its class, and the title."""
    listed = re.findall(r"^\| `(\w+)` \|", load("results_pages").columns_page(), re.MULTILINE)
    (line, *_) = fedbench.leaderboard(kept[1].parent / "store").as_dict()["rows"]
    assert [*line] == [*listed, *KEYS, "group"]


BOARD = """
const lines = () => all("section > section tbody tr").filter((line) => line.checkVisibility());
const typed = (name, value) => {
  document.querySelector("form.filter").elements[name].value = value;
  document.querySelector("form.filter").dispatchEvent(new Event("input"));
  return [lines().length, document.querySelector("output").textContent];
};
const first = document.querySelector("section > section table");
const cells = (line) => [...line.cells].map((cell) => cell.textContent.trim());
const out = { heads: cells(first.tHead.rows[0]), given: lines().length };
out.all = typed("method", "");
out.lines = lines().map(cells);
out.hidden = all("section > section table").filter((each) => each.scrollWidth > each.clientWidth);
out.hidden = out.hidden.length;
out.simclr = typed("method", "SimCLR"); out.link = location.search; typed("method", "");
out.three = typed("seeds", "3"); out.four = typed("seeds", "4"); typed("seeds", "1");
out.setting = typed("setting", "laptop-2026-11, cifar10"); out.other = typed("setting", "mars");
return out;
"""
FOUND = "await pause(); return { links: all('#search-results li a').length };"
WITH_SPHINX = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in PACKAGES), reason="the extra docs has it"
)


@WITH_SPHINX
@pytest.mark.browser
def test_the_board_in_a_browser(kept: tuple[list[Row], Path], tmp_path: Path) -> None:
    """Every line and number is seen at 1,280 px, and filters leave those that fit."""
    settings = {"extensions": "myst_nb", "html_theme": "furo", "nb_execution_mode": "off"}
    settings |= {"html_static_path": f"{DOCS / 'static'}", "html_css_files": "site.css"}
    words = [word for name, value in settings.items() for word in ("-D", f"{name}={value}")]
    words += ["-D", "root_doc=generated/results/board", str(kept[1]), str(tmp_path)]
    build = [sys.executable, "-m", "sphinx", "-q", "-C", "-b", "html", *words]
    subprocess.run(build, check=True, capture_output=True)
    page = tmp_path / "generated" / "results" / "board.html"
    out = in_browser(page, BOARD, query="?method=orchestra")
    assert (out["errors"], out["wide"], out["hidden"]) == ([], 0, 0)
    assert out["given"] == 1
    assert out["all"] == [2, "2 of 2 lines"]
    for cells in out["lines"]:
        line = dict(zip(out["heads"], cells, strict=True))
        rows = [row for row in kept[0] if row.method == line["method"]]
        assert line["seeds"] == f"{len(rows)}" == "3"
        for head, name in (("linear %", "linear_acc"), ("k-NN %", "knn_acc")):
            mean = statistics.fmean(getattr(row, name) for row in rows)
            assert line[head].split(" ")[0] == f"{100 * mean:.1f}"
    assert (out["simclr"], out["link"]) == ([1, "1 of 2 lines"], "?method=SimCLR")
    assert (out["three"][0], out["four"][0]) == (2, 0)
    assert (out["setting"][0], out["other"][0]) == (2, 0)


def test_ids_of_runs_become_links() -> None:
    store = Store(ROOT / "leaderboards" / "results")
    row = next(row for row in store.rows() if row.method == "simclr+uv")
    text = load("results_pages").link_rows(
        f"{row.row_id[:8]}, 01234567, x{row.row_id}", store, "a/b"
    )
    link = f'<a href="a/b/simclr-with-uv.html#row-{row.row_id[:8]}">{row.row_id[:8]}</a>'
    assert text == f"{link}, 01234567, x{row.row_id}"


@pytest.mark.extended
def test_python_of_a_page_goes_on_and_what_fails_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("sphinx")
    outputs = load("outputs")
    page = "```py\na = 1\nprint('one')\n```\n\n```py\nprint(a + 1)\n```\n\n```python\nno()\n```\n"
    shown = outputs.with_outputs("page", page)
    assert re.findall(r"```text\n(.*?)```", shown, re.DOTALL) == ["one\n", "2\n"]
    assert caplog.text == ""
    assert outputs.with_outputs("page", "```py\n1 / 0\n```\n").endswith("```text\n```\n")
    assert "1 / 0" in caplog.text


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; warnings and errors of tutorials are errors."""
    html = tmp_path_factory.mktemp("site") / "html"
    make("site", f"SITE={html}")
    return html


@WITH_SPHINX
@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(3600)  # minutes, and a machine may be busy
def test_make_site(site: Path) -> None:
    """Its pages need no network."""
    built = sorted(site.rglob("*.html"))
    assert len(built) > 25
    for page in built:
        loads = (
            r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?https?:|<link\b[^>]*\bhref=\"?https?:"
        )
        assert not re.search(loads, page.read_text("utf-8")), page.name
    line = "fedbench run simclr+uv --preset laptop-2026-11 --seed 0"  # with its hyphens
    page = site / "generated" / "results" / "simclr-with-uv.html"
    assert line in page.read_text("utf-8").replace('</span> <span class="pre">', " ")


@WITH_SPHINX
@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(3600)
@pytest.mark.browser
def test_the_site_in_a_browser(site: Path) -> None:
    board = in_browser(site / "generated" / "results" / "board.html", BOARD)
    entries = len(fedbench.leaderboard(ROOT / "leaderboards" / "results").board.entries)
    assert (board["all"], board["hidden"]) == ([entries, f"{entries} of {entries} lines"], 0)
    for page in sorted(site.rglob("*.html")):
        out = in_browser(page, "return {};")
        assert (page.name, out["errors"], out["wide"]) == (page.name, [], 0)
    found = in_browser(site / "search.html", FOUND, query="?q=dirichlet")
    assert found["links"] > 3
