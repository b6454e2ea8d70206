"""The documentation site: every page has a place, tutorials are sound, and the build is strict."""

import ast
import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

from fedbench.bench.data.views.recipes import VIEWS
from fedbench.bench.method import registry
from fedbench.bench.results.store.store import Store
from fedbench.bench.testing import MethodContract, tiny_config, tiny_setup, train

from .test_makefile import make
from .test_readme import blocks, load

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
PACKAGES = ("sphinx", "furo", "myst_nb")


def toctree() -> set[str]:
    """Return the pages that the index and the list of studies name."""
    named = set()
    for page in (DOCS / "index.md", DOCS / "results" / "studies.md"):
        for block in re.findall(r"```{toctree}\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
            for line in filter(None, block.splitlines()):
                if not line.startswith(":"):
                    line = re.sub(r".* <(.*)>$", r"\1", line)  # a title before the page
                    target = (page.parent / line).resolve().relative_to(DOCS)
                    named |= {p.relative_to(DOCS).as_posix() for p in DOCS.glob(f"{target}.md")}
    return named


def test_every_page_is_in_the_table_of_contents() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=DOCS,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert len(tracked) > 20
    assert set(tracked) - toctree() == {"index.md", "package.md"}


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorials_are_notebooks_without_outputs(page: Path) -> None:
    cells = re.findall(r"^```{code-cell} python\n(.*?)^```", page.read_text("utf-8"), re.S | re.M)
    assert len(cells) >= 3
    for cell in cells:
        ast.parse(re.sub(r"^%%writefile .*\n", "", cell))  # the build executes them


def test_every_method_is_described_with_its_source() -> None:
    text = load("pages").methods_page()
    for name, entry in registry.entries().items():
        section = text.partition(f"\n### `{name}`\n")[2].partition("\n### ")[0]
        assert entry.summary in section
        assert f"(../../{Path(entry.source).resolve().relative_to(ROOT).as_posix()})" in section


def test_every_view_has_a_picture_in_its_table() -> None:
    text = (DOCS / "plugins.md").read_text(encoding="utf-8")
    for name, recipe in VIEWS.items():
        assert f"| `{name}` | {recipe.description} | ![{name}](static/views/{name}.jpg) |" in text
        assert (DOCS / "static" / "views" / f"{name}.jpg").is_file()


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


def test_every_number_leads_to_a_run_that_has_its_command(tmp_path: Path) -> None:
    """Two lines with three seeds each, of the rows of the repository."""
    shipped, store = Store(ROOT / "leaderboards" / "results"), Store(tmp_path / "store")
    kept = [row for row in shipped.rows() if row.grid == "participation" and row.seed < 3]
    kept = [row for row in kept if row.participation == 0.5 and row.method != "byol"]
    for row in kept:
        store.write_row(row)
        store.write_curve(row.row_id, shipped.curve(row.row_id))
    results = load("results_pages")
    results.write(tmp_path / "pages", store)
    texts = {path.stem: path.read_text("utf-8") for path in (tmp_path / "pages").iterdir()}
    assert texts.keys() == {"board", "methods", "simclr", "orchestra"}
    links = re.findall(r'href="(\w+)\.html#([\w-]+)">', texts["board"])
    assert len(links) == 2 * 6
    for page, anchor in links:
        assert f'<a id="{anchor}">' in texts[page]
    for row in kept:
        line = re.search(rf'^.*id="row-{row.row_id[:8]}".*$', texts[row.method], re.MULTILINE)
        assert line is not None
        assert f"fedbench run {row.method} --preset laptop --seed {row.seed}" in line[0]
        assert f"| {100 * (row.linear_acc or 0):.1f} |" in line[0]
    assert "[How simclr works](../methods.md#simclr)" in texts["simclr"]


def test_ids_of_runs_become_links() -> None:
    store = Store(ROOT / "leaderboards" / "results")
    row = next(row for row in store.rows() if row.method == "simclr+uv")
    text = load("results_pages").link_rows(
        f"{row.row_id[:8]}, 01234567, x{row.row_id}", store, "a/b"
    )
    link = f'<a href="a/b/simclr-with-uv.html#row-{row.row_id[:8]}">{row.row_id[:8]}</a>'
    assert text == f"{link}, 01234567, x{row.row_id}"


@pytest.mark.extended  # minutes; the workflow `site` builds it too
@pytest.mark.timeout(1200)
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in PACKAGES), reason="the extra docs has it"
)
def test_make_site(tmp_path: Path) -> None:
    """A warning is an error, and so is one of a tutorial; pages need no network."""
    make("site", f"SITE={tmp_path / 'html'}")
    built = sorted((tmp_path / "html").rglob("*.html"))
    assert len(built) > 25
    for page in built:
        loads = (
            r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?https?:|<link\b[^>]*\bhref=\"?https?:"
        )
        assert not re.search(loads, page.read_text("utf-8")), page.name
    results = tmp_path / "html" / "generated" / "results"
    line = "fedbench run simclr+uv --preset laptop --seed 0"  # with its hyphens
    assert line in (results / "simclr-with-uv.html").read_text("utf-8").replace(
        '</span> <span class="pre">', " "
    )
