"""Settings of the documentation site, which `make docs` builds with Sphinx.

Pages are the Markdown files beside this one; those in `generated/` are written by `pages.py` when a
build begins. Tutorials are notebooks kept as text, executed by the build. Neither the build nor the
finished site needs a network: the theme brings its fonts and the search runs in the browser.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
# `fedbench` in the tutorials' shell cells is that of the Python that builds.
os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
for name in [name for name in os.environ if name.startswith("FEDBENCH")]:
    if name != "FEDBENCH_DATA_DIR":
        del os.environ[name]  # tutorials show what a reader gets, whatever this shell has set

import outputs  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402

import fedbench  # noqa: E402
import pages  # noqa: E402

pages.write(HERE / "generated")

project = "fedbench"
version = release = fedbench.__version__
html_title = f"fedbench {release}"
copyright = "the authors of fedbench, Apache-2.0"

extensions = ["myst_nb"]
exclude_patterns = [
    "_build",
    "package.md",
    "generated/extra",
    "generated/board.md",
    "generated/columns.md",
    "generated/views.md",
]
html_theme = "furo"
html_extra_path = ["generated/extra"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b57d0", "color-brand-content": "#0b57d0"},
    "dark_css_variables": {"color-brand-primary": "#8ab4f8", "color-brand-content": "#8ab4f8"},
}
html_static_path = ["static"]
html_css_files = ["site.css"]

smartquotes_action = "qe"  # `--option` in running text keeps its hyphens
myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300  # seconds for a cell, on a machine that may be busy
nb_execution_in_temp = True
nb_merge_streams = True


def setup(app: Sphinx) -> None:
    """Adapt links that lead out of the site; pages are read in the repository as well."""
    app.connect("source-read", _for_site)
    app.connect("source-read", _with_links_to_runs)
    app.connect("source-read", _with_outputs)


def _for_site(app: Sphinx, page: str, source: list[str]) -> None:
    if not page.startswith("generated/"):  # written for the site
        source[0] = pages.for_site(source[0], HERE / f"{page}.md")


def _with_links_to_runs(app: Sphinx, page: str, source: list[str]) -> None:
    if page == "claims":
        store = fedbench.open_store(pages.RESULTS)
        source[0] = pages.results_pages.link_rows(source[0], store, "generated/results")


def _with_outputs(app: Sphinx, page: str, source: list[str]) -> None:
    if app.config.nb_execution_mode != "off" and not page.startswith(("generated/", "tutorials/")):
        source[0] = outputs.with_outputs(page, source[0])
