"""Pages of the site about results: the board, a page for each method, links to runs.

Everything comes from the rows of a store. Each number of the board leads to the runs that it is a
mean of, and each run has the command that makes it.
"""

import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fedbench
from fedbench.bench.method import registry
from fedbench.bench.results.leaderboard.columns import BOARD
from fedbench.bench.results.leaderboard.entries import Group
from fedbench.bench.results.leaderboard.formats import group_table
from fedbench.bench.results.leaderboard.leaderboard import Leaderboard
from fedbench.bench.results.store.row import Row
from fedbench.bench.results.store.store import Store
from fedbench.bench.terminal.show_runs import sparkline

_FILTER = """\
```{raw} html
<form class="filter" hidden>
<label>Method <input name="method" type="search" placeholder="simclr"></label>
<label>Setting <input name="setting" type="search" placeholder="alpha 0.1"></label>
<label>At least <input name="seeds" type="number" min="1" max="99" value="1"> seeds</label>
<output></output>
</form>
<script defer src="../../_static/board.js"></script>
```
"""


_WORDS = {"rank", "best", "ties", "seeds", "notes"}
"""Headings of the board whose cells are not numbers of runs."""


def write(folder: Path, store: Store) -> None:
    """Write the pages into a folder: `board.md`, `methods.md`, and one for each method."""
    folder.mkdir(parents=True, exist_ok=True)
    ranking = fedbench.leaderboard(store)
    groups = ranking.board.groups
    rows = {row.row_id: row for row in reversed(store.rows())}  # of replicas the first
    methods = sorted({row.method for row in rows.values()})
    (folder / "board.md").write_text(board_page(ranking.board), encoding="utf-8")
    (folder / "methods.md").write_text(index_page(methods, groups), encoding="utf-8")
    for method in methods:
        text = method_page(method, groups, rows, store)
        (folder / f"{_file(method)}.md").write_text(text, encoding="utf-8")


def board_page(board: Leaderboard) -> str:
    """Return the tables of all comparability classes."""
    parts = [
        "# Board",
        "Runs of `leaderboards/results`, ranked as `fedbench leaderboard --store"
        " leaderboards/results` ranks them: a table for each comparability class, linear accuracy"
        " in %, mean over seeds ± half of the 95 % interval. Seeds from 100 on, which chose"
        " learning rates, count here and not on [the first page](../../index.md). Every number"
        " leads to its runs, and"
        " each run has its command. [Leaderboards](../../leaderboards.md) explains what is"
        " comparable and the tests; [the report](../../results/gallery.md) draws the same rows.",
        _FILTER,
    ]
    for group in board.groups:
        table = group_table(group)
        left_out = table.narrow[:2]  # by a page that is no wider than a book
        lines = [
            [
                _cell(entry, name, cell)
                for name, cell in zip(table.header, cells, strict=True)
                if name not in left_out
            ]
            for entry, cells in zip(group.entries, table.rows, strict=True)
        ]
        header = [name for name in table.header if name not in left_out]
        parts += [f"## {group.title}", _table(header, lines)]
        parts += [f"{html.escape(line)}." for line in table.below()]
    return "\n\n".join(parts) + "\n"


def columns_page() -> str:
    """Return the list of the board's columns."""
    lines = [
        [f"`{column.name}`", column.heading("linear_acc") or "–", html.escape(column.meaning)]
        for column in BOARD
    ]
    return _table(["`--json`, CSV", "table", "meaning"], lines) + "\n"


def index_page(methods: Sequence[str], groups: Sequence[Group]) -> str:
    """Return the list of methods, which is the parent of their pages."""
    lines = []
    for method in methods:
        of = [entry for group in groups for entry in group.entries if entry.method == method]
        best = max((entry.gain for entry in of if entry.gain is not None), default=None)
        seeds = sum(entry.n_seeds for entry in of)
        gain = "" if best is None else f"{100 * best:+.1f}"
        name = f'<a href="{_file(method)}.html">{method}</a>'
        lines.append([name, _summary(method), str(seeds), gain])
    header = ["method", "idea", "runs", "highest gain, points"]
    return (
        "# Methods and their runs\n\nThe gain is that of linear accuracy over the same encoder"
        " before training, in the best setting of each method; settings differ, so it is no"
        " ranking.\n\n"
        f"{_table(header, lines)}\n\n"
        "```{toctree}\n:hidden:\n\n" + "\n".join(map(_file, methods)) + "\n```\n"
    )


