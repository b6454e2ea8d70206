"""Write the pages of the site that are made from code and results: docs/generated/.

Methods come from the registry with their docstrings, tables and the report from
leaderboards/results, commands and Python from docs/reference.py.
"""

import inspect
import re
import sys
from pathlib import Path

import reference
import results_pages
from matplotlib.figure import Figure

import fedbench
from fedbench.bench.data.views.recipes import VIEWS
from fedbench.bench.method import registry
from fedbench.bench.method.registry import Registered
from fedbench.bench.nn.weights import shipped_encoders
from fedbench.bench.results.store.store import Store
from fedbench.leaderboards.studies.board import board

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
STUDIES = ROOT / "leaderboards" / "studies"
RESULTS = ROOT / "leaderboards" / "results"


def write(folder: Path) -> None:
    """Write every page into a folder, and the report into its `extra/`."""
    (folder / "extra").mkdir(parents=True, exist_ok=True)
    (folder / "methods.md").write_text(methods_page(), encoding="utf-8")
    (folder / "views.md").write_text(views_table(), encoding="utf-8")
    (folder / "commands.md").write_text(reference.commands(), encoding="utf-8")
    (folder / "python.md").write_text(reference.python(), encoding="utf-8")
    (folder / "studies").mkdir(exist_ok=True)
    for file, page in shown().items():
        text = for_site(file.read_text("utf-8"), file)
        if file == STUDIES / "README.md":
            text += "\n```{toctree}\n:hidden:\n:glob:\n\nstudies/*\n```\n"
        (folder / page).write_text(text, encoding="utf-8")
    store = fedbench.open_store(RESULTS)
    results_pages.write(folder / "results", store)
    (folder / "columns.md").write_text(results_pages.columns_page(), encoding="utf-8")
    text, picture = first_board(store)
    (folder / "board.md").write_text(text, encoding="utf-8")
    picture.savefig(folder / "board.svg")
    # The images belong to the owners of the data sets.
    fedbench.report(folder / "extra" / "report.html", RESULTS, images=False)


def shown() -> dict[Path, str]:
    """Return the files of the repository that the site shows: file -> page in generated/."""
    studies = {f: f"studies/{f.parent.name}.md" for f in STUDIES.glob("*/README.md")}
    return {
        ROOT / "leaderboards" / "README.md": "store.md",
        ROOT / "leaderboards" / "encoders" / "README.md": "encoders.md",
        ROOT / "methods" / "README.md": "choices.md",
        STUDIES / "README.md": "studies.md",
        STUDIES / "log.md": "log.md",
        **studies,
    }


def for_site(text: str, file: Path) -> str:
    """Lead the links of a file to pages of the site; what the site lacks is only named."""
    pages = shown()

    def led(found: re.Match[str]) -> str:
        label, target, anchor = found.groups(default="")
        path = (file.parent / target).resolve()
        if path.is_relative_to(DOCS):
            return f"[{label}](/{path.relative_to(DOCS).as_posix()}{anchor})"
        return (
            f"[{label}](/generated/{pages[path]}{anchor})"
            if path in pages
            else f"`{label.strip('`')}`"
        )

    return re.sub(r"(?<!!)\[([^]]+)\]\(((?:\.\./|[\w-]+/?)[^):#]*)(#[^)]*)?\)", led, text)


def first_board(store: Store, alpha: float = 0.1) -> tuple[str, Figure]:
    """Return the board of the README at one alpha, as Markdown for the first page, and drawn."""
    runs = board.judged(store)
    table, _ = board.board(runs[runs["alpha"] == alpha])
    start = table["untrained"].mean()
    lines = [
        "| method | linear % | over random init | seeds | group | |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in table.iterrows():
        values = [f"[`{name}`](generated/results/{name}.md)", f"{row['mean']:.1f} ± {row['±']:.1f}"]
        values += [f"{row['mean'] - row['untrained']:+.1f}", row["n"], row["group"], row["note"]]
        lines.append(f"| {' | '.join(map(str, values))} |")
    figure = Figure(figsize=(7, 0.6 + 0.32 * len(table)), layout="constrained")
    axes = figure.subplots()
    shown = table[table["group"] != ""][::-1]  # a failed method is compared with nothing
    axes.errorbar(shown["mean"], shown.index, xerr=shown["±"], fmt="o", capsize=3, color="#0b57d0")
    axes.axvline(start, color="gray", linestyle="--")
    axes.annotate("random init", (start, len(shown) - 1), xytext=(4, 0), textcoords="offset points")
    axes.margins(y=0.1)
    axes.set_xlabel("linear accuracy in %, mean and 95 % interval")
    axes.grid(axis="x", alpha=0.3)
    return "\n".join(lines) + "\n", figure


def views_table() -> str:
    """Return the table of views, with the strips that view_pictures.py has drawn."""
    lines = ["| view | what is drawn | |", "|---|---|---|"]
    for name, recipe in VIEWS.items():
        lines.append(f"| `{name}` | {recipe.description} | ![{name}](static/views/{name}.jpg) |")
    return "\n".join(lines) + "\n"


def methods_page() -> str:
    """Describe each method and add-on in the words of its own source file."""
    shipped = ROOT / "methods"
    entries = [
        entry
        for entry in registry.entries().values()  # other packages may have added theirs
        if Path(inspect.getfile(entry.cls)).resolve().parent == shipped
    ]
    parts = [
        "# How each method works\n\nEvery section is the docstring of the class that runs: the"
        " idea, the source, and each deliberate deviation from it.",
        "## Methods",
        *(_section(entry) for entry in entries if not entry.is_addon),
        "## Add-ons",
        *(_section(entry) for entry in entries if entry.is_addon),
    ]
    return "\n\n".join(parts) + "\n"


def _section(entry: Registered) -> str:
    parts = [f"### `{entry.name}`", _markdown(entry.description)]
    if entry.bases is not None:
        parts.append("Goes with " + ", ".join(f"`{name}`" for name in sorted(entry.bases)) + ".")
    file = Path(inspect.getfile(entry.cls)).resolve().relative_to(ROOT)
    fields = [name for name in entry.cls.model_fields if name != "base"]
    if fields:
        anchor = f"{'add-on' if entry.is_addon else 'method'}-{entry.name}"
        names = ", ".join(f"`{name}`" for name in fields)
        parts.append(f"[Hyperparameters](../configuration.md#{anchor}): {names}.")
    parts.append(f"Code: [{file}](../../{file}).")
    if encoders := [name for name in shipped_encoders() if name.startswith(f"{entry.name}@")]:
        names = ", ".join(f'`fedbench.load_encoder("{name}")`' for name in encoders)
        parts.append(f"[Encoders](encoders.md): {names}.")
    return "\n\n".join(parts)


def _markdown(docstring: str) -> str:
    """Make links of bare addresses; the rest of a docstring is Markdown as it is."""
    return re.sub(r"https?://[^\s,;)]*[^\s,;).:]", r"<\g<0>>", docstring)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("generated"))
