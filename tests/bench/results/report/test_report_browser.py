"""The report page in a browser: sorting, filtering, every number, a phone's width."""

from pathlib import Path
from unittest.mock import ANY

import pytest

from fedbench.bench.results.store.store import Store
from tests.browser import in_browser

from .test_report import page_of

STEPS = r"""
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
const shut = all("figure:not([hidden]):has(svg) h3").map((each) => each.textContent);
for (const each of all("details.part")) each.open = true;
await pause();
const out = { shut, title: document.title, runs: rowsOf("Runs"), board: rowsOf("Leaderboard") };
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
return out;
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Path]:
    return page_of(tmp_path_factory.mktemp("rep ort"))


@pytest.mark.browser
def test_in_a_browser(written: tuple[Store, Path]) -> None:
    store, out = written[0], in_browser(written[1], STEPS)
    assert out["errors"] == []
    assert out["title"].startswith("fedbench")
    assert (out["filtered"], out["nothing"]) == (3, 0)
    assert out["charts"] >= 12
    opened = "Methods,Along an axis,Training loss"
    assert ",".join(out["shut"]) == opened  # the rest is drawn when it is opened
    assert ",".join(out["titles"]) == (
        f"{opened},Accuracy against bytes,Accuracy against minutes,Over rounds and bytes,"
        "Methods and cells,Mean ranks,Objective against accuracy,Angles between classes,"
        "Map of test features,Tuning history,Parallel coordinates of trials,"
        "Objective against accuracy of trials"
    )
    assert out["svg"] == ["svg", ANY, "a < b", False]
    assert out["svg"][1] >= 3
    assert out["csv"] == 'a,linear\n"\'=b,c",0.5\nd,\n'
    assert out["link"] == "#hide=byol&metric=knn_acc"
    assert out["nolink"] in ("", "#")
    assert out["unwarned"] == []
    assert out["warned"] == ["Not on this page, so that the first of the list is shown: Cell foo."]
    # Three cells: a title each, two methods of three; of the runs that failed, their two lines.
    assert out["without"] == [len(out["board"]) - 3, "Lines shown: 4 of 5"]
    assert out["marks"] > 40
    assert out["focusable"]
    assert out["wide"] == 0
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


@pytest.mark.browser
def test_on_a_phone(written: tuple[Store, Path]) -> None:
    assert in_browser(written[1], "return {};", width=500)["wide"] == 0
