"""The documentation site: every page has a place, tutorials are sound, and the build is strict."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fedbench.bench.method import registry

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
PACKAGES = ("sphinx", "furo", "myst_nb")


def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pages", DOCS / "pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    text = pages().methods_page()
    for name, entry in registry.entries().items():
        section = text.partition(f"\n### `{name}`\n")[2].partition("\n### ")[0]
        assert entry.summary in section
        assert f"(../../{Path(entry.source).resolve().relative_to(ROOT).as_posix()})" in section


def test_tables_have_the_rows_of_the_repository() -> None:
    text = pages().tables_page()
    assert text.count("\n## ") > 3
    assert "| simclr |" in text


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(1200)
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in PACKAGES),
    reason="the extra docs is not installed: pip install -e '.[docs]'",
)
def test_the_site_builds_without_a_warning_and_needs_no_network(tmp_path: Path) -> None:
    """The build executes every tutorial and fails on the first error."""
    command = [sys.executable, "-m", "sphinx", "-q", "-E", "-W", "-b", "html", "-d"]
    command += [str(tmp_path / "doctrees"), str(DOCS), str(tmp_path / "html")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1100)
    assert done.returncode == 0, done.stderr
    built = sorted((tmp_path / "html").rglob("*.html"))
    assert len(built) > 25
    for page in built:
        loads = (
            r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?https?:|<link\b[^>]*\bhref=\"?https?:"
        )
        assert not re.search(loads, page.read_text("utf-8")), page.name
