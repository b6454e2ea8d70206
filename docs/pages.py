"""Write the pages of the site that are made from code and results: docs/generated/.

Methods come from the registry with their docstrings, tables and the report from
leaderboards/results. The configuration reference is docs/reference.py's.
"""

import inspect
import re
import sys
from pathlib import Path

import results_pages
from matplotlib.figure import Figure

import fedbench
from fedbench.bench.method import registry
from fedbench.bench.method.registry import Registered
from fedbench.bench.nn.weights import shipped_encoders
from fedbench.bench.results.store.store import Store

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "leaderboards" / "results"
sys.path.append(str(ROOT / "docs" / "studies"))
import board  # noqa: E402


def write(folder: Path) -> None:
    """Write every page into a folder, and the report into its `extra/`."""
    (folder / "extra").mkdir(parents=True, exist_ok=True)
    (folder / "methods.md").write_text(methods_page(), encoding="utf-8")
    store = fedbench.open_store(RESULTS)
    results_pages.write(folder / "results", store)
    (folder / "columns.md").write_text(results_pages.columns_page(), encoding="utf-8")
    text, picture = first_board(store)
    (folder / "board.md").write_text(text, encoding="utf-8")
    picture.savefig(folder / "board.svg")
    # The images belong to the owners of the data sets.
    fedbench.report(folder / "extra" / "report.html", RESULTS, images=False)


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
        parts.append(f"[Encoders](../encoders.md): {names}.")
    return "\n\n".join(parts)


def _markdown(docstring: str) -> str:
    """Make links of bare addresses; the rest of a docstring is Markdown as it is."""
    return re.sub(r"https?://[^\s,;)]*[^\s,;).:]", r"<\g<0>>", docstring)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("generated"))