def method_page(
    method: str,
    groups: Sequence[Group],
    rows: Mapping[str, Row],
    store: Store,
) -> str:
    """Return what a method is, what it costs, and each of its runs with its curve and command."""
    parts = [f"# {method}", _summary(method)]
    parts += [f"[How {name} works](../methods.md#{name})." for name in method.split("+")]
    mine = [(group, entry) for group in groups for entry in group.entries if entry.method == method]
    costs = [
        [
            html.escape(group.title),
            html.escape(entry.variant),
            _number(entry.mb_up, 1),
            _number(entry.mb_down, 1),
            _number(entry.minutes, 1),
            _interval(entry),
        ]
        for group, entry in mine
    ]
    header = ["setting", "variant", "MB up", "MB down", "minutes", "linear %"]
    parts += ["## Cost of a run", _table(header, costs), "## Runs"]
    for group, entry in mine:
        variant = f" · {entry.variant}" if entry.variant else ""
        parts.append(f"### {group.title}{variant}")
        parts.append(f'<a id="line-{_anchor(entry)}"></a>')
        parts.append(_runs([rows[i] for i in entry.run_ids], store))
    shown = {row_id for _, entry in mine for row_id in entry.run_ids}
    others = [row for row in rows.values() if row.method == method and row.row_id not in shown]
    if others:
        parts += ["### Runs in no mean: failed, or measured again", _runs(others, store)]
    return "\n\n".join(parts) + "\n"


def _runs(rows: Sequence[Row], store: Store) -> str:
    header = ["run", "seed", "linear %", "k-NN %", "objective", "loss by round", "command"]
    lines = []
    for row in rows:
        losses = [p["loss"] for p in store.curve(store.key(row)) if p.get("loss") is not None]
        curve = f"{sparkline(losses)} {losses[0]:.3g} to {losses[-1]:.3g}" if losses else ""
        # The last line is the run itself; without sources there is only `reproduce`.
        command = fedbench.describe(row.row_id, store).commands[-1]
        lines.append(
            [
                f'<a id="row-{row.row_id[:8]}" href="#row-{row.row_id[:8]}">{row.row_id[:8]}</a>',
                str(row.seed),
                _percent(row.linear_acc) or row.status,
                _percent(row.knn_acc),
                _number(row.objective),
                curve,
                "`" + command.replace("|", "\\|") + "`",
            ]
        )
    return _table(header, lines)


def link_rows(text: str, store: Store, to: str) -> str:
    """Make links of the ids of runs, whole or their first eight characters, in Markdown.

    Args:
        text: the page.
        store: whose runs are meant.
        to: the folder of the pages of methods, seen from the page.
    """
    homes = {row.row_id[:8]: row.method for row in store.rows()}

    def linked(found: re.Match[str]) -> str:
        short = found[0][:8]
        if short not in homes:
            return found[0]
        return f'<a href="{to}/{_file(homes[short])}.html#row-{short}">{found[0]}</a>'

    return re.sub(r"(?<![\w/#.-])[0-9a-f]{8}(?:[0-9a-f]{12})?(?![\w-])", linked, text)


def _summary(method: str) -> str:
    return " ".join(
        f"{entry.summary}" if not entry.is_addon else f"With {entry.name}: {entry.summary}"
        for entry in registry.parse_spec(method)
    )


def _file(method: str) -> str:
    return method.replace("+", "-with-")


def _anchor(entry: Any) -> str:
    return f"{entry.class_id[:8]}-{entry.config_id[:8]}"


def _method(entry: Any) -> str:
    """Return a link to the page of the method; what tells its lines apart follows and may wrap."""
    apart = html.escape(entry.label.removeprefix(entry.method))
    return f'<a href="{_file(entry.method)}.html">{entry.method}</a>{apart}'


def _cell(entry: Any, heading: str, text: str) -> str:
    if heading == "method":
        return _method(entry)
    return text if heading in _WORDS else _link(entry, html.escape(text))


def _link(entry: Any, text: str) -> str:
    if not text:
        return ""
    return f'<a href="{_file(entry.method)}.html#line-{_anchor(entry)}">{text}</a>'


def _interval(entry: Any) -> str:
    if entry.mean is None:
        return "–"
    if entry.ci95_low is None or entry.ci95_high is None:
        return _percent(entry.mean)
    return f"{_percent(entry.mean)} ± {50 * (entry.ci95_high - entry.ci95_low):.1f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _number(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *lines))
